"""What the probe hooks into is gone, each in turn: the dry run says so in its estimate, or why
there is none.

Importing torch takes seconds of CPU time, so all hooks of an engine are tried in forks of one
Python (`hook_faults`)."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.probe.test_probe import stand_ins  # noqa: F401 - a fixture
from xmem_slurm import trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.profile import recording
from xmem_slurm.profile.orchestrator import orchestrate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.slow(covers=["xmem_slurm/probe/*"], as_one=True)]

FAULTS = Path(__file__).with_name("hook_faults.py")
H100 = load_catalogue()["h100-sxm5-80gb"]
SECONDS = 1800
"""That there is a limit has the probe watch how far the script is."""
MOST_TOLD = 8
"""Of one code, so many details stand in a trace."""
SENTENCES = {doubt.code: doubt.sentence for doubt in Doubt}

TRAIN = """
import os
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randint(0, 4, (64,)))
for epoch in range(2):
    model.train()
    for inputs, labels in torch.utils.data.DataLoader(data, batch_size=32):
        inputs, labels = inputs.cuda(), labels.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        right = (model(inputs).argmax(1) == labels).sum().item()
        print(inputs[labels > 0].shape, labels, torch.cuda.max_memory_allocated())
    torch.save(model.state_dict(), os.devnull)
"""


def traces(folder: Path) -> dict[int, Trace]:
    """The trace of each process, by its number."""
    of_device = {file.name: trace_file.read(file) for file in folder.glob("*.json.gz")}
    of_cpu = {
        file.name: orchestrate(recording.read(file)) for file in folder.glob(f"*{recording.SUFFIX}")
    }
    return {int(name.partition("-")[0]): trace for name, trace in {**of_device, **of_cpu}.items()}


@pytest.mark.parametrize(
    ("engine", "table", "most"), [("device", "DEVICE", 20), ("profile", "CPU", 10)]
)
def test_a_dry_run_without_a_hook_says_so(
    engine: str,
    table: str,
    most: int,
    job_python: Path,
    stand_ins: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder, script = tmp_path / "traces", tmp_path / "train.py"
    folder.mkdir()
    script.write_text(TRAIN, encoding="utf-8")
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ |= gpu_environment.environment(H100, 1, folder, None)
    environ["XMEM_DEVICE_BUILD"] = json.dumps([sys.executable, "-c", f"print({str(stand_ins)!r})"])
    environ |= {
        "XMEM_ENGINE": engine,
        "XMEM_DEADLINE": str(time.monotonic() + SECONDS),
        "XMEM_SITES": "1",
    }
    command = [job_python, FAULTS, table, script]
    ran = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    faults = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"pid"')]
    assert len(faults) > most
    left = traces(folder)
    for fault in faults:
        assert fault["pid"] in left, (fault, ran.stderr[-2000:])
        trace, names = left[fault["pid"]], fault["names"]
        if any(code is None for _, code in names):
            assert trace.state == "failed"
            assert trace.error is not None
            assert f"this torch has no {names[0][0]}" in trace.error
            continue
        assert (os.waitstatus_to_exitcode(fault["status"]), trace.error) == (0, None), (
            names,
            ran.stderr[-2000:],
        )
        reasons = estimate([trace], "h100", H100).reasons
        doubts = {(code, f"no {name} in this release") for name, code in names}
        told = doubts & {(doubt.code, doubt.detail) for doubt in trace.doubts}
        assert len(told) == min(len(doubts), MOST_TOLD), names
        assert {SENTENCES[code].format(detail=detail) for code, detail in told} <= set(reasons)
