"""ResNet-50 on synthetic images, channels_last, fp16 with GradScaler and SGD."""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class SyntheticImages(Dataset):
    """As many random 224 x 224 images as ImageNet has in a few batches."""

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 224, 224), index % 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    model = torchvision.models.resnet50().to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(
        SyntheticImages(), arguments.batch_size, num_workers=arguments.workers, pin_memory=True
    )
    for epoch in range(arguments.epochs):
        for images, labels in loader:
            images = images.to("cuda", memory_format=torch.channels_last, non_blocking=True)
            labels = labels.to("cuda", non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
