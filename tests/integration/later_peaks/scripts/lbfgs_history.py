"""L-BFGS: its history of 50 pairs of vectors fills in the first 50 iterations, if the loss goes
down as on a GPU."""

import torch

torch.manual_seed(0)
x, y = torch.randn(2000, 500).cuda(), torch.randn(2000, 1000).cuda()
model = torch.nn.Sequential(torch.nn.Linear(500, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 1000)).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10, history_size=50)


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for epoch in range(20):
    loss = optimizer.step(closure)
    print(epoch, loss.item())
