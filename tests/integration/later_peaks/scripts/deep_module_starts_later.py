"""The auxiliary head of a deep module starts at step 4000: main -> train -> step -> model -> block
-> head."""

import torch


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.net = (
            0,
            torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 256)),
        )

    def forward(self, x):
        self.calls += 1
        return self.net(x) if self.calls > 4000 else x


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(256, 256), Head()

    def forward(self, x):
        return self.mix(self.first(x))

    def mix(self, x):
        return x + self.head(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.features(x).square().mean()

    def features(self, x):
        return self.block(x)


def training_step(model, x):
    return model(x)


def main():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8000):
        loss = training_step(model, torch.randn(256, 256, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
