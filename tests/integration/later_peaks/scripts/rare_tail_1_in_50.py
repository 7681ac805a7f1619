"""One batch in 50 has a text eight times as long as the others, to which all are padded."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCAB = 8000
texts = [torch.randint(1, VOCAB, (1024 if i % 400 == 250 else 128,)) for i in range(4000)]
loader = DataLoader(texts, batch_size=8, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 512), torch.nn.Linear(512, VOCAB)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for batch in loader:
        batch = batch.cuda()
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
