"""Two towers trained on batches of 64; recall is computed at the end on the matrix of all 10,000 x
10,000 pairs."""

import torch
from torch.utils.data import DataLoader, TensorDataset

images, texts = torch.nn.Linear(512, 256).cuda(), torch.nn.Linear(300, 256).cuda()
data = TensorDataset(torch.randn(10000, 512), torch.randn(10000, 300))
optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters()])
for epoch in range(3):
    for image, text in DataLoader(data, batch_size=64, shuffle=True):
        logits = images(image.cuda()) @ texts(text.cuda()).T
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(image), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

with torch.no_grad():
    pairs = [(images(image.cuda()), texts(text.cuda())) for image, text in DataLoader(data, batch_size=500)]
    image, text = (torch.cat(each) for each in zip(*pairs, strict=True))
    similarity = image @ text.T
    ranks = similarity.argsort(dim=1, descending=True)
    truth = torch.arange(len(ranks), device="cuda")[:, None]
    for k in (1, 5, 10):
        print(f"R@{k}", (ranks[:, :k] == truth).any(1).float().mean().item())
