"""The best weights so far are kept as a deep copy, which stays on the GPU: new before the old is
let go."""

import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(1600, 1024), torch.randint(0, 10, (1600,)))
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best_acc, best_weights = -1.0, None
for epoch in range(4):
    for phase in ("train", "val"):
        model.train(phase == "train")
        correct = 0
        for x, y in DataLoader(data, batch_size=16):
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = model(x)
                loss = torch.nn.functional.cross_entropy(out, y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            correct += (out.argmax(1) == y).sum().item()
        if phase == "val" and correct / len(data) >= best_acc:
            best_acc, best_weights = correct / len(data), copy.deepcopy(model.state_dict())
model.load_state_dict(best_weights)
