"""A thread puts up to 16 batches on the GPU ahead of the training loop
(queue.Queue(maxsize=16))."""

import os
import queue
import threading
import time

import torch
import torch.nn as nn

GPU_SECONDS = float(os.environ.get("GPU_SECONDS", "0"))


class Prefetcher:
    def __init__(self, n, size=16):
        self.q = queue.Queue(maxsize=size)
        self.n = n
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        stream = torch.cuda.Stream()
        for i in range(self.n):
            x = torch.randn(256, 3, 32, 32)
            with torch.cuda.stream(stream):
                self.q.put(x.cuda(non_blocking=True))
        self.q.put(None)

    def __iter__(self):
        while (x := self.q.get()) is not None:
            yield x


model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for x in Prefetcher(300):
        loss = model(x).logsumexp(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss.item()
        time.sleep(GPU_SECONDS)
