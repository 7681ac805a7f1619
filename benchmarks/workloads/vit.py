"""ViT-B/16 on synthetic images, bf16 autocast and AdamW, as torchvision trains it; batches by a
DataLoader.
"""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

IMAGES = 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    given = parser.parse_args()
    images = torch.zeros(1, 3, 224, 224).expand(IMAGES, -1, -1, -1)
    loader = DataLoader(
        TensorDataset(images, torch.zeros(IMAGES, dtype=torch.long)), given.batch_size, shuffle=True
    )
    model = torchvision.models.vit_b_16().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    for batch, labels in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                model(batch.cuda()), labels.cuda(), label_smoothing=0.11
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


main()
