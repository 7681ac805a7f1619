"""Values that decide what happens: those that came from the host are exact, checks hold, a mask
selects everything."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from xmem_slurm.dryrun import dispatch, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder, Numbers, Shapes
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]

H200 = load_catalogue()["h200"]

KNOWN = """
def with_zeros(given: torch.Tensor):
    return given + torch.zeros_like(given)

lengths = torch.tensor([3, 1, 2]).to(device)
assert lengths.tolist() == [3, 1, 2]
assert lengths.sort().values.tolist() == [1, 2, 3] and lengths.argsort(descending=True).tolist() == [0, 2, 1]
assert (lengths.max().item(), int(lengths.sum()), len(lengths.unique())) == (3, 6, 3)
mask = torch.arange(4, device=device)[None] < lengths[:, None]
assert mask.sum(1).tolist() == [3, 1, 2]
rows = torch.randn(3, 4, 5, device=device, requires_grad=True)
assert rows[mask].shape == (6, 5)
rows[mask].sum().backward()
assert torch.masked_select(rows, mask[..., None]).shape == (30,)
assert mask.nonzero()[:2].tolist() == [[0, 0], [0, 1]]
assert torch.bincount(lengths).tolist() == [0, 1, 1, 1]
assert torch.arange(3, device=device).repeat_interleave(lengths).shape == (6,)
assert torch.nn.functional.one_hot(lengths).shape == (3, 4)
assert torch.equal(lengths, lengths.clone()) and lengths.cpu().numpy().sum() == 6
chosen = torch.zeros(10, dtype=torch.bool, device=device)
chosen[torch.tensor([1, 2], device=device)] = True
assert chosen.sum().item() == 2
assert torch.isin(lengths, lengths[:1]).tolist() == [True, False, False] and (chosen & False).sum().item() == 0
assert torch.where(chosen[:3] & False, torch.randn(3, device=device), -1e9).tolist() == [-1e9] * 3
edges = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 0, 2, 2]]).to(device)
graph = torch.sparse_coo_tensor(edges, torch.ones(5, device=device, requires_grad=True), (3, 3)).coalesce()
assert graph.is_coalesced() and graph.values().shape == (3,) and graph.indices().shape == (2, 3)
torch.sparse.mm(graph, torch.ones(3, 2, device=device)).sum().backward()
scripted = torch.jit.script(with_zeros)
assert scripted(lengths).shape == (3,)
starts = lengths.cumsum(0) - lengths
assert (starts + 1).tolist() == [1, 4, 5] and (2 * lengths - starts // 2).tolist() == [6, 1, 2]
grid = torch.linspace(0, 1, 5, device=device)
assert torch.isclose(grid, torch.tensor(0.5, device=device)).sum().item() == 1
betas = (1 - grid / 2).clamp(max=0.9).sqrt() ** 2
assert [round(each, 3) for each in betas.tolist()] == [0.9, 0.875, 0.75, 0.625, 0.5]
assert (grid.half() * 3).dtype is torch.half and (lengths / 2).dtype is torch.float32
assert int(torch.maximum(lengths, starts).max()) == 4
starts[1:].add_(lengths[:2]).mul_(2)
assert starts.tolist() == [0, 12, 10]
shifted = starts.masked_fill(starts > 10, -100)
shifted.masked_fill_(shifted == 0, torch.tensor(7, device=device))
assert shifted.tolist() == [7, -100, 10] and shifted[shifted != -100].shape == (2,)
buffer = torch.empty(2, dtype=torch.long, device=device)
buffer.copy_(torch.tensor([5, 6]))
assert buffer.tolist() == [5, 6]
assert (lengths.median().item(), rows.new_tensor([3, 1, 2]).nanmedian().item()) == (2, 2)
assert lengths.median(0).indices.item() == 2 and (lengths.argmax().item(), lengths.argmin(0).item()) == (0, 1)
"""

STALE = """
counts = torch.ones(3, device=device)
counts.mul_(torch.randn(3, device=device))
assert counts.tolist() == [0, 0, 0]
view = torch.arange(6, device=device)
view[2:4] = 9
assert view.tolist() == [0, 1, 9, 9, 4, 5]
del view
assert torch.empty(6, dtype=torch.long, device=device).tolist() == [0] * 6
assert (torch.ones(3, device=device, dtype=torch.half) + 1.5).dtype is torch.half
assert (torch.ones((), device=device, dtype=torch.half) * 2).dtype is torch.half
assert (torch.ones(3, device=device, dtype=torch.int) + 1.5).dtype is torch.float32
"""

UNMOVED = """
def version_raised(write, *tensors):
    before = [each._version for each in tensors]
    write()
    return all(each._version > known for each, known in zip(tensors, before))

def refused(where, write):
    result = torch.zeros(3, device=where, requires_grad=True).exp()
    write(result)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return "inplace operation" in str(error)
    return False

unknown, other = torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)
assert version_raised(lambda: unknown.add_(other).mul_(2).add_(1), unknown)
assert version_raised(lambda: unknown.triu().normal_(), unknown) is False
assert version_raised(lambda: unknown.normal_(), unknown)
counts, one = [torch.zeros(()) for _ in range(3)], torch.tensor(1.0)
assert version_raised(lambda: torch._foreach_add_(counts, one, alpha=2.0), *counts)
assert [each.item() for each in counts] == [2, 2, 2]
both, added = [unknown, other], one.to(device)
assert version_raised(lambda: torch._foreach_add_(both, added, alpha=2.0), *both)
for where in (device, torch.device("cpu")):
    added = torch.ones((), device=where)
    assert refused(where, lambda result: torch._foreach_add_([result], added))
    assert refused(where, lambda result: torch._foreach_add_([result], added, alpha=2.0))
    assert refused(where, lambda result: result.add_(added))
    assert not refused(where, lambda result: added.add_(1))
assert version_raised(lambda: unknown.zero_(), unknown) and version_raised(one.zero_, one)
assert unknown.tolist() == [[0] * 4] * 3 and version_raised(lambda: other.fill_(2), other)
assert (other + 1).tolist() == [[3] * 4] * 3 and refused(device, lambda result: result.zero_())
kept = torch.arange(3, device=device)
torch._foreach_add_([kept], torch.tensor(1, device=device))
assert kept.tolist() == [1, 2, 3]
places = torch.arange(4, device=device)
assert (places + 1).tolist() == [1, 2, 3, 4] and places.to(torch.float).tolist() == [0, 1, 2, 3]
unknown = torch.randn(3, 4, device=device)
assert (unknown == unknown).sum().item() == 12 and torch.cat([places, places * 2]).sum().item() == 18
total = torch.zeros(4, dtype=torch.long, device=device)
assert total.add_(places).tolist() == [0, 1, 2, 3]
total.add_(torch.randn(4, device=device).long())
assert total.tolist() == [0, 0, 0, 0]
half = torch.randn(3, device=device, dtype=torch.half)
assert (half + 1.5).dtype is (half.sum() + 1.5).dtype is torch.half
assert (torch.nn.Parameter(half) * 2).dtype is torch.half and (places * 1.5).dtype is torch.float
assert (torch.randn(3, device=device).long() + True).dtype is torch.long
sparse = torch.eye(3, device=device).to_sparse()
assert (sparse * 2).shape == (3, 3) and sparse.to(torch.half).dtype is torch.half
"""

SCRIPTED = """
@torch.jit.script
def shifted(rows):
    return rows + torch.zeros(3, device=rows.device) + torch.arange(3, device=rows.device)

assert shifted(torch.ones(3, device=device)).shape == (3,)
"""

PLAUSIBLE = """
import math
unknown = torch.randn(3, 4, device=device, requires_grad=True)
assert torch.isfinite(unknown).all() and (unknown >= 0).all()
assert not torch.isnan(unknown).any() and not unknown.isinf().any() and not (unknown != unknown).any()
best = unknown.sum()
assert best < math.inf and not best >= math.inf and -math.inf < best and not best < -math.inf
assert best <= torch.tensor(math.inf, device=device) and (unknown < math.inf).all()
torch.distributions.Categorical(logits=unknown).sample()
torch.distributions.Normal(unknown, unknown.exp()).rsample()
torch.normal(unknown, unknown.exp())
assert torch.multinomial(unknown.softmax(-1), 1).shape == (3, 1)
assert torch.multinomial(unknown.softmax(-1), 2).shape == (3, 2)
routed = unknown.topk(2).indices
assert routed.shape == (3, 2) and sorted(routed.unique().tolist()) == [0, 1, 2, 3]
assert sum((routed == expert).nonzero().shape[0] for expert in range(4)) == 6
order = unknown.argsort(dim=1, descending=True)
assert sorted(order[1].tolist()) == [0, 1, 2, 3] and (order[0] == 2).nonzero().shape == (1, 1)
assert sorted(torch.sort(unknown, dim=0, stable=True).indices[:, 3].tolist()) == [0, 1, 2]
assert (100 // torch.randn(51, device=device).topk(5).indices).min().item() == 2
assert "grad_fn" in repr(unknown.exp())
assert torch.vmap(lambda row: row.sum() + torch.zeros((), device=device))(unknown).shape == (3,)
correct = (unknown.argmax(-1) == torch.randint(4, (3,), device=device)).sum().item()
1 / correct
"""

LARGE = """
import numpy
count = 1 << 20
host = torch.arange(count)
corpus = host.to(device)
assert corpus[5:8].tolist() == [5, 6, 7] and corpus.max().item() == count - 1
assert torch.stack([corpus[at : at + 3] for at in (0, 9)]).tolist() == [[0, 1, 2], [9, 10, 11]]
assert corpus.view(1024, 1024).t()[3, :2].tolist() == [3, 1027] and host.int().to(device, torch.long)[7].item() == 7
even = corpus % 2 == 0
assert int(even.sum()) == count // 2 and corpus[even].shape == (count // 2,)
lengths = torch.tensor([3, 1 << 19]).to(device)
padded = torch.arange(1 << 19, device=device)[None] < lengths[:, None]
assert padded.sum(1).tolist() == [3, 1 << 19] and padded.nonzero().shape == (3 + (1 << 19), 2)
picks = torch.randperm(1 << 20)[: 1 << 16]
picks[1] = picks[0]  # the last that is written stands
kept = torch.zeros(1024, 1024).to(torch.ones(1, dtype=torch.bool, device=device)).view(1, -1)
kept.scatter_(1, picks.to(device)[None], True)
places = (kept.view(1024, 1024) == 1.0).nonzero()
assert places.shape == ((1 << 16) - 1, 2) and places[:3, 1].tolist() == (picks[1:].sort().values[:3] % 1024).tolist()
assert kept.logical_not().sum().item() == (1 << 20) - (1 << 16) + 1
few = torch.zeros(2, 3, device=device).scatter_(1, torch.tensor([[2], [0]], device=device), 1.0)
assert few.tolist() == [[0, 0, 1], [1, 0, 0]]
square = torch.ones(1024, 1024, dtype=torch.bool, device=device)
assert square.tril().sum().item() == 1024 * 1025 // 2 and square.triu(1)[1021].nonzero().tolist() == [[1022], [1023]]
assert torch.eye(2000, device=device)[5, 4:7].tolist() == [0, 1, 0]
assert torch.arange(2, 1 << 21, 2, device=device)[3].item() == 8 and torch.arange(1 << 20, device=device)[3].item() == 3
assert torch.full((1 << 33,), 3, dtype=torch.int8, device=device)[-1].item() == 3
assert torch.tensor(numpy.arange(count), device=device)[9].item() == 9
assert torch.isfinite(torch.randn(count, device=device)).all()
every = corpus + 0
corpus[4] = 9
assert every[4].item() == 4 and corpus.clone().data_ptr() != corpus.data_ptr()
"""

GONE = """
count = 1 << 24  # 128 MiB
corpus, other = torch.arange(count).to(device), torch.arange(count).to(device)
assert corpus[9].item() == other[9].item() == 9  # what the script let go of is held, up to a limit...
host = torch.arange(count)
assert torch.arange(count).to(device)[9].item() == 0 and host.to(device)[9].item() == 9  # ...and what it keeps is known
del other
kept = torch.arange(count).to(device)
assert kept[9].item() == 9
changed = host[: 1 << 20].clone()
corpus, memory = changed.to(device), changed.numpy()
memory[:] = 5
assert corpus[9].item() == 0  # written to past torch
changed[:] = torch.arange(1 << 20)
corpus = changed.to(device)
changed[0] = 5
assert corpus[9].item() == 0
corpus = host.to(device)
corpus.data.random_()
assert corpus[9].item() == 0
"""

ASSUMED = """
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(64, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, tokens):
        chosen = self.gate(tokens).topk(2).indices  # experts
        for number, expert in enumerate(self.experts):
            expert(tokens[(chosen == number).any(-1)])
        counts = (tokens > 0).sum(0)  # counts
        return [torch.zeros(count, device=device) for count in counts.tolist()]

Experts().to(device)(torch.randn(64, 64, device=device))
unknown = torch.randn(8, 4, device=device)
torch.zeros(torch.randint(5, 9, (1,), device=device).item())  # drawn
(torch.empty(3, dtype=torch.long, device=device).random_(9) + 1).tolist()  # drawn
torch.empty((), dtype=torch.long, device=device).random_().item()
weights = torch.randn(256, 128, 3, 3, device=device).to(memory_format=torch.channels_last)
for _ in range(1000):
    if (weights.isinf() | weights.isnan()).any(): pass
torch.randperm(9, device=device)[:4].tolist()  # drawn
unknown.argsort().cpu()  # order
if (unknown.argmax(-1) == 2).all(): pass  # end of all texts
if unknown.argmax().item() == 2: pass  # end of a text
torch.multinomial(unknown.softmax(-1), 1).cpu()  # sample
torch.distributions.Categorical(logits=unknown).sample((5,)).tolist()  # sample
torch.testing.assert_close(unknown, unknown + 1)  # checked by the script
place = unknown[0].topk(1).indices  # shape
torch.arange(4, device=device).repeat_interleave(place.expand(4) + 1)
buffer = torch.zeros(2, dtype=torch.long, device=device)
buffer[:1] = torch.randperm(9, device=device)[:1]  # written into another
buffer.tolist()
import sys
rows = sys.modules["_xmem.doubts"]._process.rows()
said = [row["detail"] for row in rows if row["code"] == "assumed-values"]
made_up = {number for number, line in enumerate(open(__file__), 1) if "  " "# " in line}
assert {int(each.rpartition(":")[2][:-1]) for each in said} == made_up, said
"""
"""Each line with a comment makes up what is then read or decides a shape: these lines are said, and
no others."""

FIGURES = """
model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Flatten(), torch.nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler()
for _ in range(3):
    tokens, labels = torch.randint(0, 100, (32, 8), device=device), torch.randint(10, (32,), device=device)
    tokens = tokens[torch.randperm(32, device=device)]
    with torch.autocast(device, torch.float16):
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert not torch.isnan(loss) and torch.isfinite(logits).all() and loss.item() == 0
    right = logits.topk(5, 1)[1].t().eq(labels.view(1, -1))
    assert right.reshape(-1).float().sum(0, keepdim=True).mul_(100 / 32).item() >= 0
    assert (logits.argmax(1) == labels).sum().item() == 32
    assert sum(torch.eq(logits.argmax(1), labels).long().sum() for _ in range(2)).item() == 64
    logits.argmax(1).cpu().tolist()
    torch.distributions.Categorical(logits=logits.float()).log_prob(labels)
    torch.distributions.Normal(logits, logits.exp()).rsample()
    torch.linalg.solve(torch.randn(4, 4, device=device), torch.randn(4, 4, device=device))
    print(logits, labels)
    assert repr(logits).startswith("tensor(..., device='cuda:0'") and repr(loss)[:8] == "tensor(0"
torch.jit.trace(model, tokens)
torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(loss)
"""

STOPPED_EARLY = """
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters())

def epochs(score, is_better, best, patience=2, evaluates=True):
    waits = 0
    for epoch in range(20):
        model.train()
        model(torch.randn(8, 4, device=device)).sum().backward()
        optimizer.step()
        if evaluates:
            model.eval()
        with torch.no_grad():
            now = score(torch.nn.functional.softmax(model(torch.randn(10_000, 4, device=device)), 1))
        waits = 0 if (better := is_better(now, best)) else waits + 1
        best = now if better else best
        if waits == patience:
            break
    return epoch + 1

def higher(now, best):
    return now > best

def lower(now, best):
    return now < best

endless, labels = float("inf"), torch.randint(0, 4, (10_000,)).to(device)
assert epochs(lambda out: out.mean().item(), lower, endless, evaluates=False) == 20
assert epochs(lambda out: sum(each.item() for each in out.mean(1)[:100]) / 100, lower, endless) == 20
assert epochs(lambda out: out.mean(1).cpu().numpy().mean(), higher, 0) == 20
assert epochs(lambda out: (out.argmax(1) == labels).sum().item() / 10_000, higher, 0) == 20
assert epochs(lambda out: out.argmax(1).eq(labels).float().sum().cpu(), higher, 0) == 20
assert epochs(lambda out: -(out.log() + 1).mean(), lower, torch.tensor(endless, device=device)) == 20
assert epochs(lambda out: 0.0, lower, endless) == 3
accuracy = [0]
def both(loss, _best):
    better = loss < best_of[0] and accuracy[0] > best_of[1]
    best_of[:] = (loss, accuracy[0]) if better else best_of
    return better
def loss_and_accuracy(out):
    loss = out.mean().item()
    accuracy[0] = (out.argmax(1) == labels).sum().item()
    return loss
best_of = [endless, 0]
assert epochs(loss_and_accuracy, both, None) == 20
"""
"""What scripts end early by if it was not better for two epochs: on a GPU it may be, to the last
one."""

THAWED = """
head, body = torch.nn.Linear(2048, 1).to(device), torch.nn.Linear(2048, 2048).to(device).requires_grad_(False)
optimizer = torch.optim.AdamW([*head.parameters(), *body.parameters()])
best, waits = float("inf"), 0
for epoch in range(20):
    if epoch == 15:
        body.requires_grad_()
    head(body(torch.randn(4, 2048, device=device))).sum().backward()
    optimizer.step()
    head.eval()
    with torch.no_grad():
        loss = head(body(torch.randn(4, 2048, device=device))).mean().item()
    best, waits = (loss, 0) if loss < best else (best, waits + 1)
    if waits == 3:
        break
"""

BEST = """
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.AdamW(model.parameters())
best = torch.tensor(0.25, device=device) * torch.randn((), device=device)
for epoch in range(6):
    model.train()
    model(torch.randn(4, 64, device=device)).sum().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = model(torch.randn(4, 64, device=device)).mean()
    right = model(torch.randn(4, 64, device=device)).max(1)[1].eq(torch.arange(4).to(device)).cpu().sum()
    if loss < best or right > 3:
        best = loss
if best > loss:
    print("the last was not the best")
"""

SCALED = """
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler(init_scale=8.0, growth_interval=2)
scales = []
for _ in range(6):
    scaler.scale(model(torch.randn(2, 4, device=device)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
assert scales == [8, 16, 16, 32, 32, 64] and scaler.state_dict()["_growth_tracker"] == 0, scales
scaler.update(2.0)
assert scaler.get_scale() == 2
scale, steps, found = scaler._scale, scaler._growth_tracker, torch.ones(1, device=device)
torch._amp_update_scale_(scale, steps, found, 2.0, 0.5, 2)
assert (scale.item(), steps.item()) == (1, 0)
torch._amp_foreach_non_finite_check_and_unscale_([torch.randn(3, device=device)], found, scale)
assert found.item() == 1
torch._amp_update_scale_(scale, steps, torch.randn(1, device=device).exp(), 2.0, 0.5, 1)
assert scale.item() == 2
scale.mul_(torch.randn(1, device=device)[0])
torch._amp_update_scale_(scale, steps, found, 2.0, 0.5, 2)
assert (scale.item(), steps.item()) == (0, 0)
"""

WRAPPED = """
import torch.distributed
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
"""

CASTS = """
import contextlib
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(6)]).to(device)
rows, before = torch.randn(16, 1024, device=device), torch.autocast("cuda", torch.bfloat16)
weight, row = 2 << 20, 32 << 10

def peak(*contexts):
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context() if isinstance(context, type) else context)
        model(rows)
    assert torch.cuda.memory_allocated() == held
    return torch.cuda.max_memory_allocated() - held

with before:
    model(rows)  # a workspace of cuBLAS
found = [peak(torch.inference_mode, before), peak(before, torch.inference_mode)]
with torch.inference_mode():
    found.append(peak(torch.autocast("cuda", torch.bfloat16)))
assert peak(torch.no_grad, before) > 6 * weight and torch.is_autocast_cache_enabled()
with torch.inference_mode(), torch.inference_mode(False):
    assert peak(before) > 6 * weight
# One cast at a time, beside that of the rows and a layer's output; before torch 2.11 all of them.
cached = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)
assert all((each > 6 * weight) if cached else (each == weight + 2 * row) for each in found), found
"""

SHAPES = """
unknown = torch.randn(3, 4, device=device, requires_grad=True)
mask = unknown > 0
assert mask.nonzero().shape == (COUNT, 2), mask.nonzero().shape
picked = unknown[mask]
assert picked.shape == (COUNT,)
(picked.sum() + torch.masked_select(unknown, mask).sum()).backward()
unknown.detach()[mask] = torch.zeros_like(picked)
tokens = unknown.argmax(-1)
ended = torch.isin(tokens, torch.tensor([1], device=device))
assert not ended.all() and not (ended | ended).any()
assert tokens[ended].shape == torch.masked_select(tokens, ended).shape == (COUNT // 4,)
assert ended.nonzero().shape == (COUNT // 4, 1)
drawn = torch.randint(9, (7,), device=device)
assert len(drawn.unique()) in (0, 7)
entries = torch.sparse_coo_tensor(drawn[None], torch.ones(7, 4, device=device), (5, 4)).coalesce()
assert len(entries.values()) in (0, 5)
"""

ORDINARY = {
    "a model is exported": """
layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()).to(device).eval()
exported = torch.export.export(layers, (unknown,))
assert exported.module()(unknown).shape == (3, 8)
""",
    "a default device": """
with torch.device(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    assert model[1].running_mean.is_cuda and torch.zeros(3).is_cuda and torch.arange(3).tolist() == [0, 1, 2]
    assert torch.tensor([1.0], device=device).item() == 1 and torch.tensor([2]).is_cuda
    assert torch.randn(2, 4)[torch.randn(2, 4) > 0].shape == (8,)
    assert torch.randn(3, 4).topk(2)[1].unique().numel() == 4
    model(torch.randn(2, 4)).sum().backward()
    assert torch.tensor([3, 1]).sort().values.tolist() == [1, 3]
torch.set_default_device(device)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.set_default_device(None)
assert not torch.zeros(3).is_cuda
""",
    "arguments equal to their defaults": """
for given in ((), (1.0,), (2.0,)):
    assert torch.normal(unknown, *given).shape == (3, 4)
assert torch.normal(0.0, unknown.abs()).shape == (3, 4)
assert unknown.topk(2, -1, True, True)[1].shape == unknown.topk(2, dim=1)[1].shape == (3, 2)
assert unknown.sort(-1, False)[1].shape == unknown.sort()[1].shape == (3, 4)
assert torch.tensor([1, 2]).to(device).count_nonzero().item() == 2
""",
    "weights of bincount": """
assert torch.bincount(known, weights=torch.randn(3, device=device)).shape == (4,)
assert torch.bincount(known, torch.randn(3, device=device).double(), 9).shape == (9,)
many = torch.bincount(torch.arange(2000, device=device), weights=torch.ones(2000, device=device))
assert torch.bincount(known, known * 0.5).tolist() == [0, 0.5, 1, 1.5]
assert many.shape == (2000,) and many.dtype is torch.float32
""",
    "masks that are not the first index": """
mask = torch.randn(4, device=device) > 0
rows = torch.zeros(3, 4, device=device)
rows[:, mask] = torch.randn(3, 2, device=device)
rows[:, mask] = torch.randn(3, 1, device=device)
rows[:, mask] = torch.randn(2, device=device)
rows[..., mask] = 1.0
torch.zeros(2, 3, 4, device=device)[:, unknown > 0] = torch.randn(2, 5, device=device)
torch.zeros(3, 4, 2, device=device)[unknown > 0] = torch.randn(7, 2, device=device)
rows[known[:2] - 1, mask] = torch.randn(2, device=device)
torch.zeros(2, 3, 4, device=device)[:, known[:2] - 1, mask] = torch.randn(2, 2, device=device)
""",
    "what a GPU does not raise": """
assert (known // torch.zeros_like(known)).shape == (3,) and (known % 0).shape == (3,)
buffer = torch.tensor([7, 8, 9]).to(device)
torch.arange(3, out=buffer)
assert buffer.tolist() in ([0, 1, 2], [0, 0, 0])
buffer = torch.tensor([7, 8, 9]).to(device)
torch.full((3,), 5, out=buffer)
assert buffer.tolist() in ([5, 5, 5], [0, 0, 0])
assert known.new_tensor(data=[4]).tolist() == [4] and torch.tensor(data=known).tolist() == [3, 1, 2]
assert known[torch.tensor([7]).to(device)].shape == (1,)
""",
    "nested tensors": """
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=device)
torch.zeros_like(nested), nested * 2, nested.clone(), nested.add_(nested), nested.fill_(1), nested.zero_()
nested.copy_(nested.clone())
assert nested.to("cpu").size(0) == 2
""",
    "pickle": """
import pickle
for function in (torch.zeros, torch.tensor, torch.full_like, torch.Tensor.new_zeros, torch.Tensor.record_stream):
    assert pickle.loads(pickle.dumps(function)) is function
""",
    "arguments by their names": """
unknown.record_stream(s=torch.cuda.current_stream())
unknown.record_stream(torch.cuda.current_stream())
""",
    "two views at one address": """
pairs = unknown[0][:, None] != unknown[0][None]
assert pairs.shape == (4, 4) and unknown[0][pairs.any(0)].shape == (4,) and not (unknown != unknown).any()
assert not (unknown == unknown.t().t()).logical_not().any()
assert unknown[:, 0][unknown[:, 0] == unknown[0, :3]].shape == (3,)
""",
    "values that were written over": """
import sys
recorder = sys.modules["_xmem.imports"]._finders[0]._recorder
launch = sys.modules["_xmem.triton"]._Launcher(recorder._values, None, None)
for write in (
    lambda it: launch(1, 1, 1, it),
    lambda it: it.copy_(unknown[0] > 0),
    lambda it: it.logical_and_(unknown[0] > 0),
    lambda it: it.bernoulli_(0.5),
    lambda it: it.index_put_((known,), unknown[0, :3] > 0),
    lambda it: it.data.copy_(unknown[0] > 0),
    lambda it: it.data.bernoulli_(0.5),
    lambda it: it.data.masked_fill_(unknown[0] > 0, True),
    lambda it: it.masked_fill_(unknown[0] > 0, True),
):
    mask = torch.zeros(4, dtype=torch.bool).to(device)
    assert unknown[0][mask].numel() == 0
    write(mask)
    assert unknown[0][mask].numel() == unknown[0][mask.data].numel() == unknown[0][mask.detach()].numel() == 4
for copy in (torch.as_tensor, torch.tensor, known.new_tensor):
    assert unknown[0][copy(unknown[0] > 0)].numel() == 4 and copy(known).tolist() == [3, 1, 2]
""",
    "inference mode": """
@torch.inference_mode()
def one(rows):
    rows = rows * 2
    return rows[rows[:, 0] > 0.5]

@torch.inference_mode
def other(rows):
    rows = rows * 2
    return rows[rows[:, 0] > 0.5]

assert one(unknown).shape == other(unknown).shape == (3, 4) and torch.is_grad_enabled()
context = torch.inference_mode()
assert isinstance(context, torch.inference_mode)
with context:
    counted = torch.tensor([3, 4, 5]).to(device)
    assert counted.tolist() == [3, 4, 5] and (counted + 1).sum().item() == 15
    scores = torch.nn.functional.linear(unknown, unknown)
    assert scores[scores[:, 0] > 0.5].shape == (3, 3)
    assert not (unknown * 2).requires_grad
    with torch.inference_mode(False):
        assert (unknown * 2).requires_grad
with torch.inference_mode(mode=False):
    assert (unknown * 2).requires_grad
assert (unknown * 2).requires_grad
""",
}
"""What a script may do with torch, and none of it raises here; each has its own `unknown` and
`known`."""

EACH = """
import traceback
failed = []
for name, code in ORDINARY.items():
    place = {"torch": torch, "device": device, "known": torch.tensor([3, 1, 2]).to(device)}
    place["unknown"] = torch.randn(3, 4, device=device, requires_grad=True)
    try:
        exec(code, place)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[1].lineno
        failed.append(f"{name}: {code.splitlines()[line - 1].strip()}: {error!r}")
        torch.set_default_device(None)
if failed:
    raise RuntimeError(" | ".join(failed))
"""


DERIVED = """
rows = torch.randn(4, 1000, device=device)
def loss(each):
    return (0.1 * (each - 1)).sum()
assert torch.func.grad(loss)(rows).shape == (4, 1000)
assert torch.func.vmap(torch.func.grad_and_value(loss))(rows)[1].shape == (4,)
assert torch.func.jvp(loss, (rows,), (rows,))[1].shape == ()
"""

MASKED = """
layer = torch.nn.Linear(1024, 1024, device=device)
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(6):
    scores = layer(torch.randn(4096, 1024, device=device))
    (scores[scores > 0] ** 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(
    folder: Path,
    warm_python: Path,
    code: str,
    shapes: Shapes = "most",
    numbers: Numbers = "zeros",
    **environ: str,
) -> Trace:
    order = DryRunOrder.of(job(folder, warm_python, code, **environ), H200, Budget(seconds=60))
    (trace,) = runner.run(replace(order, shapes=shapes, numbers=numbers)).traces
    return trace


def job(folder: Path, warm_python: Path, code: str, **environ: str) -> Job:
    (folder / "train.py").write_text("import torch\ndevice = 'cuda'\n" + code)
    environ |= {"HOME": str(folder), "PATH": f"{warm_python.parent}:{os.environ['PATH']}"}
    return Job(b"#!/bin/bash\npython train.py\n", (), folder, environ)


@pytest.mark.parametrize(
    "code",
    [KNOWN, STALE, UNMOVED, SCRIPTED, PLAUSIBLE, LARGE, GONE, CASTS, SCALED],
    ids=["known", "stale", "unmoved", "scripted", "plausible", "large", "gone", "casts", "scaled"],
)
def test_values_are_as_on_a_gpu_or_plausible(code: str, warm_python: Path, tmp_path: Path) -> None:
    found = run(tmp_path, warm_python, code)
    assert found.error is None
    assert "value-shape" not in {doubt.code for doubt in found.doubts}


def test_what_a_script_may_do_raises_nothing(warm_python: Path, tmp_path: Path) -> None:
    assert run(tmp_path, warm_python, f"ORDINARY = {ORDINARY!r}\n{EACH}").error is None


def test_what_came_from_the_host_is_read_without_a_doubt(warm_python: Path, tmp_path: Path) -> None:
    assert "value-read" not in {doubt.code for doubt in run(tmp_path, warm_python, KNOWN).doubts}


def test_what_ranks_compare_as_ddp_is_made_is_known(warm_python: Path, tmp_path: Path) -> None:
    ranks = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    found = run(tmp_path, warm_python, WRAPPED, **ranks)
    assert found.error is None
    assert "assumed-values" not in {doubt.code for doubt in found.doubts}


def test_what_was_assumed_is_said_where_it_may_decide(warm_python: Path, tmp_path: Path) -> None:
    found = run(tmp_path, warm_python, ASSUMED)
    assert found.error is None
    reasons = estimate([found], "h200", H200).reasons
    assert any(
        each.startswith("places by topk, assumed evenly used (train.py:") for each in reasons
    )


def test_a_number_made_of_truth_values_is_no_figure_once_it_was_computed_with(
    warm_python: Path, tmp_path: Path
) -> None:
    found = run(
        tmp_path,
        warm_python,
        "print((3 * (torch.randn(8, device=device) > 0).long()).sum().item())",
    )
    assert found.error is None
    (said,) = [doubt.detail for doubt in found.doubts if doubt.code == "assumed-values"]
    assert said.startswith("a number that is not known, zero here (train.py:")


def test_a_script_that_divides_by_what_is_not_known_goes_on_with_other_numbers(
    warm_python: Path, tmp_path: Path
) -> None:
    code = (
        "import math\nprint(10 * math.log10(1 / torch.randn((), device=device).square().item()))\n"
    )
    order = DryRunOrder.of(
        job(tmp_path, warm_python, code, XMEM_ENGINE="device"), H200, Budget(seconds=60)
    )
    (found,) = dispatch.here(order).traces
    assert found.came_to_its_end
    assert [doubt.code for doubt in found.doubts if doubt.code == "engine"] == []


def test_early_stopping_does_not_stop_where_losses_and_scores_get_better(
    warm_python: Path, tmp_path: Path
) -> None:
    found = run(tmp_path, warm_python, STOPPED_EARLY, numbers="turns")
    assert found.error is None
    (turns,) = [doubt.count for doubt in found.doubts if doubt.code == "metrics-read"]
    assert turns == 20


def test_a_condition_on_losses_that_was_seen_both_ways_is_no_doubt(
    warm_python: Path, tmp_path: Path
) -> None:
    order = DryRunOrder.of(
        job(tmp_path, warm_python, BEST, XMEM_ENGINE="device"), H200, Budget(seconds=60)
    )
    (found,) = dispatch.here(order).traces
    said = [doubt.detail for doubt in found.doubts if doubt.code == "assumed-values"]
    assert said == ["a condition that is not known, false here (train.py:17)"]


def test_what_comes_after_an_early_stop_is_in_the_estimate(
    warm_python: Path, tmp_path: Path
) -> None:
    order = DryRunOrder.of(
        job(tmp_path, warm_python, THAWED, XMEM_ENGINE="device"), H200, Budget(seconds=60)
    )
    (found,) = dispatch.here(order).traces
    assert found.steps == 20
    assert estimate([found], "h200", H200).largest.replay.peak_allocated_bytes > 4 * 4 * 2048**2


def test_derivatives_by_functions_cost_what_was_known_and_no_error(
    warm_python: Path, tmp_path: Path
) -> None:
    found = run(tmp_path, warm_python, DERIVED)
    assert found.error is None
    said = {doubt.code: doubt.detail for doubt in found.doubts}
    assert said["values-unknown"] == "torch.func takes derivatives"


def test_figures_of_what_was_assumed_are_no_doubt(warm_python: Path, tmp_path: Path) -> None:
    found = run(tmp_path, warm_python, FIGURES)
    assert found.error is None
    assert not {"assumed-values", "optimizer-read"} & {doubt.code for doubt in found.doubts}


@pytest.mark.parametrize(("shapes", "count"), [("most", 12), ("least", 0)])
def test_of_an_unknown_mask_all_or_nothing_is_selected(
    shapes: Shapes, count: int, warm_python: Path, tmp_path: Path
) -> None:
    found = run(tmp_path, warm_python, SHAPES.replace("COUNT", str(count)), shapes)
    assert found.error is None
    assert "value-shape" in {doubt.code for doubt in found.doubts}


def test_both_ends_of_what_hangs_on_values_are_said(warm_python: Path, tmp_path: Path) -> None:
    traces = dispatch.here(
        DryRunOrder.of(
            job(tmp_path, warm_python, MASKED, XMEM_ENGINE="device"), H200, Budget(seconds=120)
        )
    ).traces
    found = estimate(traces, "h200", H200)
    scores = 4096 * 1024
    # selected values, two indices of each
    assert found.largest.replay.peak_allocated_bytes > 2 * (4 + 8 + 8) * scores
    (least,) = [doubt.detail for doubt in found.doubts if doubt.code == "value-shape-least"]
    assert float(least.removesuffix(" GiB")) * 2**30 < 10 * 4 * scores
    assert f"with nothing selected the peak would be {least}" in found.reasons
