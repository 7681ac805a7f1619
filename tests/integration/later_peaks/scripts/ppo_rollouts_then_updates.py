"""PPO: 512 steps of rollout without gradients, then four epochs of updates on half of the buffer at
a time."""

import torch

policy = torch.nn.Sequential(torch.nn.Linear(376, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 17)).cuda()
value = torch.nn.Sequential(torch.nn.Linear(376, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
for iteration in range(3):
    observations, actions, rewards = [], [], []
    observation = torch.zeros(64, 376, device="cuda")
    with torch.no_grad():
        for _ in range(512):
            action = torch.distributions.Normal(policy(observation), 1.0).sample()
            observations.append(observation)
            actions.append(action)
            observation = torch.randn(64, 376).cuda()  # the environment's answer
            rewards.append(torch.randn(64).cuda())
    observations, actions, rewards = torch.cat(observations), torch.cat(actions), torch.cat(rewards)
    for epoch in range(4):
        for batch in torch.randperm(len(observations), device="cuda").chunk(2):
            logp = torch.distributions.Normal(policy(observations[batch]), 1.0).log_prob(actions[batch]).sum(-1)
            advantage = rewards[batch] - value(observations[batch]).squeeze(-1)
            loss = -(logp * advantage.detach()).mean() + advantage.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
