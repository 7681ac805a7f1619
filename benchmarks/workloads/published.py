"""The training loop of the published runs of xMem, as a script that any job could run.

    python published.py --model VGG16 --optimizer Adam --batch-size 543 --zero-grad-mode null

Source: `perf_estimator/trainer/train_loop.py` and `perf_estimator/models.py` of
Stone-ResearchLife/xMem (MIT); what matters to memory is the order of its statements and which names
stay bound from one step to the next. Needs torch 2.6, torchvision 0.21 and transformers 4.51 for
the numbers of the paper; random inputs stand for CIFAR-10 and wikitext.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from models import UnknownModelError, build, is_image_model, vocabulary

IMAGE_SIZE = 86
IMAGE_STEPS = 3
"""The loop counts from 0 to its limit of 2, both included."""
TOKENS = 128
"""Sequences are padded to the longest of their batch, at most 128; a batch of 15 or more always has
one of 128."""
TEXT_STEPS = 4


def train_images(
    model: torch.nn.Module, optimizer_class: type, batch_size: int, zero_grad_mode: int
) -> None:
    """Three steps on batches of `batch_size` x 3 x 86 x 86. The optimizer is made after the model
    has moved.
    """
    device = torch.device("cuda")
    model.to(device)
    model.train()
    optimizer = optimizer_class(model.parameters(), lr=1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(IMAGE_STEPS):
        inputs = torch.rand(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.randint(0, 10, (batch_size,))
        if zero_grad_mode == 0:
            optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        if zero_grad_mode == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, predictions = torch.max(outputs, 1)  # noqa: RUF059 - stays referenced into the next step
        if zero_grad_mode == 2:
            optimizer.zero_grad()


def train_text(
    model: torch.nn.Module, optimizer_class: type, batch_size: int, zero_grad_mode: int
) -> None:
    """Four steps on batches of `batch_size` x 128 tokens. The optimizer is made before the model
    moves.
    """
    device = torch.device("cuda")
    optimizer = optimizer_class(model.parameters(), lr=1e-3)
    model.to(device)
    model.train()
    for _ in range(TEXT_STEPS):
        tokens = torch.randint(0, vocabulary(model), (batch_size, TOKENS))
        batch = {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": tokens.clone(),
        }
        if zero_grad_mode == 0:
            optimizer.zero_grad()
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        if zero_grad_mode == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if zero_grad_mode == 2:
            optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimizer", required=True, help="a class of torch.optim")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--zero-grad-mode", default="null", help="0, 1, 2 or null, which is 0")
    arguments = parser.parse_args()
    optimizer_class = getattr(torch.optim, arguments.optimizer, None)
    if optimizer_class is None:
        sys.exit(f"torch.optim has no {arguments.optimizer}")
    try:
        model = build(arguments.model, as_xmem=True)
    except UnknownModelError as error:
        sys.exit(str(error))
    mode = 0 if arguments.zero_grad_mode == "null" else int(arguments.zero_grad_mode)
    train = train_images if is_image_model(arguments.model) else train_text
    train(model, optimizer_class, arguments.batch_size, mode)


if __name__ == "__main__":
    main()
