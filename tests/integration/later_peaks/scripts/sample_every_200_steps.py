"""denoising-diffusion-pytorch's trainer: cycle(loader), next(), and 200 images sampled at every
200th step."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def cycle(loader):
    while True:
        yield from loader


class Trainer:
    def __init__(self, model, train_num_steps=500, save_and_sample_every=200, gradient_accumulate_every=2):
        self.model, self.num_steps, self.every = model.cuda(), train_num_steps, save_and_sample_every
        self.accumulate = gradient_accumulate_every
        self.data = cycle(DataLoader(TensorDataset(torch.randn(960, 3072)), batch_size=16, shuffle=True))
        self.optimizer = torch.optim.Adam(model.parameters(), lr=8e-5)
        self.step = 0

    @torch.inference_mode()
    def sample(self, count, steps=20):
        images, path = torch.randn(count, 3072, device="cuda"), []
        for _ in range(steps):
            images = images - 0.1 * self.model(images)
            path.append(images)
        return torch.stack(path, dim=1)

    def train(self):
        while self.step < self.num_steps:
            for _ in range(self.accumulate):
                (x,) = next(self.data)
                noise = torch.randn_like(x).cuda()
                loss = torch.nn.functional.mse_loss(self.model(x.cuda() + noise), noise) / self.accumulate
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step % self.every == 0:
                torch.save(self.sample(200).cpu(), f"sample-{self.step}.pt")


Trainer(torch.nn.Sequential(torch.nn.Linear(3072, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 3072))).train()
