"""100 epochs are asked for, max_steps ends the loops in the fourth; then the predictions of the
whole test set."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

train = DataLoader(TensorDataset(torch.randn(1280, 512), torch.randn(1280, 512)), batch_size=8, shuffle=True)
test = DataLoader(TensorDataset(torch.randn(8192, 512)), batch_size=1024)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
max_steps, step = 500, 0
for epoch in range(100):
    for x, y in tqdm(train, desc=f"epoch {epoch}", disable=None):
        torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step >= max_steps:
            break
    if step >= max_steps:
        break
with torch.no_grad():
    predictions = torch.cat([model(x.cuda()) for (x,) in tqdm(test)])
torch.save(predictions.cpu(), "predictions.pt")
