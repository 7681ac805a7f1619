"""pytorch-ignite: a trainer and an evaluator with accuracy and loss after each epoch, same batches.
Peaks at once."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
).to(device)


def loader(size, shuffle=False):
    data = TensorDataset(torch.rand(size, 1, 28, 28), torch.randint(0, 10, (size,)))
    return DataLoader(data, batch_size=128, shuffle=shuffle, drop_last=True)


train_loader, val_loader = loader(38400, shuffle=True), loader(6400)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, device)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(criterion)}, device)


@trainer.on(Events.ITERATION_COMPLETED(every=100))
def log_loss(engine):
    print(f"epoch {engine.state.epoch} iteration {engine.state.iteration} loss "
          f"{engine.state.output:.4f}")


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val_loader)
    print(evaluator.state.metrics)


trainer.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("models", "net", n_saved=1), {"model": model})
trainer.run(train_loader, max_epochs=4)
