"""pytorch-ignite evaluates every 500 iterations in large batches and keeps all outputs for
EpochMetric (on the GPU)."""

import torch
from ignite.engine import Engine, Events
from ignite.handlers import LRScheduler
from ignite.metrics import EpochMetric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LABELS = 400


class MultiLabel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(10_000, 256)
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.head = nn.Linear(1024, LABELS)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def loader(size, batch_size):
    data = TensorDataset(torch.randint(0, 10_000, (size, 40)), (torch.rand(size, LABELS) < 0.05).float())
    return DataLoader(data, batch_size=batch_size, shuffle=True)


model = MultiLabel().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()


def train_step(engine, batch):
    model.train()
    tokens, labels = (each.cuda(non_blocking=True) for each in batch)
    optimizer.zero_grad()
    loss = criterion(model(tokens), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def eval_step(engine, batch):
    model.eval()
    tokens, labels = (each.cuda() for each in batch)
    return torch.sigmoid(model(tokens)), labels


def micro_f1(scores, labels):
    predicted = scores > 0.5
    true = (predicted & (labels > 0.5)).sum()
    return (2 * true / (predicted.sum() + labels.sum() + 1e-9)).item()


trainer, evaluator = Engine(train_step), Engine(eval_step)
EpochMetric(micro_f1, check_compute_fn=False, device="cuda").attach(evaluator, "f1")
trainer.add_event_handler(
    Events.ITERATION_STARTED, LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 500, gamma=0.5))
)
valid = loader(12_000, 1000)


@trainer.on(Events.ITERATION_COMPLETED(every=500))
def evaluate(engine):
    evaluator.run(valid)
    print(engine.state.iteration, engine.state.output, evaluator.state.metrics)


trainer.run(loader(32_000, 64), max_epochs=4)
