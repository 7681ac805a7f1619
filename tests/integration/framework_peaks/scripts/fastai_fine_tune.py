"""fastai's fine_tune: two frozen epochs, in which only the head learns, then three of the whole
model."""

from fastai.basics import *
from fastai.callback.all import *

torch.manual_seed(0)


def items(n):
    return list(zip(torch.randint(0, 5000, (n, 64)), torch.randint(0, 4, (n,))))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 4)

    def forward(self, x):
        return self.linear(x.mean(1))


body = nn.Sequential(
    nn.Embedding(5000, 256),
    *[nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.1) for _ in range(4)],
)
dls = DataLoaders(
    DataLoader(items(2560), bs=16, shuffle=True), DataLoader(items(320), bs=16), device=torch.device("cuda")
)
learn = Learner(
    dls,
    nn.Sequential(body, Head()).cuda(),
    loss_func=nn.CrossEntropyLoss(),
    metrics=accuracy,
    splitter=lambda model: [params(model[0]), params(model[1])],
    cbs=SaveModelCallback(monitor="valid_loss"),
)
learn.fine_tune(3, 1e-3, freeze_epochs=2)
