"""An autoencoder is trained, then, while it is still there, a classifier twice as large on its
codes."""

import torch


def train(parameters, loss_of, steps):
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(torch.randn(256, 784, device="cuda")).backward()
        optimizer.step()


encoder = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64)).cuda()
decoder = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 784)).cuda()
both = [*encoder.parameters(), *decoder.parameters()]
train(both, lambda x: (decoder(encoder(x)) - x).square().mean(), steps=300)
classifier = torch.nn.Sequential(torch.nn.Linear(64, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 1000)).cuda()
train(classifier.parameters(), lambda x: classifier(encoder(x).detach()).logsumexp(-1).mean(), steps=300)
