"""An optimizer of the script's own which starts to precondition at step 4000 (Shampoo's
start_preconditioning_step)."""

import torch


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, start=4000):
        super().__init__(params, {"lr": lr, "start": start})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(p)
                state["step"] += 1
                state["momentum"].lerp_(p.grad, 0.1)
                update = state["momentum"]
                if state["step"] >= group["start"] and p.ndim == 2:
                    if "left" not in state:
                        state["left"] = torch.zeros(p.shape[0], p.shape[0], device=p.device)
                        state["right"] = torch.zeros(p.shape[1], p.shape[1], device=p.device)
                    state["left"].addmm_(p.grad, p.grad.T)
                    state["right"].addmm_(p.grad.T, p.grad)
                    update = state["left"] @ update @ state["right"]
                p.add_(update, alpha=-group["lr"])


model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = Shampoo(model.parameters())
for step in range(8000):
    x = torch.randn(16, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
