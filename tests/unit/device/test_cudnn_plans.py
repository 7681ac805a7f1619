"""Plans and workspaces from the job's own cuDNN: the stand-in libcudnn, its helper, and a fake of
the real library.

The fake (tests/data/fake_cudnn_graph.c) is no cuDNN: it shows that what is asked is what torch
asked, and what happens when the library is slow, broken or another one.
tests/integration/device/test_device_torch.py asks a real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm.device import generate

FAKE = Path(__file__).parents[2] / "data" / "fake_cudnn_graph.c"

ASK = """
import ctypes, json, os, sys
folder = sys.argv[1]
runtime = ctypes.CDLL(folder + "/libcudart.so", mode=ctypes.RTLD_GLOBAL)
cudnn = ctypes.CDLL(folder + "/libcudnn.so")
HANDLE, INT64, DESCRIPTOR, MODE, NUMERICAL = 0, 3, 15, 8, 11

def make(kind, *attributes):
    made = ctypes.c_void_p()
    assert cudnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)) == 0
    for name, type, values in attributes:
        assert cudnn.cudnnBackendSetAttribute(made, name, type, ctypes.c_int64(len(values)), values) == 0
    made.status = cudnn.cudnnBackendFinalize(made)
    return made

def get(of, name, type, values):
    count = ctypes.c_int64()
    size = ctypes.c_int64(len(values) if values is not None else 0)
    assert cudnn.cudnnBackendGetAttribute(of, name, type, size, ctypes.byref(count), values) == 0
    return count.value

def pointers(*of):
    return (ctypes.c_void_p * len(of))(*of)

CONVOLUTION, PRODUCT = 10, 19

def ask(rows, columns, kind=PRODUCT):
    tensor = make(17, (902, INT64, (ctypes.c_int64 * 2)(rows, columns)))
    operation = make(kind, (701, DESCRIPTOR, pointers(tensor)))
    cudnn.cudnnBackendDestroyDescriptor(tensor)  # as torch does
    graph = make(15, (800, HANDLE, pointers(0x1234)), (801, DESCRIPTOR, pointers(operation)))
    heuristics = make(4, (201, DESCRIPTOR, pointers(graph)), (200, MODE, (ctypes.c_int * 1)(0)))
    configurations = [make(3) for _ in range(get(heuristics, 202, DESCRIPTOR, None))]
    get(heuristics, 202, DESCRIPTOR, pointers(*configurations))
    return [describe(each) for each in configurations]

def describe(configuration):
    engine, index, notes, workspace = make(2), (ctypes.c_int64 * 1)(), (ctypes.c_int * 8)(), (ctypes.c_int64 * 1)()
    get(configuration, 300, DESCRIPTOR, pointers(engine))
    get(engine, 1301, INT64, index)
    noted = get(engine, 1303, NUMERICAL, notes)
    plan = make(5, (400, HANDLE, pointers(0x1234)), (401, DESCRIPTOR, pointers(configuration)))
    if not plan.status:
        get(plan, 402, INT64, workspace)
        if "--execute" in sys.argv:
            cudnn.cudnnBackendExecute(None, plan, None)
    return [index[0], plan.status, workspace[0], list(notes[:noted])]

def doubts():
    text = ctypes.create_string_buffer(1 << 16)
    runtime.xmem_device_report(text, len(text))
    return {each["code"]: each["detail"] for each in json.loads(text.value)}

def out(**values):
    print(json.dumps(values), flush=True)
"""

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of runtime and cuDNN, the helper, and fakes of the real library, in one folder."""
    folder = tmp_path_factory.mktemp("stand-ins")
    numbers = [
        "-DXMEM_CUDA_MAJOR=13",
        "-DXMEM_CUDA_VERSION=13000",
        "-DXMEM_CUDNN_VERSION=91900",
        "-DANSWER_SECONDS=5",
    ]
    shared = ["gcc", "-std=c11", "-O1", "-w", "-fPIC", "-shared", *numbers]
    sources = {
        name: sorted(generate.SOURCES.glob(name)) for name in ("cudart/*.c", "libraries/cudnn*.c")
    }
    helper = [
        "gcc",
        "-std=c11",
        "-O1",
        "-DANSWER_SECONDS=5",
        "-DIDLE_SECONDS=5",
        generate.SOURCES / "plans" / "answer.c",
        "-ldl",
    ]
    commands = [
        [*shared, *sources["cudart/*.c"], "-o", folder / "libcudart.so", "-ldl", "-lpthread"],
        [*shared, *sources["libraries/cudnn*.c"], "-o", folder / "libcudnn.so", "-ldl"],
        [*helper, "-o", folder / "cudnn-plans"],
    ]
    for name, flags in {
        "": [],
        "silent": ["-DSILENT"],
        "crash": ["-DCRASH"],
        "hang": ["-DHANG"],
        "refuse": ["-DREFUSE"],
    }.items():
        commands.append(
            [*shared, "-DVERSION=91900", *flags, FAKE, "-o", folder / f"graph{name}.so"]
        )
    commands.append([*shared, "-DVERSION=91800", FAKE, "-o", folder / "graphother.so"])
    account = f'"{folder}/schedstat"'
    starved = ["-UANSWER_SECONDS", "-DANSWER_SECONDS=3", f"-DSCHEDSTAT={account}"]
    commands.append(
        [*shared, *starved, *sources["libraries/cudnn*.c"], "-o", folder / "starved.so", "-ldl"]
    )
    commands.append(
        [*shared, "-DVERSION=91900", f"-DSTARVED={account}", FAKE, "-o", folder / "graphstarved.so"]
    )
    for command in commands:
        subprocess.run(list(map(str, command)), check=True)
    return folder


@pytest.fixture
def ask(built: Path, tmp_path: Path) -> Ask:
    """Run code after `ASK` on a fresh copy of the stand-ins, with one of the fakes; its last line
    comes back."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    for name in ("libcudart.so", "libcudnn.so", "cudnn-plans"):
        os.link(built / name, folder / name)

    def ask(code: str, *options: str, library: str = "", **environment: str) -> Any:
        gpu = {"XMEM_DEVICE_NAME": "Fake", "XMEM_DEVICE_CAPABILITY": "9.0"}
        real = {"XMEM_DEVICE_CUDNN": str(built / f"graph{library}.so")}
        ran = subprocess.run(
            [sys.executable, "-c", ASK + code, str(folder), *options],
            env={"PATH": os.environ["PATH"], **gpu, **real, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        return json.loads(ran.stdout.splitlines()[-1])

    return ask


def test_the_library_is_the_one_that_torch_would_load(tmp_path: Path) -> None:
    """Beside torch, on sys.path, in torch itself, in LD_LIBRARY_PATH, in the environment's own lib:
    in this order."""
    torch = tmp_path / "site-packages" / "torch"
    modules, elsewhere = tmp_path / "module" / "lib", tmp_path / "elsewhere"
    code = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
sys.prefix = sys.argv[3]
from _xmem.process import stand_ins
print(stand_ins.real_cudnn(sys.argv[4]))
"""
    probe = generate.SOURCES.parents[1] / "probe"
    environment = {"LD_LIBRARY_PATH": f":{modules}"}
    command = [sys.executable, "-c", code, probe, elsewhere, tmp_path / "conda", torch]
    found = []
    for place in (
        tmp_path / "conda" / "lib",
        modules,
        torch / "lib",
        elsewhere / "nvidia" / "cudnn" / "lib",
        torch.parent / "nvidia" / "cudnn" / "lib",
    ):
        place.mkdir(parents=True)
        (place / "libcudnn_graph.so.9").touch()
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(ran.stdout.strip() == str(place / "libcudnn_graph.so.9"))
    assert all(found), found


ONCE = "out(plans=ask(30, 70), doubts=doubts())"
NO_PLANS = [[0, 0, 0, []]]
"""Today's rule: one engine, no workspace."""


def answered(elements: int) -> list[list[Any]]:
    return [[7, 3000, 0, []], [9, 0, elements, [0, 4]], [11, 0, 2 * elements, []]]


def test_plans_are_those_of_the_library(ask: Ask) -> None:
    seen = ask(ONCE, "--execute")
    assert seen == {"plans": answered(2100), "doubts": {}}


def test_a_workspace_may_be_that_of_any_plan_of_its_list(ask: Ask) -> None:
    code = """
def bounds():
    text = ctypes.create_string_buffer(1 << 16)
    runtime.xmem_bounds_report(text, len(text))
    return json.loads(text.value)
runtime.xmem_at_most.restype, runtime.xmem_at_most.argtypes = ctypes.c_uint64, [ctypes.c_uint64] * 2
ask(30, 70, CONVOLUTION), ask(30, 70, CONVOLUTION), ask(1, 2, CONVOLUTION)
sizes = [runtime.xmem_at_most(n, most) for n, most in ((0, 4096), (0, 8192), (0, 4096), (512, 512), (512, 513))]
many = {runtime.xmem_at_most(1 << 20, most << 21) for most in range(1, 300)}
out(sizes=sizes, few=bounds()[:4], many=[len(many), min(many)], last=dict(bounds())[min(many)], doubts=doubts())
"""
    seen = ask(code, XMEM_DEVICE_MULTIPROCESSORS="3")
    parts = 3 * 2 * 128 * 128 * 4
    assert seen["few"] == [
        [2559, 4200 + parts],
        [4607, 4200 + parts],
        [511, 4 + parts],
        [509, 4096],
    ]
    assert seen["sizes"] == [509, 507, 509, 512, 505]
    assert seen["many"] == [256, (1 << 20) - 511], "the last size stands for all that are over"
    assert seen["last"] == 299 << 21
    assert seen["doubts"] == {}


def test_only_of_convolutions_another_plan_than_the_first_may_be_taken(ask: Ask) -> None:
    """Torch tries the plans of a convolution; of all else it takes the first that can be made."""
    (_, first, _), (_, other, _) = (
        ask(f"out(plans=ask(30, 70, {kind}))")["plans"] for kind in ("CONVOLUTION", "PRODUCT")
    )
    assert (first[2], other[2]) == (2559, 2100), (
        "the first stands for any: by a size just below whole blocks"
    )


PRODUCTS = """
def tensor(*sizes, last=False):
    strides = [1] * 4
    order = (1, 3, 2, 0) if last else (3, 2, 1, 0)
    for inner, outer in zip(order, order[1:]):
        strides[outer] = strides[inner] * sizes[inner]
    return make(17, (902, INT64, (ctypes.c_int64 * 4)(*sizes)), (903, INT64, (ctypes.c_int64 * 4)(*strides)))

def first(direction, side, last=False, kernel=1, stride=1, padding=0, groups=1):
    numbers = {10: (702, 703, 704), 11: (714, 715, 716), 12: (708, 709, 710)}[direction]
    pairs = ((103, stride), (104, padding), (105, padding))
    how = make(1, *((name, INT64, (ctypes.c_int64 * 2)(value, value)) for name, value in pairs))
    filters, images = tensor(32, 16 // groups, kernel, kernel), tensor(8, 16, side, side, last=last)
    parts = [(701, images), *zip(numbers, (how, filters, images))]  # the fake goes by 701
    operation = make(direction, *((name, DESCRIPTOR, pointers(each)) for name, each in parts))
    graph = make(15, (801, DESCRIPTOR, pointers(operation)))
    heuristics = make(4, (201, DESCRIPTOR, pointers(graph)), (200, MODE, (ctypes.c_int * 1)(0)))
    configurations = [make(3) for _ in range(get(heuristics, 202, DESCRIPTOR, None))]
    get(heuristics, 202, DESCRIPTOR, pointers(*configurations))
    engine, _, workspace, _ = describe(configurations[0])
    return [engine, -(-workspace // 512) * 512]
"""
"""The first engine of a convolution's answer, and its workspace in whole blocks."""


def test_a_convolution_that_is_a_product_of_matrices_takes_no_workspace(ask: Ask) -> None:
    code = """
products = [first(10, 14), first(12, 14), first(11, 14), first(10, 7, last=True), first(12, 7, last=True)]
others = [first(10, 7), first(11, 7, last=True), first(10, 14, kernel=3), first(10, 14, stride=2)]
others += [first(10, 14, padding=1), first(10, 14, groups=2)]
out(products=products, others=others)
"""
    seen = ask(PRODUCTS + code)
    assert seen["products"] == [[58, 512], [63, 512], [62, 8 * 32 * 16 * 4], [58, 512], [63, 512]]
    assert seen["others"] == [[7, 0]] * 6


def test_a_compiled_plan_that_does_not_tell_its_workspace_is_made(ask: Ask) -> None:
    """That of the fake cannot be."""
    assert ask(ONCE, library="silent")["plans"][1:] == [[9, 0, 2100, [0, 4]], [11, 3000, 0, []]]


def test_each_operation_has_its_own_answer(ask: Ask) -> None:
    assert ask("out(plans=[ask(2, 3), ask(5, 7), ask(2, 3)])")["plans"] == [
        answered(6),
        answered(35),
        answered(6),
    ]


def test_tf32_switched_off_is_another_question(ask: Ask) -> None:
    ask(ONCE)
    assert ask(ONCE, NVIDIA_TF32_OVERRIDE="0")["plans"] == answered(2101)
    assert ask(ONCE)["plans"] == answered(2100)


def test_a_known_operation_needs_no_library(ask: Ask, tmp_path: Path) -> None:
    ask(ONCE)
    (tmp_path / "stand-ins" / "cudnn-plans").unlink()
    assert ask(ONCE, library="gone")["plans"] == answered(2100)
    assert ask("out(plans=ask(30, 71))")["plans"] == NO_PLANS


def test_a_dry_run_keeps_answers_to_itself(ask: Ask, tmp_path: Path) -> None:
    ask(ONCE, XMEM_DEVICE_PLANS=str(tmp_path / "own"))
    assert {each.name for each in tmp_path.iterdir()} == {"stand-ins", "own"}
    assert not (tmp_path / "stand-ins" / "plans").exists()
    (tmp_path / "stand-ins" / "cudnn-plans").unlink()
    assert ask(ONCE, library="gone", XMEM_DEVICE_PLANS=str(tmp_path / "own"))["plans"] == answered(
        2100
    )
    assert ask(ONCE)["plans"] == NO_PLANS


def test_another_gpu_or_a_damaged_answer_is_asked_again(ask: Ask, tmp_path: Path) -> None:
    ask(ONCE)
    (kept,) = (tmp_path / "stand-ins" / "plans").iterdir()
    kept.write_text(kept.read_text().replace("9 0 2100", "9 0 9990"))
    assert ask(ONCE)["plans"][1][2] == 9990  # it is read
    kept.write_text(kept.read_text()[:-5])
    assert ask(ONCE)["plans"] == answered(2100)
    refused = ask(ONCE, XMEM_DEVICE_CAPABILITY="8.0")
    assert refused["plans"] == NO_PLANS


def test_answers_are_bounded(ask: Ask, tmp_path: Path) -> None:
    """Four files a set: of many operations, each set keeps four, and every one is answered all the
    same."""
    folder = tmp_path / "stand-ins" / "plans"
    folder.mkdir()
    for number in range(1024):
        for way in range(4):
            (folder / f"{number:03x}.{way}").touch()
    assert ask("out(plans=[ask(1, n)[1][2] for n in range(1, 50)])")["plans"] == list(range(1, 50))
    assert len(list(folder.iterdir())) == 4096
    assert sum(file.stat().st_size > 0 for file in folder.iterdir()) > 40


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("other", "the cuDNN library beside torch is of another version than torch's"),
        ("gone", "the cuDNN library beside torch could not be loaded"),
        ("crash", "cuDNN gave no answer"),
        ("refuse", "cuDNN has no plan without a device"),
    ],
)
def test_no_answer_is_the_old_rule_and_a_doubt(ask: Ask, library: str, reason: str) -> None:
    seen = ask("out(plans=[ask(30, 70) for _ in range(5)][-1], doubts=doubts())", library=library)
    assert seen == {"plans": NO_PLANS, "doubts": {"cudnn-plan": reason}}


def test_no_library_is_the_old_rule_and_a_doubt(ask: Ask) -> None:
    seen = ask(ONCE, XMEM_DEVICE_CUDNN="")
    assert seen == {
        "plans": NO_PLANS,
        "doubts": {"cudnn-plan": "no cuDNN library was found beside torch"},
    }


def test_asking_ends_in_time_for_the_dry_run(ask: Ask) -> None:
    """A library that hangs costs one answer's time, not that of every operation."""
    code = "out(plans=[ask(30, n) for n in range(50)][-1], doubts=doubts())"
    seen = ask(code, library="hang", XMEM_DEADLINE=str(time.monotonic() + 8))
    told = {"cudnn-plan": "cuDNN gave no answer", "cudnn-time": "the time for asking cuDNN ran out"}
    assert seen == {"plans": NO_PLANS, "doubts": told}


def test_an_answer_is_waited_for_while_others_have_the_cpus(
    built: Path, ask: Ask, tmp_path: Path
) -> None:
    """Of three seconds that it may take, an answer takes four on the wall, in which the helper was
    ready to run."""
    own = tmp_path / "stand-ins" / "libcudnn.so"
    own.unlink()
    os.link(built / "starved.so", own)
    assert ask(ONCE, "--execute", library="starved")["plans"] == answered(2100)


def helpers(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "exe").readlink() == folder / "cudnn-plans":
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_the_helper_is_no_child_and_ends_with_its_process(
    built: Path, ask: Ask, tmp_path: Path
) -> None:
    folder = tmp_path / "stand-ins"
    code = """
import threading
ask(1, 2)
try:
    os.wait()
except ChildProcessError:
    out(children=0)
threading.Event().wait()
"""
    environment = {
        "XMEM_DEVICE_NAME": "Fake",
        "XMEM_DEVICE_CUDNN": str(built / "graph.so"),
        "PATH": os.environ["PATH"],
    }
    with subprocess.Popen(
        [sys.executable, "-c", ASK + code, str(folder)], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"children": 0}
        assert len(helpers(folder)) == 1
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while helpers(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert helpers(folder) == []


def test_a_helper_that_nobody_asked_for_a_while_is_replaced(ask: Ask) -> None:
    code = """
import glob, time
def helpers():
    return [exe for exe in glob.glob("/proc/[0-9]*/exe") if read(exe) == folder + "/cudnn-plans"]
def read(link):
    try:
        return os.readlink(link)
    except OSError:
        return ""
ask(1, 2)
while helpers():
    time.sleep(0.05)
out(plans=[ask(1, n) for n in (3, 4)], doubts=doubts())
"""
    seen = ask(code, "--execute")
    assert seen == {"plans": [answered(3), answered(4)], "doubts": {}}


def test_the_helper_keeps_nothing_of_the_job_open(ask: Ask) -> None:
    """Else whoever reads the other end of a pipe would wait for the helper."""
    code = """
reader, writer = os.pipe()
os.set_inheritable(writer, True)
os.set_blocking(reader, False)
ask(1, 2)
os.close(writer)
out(end=len(os.read(reader, 1)))
"""
    assert ask(code) == {"end": 0}


def test_a_fork_has_a_helper_of_its_own(ask: Ask) -> None:
    code = """
ask(1, 2)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps(ask(1, 3)).encode())
    os._exit(0)
theirs = json.loads(os.read(reader, 4096))
os.wait()
out(plans=[ask(1, 4), theirs])
"""
    assert ask(code)["plans"] == [answered(4), answered(3)]
