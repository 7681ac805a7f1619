"""600 steps, then one evaluation over 20,000 samples at once. The peak comes after the last
step."""

import torch

x, y = torch.randn(20000, 512), torch.randn(20000, 1)
model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(600):
    pick = torch.randint(0, len(x), (64,))
    loss = (model(x[pick].cuda()) - y[pick].cuda()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    error = (model(x.cuda()) - y.cuda()).pow(2).mean()
print("error", error.item())
