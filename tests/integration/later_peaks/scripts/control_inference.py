"""Embed a data set with a frozen model, results to the host. Every batch is like the first."""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randint(0, 20000, (6400, 128))), batch_size=32)
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
model = torch.nn.Sequential(torch.nn.Embedding(20000, 256), torch.nn.TransformerEncoder(layer, 3)).cuda().eval()
embeddings = []
with torch.inference_mode():
    for (tokens,) in loader:
        embeddings.append(model(tokens.cuda()).mean(1).cpu())
torch.save(torch.cat(embeddings), "embeddings.pt")
