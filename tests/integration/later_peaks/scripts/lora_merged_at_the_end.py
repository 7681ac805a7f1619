"""LoRA on a frozen model; at the end every weight is merged into a new fp32 state dict on the GPU,
and saved."""

import torch


class Lora(torch.nn.Module):
    def __init__(self, width, rank=8):
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
        self.a = torch.nn.Parameter(torch.randn(rank, width, device="cuda") * 0.01)
        self.b = torch.nn.Parameter(torch.zeros(width, rank, device="cuda"))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T.bfloat16()) @ self.b.T.bfloat16()

    def merged(self):
        return self.base.weight.float() + self.b @ self.a


model = torch.nn.Sequential(*(Lora(2048) for _ in range(6)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
for step in range(250):
    x = torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)
    (model(x) - x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    state = {f"layers.{i}.weight": layer.merged() for i, layer in enumerate(model)}
torch.save({name: weight.cpu() for name, weight in state.items()}, "merged.pt")
