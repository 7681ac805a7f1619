"""A benchmark: forward passes with inputs of 128 to 4,096 tokens, ten of each. The last size is the
peak."""

import time

import torch

layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4).cuda().eval()
for length in (128, 256, 512, 1024, 2048, 4096):
    x = torch.randn(8, length, 512, device="cuda")
    with torch.no_grad():
        started = time.perf_counter()
        for _ in range(10):
            model(x)
        torch.cuda.synchronize()
    print(length, (time.perf_counter() - started) / 10)
