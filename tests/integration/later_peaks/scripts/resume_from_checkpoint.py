"""Resume: the checkpoint is loaded onto the GPU beside the model and kept until the end of the
script."""

import os

import torch

PATH = "checkpoint.pt"


def build():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def train(model, optimizer, start, end):
    for step in range(start, end):
        x = torch.randn(64, 1024, device="cuda")
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": end}, PATH)


if not os.path.exists(PATH):  # the first part of the job
    train(*build(), 0, 200)
model, optimizer = build()
checkpoint = torch.load(PATH, map_location="cuda")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
train(model, optimizer, checkpoint["step"], 400)
