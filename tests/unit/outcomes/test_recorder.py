"""The recorder in a job's Python: it writes what torch's counters say, and a job never hears of
it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm.outcomes import records
from xmem_slurm.submission.recording import RECORDER

TORCH = """
import sys
__version__ = "2.11.0"
class OutOfMemoryError(RuntimeError): pass
class version: cuda, hip = "13.0", None
class distributed:
    is_available = staticmethod(lambda: False)
from . import cuda
"""
CUDA = """
import os, sys
from . import memory
from .memory import *
reserved = peak = ooms = 0
queued, initialized = [], False
def _lazy_call(call): queued.append(call)
def init():
    global initialized
    for call in queued: call()
    initialized = True
def is_initialized(): return initialized
def device_count(): return 2
def take(size):
    global reserved, peak
    reserved += size
    peak = max(peak, reserved)
def memory_stats_as_nested_dict(device):
    if "NO_STATS" in os.environ: raise RuntimeError("broken")
    mine = (reserved, peak) if device == 0 else (0, 0)
    kind = {"all": {"current": mine[0], "peak": mine[1]}}
    counts = {"num_alloc_retries": 0, "num_ooms": ooms if device == 0 else 0}
    return {"reserved_bytes": kind, "allocated_bytes": kind, **counts}
def mem_get_info(device): return 10 * 2**30 - reserved, 16 * 2**30
class get_device_properties:
    name, total_memory, major, minor = "Some GPU", 16 * 2**30, 8, 9
    def __init__(self, device): pass
"""
MEMORY = """
def reset_peak_memory_stats(device=None):
    from torch import cuda
    cuda.peak = cuda.reserved
"""
GIB = 2**30


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A folder with a torch whose GPU is a few counters, and a sitecustomize of the user's."""
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(CUDA)
    (tmp_path / "torch" / "cuda" / "memory.py").write_text(MEMORY)
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_user = True\n")
    (tmp_path / "records").mkdir()
    return tmp_path


def run(folder: Path, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    predicted = {"submitted_on": "login", "uses_bytes": 3 * GIB, "script": "abc"}
    variables = {
        "PYTHONPATH": f"{RECORDER}{os.pathsep}{folder}",
        "XMEM_RECORD_TO": str(folder / "records"),
        "XMEM_PREDICTION": json.dumps(predicted),
        "SLURM_JOB_ID": "4711",
        **environ,
    }
    return subprocess.run(
        [sys.executable, "-c", script], env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True,
        check=False, timeout=60
    )  # fmt: skip


def written(folder: Path) -> list[dict[str, Any]]:
    """Return all lines, in the order of their time."""
    texts = [path.read_text() for path in (folder / "records").iterdir()]
    found = [json.loads(line) for text in texts for line in text.splitlines() if line]
    return sorted(found, key=lambda line: line["time"])


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the last line of each process."""
    return list({(line["job"], line["process"]): line for line in written(folder)}.values())


TAKES = "import torch; torch.cuda.init(); torch.cuda.take(2 << 30); "


def test_the_last_line_has_the_peak_and_what_was_predicted(site_packages: Path) -> None:
    done = run(
        site_packages,
        TAKES + "assert of_user; torch.cuda.reserved = 0; torch.cuda.reset_peak_memory_stats()",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (line,) = lines(site_packages)
    assert (line["job"], line["state"], line["prediction"]["script"]) == ("4711", "exit", "abc")
    (device,) = line["devices"]
    assert (device["name"], device["reserved"], device["used"]) == ("Some GPU", 2 * GIB, 6 * GIB)
    assert "submitted_on" not in line["prediction"]


@pytest.mark.parametrize(
    ("ends", "code", "state"),
    [
        ("raise torch.OutOfMemoryError", 1, "oom"),
        ("raise ValueError", 1, "error"),
        ("raise RuntimeError from torch.OutOfMemoryError()", 1, "oom"),
        (
            "sys.excepthook = print; raise torch.OutOfMemoryError",
            1,
            "oom",
        ),  # as rich and others have it
        ("sys.exit()", 0, "exit"),
        ("sys.exit(3)", 3, "error"),
        ("exit(3)", 3, "error"),
        (
            "\ntry: raise torch.OutOfMemoryError\nexcept Exception: sys.exit(3)",
            3,
            "oom",
        ),  # as Hydra has it
        ("\ntry: sys.exit(3)\nexcept SystemExit: sys.exit(0)", 0, "exit"),
        ("os._exit(0)", 0, "exit"),
        ("os._exit(3)", 3, "error"),
        ("\nif os.fork() == 0: os._exit(3)\nos.wait(); os._exit(0)", 0, "exit"),
        ("\nt = threading.Thread(target=sys.exit, args=[3]); t.start(); t.join()", 0, "exit"),
    ],
)
def test_how_a_process_ended_is_told(site_packages: Path, ends: str, code: int, state: str) -> None:
    done = run(site_packages, f"import os, sys, threading; {TAKES}{ends}")
    assert done.returncode == code
    assert RECORDER.name not in done.stderr
    assert [line["state"] for line in lines(site_packages)] == [state]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
        ("leave(3)", 3),
    ],
)
def test_a_process_that_ends_at_once_has_left_a_word(
    site_packages: Path,
    ends: str,
    code: int,
) -> None:
    """Nothing of Python's runs as it ends; what CUDA's start has left is all there is."""
    before = "import os, signal; from os import _exit as leave; import torch; torch.cuda.init(); "
    assert run(site_packages, before + ends).returncode == code
    (line,) = written(site_packages)
    assert (line["job"], line["state"], line["devices"]) == ("4711", "running", [])
    assert line["prediction"]["script"] == "abc"
    assert records.outcomes(site_packages / "records") == []
    (outcome,) = records.begun(site_packages / "records")
    assert (outcome.job, outcome.used_gpu, outcome.finished) == ("4711", False, False)


def test_one_that_ends_in_order_has_two_lines_and_the_last_counts(site_packages: Path) -> None:
    assert run(site_packages, TAKES).returncode == 0
    assert [line["state"] for line in written(site_packages)] == ["running", "exit"]
    (outcome,) = records.outcomes(site_packages / "records")
    assert (outcome.finished, outcome.device.reserved) == (True, 2 * GIB)


def test_what_it_took_of_host_memory_is_in_the_line(site_packages: Path) -> None:
    """Of itself, and of the largest of its children: one takes 200 MiB, and it has none of them."""
    child = "import subprocess; subprocess.run([sys.executable, '-Ic', 'b\"x\" * (200 << 20)'])"
    asks = {"SLURM_MEM_PER_NODE": "4096"}
    assert run(site_packages, f"import sys; {child}; {TAKES}", **asks).returncode == 0
    (line,) = lines(site_packages)
    host = line["host_memory"]
    assert set(host) == {"process", "children", "asked"}  # it is in no step of Slurm's
    assert 4 << 20 < host["process"] < 200 << 20 < host["children"]
    assert host["asked"] == 4 * GIB
    expected = records.HostPeak(host["process"], host["children"], None, 4 * GIB)
    (outcome,) = records.outcomes(site_packages / "records")
    assert outcome.processes[0].host_memory == expected


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "8"}, 8 * GIB),
        ({"SLURM_MEM_PER_GPU": "2048", "SLURM_GPUS_ON_NODE": "2"}, 4 * GIB),
        ({"SLURM_MEM_PER_GPU": "2048"}, None),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all that the node has
        ({"SLURM_MEM_PER_NODE": "4G"}, None),
    ],
)
def test_what_a_job_asked_for_on_a_node_is_what_slurm_s_variables_say(
    site_packages: Path, environ: dict[str, str], asked: int | None
) -> None:
    assert run(site_packages, TAKES, **environ).returncode == 0
    assert lines(site_packages)[0]["host_memory"].get("asked") == asked


STEP_V2 = "system.slice/slurmstepd.scope/job_7/step_0"
STEP_V1 = "slurm/uid_1000/job_7/step_batch"
PEAK = """
import runpy, sys, types
sys.modules["sitecustomize"] = types.ModuleType("sitecustomize")
functions = runpy.run_path(sys.argv[1])
print(functions["_quietly"](functions["_step_peak"], sys.argv[2], sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("groups", "file", "peak"),
    [
        (f"0::/{STEP_V2}/user/task_0\n", f"{STEP_V2}/memory.peak", "1234"),
        (f"0::/{STEP_V2}\n", f"{STEP_V2}/memory.peak", "1234"),
        (f"0::/{STEP_V2}/user/task_0\n", f"{STEP_V2}/memory.current", "None"),  # before Linux 5.19
        (
            f"5:cpuset:/{STEP_V1}\n4:cpu,memory:/{STEP_V1}/task_0\n0::/init\n",
            f"memory/{STEP_V1}/memory.max_usage_in_bytes",
            "1234",
        ),
        ("0::/user.slice/session-1.scope\n", "user.slice/session-1.scope/memory.peak", "None"),
        ("0::/\n", "memory.peak", "None"),  # in a container
        ("nonsense\n", "memory.peak", "None"),
    ],
)
def test_the_peak_of_a_step_is_that_of_its_control_group(
    tmp_path: Path,
    groups: str,
    file: str,
    peak: str,
) -> None:
    (tmp_path / "own").write_text(groups)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("1234\n")
    argv = [str(RECORDER / "sitecustomize.py"), str(tmp_path / "own"), str(tmp_path)]
    shown = subprocess.check_output([sys.executable, "-Ic", PEAK, *argv], text=True)
    assert shown.strip() == peak


def test_one_whose_first_allocation_fails_says_on_which_gpu(site_packages: Path) -> None:
    """It has reserved nothing: others have the GPU's memory."""
    fails = "import torch; torch.cuda.init(); torch.cuda.ooms = 1; raise torch.OutOfMemoryError"
    assert run(site_packages, fails).returncode == 1
    (outcome,) = records.outcomes(site_packages / "records")
    assert (outcome.ran_out, outcome.device.reserved, outcome.limit_bytes) == (True, 0, 10 * GIB)


def test_a_folder_that_does_not_answer_holds_a_job_up_for_a_second_at_most(
    site_packages: Path,
) -> None:
    hangs = (
        "import os, time; opens, leave = os.open, os._exit\n"
        "def slow(path, *args, **kwargs):\n"
        "    if 'jsonl' in str(path): time.sleep(100)\n"
        "    return opens(path, *args, **kwargs)\n"
        "os.open = slow; import torch; began = time.monotonic(); torch.cuda.init()\n"
        "assert time.monotonic() - began < 50\n"
        "leave(7)"
    )
    assert run(site_packages, hangs).returncode == 7


def test_of_a_process_that_is_killed_there_is_what_was_seen_soon(site_packages: Path) -> None:
    waits = (
        "\nfile = next(os.scandir(os.environ['XMEM_RECORD_TO'])).path"
        "\nwhile 'reserved' not in open(file).read(): time.sleep(0.05)"
        "\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (
        run(site_packages, f"import os, signal, time; {TAKES}{waits}").returncode == -signal.SIGKILL
    )
    (line,) = lines(site_packages)
    assert (line["state"], line["devices"][0]["reserved"]) == ("running", 2 * GIB)


def test_half_a_line_of_a_full_disk_takes_no_other_with_it(site_packages: Path) -> None:
    assert run(site_packages, TAKES).returncode == 0
    (file,) = (site_packages / "records").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    assert run(site_packages, TAKES, SLURM_JOB_ID="12").returncode == 0
    assert [each.job for each in records.outcomes(site_packages / "records")] == ["12"]


ASKS_IN_TURN = """
import importlib.util, sys
class Finder:
    asking = False
    def find_spec(self, name, path=None, target=None):
        if self.asking: return None
        self.asking = True
        try: return importlib.util.find_spec(name)
        finally: self.asking = False
sys.meta_path.insert(0, Finder())
"""
"""What wrapt and those who watch imports by it put before all others."""


@pytest.mark.parametrize(
    "before",
    [
        # as transformers asks
        "import importlib.util; assert importlib.util.find_spec('torch').loader",
        ASKS_IN_TURN,
        f"{ASKS_IN_TURN}sys.meta_path.insert(1, sys.meta_path.pop(0))",
    ],
)
def test_who_only_asks_for_torch_does_not_use_the_recorder_up(
    site_packages: Path, before: str
) -> None:
    done = run(
        site_packages,
        f"{before}\n{TAKES}import sys; print(any('Until' in repr(f) for f in sys.meta_path))",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert [line["state"] for line in lines(site_packages)] == ["exit"]


def test_a_worker_of_multiprocessing_leaves_its_own_line(site_packages: Path) -> None:
    work = (
        "def work():\n    torch.cuda.init(); torch.cuda.take(1 << 30)\n    raise "
        "torch.OutOfMemoryError\n"
    )
    start = (
        "import multiprocessing as m; p = m.get_context('fork').Process(target=work); "
        "p.start(); p.join()"
    )
    assert (
        run(site_packages, f"import torch, multiprocessing.util\n{work}\n{start}").returncode == 0
    )
    assert [line["state"] for line in lines(site_packages)] == ["oom"]


@pytest.mark.parametrize(
    "environ",
    [
        {"NO_STATS": "1"},
        {"XMEM_RECORD_TO": "/proc/nowhere"},
        {"XMEM_PREDICTION": "{"},
        {"XMEM_SHIMS": "/x"},
    ],
)
def test_a_job_never_hears_of_what_goes_wrong(site_packages: Path, environ: dict[str, str]) -> None:
    done = run(site_packages, TAKES + "print(of_user)", **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_driver_that_hangs_costs_seconds_and_no_job(site_packages: Path) -> None:
    hangs = "import time; torch.cuda.mem_get_info = lambda device: time.sleep(100)"
    done = run(site_packages, TAKES + hangs)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["state"] for line in written(site_packages)] == ["running"]


def test_a_job_that_another_job_submitted_has_no_prediction_of_its_own(site_packages: Path) -> None:
    assert run(site_packages, TAKES, SLURM_SUBMIT_HOST="node1").returncode == 0
    assert lines(site_packages)[0]["prediction"] is None


def test_it_says_at_the_end_of_the_output_what_was_used(site_packages: Path) -> None:
    done = run(site_packages, TAKES, XMEM_SUMMARY="1")
    assert done.stderr == "xmem-slurm: estimated 3.0 GiB of GPU memory, used 8.0 of 16.0 GiB\n"
    died = run(site_packages, TAKES + "raise torch.OutOfMemoryError", XMEM_SUMMARY="1")
    assert died.stderr.endswith("used 8.0 of 16.0 GiB, and ran out\n")
    nothing = json.dumps({"submitted_on": "login", "uses_bytes": 0})
    unknown = run(site_packages, TAKES, XMEM_SUMMARY="1", XMEM_PREDICTION=nothing)
    said = "xmem-slurm: GPU memory was not estimated, used 8.0 of 16.0 GiB\n"
    assert unknown.stderr == said


def test_a_link_or_a_long_file_is_not_written_on(site_packages: Path) -> None:
    assert run(site_packages, TAKES).returncode == 0
    (file,) = (site_packages / "records").iterdir()
    file.write_bytes(b"\n" * (5 << 20))
    assert run(site_packages, TAKES).returncode == 0
    assert sorted(path.name for path in (site_packages / "records").iterdir()) == [
        file.name,
        file.name.replace(".jsonl", ".old.jsonl"),
    ]
    file.unlink()
    elsewhere = site_packages / "elsewhere"
    file.symlink_to(elsewhere)
    assert run(site_packages, TAKES).returncode == 0
    assert not elsewhere.exists()


def test_without_torch_nothing_is_imported_or_started(site_packages: Path) -> None:
    before = run(site_packages, "import sys; print(sorted(sys.modules))", XMEM_RECORD_TO="").stdout
    assert run(site_packages, "import sys; print(sorted(sys.modules))").stdout == before
