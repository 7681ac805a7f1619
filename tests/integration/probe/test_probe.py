"""The probe in a real job's Python: what it records, and that neither the script's ways nor its end
lose the trace.

Each test is one script under the torch of XMEM_TEST_PYTHON, on the stand-ins, with the probe on
PYTHONPATH as in a dry run but without the sandbox. Most find torch warm (`tests.harness.probe`);
what is of a Python's start or end does not."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import probe
from tests.harness.probe import HANG_SECONDS, Run
from tests.harness.rotation import some_each_time
from tests.harness.warm import TICK
from xmem_slurm.allocator.replay import replay
from xmem_slurm.dryrun import runner
from xmem_slurm.trace import Category, Op, Trace

pytestmark = pytest.mark.torch


@pytest.fixture(scope="session")
def stand_ins(job_python: Path) -> Path:
    return probe.stand_ins(job_python)


@pytest.fixture
def run(warm_python: Path, stand_ins: Path, tmp_path: Path) -> Run:
    """Run a script in a warm Python."""
    return probe.runs(warm_python, stand_ins, tmp_path)


@pytest.fixture
def cold(job_python: Path, stand_ins: Path, tmp_path: Path) -> Run:
    """Run a script in a Python that starts: for what is of its start, of its import of torch, or of
    its very end."""
    return probe.runs(job_python, stand_ins, tmp_path)


TRAIN = """
import atexit, ctypes, gc, json, os, signal, sys, threading, time
import torch
torch.manual_seed(0)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# -- what is not imported --------------------------------------------------------------------------


def test_torch_s_compiler_is_imported_where_something_is_compiled(cold: Run) -> None:
    """Not where an optimizer is made or makes a step; then what torch has changed for it is its
    own."""
    ran = cold(
        TRAIN
        + """
from torch.utils.checkpoint import checkpoint
step()
checkpoint(model, torch.randn(32, 256, device="cuda"), use_reentrant=False).sum().backward()
assert torch.is_grad_enabled() and "torch._dynamo" not in sys.modules
wrappers = [optimizer.add_param_group, optimizer.step.__func__.__wrapped__.__wrapped__, checkpoint]
def torch_s_own():
    return [each.__code__.co_filename.startswith(os.path.dirname(torch.__file__)) for each in wrappers]
assert not any(torch_s_own())
import torch._dynamo
step()
assert all(torch_s_own())
"""
    )
    assert (ran.returncode, ran.stderr, ran.trace.steps) == (0, "", 2)


# -- how a process ends ----------------------------------------------------------------------------

ENDS = {
    "its end": ("", "exit", None, 0),
    "an exception": (
        "raise ValueError('no such\\nfile')",
        "exit",
        "ValueError: no such (train.py:LAST)",
        1,
    ),
    "an exception that the script's own hook takes": (
        "sys.excepthook = lambda *_: None\nraise ValueError('lost')",
        "exit",
        "ValueError: lost (train.py:LAST)",
        1,
    ),
    "sys.exit": ("sys.exit()", "exit", None, 0),
    "sys.exit with a code": ("sys.exit(3)", "exit", "SystemExit: 3 (train.py:LAST)", 3),
    "sys.exit that is caught": (
        "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\noptimizer.step()",
        "exit",
        None,
        0,
    ),
    "os._exit": ("os._exit(0)", "exit", None, 0),
    "os._exit with a code": ("os._exit(4)", "exit", "os._exit(4)", 4),
    "os._exit at exit": ("atexit.register(os._exit, 0)", "exit", None, 0),
    "SIGTERM": (
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        "signal",
        None,
        -signal.SIGTERM,
    ),
    "SIGTERM with a handler": (
        (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nos.kill(os.getpid(), "
            "signal.SIGTERM)\ntime.sleep(60)"
        ),
        "exit",
        None,
        0,
    ),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "running", None, -signal.SIGKILL),
    "a crash": ("ctypes.string_at(0)", "running", None, -signal.SIGSEGV),
}


OF_PYTHON = (
    "its end",
    "an exception",
    "an exception that the script's own hook takes",
    "sys.exit",
    "os._exit at exit",
)
"""Ends that are Python's own to make."""


@pytest.mark.parametrize("end", ENDS)
def test_the_trace_is_whole_whatever_ends_the_process(run: Run, cold: Run, end: str) -> None:
    code, state, error, returncode = ENDS[end]
    whole = TRAIN + "for _ in range(4): step()\n" + code
    ran = (cold if end in OF_PYTHON else run)(whole)
    error = error and error.replace("LAST", str(len(whole.splitlines())))
    assert (ran.trace.state, ran.trace.error, ran.returncode) == (state, error, returncode)
    assert ran.trace.steps >= 4
    assert (
        sum(event.op == Op.ALLOC for event in ran.trace.events) == len(ran.trace.allocations) > 20
    )


def test_what_a_script_allocates_at_its_exit_is_seen(run: Run) -> None:
    code = (
        "import atexit\nkept = []\natexit.register(lambda: kept.append(torch.empty(77 << 20, "
        "device='cuda')))\n"
    )
    assert (77 << 22) in [each.size for each in run(code + TRAIN).trace.allocations]


def test_a_torch_that_cannot_be_imported_is_a_reason(cold: Run) -> None:
    ran = cold("import sys\nsys.modules['torch._C'] = None\nimport torch")
    assert ran.trace.state == "failed"
    assert ran.trace.error is not None
    assert "ImportError" in ran.trace.error or "ModuleNotFoundError" in ran.trace.error


def test_stand_ins_that_cannot_be_built_end_the_process_with_the_reason(cold: Run) -> None:
    broken = json.dumps(
        [sys.executable, "-c", "import sys; sys.exit('no C compiler: install gcc')"]
    )
    ran = cold("import torch\nprint('computing for real')", XMEM_DEVICE_BUILD=broken)
    assert (ran.trace.state, ran.trace.error) == ("failed", "no C compiler: install gcc")
    assert "computing" not in ran.stdout


def test_a_cpu_build_of_torch_is_named(cold: Run, tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: str | None = None\n")
    ran = cold("import torch")
    assert ran.trace.error == f"torch 2.11.0+cpu in {folder} is not a CUDA build"
    assert ran.returncode == 1


def test_the_allocator_of_cuda_which_torch_cannot_record_is_replaced(cold: Run) -> None:
    trace = cold(TRAIN + "step(); step()", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync").trace
    assert (trace.steps, trace.allocator_settings) == (2, "backend:cudaMallocAsync")


def test_an_allocator_that_cannot_be_replaced_is_named(run: Run) -> None:
    refusing = "import torch\ndef refuse(**_): raise RuntimeError('no history')\n"
    ran = run(
        refusing
        + "torch.cuda.memory._record_memory_history = refuse\ntorch.empty(1, device='cuda')"
    )
    assert ran.trace.state == "failed"
    assert (
        ran.trace.error == "torch cannot record what this allocator does: RuntimeError: no history"
    )


# -- how a process starts --------------------------------------------------------------------------

STARTS = {
    "options": ["-u", "-s", "-X", "importtime", "-W", "ignore", "train.py"],
    "-m": ["-m", "train"],
    "-c": ["-c", "import train"],
}


@pytest.mark.parametrize("start", STARTS)
def test_it_gets_into_python_however_it_is_started(cold: Run, start: str) -> None:
    trace = cold(TRAIN + "step(); step()", arguments=STARTS[start]).trace
    assert (trace.state, trace.steps) == ("exit", 2)
    assert trace.argv[1:] == STARTS[start]


@pytest.mark.parametrize("way", ["-I", "-E", "unset PYTHONPATH"])
def test_what_hides_from_it_leaves_no_trace(cold: Run, way: str) -> None:
    hidden = (
        {"arguments": [way, "train.py"]} if way.startswith("-") else {"without": ["PYTHONPATH"]}
    )
    assert cold("import sys; print(sys.path)", **hidden).traces == []


SITE = "import builtins, sys\nbuiltins.chained = __file__\nsys.path.append('/added')\n"


@pytest.mark.parametrize("where", ["PYTHONPATH", "site-packages"])
def test_the_sitecustomize_that_was_there_runs(
    cold: Run, job_python: Path, tmp_path: Path, where: str
) -> None:
    """So does usercustomize; sys.path is what it would be without us."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "usercustomize.py").write_text("import builtins\nbuiltins.user_chained = True\n")
    (folder / "sitecustomize.py").write_text(SITE)
    code = (
        "import sys, json, sitecustomize\nprint(json.dumps([chained, sitecustomize.__file__, "
        "USER, sys.path]))"
    )
    packages = {"PYTHONPATH": str(folder)}
    python = "sys._base_executable"  # a venv has no usercustomize
    if where == "site-packages":
        subprocess.run([job_python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
        python = repr(str(tmp_path / "venv/bin/python"))
        (installed,) = (tmp_path / "venv/lib").glob("python*/site-packages")
        (folder / "sitecustomize.py").rename(installed / "sitecustomize.py")
        found = subprocess.run(
            [tmp_path / "venv/bin/python", "-c", "import builtins; builtins.chained"], check=False
        )
        if found.returncode:
            pytest.skip("this Python has a sitecustomize of its own, which goes before")
        folder, packages = installed, {}
    code = code.replace("USER", "user_chained" if packages else "True")
    start = f"import os, sys; os.execv({python}, [{python}, 'train.py'])"
    ran = cold(code, arguments=["-c", start], **packages)
    chained, known, user, path = json.loads(ran.stdout)
    assert user
    assert chained == known == str(folder / "sitecustomize.py")
    assert path[-1] == "/added"
    assert not [entry for entry in path if "probe" in entry]


def test_an_error_in_that_sitecustomize_is_told_as_python_does(cold: Run, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("raise RuntimeError('theirs')")
    ran = cold(TRAIN + "step(); step()", PYTHONPATH=str(folder))
    assert "Error in sitecustomize" in ran.stderr
    assert ran.trace.steps == 2


def test_without_a_sitecustomize_there_is_none(cold: Run) -> None:
    ran = cold("import sys\nprint('_xmem.record.recorder' in sys.modules)")
    assert (ran.returncode, ran.stdout.strip(), ran.traces) == (0, "False", [])


HABITS = {
    "find_spec first": "import importlib.util\nassert importlib.util.find_spec('torch')\n" + TRAIN,
    "a failed import first": (
        "import sys\nsys.modules['typing_extensions'] = None\n"
        "try:\n    import torch\nexcept ImportError:\n    del sys.modules['typing_extensions']\n"
        "else:\n    raise SystemExit('it did not fail')\n" + TRAIN
    ),
    "no launcher of torch's, which needs importlib_metadata on Python 3.9": (
        "import sys\nsys.modules['torch.distributed.elastic.rendezvous.registry'] = None\n" + TRAIN
    ),
    "reload": "import importlib, torch.version, torch\n"
    + TRAIN
    + "importlib.reload(torch.version)\n",
    "a finder of its own, which asks no other": (
        "import sys, importlib.machinery as machinery\n"
        "sys.meta_path.insert(0, type('Finder', (), {'find_spec': "
        "machinery.PathFinder.find_spec}))\n" + TRAIN
    ),
    "another folder, no environment, no path": (
        "import os, sys\nos.chdir('/')\nsys.path[:] = [e for e in sys.path if "
        "e]\nos.environ.clear()\n" + TRAIN + "os.environ.clear()\n"
    ),
    "threads": TRAIN
    + "thread = threading.Thread(target=step); thread.start(); thread.join(); step()\nsys.exit()\n",
    "its own memory history": (
        TRAIN + "torch.cuda.memory._record_memory_history(max_entries=1)\nstep()\n"
        "torch.cuda.memory._record_memory_history(enabled=None)\nstep()\n"
    ),
    "statistics begun anew": (
        TRAIN + "big = torch.empty(99 << 20, device='cuda'); del big\n"
        "torch.cuda.reset_peak_memory_stats()\ntorch.cuda.reset_accumulated_memory_stats()\n"
    ),
}


IMPORTING = ("a failed import first", "a finder of its own, which asks no other")


@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_scripts_do_not_disturb_it(run: Run, cold: Run, habit: str) -> None:
    ran = (cold if habit in IMPORTING else run)(HABITS[habit] + "step(); step()\n")
    assert ran.returncode == 0, ran.stderr
    trace = ran.trace
    assert (trace.state, trace.error) == ("exit", None)
    assert trace.steps >= 2
    assert trace.marks[-1].allocations <= len(trace.allocations)
    # so the tags met their allocations
    assert [a.category for a in trace.allocations].count(Category.OPT) == 4
    assert exact(trace)


def test_the_peaks_between_resets_are_those_that_the_script_reads(run: Run) -> None:
    ran = run(
        "import torch\n"
        "for size in (40, 20, 30):\n"
        "    torch.empty(size << 20, dtype=torch.uint8, device='cuda')\n"
        "    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())\n"
        "    torch.cuda.reset_peak_memory_stats()\n"
        "    torch.cuda.reset_accumulated_memory_stats()\n"
        "    torch.cuda.empty_cache()\n"
    )
    read = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    assert read[1] == (20 << 20, 40 << 20)
    *found, since_the_last = [
        (each["allocated_bytes"], each["reserved_bytes"]) for each in ran.trace.between_resets
    ]
    assert (found, since_the_last) == (read, (0, 30 << 20))


def test_values_that_torch_reads_in_a_thread_without_python_are_noted_in_silence(run: Run) -> None:
    """The backward pass of a product with a sparse matrix coalesces it."""
    code = """
import torch
places, values = torch.randint(0, 10, (2, 30)).cuda(), torch.ones(30).cuda()
graph = torch.sparse_coo_tensor(places, values, (10, 10), check_invariants=False)
weight = torch.nn.Parameter(torch.randn(10, 4).cuda())
torch.sparse.mm(graph, weight).sum().backward()
"""
    ran = run(code)
    assert "ValueError" not in ran.stderr
    assert "value-read" in [each.code for each in ran.trace.doubts]


def test_the_first_values_of_a_large_weight_on_the_host_are_not_drawn(run: Run) -> None:
    ran = run(
        "import torch\n"
        "for side in (1025, 65):\n"
        "    weight = torch.full((side, side), float('nan'))[1:]\n"
        "    for draw in (torch.nn.init.trunc_normal_, torch.nn.init.xavier_uniform_, "
        "torch.nn.init.kaiming_normal_):\n"
        "        print(draw(weight) is weight, bool(weight.any()))\n"
    )
    assert ran.stdout.splitlines() == ["True False"] * 3 + ["True True"] * 3


def test_large_weights_on_the_host_are_not_converted_copied_or_read_but_small_ones_and_data_are(
    run: Run, tmp_path: Path
) -> None:
    """What is converted where a gradient is made of it stays a part of its graph."""
    ran = run(
        "import torch\n"
        "for side, dtype in ((1025, torch.float32), (99, torch.float32), (1025, torch.float64)):\n"
        "    weight = torch.full((side, side), 3, dtype=dtype)\n"
        "    module = torch.nn.Linear(1, 1)\n"
        "    module.weight = torch.nn.Parameter(weight)\n"
        "    cast = [weight.to(torch.bfloat16), weight.half(), weight.to('cpu', torch.half)]\n"
        "    cast.append(module.bfloat16().weight)\n"
        "    print(*[int(each.max()) for each in cast], *{str(each.shape) for each in cast}, "
        "cast[0].dtype)\n"
        "    other = torch.nn.Parameter(torch.ones(side, side, dtype=dtype))\n"
        "    with torch.no_grad():\n"
        "        print(other.copy_(weight) is other, int(other.max()))\n"
        "    print(other.to(torch.bfloat16).grad_fn is not None)\n"
        "torch.save(torch.ones(1 << 24), 'large.pt')\n"
        "torch.save(torch.ones(1), 'small.pt')\n"
        "for name in ('large.pt', 'small.pt'):\n"
        "    loaded = torch.load(name)\n"
        "    print(int(loaded.max()), name in open('/proc/self/maps').read())\n"
    )
    shape, small = "torch.Size([1025, 1025])", "torch.Size([99, 99])"
    assert ran.stdout.splitlines() == [
        *(f"0 0 0 0 {shape} torch.bfloat16", "True 1", "True"),
        *(f"3 3 3 3 {small} torch.bfloat16", "True 3", "True"),
        *(f"3 3 3 3 {shape} torch.bfloat16", "True 3", "True"),
        *("1 True", "1 False"),
    ]


@pytest.mark.parametrize("leave", ["each.cuda()", "each.to('cuda')", "gpu.copy_(each)"])
def test_host_memory_is_what_weights_take_there_in_the_job(
    run: Run, tmp_path: Path, leave: str
) -> None:
    """Drawn or not, and in whatever way they go to the GPU; a file that is mapped is no memory of
    the process, and neither is what nobody writes to."""
    ran = run(
        HELD + "import mmap, torch\n"
        "arena = torch.empty(1 << 30, dtype=torch.uint8)\n"
        "with open('weights', 'wb+') as file:\n"
        "    file.truncate(1 << 30)\n"
        "    mapped = mmap.mmap(file.fileno(), 1 << 30, mmap.MAP_PRIVATE)\n"
        "held = [torch.nn.init.normal_(torch.empty(1 << 12, 1 << 13)) for _ in range(4)]\n"
        "gpu = torch.empty(1 << 12, 1 << 13, device='cuda')\n"
        f"for each in held:\n    {leave}\n"
        "del held, each\n"
        "torch.empty(1 << 10, 1 << 10).cuda()\n"
        "print(before)\n"
    )
    assert ran.trace.host_bytes - int(ran.stdout) == pytest.approx(512 << 20, rel=0.05)


HELD = """
import mmap, re
def held(process):  # by this process alone: anonymous memory that is resident
    rows = re.findall(r"Private_Dirty: +(\\d+)", open(f"/proc/{process}/smaps_rollup").read())
    return int(rows[0]) << 10
resident, of_files = map(int, open("/proc/self/statm").read().split()[1:3])
before = (resident - of_files) * mmap.PAGESIZE
"""


@pytest.mark.parametrize(("mapped", "by_us"), [("None", True), ("True", False)])
def test_a_checkpoint_that_is_read_is_host_memory_though_a_dry_run_maps_it(
    run: Run, tmp_path: Path, mapped: str, by_us: bool
) -> None:
    """Where the script maps it, it is none in the job either."""
    run("import torch; torch.save([torch.zeros(1 << 26)], 'weights.pt')")
    ran = run(
        HELD + "import torch\n"
        f"kept = torch.load('weights.pt', mmap={mapped})\n"
        "torch.ones(1 << 20).cuda()\n"
        "print(before)\n"
    )
    added = ran.traces[-1].host_bytes - int(ran.stdout)
    assert added == pytest.approx(256 << 20, rel=0.1) if by_us else added < 64 << 20


def test_host_memory_that_comes_and_goes_between_two_looks_counts(run: Run, tmp_path: Path) -> None:
    ran = run(
        HELD + "import torch\n"
        "torch.ones(1 << 20).cuda()\n"
        "torch.ones(1 << 26).sum()\n"
        "print(before)\n"
    )
    assert ran.trace.host_bytes - int(ran.stdout) == pytest.approx(260 << 20, rel=0.1)


def test_workers_of_a_loader_are_host_memory_as_many_as_the_job_has(
    run: Run, tmp_path: Path
) -> None:
    ran = run(
        HELD + "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        self.own = getattr(self, 'own', None)\n"
        "        if self.own is None: self.own = torch.ones(1 << 24)\n"
        "        return torch.ones(1 << 16)\n"
        "model = torch.nn.Linear(1 << 16, 1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "loader = iter(torch.utils.data.DataLoader(Data(), 4, num_workers=8))\n"
        "for batch in loader:\n"
        "    model(batch.cuda()).sum().backward()\n"
        "    optimizer.step()\n"
        "    each = max(held(worker.pid) for worker in loader._workers)\n"
        "print(before + 8 * (each + 2 * batch.nbytes))\n",
        seconds=60,
    )
    assert ran.trace.host_bytes == pytest.approx(int(ran.stdout), rel=0.1)


@pytest.mark.parametrize(("said", "nodes"), [("2", 2), ("1-2", 1), ("", 1)])
def test_the_number_of_nodes_is_what_is_said_where_that_is_a_number(
    run: Run, said: str, nodes: int
) -> None:
    assert (
        run("import torch\ntorch.zeros(1, device='cuda')\n", SLURM_NNODES=said).trace.nodes == nodes
    )


RAISED = {
    "in a library": ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name", 3),
    "in torch": ("def load():\n    torch.load('no.pt')\nload()", "FileNotFoundError: ", 3),
    "without words": (
        "assert torch.__version__ == '0'",
        "AssertionError: assert torch.__version__ == '0' (",
        2,
    ),
    "by argparse": (
        "import argparse\nargparse.ArgumentParser().parse_args(['--x'])",
        "SystemExit: 2 (",
        3,
    ),
}


@pytest.mark.parametrize("where", RAISED)
def test_an_error_names_the_line_of_the_users_own_that_led_to_it(run: Run, where: str) -> None:
    code, error, line = RAISED[where]
    ran = run(f"import torch\n{code}", without=["XMEM_DEADLINE"])
    assert str(ran.trace.error).startswith(error)
    assert str(ran.trace.error).endswith(f" (train.py:{line})")
    assert ran.trace.fails_on_any_gpu


KILLED = "time.sleep(1.5)\nos.kill(os.getpid(), signal.SIGKILL)"
CONFUSED = """
snapshot, calls = torch.cuda.memory._snapshot, []
def once_wrong(*args, **kwargs):
    calls.append(args)
    if len(calls) == 1: raise RuntimeError("dictionary changed size during iteration")
    return snapshot(*args, **kwargs)
torch.cuda.memory._snapshot = once_wrong
"""


@pytest.mark.parametrize(
    "before", ["", CONFUSED], ids=["killed", "killed, and one look went wrong"]
)
def test_what_is_on_the_gpu_is_in_the_trace_soon(run: Run, before: str) -> None:
    """A process that is killed leaves it, whatever holds its interpreter until then."""
    (trace,) = run(
        f"import os, signal, time, torch\n{before}\nx = torch.ones(5 << 20).cuda()\n{KILLED}"
    ).used
    assert (trace.state, trace.allocations[0].size) == ("running", 20 << 20)


OUTLIVES = """
import glob, gzip, json, os, signal, time, torch
held = torch.ones(5 << 20).cuda()
while True:
    time.sleep(0.05)
    for file in glob.glob(os.environ["XMEM_TRACE_DIR"] + "/*.json.gz"):
        touched, (_, written) = os.stat(file).st_mtime, json.load(gzip.open(file))["lived"]
        if touched > written + 0.5:
            print(json.dumps(written), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_was_on_its_gpu_until_then(run: Run, tmp_path: Path) -> None:
    """Not only until its trace was written: what begins between runs beside it."""
    written = run(OUTLIVES).out
    (trace,) = runner.read(tmp_path / "traces")
    assert trace.state == "running"
    assert trace.lived[1] > written + 0.5


METER = """
import glob, gzip, struct
traces = os.environ["XMEM_TRACE_DIR"]
meter = open(os.path.join(traces, "spent"), "wb", buffering=0)
def spend(seconds):
    meter.seek(0)
    meter.write(struct.pack("d", seconds))
def is_over():
    return any(b'"state":"budget"' in gzip.open(trace).read() for trace in glob.glob(traces + "/*.json.gz"))
"""
"""The sandbox writes what was spent into a file beside the traces; here the script does."""


def test_a_budget_of_the_whole_dry_run_ends_with_what_all_its_processes_spent(run: Run) -> None:
    code = """
for spent, steps in (9.0, 3), (11.0, 1):
    for _ in range(steps): step()
    kept = torch.empty(1 << 20, device="cuda")
    spend(spent)
    while spent > 10 and not is_over(): time.sleep(0.1)
    time.sleep(1.5)
step()
"""
    trace = run(TRAIN + METER + code, seconds=60, XMEM_CPU_SECONDS="10").trace
    assert (trace.state, trace.steps) == ("budget", 4)


def test_the_loader_of_torch_is_its_own_afterwards(cold: Run) -> None:
    code = (
        "import torch, inspect, json; print(json.dumps([type(torch.__loader__).__name__, "
        "inspect.getfile(torch)]))"
    )
    name, file = cold(code).out
    assert name == "SourceFileLoader"
    assert file.endswith("torch/__init__.py")


_LOOP = "model.eval()\nfor _ in torch.utils.data.DataLoader(list(range(9))): "


@pytest.mark.parametrize(
    ("after", "fails"),
    [("model.eval(); model.train()", True), (_LOOP + "break", True), (_LOOP + "pass", False)],
)
def test_a_script_that_swallows_its_error_before_any_step_has_failed(
    run: Run, after: str, fails: bool
) -> None:
    code = "try:\n    raise AssertionError\nexcept AssertionError:\n    print('logged')\n"
    error = run(TRAIN + code + after, seconds=HANG_SECONDS).trace.error
    assert (error is not None) == fails
    assert not fails or "before the first step" in str(error)


FORWARD = "for _ in range(3):\n    out = model(torch.randn(32, 256, device='cuda'))\n"


@pytest.mark.parametrize("code", [FORWARD, FORWARD + "out.sum().backward()\n"])
def test_a_script_that_ends_in_peace_without_a_step_has_none_to_make(cold: Run, code: str) -> None:
    trace = cold(TRAIN + code, seconds=HANG_SECONDS).trace
    assert (trace.error, [noted.code for noted in trace.doubts]) == (None, ["never-stepped"])


JOIN = (
    "import os, torch\ntorch.distributed.init_process_group('nccl', init_method='env://', "
    "rank=0, world_size=2)"
)


@pytest.mark.parametrize(
    ("asked", "code"),
    [("MASTER_ADDR", JOIN), ("LOCAL_RANK", "import os, torch\nos.environ['LOCAL_RANK']")],
)
def test_what_slurm_does_not_set_is_named_with_what_to_do(run: Run, asked: str, code: str) -> None:
    error = run(code, SLURM_PROCID="0").trace.error
    assert error is not None
    assert error.startswith(
        f"{asked} is not set, and Slurm does not set it: export MASTER_ADDR and MASTER_PORT"
    )
    assert "or start it with torchrun" in error


def test_a_module_that_is_missing_is_named_though_another_error_was_raised_from_it(
    run: Run,
) -> None:
    lazy = (
        "try:\n  import nowhere\nexcept ImportError as error:\n  raise RuntimeError('no Model') "
        "from error"
    )
    error = run(f"import torch\n{lazy}").trace.error
    assert (
        error
        == "RuntimeError: no Model: ModuleNotFoundError: No module named 'nowhere' (train.py:5)"
    )


def test_checkpoints_that_would_fill_the_disk_of_a_dry_run_are_holes(run: Run) -> None:
    code = """
import os, torch
from _xmem.values import host_weights
host_weights.MOST_WRITTEN = 6 << 20
weight = torch.ones(1 << 20)
for epoch in range(4):
    torch.save({"epoch": epoch, "weight": weight, "few": torch.arange(5)}, "last.pt")
    read = torch.load("last.pt")
    assert (read["epoch"], read["few"].tolist(), read["weight"].shape) == (epoch, [0, 1, 2, 3, 4], weight.shape)
    assert (os.stat("last.pt").st_blocks > 8192) == (epoch == 0), (epoch, os.stat("last.pt"))
    os.remove("last.pt")
"""
    assert run(code).trace.error is None


def test_a_checkpoint_on_the_gpu_takes_no_memory_of_the_host_and_is_not_looked_at(run: Run) -> None:
    code = """
import torch
from _xmem.values import host_weights, lazy
host_weights.MOST_WRITTEN = 1 << 20
everywhere, looked = lazy.everywhere, []
lazy.everywhere = lambda values: looked.append(values.numel()) or everywhere(values)

def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

state = {number: torch.empty(1 << 24, device="cuda") for number in range(4)}
before = held()
state[0].untyped_storage().cpu()
torch.save({"weights": state, "counts": torch.arange(1 << 18, device="cuda"), "few": torch.arange(3)}, "x.pt")
read = torch.load("x.pt")
assert held() - before < 32 << 20, held() - before
assert not looked, looked
assert read["few"].tolist() == [0, 1, 2] and read["weights"][3].shape == (1 << 24,) and read["weights"][3].is_cuda
assert torch.zeros(1 << 20, dtype=torch.int).cuda().max().item() == 0 and looked == [1 << 20]
"""
    assert run(code).trace.error is None


def test_files_of_safetensors_that_would_fill_the_disk_of_a_dry_run_are_holes(run: Run) -> None:
    code = """
import os, sys, importlib.util
if importlib.util.find_spec("safetensors") is None:
    sys.exit(77)
import safetensors.torch as of_torch  # before torch, which it imports itself
import torch
from safetensors import safe_open
from _xmem.values import host_weights
host_weights.MOST_WRITTEN, host_weights.LARGE_FILE = 6 << 20, 1 << 20
tensors = {
    "z": torch.ones(3), "large": torch.ones(1 << 10, 1 << 10), "half": torch.full((3,), 2, dtype=torch.bfloat16),
    "number": torch.tensor(7), "none": torch.zeros(0, 4), "ö": torch.ones(2, dtype=torch.bool),
    "gpu": torch.tensor([5, 6]).cuda(), "wide": torch.empty(1 << 9, 1 << 9, dtype=torch.double, device="cuda"),
}
for round in range(3):
    of_torch.save_file(tensors, "x.safetensors", metadata={"format": "pt"})
    with safe_open("x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == set(tensors)
        assert file.get_slice("large").get_shape() == [1 << 10, 1 << 10]
        assert file.get_slice("large")[3:5].shape == (2, 1 << 10)
    for device in ("cpu", "cuda", 0):
        read = of_torch.load_file("x.safetensors", device=device)
        for name, each in read.items():
            same = each.shape == tensors[name].shape and each.dtype == tensors[name].dtype
            assert same and each.is_cuda == (device != "cpu"), name
            if each.numel() < 9:
                assert each.tolist() == tensors[name].tolist(), name
        assert device != "cpu" or read["large"].max() == (round == 0)
    blocks = os.stat("x.safetensors").st_blocks
    assert (blocks > 8192) == (round == 0), blocks
with safe_open("x.safetensors", "pt", device="cuda") as file:
    assert file.get_slice("large")[:, :2].is_cuda and file.get_tensor("z").tolist() == [1, 1, 1]
one = torch.ones(1 << 20)
for wrong in ({"a": one, "b": one}, {"a": one.view(2, -1).t()}, {"a": one.to_sparse()}, [one], {"a": 1}):
    try:
        of_torch.save_file(wrong, "y.safetensors")
    except (RuntimeError, ValueError, TypeError) as error:
        assert "hole" not in str(error)
    else:
        raise AssertionError(wrong)
assert not os.path.exists("y.safetensors")
of_torch.save_file({}, "y.safetensors")
assert of_torch.load_file("y.safetensors") == {}
model = torch.nn.Linear(1 << 10, 1 << 10)
of_torch.save_model(model, "m.safetensors")
assert os.stat("m.safetensors").st_blocks < 64 and of_torch.load_model(model, "m.safetensors") == (set(), [])
assert not [each for each in os.listdir() if each.endswith(".part")]
"""
    ran = run(code)
    if ran.returncode == 77:
        pytest.skip("no safetensors there")
    assert ran.trace.error is None


@pytest.mark.parametrize(
    ("asked", "option"), [("SLURM_NTASKS", "--ntasks"), ("SLURM_CPUS_PER_TASK", "--cpus-per-task")]
)
def test_what_slurm_sets_where_a_job_asks_is_named_with_the_option(
    run: Run, asked: str, option: str
) -> None:
    error = run(f"import os, torch\nint(os.environ['{asked}'])", SLURM_PROCID="0").trace.error
    assert (
        error
        == f"{asked} is not set: Slurm does that only where the job says {option} (train.py:2)"
    )


def test_without_slurm_a_variable_that_is_not_set_is_python_s_error(run: Run) -> None:
    assert (
        run("import os, torch\nos.environ['RANK']").trace.error == "KeyError: 'RANK' (train.py:2)"
    )


# -- children --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_leave_the_trace_alone(run: Run, method: str) -> None:
    code = f"""
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 256))
    for _ in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True, multiprocessing_context="{method}"):
        step()
"""
    train = TRAIN
    # the workers import this file again: nothing of it may touch the GPU there
    if method == "spawn":
        train = TRAIN.replace("\nmodel", "\nif __name__ == '__main__':\n  model").replace(
            "\noptimizer", "\n  optimizer"
        )
    (trace,) = run(train + code).used
    assert (trace.state, trace.error, trace.steps) == ("exit", None, 4)


def test_a_forked_child_that_uses_the_gpu_has_its_own_trace(run: Run) -> None:
    code = """
import os, torch
child = os.fork()
x = torch.empty((1 if child else 2) << 20, dtype=torch.uint8, device="cuda")
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    ran = run(code)
    assert sorted(trace.allocations[0].size for trace in ran.used) == [1 << 20, 2 << 20]


def test_children_of_a_process_that_used_the_gpu_are_silent(run: Run) -> None:
    code = """
os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "0"  # 10 s for threads that a child does not have
step(); step()
child = os.fork()
if child == 0:
    raise ValueError("the child's own end")
os.waitpid(child, 0)
import multiprocessing
fork = multiprocessing.get_context("fork")
sleeps = fork.Event()
process = fork.Process(target=lambda: (sleeps.set(), time.sleep(60)))
process.start()
sleeps.wait()
process.terminate()
process.join()
step()
"""
    trace = run(TRAIN + code).trace
    assert (trace.state, trace.error, trace.steps) == ("exit", None, 3)


def test_workers_end_with_a_steady_run(run: Run) -> None:
    """A worker would hold the pipe that this test reads from."""
    code = """
import multiprocessing
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
while True: step()
"""
    assert run(TRAIN + code, seconds=60, **{TICK: "1"}).trace.state == "steady"


# -- steps -----------------------------------------------------------------------------------------

LOSS = "model(torch.randn(32, 256, device='cuda')).sum()"
COUNTED = {
    "SGD": (
        (
            "o = torch.optim.SGD(model.parameters(), momentum=0.9)\nfor _ in range(5): "
            f"{LOSS}.backward(); o.step()"
        ),
        5,
    ),
    "fused AdamW": (
        (
            "o = torch.optim.AdamW(model.parameters(), fused=True)\nfor _ in range(5): "
            f"{LOSS}.backward(); o.step()"
        ),
        5,
    ),
    "capturable AdamW": (
        (
            f"o = torch.optim.AdamW(model.parameters(), foreach=True, capturable=True)\n"
            f"for _ in range(5): {LOSS}.backward(); o.step()"
        ),
        5,
    ),
    "a closure": (
        "o = torch.optim.LBFGS(model.parameters(), max_iter=2)\n"
        "def closure():\n    o.zero_grad()\n    loss = "
        + LOSS
        + "\n    loss.backward()\n    return loss\n"
        "for _ in range(4): o.step(closure)",
        4,
    ),
    "GradScaler": (
        (
            "scaler = torch.amp.GradScaler('cuda')\nfor _ in range(3):\n"
            f"    scaler.scale({LOSS}).backward()\n    scaler.step(optimizer)\n    scaler.update()"
        ),
        3,
    ),
    "gradient accumulation": (
        (
            f"for i in range(12):\n    {LOSS}.backward()\n    if i % 4 == 3: optimizer.step(); "
            "optimizer.zero_grad()"
        ),
        3,
    ),
    "two networks in turn": (
        (
            "other = torch.nn.Linear(9, 9).cuda()\nsecond = torch.optim.SGD(other.parameters(), "
            "lr=0.1)\n"
            "for i in range(6):\n    step()\n    if i % 3 == 2:\n"
            "        other(torch.ones(1, 9, device='cuda')).sum().backward(); second.step()"
        ),
        6,
    ),
    "an optimizer for each step": (
        (
            f"for _ in range(4):\n    {LOSS}.backward()\n    torch.optim.SGD(model.parameters(), "
            "lr=0.1).step()"
        ),
        4,
    ),
    "an optimizer for each parameter": (
        (
            "each = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]\n"
            f"for _ in range(4):\n    {LOSS}.backward()\n    [o.step() for o in each]"
        ),
        4,
    ),
    "a compiled step": (
        (
            "compiled = torch.compile(optimizer.step, backend='eager')\nfor _ in range(3): "
            f"{LOSS}.backward(); compiled()"
        ),
        3,
    ),
    "a compiled model": (
        "model = torch.compile(model, backend='aot_eager')\nfor _ in range(3): step()",
        3,
    ),
}


@pytest.mark.parametrize("way", COUNTED)
def test_steps_are_counted(run: Run, way: str) -> None:
    code, steps = COUNTED[way]
    ran = run(TRAIN + code)
    assert ran.returncode == 0, ran.stderr
    assert ran.trace.steps == steps


def test_a_run_whose_steps_repeat_ends_as_steady(run: Run) -> None:
    ran = run(TRAIN + "while True: step()", seconds=60, **{TICK: "1"})
    assert (ran.returncode, ran.trace.state, ran.trace.error) == (0, "steady", None)
    assert ran.trace.steps > 3
    assert exact(ran.trace)


def test_an_optimizer_that_steps_seldom_is_waited_for(run: Run) -> None:
    """A GAN's generator, which steps once in many steps of the critic: its first step makes the
    peak."""
    code = """
large = torch.nn.Linear(2048, 2048).cuda()
seldom = torch.optim.AdamW(large.parameters())
for i in range(10**9):
    step()
    if i % 25 == 24:
        large(torch.ones(1, 2048, device="cuda")).sum().backward()
        seldom.step()
"""
    trace = run(TRAIN + code, seconds=100, **{TICK: "0.1"}).trace
    assert trace.state == "steady"
    assert trace.recorded["allocated_bytes"] > 4 * 4 * 2048 * 2048


def test_a_run_that_grows_without_an_end_in_sight_says_so(run: Run) -> None:
    code = """
kept = []
while True:
    step()
    kept.append(torch.empty(1 << 20, device="cuda"))
"""
    trace = run(TRAIN + code, seconds=100, **{TICK: "0.05"}).trace
    (grows,) = [doubt.detail for doubt in trace.doubts if doubt.code == "still-growing"]
    assert grows == "each step left 4.0 MiB more on the GPU"


def test_a_run_without_an_optimizer_goes_to_its_end(run: Run) -> None:
    code = """
with torch.no_grad():
    for _ in range(20000):
        model(torch.randn(32, 256, device="cuda"))
last = torch.empty(55 << 20, device="cuda")
"""
    trace = run(TRAIN + code, seconds=60).trace
    assert (trace.state, trace.steps) == ("exit", 0)
    assert trace.allocations[-1].size == 55 << 22
    sizes = [a.size for a in trace.allocations if a.category is Category.PARAM]
    assert sorted(sizes) == [256 * 4, 256 * 256 * 4]


def test_an_endless_run_without_steps_ends_with_its_budget_and_a_short_trace(run: Run) -> None:
    code = """
for _ in range(100_000): torch.empty(512, device='cuda')
spend(11.0)
while not is_over(): torch.empty(512, device='cuda')
"""
    trace = run(TRAIN + METER + code, seconds=60, XMEM_CPU_SECONDS="10").trace
    assert trace.state == "budget"
    assert len(trace.allocations) < 200_000


# -- what the bytes are ----------------------------------------------------------------------------

TAGGED = """
import json, torch
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 32)).cuda()
frozen = torch.nn.Linear(32, 32).cuda().requires_grad_(False)
optimizer = OPTIMIZER
def size(tensors): return sum(t.untyped_storage().nbytes() for t in tensors if t.is_cuda)
for _ in range(3):
    frozen(net(torch.randn(16, 64, device="cuda"))).sum().backward()
    optimizer.step()
    grads = size([p.grad for p in net.parameters()])
    optimizer.zero_grad(set_to_none=False)
everything = [*net.modules(), frozen]
print(json.dumps({
    "PARAM": size([p for m in everything for p in m.parameters(recurse=False)]),
    "BUFFER": size([b for m in everything for b in m.buffers(recurse=False)]),
    "GRAD": grads,
    "OPT": size([v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]),
}))
"""


@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim.AdamW(net.parameters())",
        "torch.optim.AdamW(net.parameters(), fused=True)",
        "torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)",
        "torch.optim.Adafactor(net.parameters())",
    ],
)
def test_categories_hold_the_bytes_that_the_script_counts(run: Run, optimizer: str) -> None:
    ran = run(TAGGED.replace("OPTIMIZER", optimizer))
    if "no attribute 'Adafactor'" in ran.stderr:
        pytest.skip("this torch has no Adafactor")
    assert ran.returncode == 0, ran.stderr
    counted = dict.fromkeys(ran.out, 0)
    freed = {event.allocation for event in ran.trace.events if event.op == Op.FREE_REQUESTED}
    for number, allocation in enumerate(ran.trace.allocations):
        if allocation.category in counted and number not in freed:
            counted[allocation.category] += allocation.size
    assert counted == ran.out


# -- the replay is the run -------------------------------------------------------------------------


def exact(trace: Trace) -> bool:
    """Whether the model gives torch's own peaks to the byte."""
    found = replay(trace)
    modelled = {
        "allocated_bytes": found.peak_allocated_bytes,
        "reserved_bytes": found.peak_reserved_bytes,
        "active_bytes": found.peak_active_bytes,
        "requested_bytes": found.peak_requested_bytes,
    }
    assert modelled == trace.recorded
    return True


TRANSFORMER = """
import torch
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 256), torch.nn.TransformerEncoder(layer, 4),
                            torch.nn.Linear(256, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(0, 1000, (8, 512), device="cuda")
for i in range(4):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    IN_LOOP
"""
CONVOLUTIONS = """
import torch
def block(i, o): return [torch.nn.Conv2d(i, o, 3, 2, 1), torch.nn.BatchNorm2d(o), torch.nn.ReLU()]
model = torch.nn.Sequential(*block(3, 64), *block(64, 128), *block(128, 256), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for size in (64, 96, 80, 128):
    model(torch.randn(16, 3, size, size, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STREAMS = """
import torch
streams = [torch.cuda.Stream() for _ in range(3)]
for i in range(30):
    x = torch.empty((i % 7 + 1) << 20, device="cuda")
    with torch.cuda.stream(streams[i % 3]):
        y = x * 2
        RECORD
        z = torch.empty((i % 5 + 1) << 20, device="cuda")
    del x, y
torch.cuda.synchronize()
last = torch.empty(9 << 20, device="cuda")
"""
GRAPH = """
import torch
model = torch.nn.Linear(512, 512).cuda()
x = torch.randn(64, 512, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model(x).sum().backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
model.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    model(x).sum().backward()
graph.replay()
after = torch.empty(30 << 20, device="cuda")
"""
JOBS = {
    "a transformer": (TRANSFORMER.replace("IN_LOOP", ""), ""),
    "convolutions of several sizes": (CONVOLUTIONS, ""),
    "empty_cache in the loop": (TRANSFORMER.replace("IN_LOOP", "torch.cuda.empty_cache()"), ""),
    "streams": (STREAMS.replace("RECORD", ""), ""),
    "record_stream": (STREAMS.replace("RECORD", "x.record_stream(streams[i % 3])"), ""),
    "expandable segments": (
        TRANSFORMER.replace("IN_LOOP", "torch.cuda.empty_cache()"),
        "expandable_segments:True",
    ),
    "expandable segments on streams": (STREAMS.replace("RECORD", ""), "expandable_segments:True"),
    "max_split_size": (CONVOLUTIONS.replace("16, 3", "256, 3"), "max_split_size_mb:128"),
    "rounding": (CONVOLUTIONS, "roundup_power2_divisions:4"),
    "settings made in the script": (
        TRANSFORMER.replace(
            "import torch\n",
            "import torch\nset = getattr(torch._C, '_accelerator_setAllocatorSettings', None)\n"
            "(set or torch.cuda.memory._set_allocator_settings)('roundup_power2_divisions:8')\n",
        ).replace("IN_LOOP", ""),
        "max_split_size_mb:64",
    ),
}


OTHERS = pytest.mark.slow(
    covers=["xmem_slurm/probe/*", "xmem_slurm/device/*", "xmem_slurm/allocator/*", "xmem_slurm/trace*",
            "tests/harness/*"],
)  # fmt: skip


@pytest.mark.parametrize(
    "job", some_each_time(JOBS, ("a transformer", "empty_cache in the loop"), OTHERS)
)
def test_the_replay_of_a_trace_has_the_peaks_of_the_run(run: Run, job: str) -> None:
    code, settings = JOBS[job]
    ran = run(code, PYTORCH_CUDA_ALLOC_CONF=settings)
    assert ran.returncode == 0, ran.stderr
    assert exact(ran.trace)


LINEAR = """
import torch
from torch import nn
model = nn.Sequential(MODULES).half().float().cuda()
x = torch.randn(2048, 512, device="cuda")
y = model(x)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(40):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_lazy_module_takes_what_the_module_takes_that_it_becomes(run: Run) -> None:
    lazy = run(LINEAR.replace("MODULES", "nn.LazyLinear(1024), nn.ReLU(), nn.LazyLinear(512)"))
    assert lazy.returncode == 0, lazy.stderr
    both = run(LINEAR.replace("MODULES", "nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)"))
    (peak,) = {replay(each).peak_allocated_bytes for each in both.traces}
    assert (len(both.traces), peak > 0) == (2, True)


@pytest.mark.parametrize("record", ["", "x.record_stream(streams[i % 3])"])
def test_memory_used_on_other_streams_is_a_doubt(run: Run, record: str) -> None:
    codes = {doubt.code for doubt in run(STREAMS.replace("RECORD", record)).trace.doubts}
    assert ("record-stream" in codes) == bool(record)


@pytest.mark.parametrize("collector", ["", "gc.disable(); "])
def test_memory_that_the_garbage_collector_frees_of_its_own_accord_is_a_doubt(
    run: Run, collector: str
) -> None:
    code = f"""
import gc, torch
{collector}cycle = [torch.empty(100 << 20, device="cuda")]
cycle.append(cycle)
old = [[] for _ in range(20_000)]
del cycle
older = [[] for _ in range(5_000_000)]
gc.collect()
"""
    priced = {doubt.code: doubt.share for doubt in run(code).trace.doubts}
    assert priced.get("garbage") == (None if collector else 1)


def test_what_is_freed_while_another_thread_collects_is_not_the_collectors(run: Run) -> None:
    code = """
import gc, threading, torch
held, begun, freed = [torch.empty(100 << 20, device="cuda")], threading.Event(), threading.Event()

def meanwhile(phase, about):
    if phase == "start" and about["generation"] and threading.current_thread() is other:
        begun.set()
        freed.wait()

gc.callbacks.append(meanwhile)
other = threading.Thread(target=lambda: [[] for _ in range(100_000)])
other.start()
begun.wait()
held.clear()
freed.set()
other.join()
"""
    assert "garbage" not in [doubt.code for doubt in run(code).trace.doubts]


def test_pools_of_cuda_graphs_are_kept_apart_in_a_replay(run: Run) -> None:
    trace = run(GRAPH).trace
    assert "private-pool" in [doubt.code for doubt in trace.doubts]
    assert exact(trace)


@pytest.mark.parametrize(
    "first", ["pass", "torch.cuda.is_available(); os.environ['CUDA_VISIBLE_DEVICES'] = '0'"]
)
def test_each_device_has_its_own_trace(run: Run, first: str) -> None:
    """A script that chooses one when CUDA has counted them has both all the same, whatever
    torch.cuda says then."""
    code = (
        f"import os, torch; {first}"
        """
parts = [torch.nn.Linear(256, 256).to("cuda:%d" % i) for i in range(2)]
optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1, momentum=0.9)
big = torch.empty(100 << 20, device="cuda:1")
for _ in range(3):
    parts[1](parts[0](torch.randn(8, 256, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
"""
    )
    one, other = run(code, gpus=2).traces
    assert (one.steps, other.steps) == (3, 3)
    assert other.recorded["allocated_bytes"] > 400e6 > one.recorded["allocated_bytes"]
    for trace in (one, other):
        assert exact(trace)
        assert [a.size for a in trace.allocations if a.category is Category.PARAM] == [
            256 * 256 * 4,
            256 * 4,
        ]
        assert len([a for a in trace.allocations if a.category is Category.OPT]) == 2


def test_a_thread_that_works_ahead_of_the_steps_fills_its_queue(run: Run) -> None:
    ahead = """
import queue
batches = queue.Queue(8)
def work():
    for _ in range(40):
        time.sleep(0.02)
        batches.put(torch.zeros(1 << 20, device="cuda"))
threading.Thread(target=work, daemon=True).start()
for _ in range(40):
    batches.get()
    step()
"""
    found = run(TRAIN + ahead, seconds=HANG_SECONDS).trace
    assert replay(found).peak_allocated_bytes > 9 * (4 << 20)
    assert "threads" in {noted.code for noted in found.doubts}
