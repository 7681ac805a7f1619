"""fastai: a tabular-like network by fit_one_cycle, validated in batches of the same size. Peaks at
once."""

from fastai.basics import *
from fastai.callback.all import *

torch.manual_seed(0)


def items(n):
    return list(zip(torch.randn(n, 512), torch.randint(0, 12, (n,))))


dls = DataLoaders(
    DataLoader(items(38400), bs=256, shuffle=True, drop_last=True),
    DataLoader(items(5120), bs=256),
    device=torch.device("cuda"),
)
blocks = [nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.LayerNorm(512)) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(512, 12))
learn = Learner(dls, model.cuda(), loss_func=nn.CrossEntropyLoss(), metrics=accuracy)
learn.fit_one_cycle(4, 3e-3)
learn.save("tabular")
