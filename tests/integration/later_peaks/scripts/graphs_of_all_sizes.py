"""Molecules as graphs, 32 in a batch, one protein among them: edges decide the memory of message
passing."""

import random

import torch

random.seed(7)
graphs = [random.randint(10, 40) for _ in range(6400)]
graphs[5000] = 3000
message, update = torch.nn.Linear(128, 128).cuda(), torch.nn.Linear(128, 64).cuda()
optimizer = torch.optim.Adam([*message.parameters(), *update.parameters()], lr=1e-3)
for epoch in range(2):
    order = random.sample(graphs, len(graphs))
    for start in range(0, len(order), 32):
        sizes = order[start : start + 32]
        nodes = torch.randn(sum(sizes), 64).cuda()
        edges = torch.randint(0, sum(sizes), (2, 12 * sum(sizes))).cuda()
        sent = torch.relu(message(torch.cat([nodes[edges[0]], nodes[edges[1]]], dim=1)))
        received = torch.zeros(len(nodes), 128, device="cuda").index_add(0, edges[1], sent)
        (nodes + update(received)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
