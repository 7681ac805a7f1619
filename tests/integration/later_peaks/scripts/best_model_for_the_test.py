"""After training the best checkpoint is loaded onto the GPU, beside model, gradients and Adam's
state, for the test."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
best = float("inf")
for epoch in range(3):
    model.train()
    for _ in range(150):
        optimizer.zero_grad()
        x = torch.randn(32, 1024, device="cuda")
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        x = torch.randn(32, 1024, device="cuda")
        loss = torch.nn.functional.mse_loss(model(x), x).item()
    if loss < best:
        best = loss
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": loss}, "best.pt")

checkpoint = torch.load("best.pt", map_location="cuda")
model.load_state_dict(checkpoint["model"])
with torch.no_grad():
    print("test", model(torch.randn(32, 1024, device="cuda")).mean().item())
