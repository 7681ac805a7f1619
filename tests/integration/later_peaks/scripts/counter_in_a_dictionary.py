"""State in a dictionary: state["step"] decides when distillation starts."""

import torch

student = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
teacher = torch.nn.Sequential(torch.nn.Linear(256, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 256)).cuda()
optimizer = torch.optim.Adam(student.parameters())
config = {"steps": 9000, "distill_from": 4000, "batch": 512}
state = {"step": 0}
while state["step"] < config["steps"]:
    x = torch.randn(config["batch"], 256, device="cuda")
    out = student(x)
    loss = (out - x).square().mean()
    if state["step"] >= config["distill_from"]:
        with torch.no_grad():
            target = teacher(x)
        loss = loss + (out - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state["step"] += 1
