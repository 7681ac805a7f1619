"""An average of the weights from step 4000 on, by a hook after each optimizer step."""

import copy

import torch


class Average:
    def __init__(self, model, start):
        self.model, self.start, self.steps, self.average = model, start, 0, None

    @torch.no_grad()
    def __call__(self, *_):
        self.steps += 1
        if self.steps == self.start:
            self.average = copy.deepcopy(self.model)
        if self.average is not None:
            for mine, its in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(its, 0.001)


model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
optimizer.register_step_post_hook(Average(model, 4000))
for step in range(8000):
    x = torch.randn(16, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
