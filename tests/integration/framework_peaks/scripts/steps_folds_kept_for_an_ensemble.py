"""Five folds of 400 steps each; the models stay on the GPU, and the last lines test their
ensemble."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
FOLDS, STEPS = 5, 400
data = TensorDataset(torch.randn(20_000, 300), torch.randint(0, 2, (20_000,)))
folds = torch.randperm(len(data)).chunk(FOLDS)


def train(indices):
    model = nn.Sequential(
        nn.Linear(300, 2048), nn.GELU(), nn.Dropout(0.2), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    step = 0
    while step < STEPS:
        for x, y in DataLoader(Subset(data, indices), batch_size=128, shuffle=True):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                return model.eval()
    return model.eval()


models = []
for k in range(FOLDS):
    training = torch.cat([fold for i, fold in enumerate(folds) if i != k]).tolist()
    models.append(train(training))
    print("fold", k, "done")
test = torch.randn(4096, 300).cuda()
with torch.no_grad():
    probabilities = torch.stack([model(test).softmax(-1) for model in models]).mean(0)
print(probabilities.argmax(-1).sum().item())
