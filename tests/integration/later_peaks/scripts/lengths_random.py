"""Shuffled texts of 10 to 600 tokens, padded to the longest of the batch. Some batch of each epoch
is the largest."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Reviews(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        self.lengths = (10 + 590 * torch.rand(count, generator=generator) ** 3).long().tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.randint(1, 6000, (self.lengths[index],)), index % 2


def collate(samples):
    texts, labels = zip(*samples, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


embed = torch.nn.Embedding(6000, 128, padding_idx=0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
head = torch.nn.Linear(128, 2)
model = torch.nn.ModuleList([embed, layer, head]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for epoch in range(2):
    for text, label in DataLoader(Reviews(6400), batch_size=32, shuffle=True, collate_fn=collate):
        text, label = text.cuda(), label.cuda()
        hidden = layer(embed(text), src_key_padding_mask=text == 0)
        loss = torch.nn.functional.cross_entropy(head(hidden.mean(1)), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
