"""Images of 64, 96 and 160 pixels, three epochs each. The peak comes in the seventh epoch."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SIZES = {0: 64, 3: 96, 6: 160}
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 100),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
images = TensorDataset(torch.zeros(960, 3, 64, 64, dtype=torch.uint8), torch.randint(0, 100, (960,)))
for epoch in range(9):
    size = SIZES.get(epoch, locals().get("size"))
    for image, label in DataLoader(images, batch_size=32, shuffle=True):
        x = F.interpolate(image.cuda().float() / 255, size=size, mode="bilinear")
        loss = F.cross_entropy(net(x), label.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
