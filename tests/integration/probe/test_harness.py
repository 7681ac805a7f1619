"""The warm Python that most tests of the probe run in shows what a Python that starts does, to the
byte."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import probe
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Op, Trace

pytestmark = pytest.mark.torch

SCRIPTS = {
    "a transformer": """
import torch
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 128 + 32 * step, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "convolutions, a loader with workers, an evaluation, a checkpoint": """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.Flatten(),
                            torch.nn.Linear(64 * 900, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(96, 3, 32, 32), torch.randint(10, (96,)))
for epoch in range(2):
    for images, labels in DataLoader(data, batch_size=32, num_workers=2):
        torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.zeros(64, 3, 32, 32, device="cuda")).argmax(-1).cpu()
    model.train()
torch.save(model.state_dict(), "model.pt")
sys.exit(3)
""",
    "values, compiled, under streams": """
import torch
lengths = torch.tensor([3, 1, 2]).cuda()
rows = torch.randn(3, 4, 512, device="cuda", requires_grad=True)
chosen = rows[torch.arange(4, device="cuda")[None] < lengths[:, None]]
routed = chosen.softmax(-1).topk(2).indices
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    kept = [torch.empty(n << 18, device="cuda") for n in range(9)]
    chosen.record_stream(side)
model = torch.compile(torch.nn.Linear(512, 512).cuda(), backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(chosen.detach()).sum().backward()
    optimizer.step()
if routed.float().mean().item() > 0: kept.clear()
""",
    "an error": """
import torch
def train(rows):
    return torch.nn.Linear(8, 8).cuda()(torch.zeros(rows, 9, device="cuda"))
train(4)
""",
}


def told(trace: Trace) -> Trace:
    """A trace without what differs between cold ones: program, time, the order in which torch
    empties a hash table.

    Nor does it have host memory, of which a warm one holds what it imported.
    """
    frees = (Op.FREE_REQUESTED, Op.FREE_COMPLETED)
    groups = [
        (of_frees, list(group))
        for of_frees, group in itertools.groupby(trace.events, lambda e: e.op in frees)
    ]
    events = [
        event for of_frees, group in groups for event in (sorted(group) if of_frees else group)
    ]
    return replace(trace, argv=[], lived=(0.0, 0.0), host_bytes=0, events=events)


def is_warm(run: probe.Run) -> bool:
    return "True" in run("import sys; print('numpy' in sys.modules)").stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_warm_python_leaves_the_trace_of_a_cold_one(
    script: str, job_python: Path, warm_python: Path, tmp_path: Path
) -> None:
    stand_ins = probe.stand_ins(job_python)
    start, run = (probe.runs(python, stand_ins, tmp_path) for python in (job_python, warm_python))
    assert not is_warm(start)
    assert is_warm(run)
    (tmp_path / "traces").rename(tmp_path / "before")
    ran = []
    for each in start, run:
        (tmp_path / "traces").mkdir()
        ran.append(each(SCRIPTS[script]))
        (tmp_path / "traces").rename(tmp_path / f"traces {len(ran)}")
    cold, warm = ran
    assert (warm.returncode, warm.stdout, warm.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )
    (first,), (second,) = cold.used, warm.used
    assert len(first.allocations) > 10 or first.error
    assert told(first) == told(second)
    if not first.failed:
        of_cold, of_warm = (estimate([each], "h100", probe.H100) for each in (first, second))
        assert (of_warm.required_bytes, of_warm.reasons) == (
            of_cold.required_bytes,
            of_cold.reasons,
        )


DEVICE = """
import json, torch
shown = torch.cuda.get_device_properties(0)
print(json.dumps([torch.cuda.device_count(), shown.name, shown.total_memory, shown.multi_processor_count, shown.major]))
"""


def test_one_warm_python_is_shown_any_gpu(
    job_python: Path, warm_python: Path, tmp_path: Path
) -> None:
    run = probe.runs(warm_python, probe.stand_ins(job_python), tmp_path)
    other = {
        "NAME": "other",
        "TOTAL_BYTES": f"{9 << 30}",
        "MULTIPROCESSORS": "7",
        "CAPABILITY": "8.6",
        "COUNT": "3",
    }
    assert run(DEVICE).out == [
        1,
        probe.H100.cuda_name,
        probe.H100.total_bytes,
        probe.H100.multiprocessors,
        9,
    ]
    shown = run(DEVICE, **{f"XMEM_DEVICE_{name}": value for name, value in other.items()})
    assert shown.out == [3, "other", 9 << 30, 7, 8]
