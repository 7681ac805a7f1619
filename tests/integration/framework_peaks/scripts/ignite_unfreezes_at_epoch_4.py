"""pytorch-ignite: only the head is trained, until an event of epoch 4 adds the embeddings and
layers to it."""

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Embedding(8000, 256),
            *[nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)],
        )
        self.classifier = nn.Linear(256, 6)

    def forward(self, tokens):
        return self.classifier(self.features(tokens)[:, 0])


model = Net().cuda()
model.features.requires_grad_(False)
optimizer = torch.optim.Adam(model.classifier.parameters(), lr=1e-3)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device="cuda")
ProgressBar(persist=False, mininterval=10).attach(trainer, output_transform=lambda loss: {"loss": loss})


@trainer.on(Events.EPOCH_STARTED(once=4))
def unfreeze():
    model.features.requires_grad_(True)
    optimizer.add_param_group({"params": model.features.parameters(), "lr": 1e-5})


data = TensorDataset(torch.randint(0, 8000, (3200, 64)), torch.randint(0, 6, (3200,)))
trainer.run(DataLoader(data, batch_size=16, shuffle=True), max_epochs=5)
