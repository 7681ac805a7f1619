"""Logits of the whole validation set are kept on the GPU and concatenated: twice 2 GB at the end of
each epoch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

VOCAB = 16000
train = DataLoader(TensorDataset(torch.randint(0, VOCAB, (2400, 32))), batch_size=8)
valid = DataLoader(TensorDataset(torch.randint(0, VOCAB, (1000, 32))), batch_size=8)
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 128), torch.nn.Linear(128, VOCAB)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for (tokens,) in train:
        tokens = tokens.cuda()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    all_logits, all_labels = [], []
    with torch.no_grad():
        for (tokens,) in valid:
            all_logits.append(model(tokens.cuda()))
            all_labels.append(tokens.cuda())
    logits, labels = torch.cat(all_logits), torch.cat(all_labels)
    print(epoch, (logits.argmax(-1) == labels).float().mean().item())
    del logits, labels, all_logits, all_labels
