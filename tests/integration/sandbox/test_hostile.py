"""Hostile jobs: what they try on the machine, on our own files and on whoever reads what comes out,
and that it fails.

As root most of it is tried twice, by root and by nobody. `hostile_probes` is what runs inside, once
for each of them."""

import gzip
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sandbox import hostile_probes
from tests.integration.sandbox.test_sandbox import (
    HANG_SECONDS,
    IS_ROOT,
    MIB,
    NOBODY,
    User,
    folder_of,
    user,
    wait_until,
)
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SandboxError
from xmem_slurm.sandbox import cgroup, results, sandbox
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.slurm.submission import Submission

__all__ = ["user"]

pytestmark = pytest.mark.slow(
    covers=[
        "xmem_slurm/dryrun/*",
        "xmem_slurm/*sandbox*",
        "xmem_slurm/*untrusted*",
        "xmem_slurm/*trace*",
    ]
)

SYSTEM_PYTHON = "/usr/bin/python3"
GPU = load_catalogue()["h100-sxm5-80gb"]
BUDGET = Budget(seconds=60, memory_bytes=512 * MIB, scratch_bytes=64 * MIB, processes=64, cpus=1)
ROOM = {"memory_bytes": 100 * MIB, "scratch_bytes": 1024 * MIB}
"""So that memory is the limit that is met."""


PROBES = [SYSTEM_PYTHON, "hostile_probes.py"]
OF_CONTAINERS = {
    name
    for name in hostile_probes.attempts()
    if "_namespace_by_unshare" in name or name.startswith("a_user_namespace")
}
"""Its own namespaces, which a job that runs containers has."""
AS_ROOT_OF_A_NAMESPACE = [
    *(
        "a_remount_that_may_be_written",
        "a_copy_of_the_mounts",
        "a_device",
        "the_namespaces_of_process_1",
    ),
    *(
        "tracing_process_1",
        "memory_of_process_1",
        "the_root_of_process_1",
        "open_files_of_process_1",
    ),
    *(
        "settings_of_the_kernel",
        "keys_of_the_kernel",
        "files_of_sys",
        "control_groups",
        "its_own_control_group",
    ),
]


# -- the machine -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["root", "nobody"] if IS_ROOT else ["self"])
def tried(request: pytest.FixtureRequest) -> dict[str, str]:
    """Have all of `hostile_probes` tried in one dry run."""
    return all_tried(NOBODY if request.param == "nobody" else None)


@pytest.fixture(scope="module")
def tried_beside_containers() -> dict[str, str]:
    """Have them tried by an ordinary user whose script runs containers."""
    user = NOBODY if IS_ROOT else None
    within = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--net",
        "--ipc",
        SYSTEM_PYTHON,
        "hostile_probes.py",
    ]
    inside = all_tried(user, [*within, *AS_ROOT_OF_A_NAMESPACE], containers=True)
    return all_tried(user, containers=True) | {
        f"{name} inside": answer for name, answer in inside.items()
    }


def all_tried(
    number: int | None, argv: Sequence[str] = PROBES, *, containers: bool = False
) -> dict[str, str]:
    """Have them tried by a login session that has a key."""
    with tempfile.TemporaryDirectory(prefix="hostile-", dir="/tmp") as name:
        one = User(number, Path(name))
        for folder in (one.folder, one.work, one.folder / "home"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
            one.own(folder)
        shutil.copy(hostile_probes.__file__, one.work)
        code = (
            "from tests.integration.sandbox import hostile_probes as h; h.call('keyctl', 1, None)\n"
        )
        code += "key = h.call('add_key', b'user', b'xmem-secret', b'x', 1, -3)\n"
        code += "assert h.call('keyctl', 5, key, 0x3f000000) == 0\n"  # seen by those who have it
        code += "h.leave_outside()\n"
        code += "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        within = [sys.executable, "-c", code]
        try:
            outcome = one.run(
                "", argv=[*argv], within=within, limits={"cpus": 1}, containers=containers
            )
        finally:
            hostile_probes.clear_outside()
        answers: dict[str, str] = json.loads(outcome["output_tail"].splitlines()[-1])
        return answers


@pytest.mark.slow(covers=["xmem_slurm/dryrun/*", "xmem_slurm/*sandbox*"], as_one=True)
@pytest.mark.parametrize("attempt", hostile_probes.attempts())
def test_an_attempt_on_the_machine_fails(tried: dict[str, str], attempt: str) -> None:
    assert tried[attempt] == "held"


@pytest.mark.slow(covers=["xmem_slurm/dryrun/*", "xmem_slurm/*sandbox*"], as_one=True)
@pytest.mark.parametrize(
    "attempt",
    [each for each in hostile_probes.attempts() if each not in OF_CONTAINERS]
    + [f"{each} inside" for each in AS_ROOT_OF_A_NAMESPACE],
)
def test_an_attempt_on_the_machine_fails_beside_containers(
    tried_beside_containers: dict[str, str], attempt: str
) -> None:
    assert tried_beside_containers[attempt] == "held"


def test_a_container_s_own_file_system_in_memory_counts(user: User) -> None:
    if os.getuid() == 0 and user.number is None:
        pytest.skip("root gives up what a user namespace needs")
    fill = (
        "mount -t tmpfs none /mnt && for n in $(seq 9); do head -c 40M /dev/zero > /mnt/$n; "
        "done; sleep 60"
    )
    outcome = user.run(
        f"unshare --user --map-root-user --mount sh -c '{fill}'", limits=ROOM, containers=True
    )
    assert (outcome["stopped"], outcome["output_tail"]) == ("memory", "")


def python(code: str) -> list[str]:
    return [SYSTEM_PYTHON, "-c", f"import mmap, os, time\n{code}\ntime.sleep(60)"]


MEMORY = {
    "page tables of what was read": "m = mmap.mmap(-1, 1 << 38, 0x4022, mmap.PROT_READ)\n"
    "m.madvise(15)\nfor place in range(0, 1 << 38, 1 << 21): m[place]",
    "deleted files": "for n in range(9):\n f = os.open('x', os.O_RDWR | os.O_CREAT); "
    "os.unlink('x')\n"
    " os.write(f, bytes(40 << 20))",
    "files in its own shared memory": "open('/dev/shm/x', 'wb').write(bytes(300 << 20))",
    "System V's, held by nobody": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = "
    "ctypes.c_void_p\n"
    "for n in range(4):\n at = libc.shmat(libc.shmget(0, 40 << 20, 0o1600), None, 0)\n"
    " ctypes.memset(at, 1, 40 << 20); libc.shmdt(ctypes.c_void_p(at))",
    "results": "for n in range(9): open(f'out/{n}', 'wb').write(bytes(28 << 20))",
    "nameless shared memory that no process maps": "m = mmap.mmap(-1, 400 << 20)\n"
    "for place in range(0, 400 << 20, 1 << 20):\n"
    " m[place:place + (1 << 20)] = bytes(1 << 20); m.madvise(4, place, 1 << 20)",
    "that of which a page is mapped": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype "
    "= ctypes.c_void_p\n"
    "for n in range(20):\n at = libc.mmap(None, ctypes.c_size_t(16 << 20), 3, 0x21, -1, 0)\n"
    " ctypes.memset(at, 1, 16 << 20); libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t((16 "
    "<< 20) - 4096))",
    "/dev/zero": "m = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 400 << 20)\n"
    "for place in range(0, 400 << 20, 1 << 20):\n"
    " m[place:place + (1 << 20)] = bytes(1 << 20); m.madvise(4, place, 1 << 20)",
    "filters of system calls": "import ctypes, struct\nlibc = ctypes.CDLL(None)\n"
    "steps = struct.pack('HBBI', 32, 0, 0, 0) * 4000 + struct.pack('HBBI', 6, 0, 0, 0x7FFF0000)\n"
    "code = ctypes.create_string_buffer(steps)\n"
    "filters = ctypes.create_string_buffer(struct.pack('HP', 4001, ctypes.addressof(code)))\n"
    "for n in range(60):\n if os.fork() == 0:\n  for n in range(8): libc.prctl(22, 2, filters, 0, "
    "0)\n  time.sleep(60)",
    "that of a child that has ended": "m = mmap.mmap(-1, 400 << 20)\n"
    "if os.fork() == 0: m.write(bytes(400 << 20)); os._exit(0)\nos.wait()",
    "a process without its first thread": "import ctypes, threading\n"
    "def fill():\n x = bytearray(1 << 20) * 300; time.sleep(60)\n"
    "threading.Thread(target=fill).start()\nctypes.CDLL(None).syscall(60 if os.uname().machine == "
    "'x86_64' else 93, 0)",
    "sockets": "import socket\nall = []\nfor n in range(400):\n all.append(socket.socketpair())\n"
    " all[-1][0].setblocking(False)\n try:\n  while True: all[-1][0].send(bytes(1 << 16))\n"
    " except BlockingIOError: pass",
    "sockets whose other end has gone": "import socket\nall = []\nfor n in range(400):\n"
    " one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n one.setblocking(False); "
    "all.append(other)\n"
    " try:\n  while True: one.send(bytes(100_000))\n except BlockingIOError: pass",
    "pipes of many processes": "for n in range(40):\n if os.fork() == 0:\n  for n in range(200): "
    "os.pipe()\n"
    "  time.sleep(60)",
    "mappings": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "at = libc.mmap(None, ctypes.c_size_t(1 << 28), 0, 0x4022, -1, 0)\n"
    "for place in range(at, at + (1 << 28), 8192): libc.mprotect(ctypes.c_void_p(place), "
    "ctypes.c_size_t(4096), 1)\n"
    "for n in range(7): os.fork() or time.sleep(60)",
    "files with nothing in them": "for n in range(120_000): os.mknod(str(n))",
    "many small files": "for n in range(10_000): open(f'{n}', 'wb').write(bytes(16 << 10))",
}


@pytest.mark.parametrize("where", MEMORY)
def test_memory_counts_wherever_it_is(user: User, where: str) -> None:
    outcome = user.run("", argv=python(MEMORY[where]), limits=ROOM, results=folder_of(user, "out"))
    assert (outcome["stopped"], outcome["output_tail"]) == ("memory", "")


def test_a_control_group_holds_what_the_watch_may_miss(user: User) -> None:
    """All at once, between two looks."""
    if user.number is not None or cgroup.divisible() is None:
        pytest.skip(
            "there is no control group (v2) with memory and pids here that this user may divide"
        )
    left = set(cgroup.divisible().glob("xmem-slurm-*"))  # type: ignore[union-attr]
    outcome = user.run(
        "", argv=python("x = bytearray(1 << 30)"), limits={**ROOM, "memory_bytes": 64 * MIB}
    )
    assert (outcome["stopped"], outcome["peak_memory_bytes"] < 128 * MIB) == ("memory", True)
    assert set(cgroup.divisible().glob("xmem-slurm-*")) == left  # type: ignore[union-attr]


# -- what comes out --------------------------------------------------------------------------------

MADE = """
import os
os.chdir("out")
os.mkfifo("fifo.json.gz"); os.symlink("/etc/passwd", "link.json.gz"); os.mkdir("folder.json.gz")
os.mknod("device.json.gz", 0o20666, os.makedev(1, 5)) if not os.getuid() else None
os.link("good.json.gz", "hard.json.gz") if os.path.exists("good.json.gz") else None
open("good.json.gz", "w").write("good"); os.chmod("good.json.gz", 0)
open("with\\nnewline", "w"); open("-rf *", "w"); open(b"\\xff\\xfe", "w"); open("x" * 200, "w")
"""


def test_only_ordinary_files_with_ordinary_names_come_out(user: User) -> None:
    out = folder_of(user, "out")
    (user.work / "made.py").write_text(
        MADE.replace("if not os.getuid() else None", "if False else None")
    )
    assert user.run(f"{SYSTEM_PYTHON} made.py", results=out)["output_tail"] == ""
    (only,) = out.iterdir()
    assert (only.name, only.read_text(), only.stat().st_mode & 0o777) == (
        "good.json.gz",
        "good",
        0o600,
    )


@pytest.mark.parametrize(
    ("script", "kept_back"),
    [
        (
            f"cd out; for n in $(seq {results.MOST_FILES + 1}); do echo > $n; done",
            "2001 files as its traces",
        ),
        ("truncate -s 900M out/1.json.gz", "more than 256 MiB of traces"),
        ("head -c 300M /dev/zero > out/1.json.gz; rm out/1.json.gz", None),
    ],
)
def test_what_comes_out_is_bounded(user: User, script: str, kept_back: str | None) -> None:
    out = folder_of(user, "out")
    outcome = user.run(
        script, results=out, limits={"memory_bytes": 1024 * MIB, "scratch_bytes": 1024 * MIB}
    )
    assert (outcome["kept_back"] or "").startswith(kept_back or "")
    assert sum(each.stat().st_size for each in out.iterdir()) <= results.MOST_BYTES


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job's folder, with a home and kept answers beside it."""
    with tempfile.TemporaryDirectory(prefix="hostile-", dir="/tmp") as name:
        for folder in ("job", "home", "cache/xmem-slurm/estimates", "state/xmem-slurm/jobs/1"):
            Path(name, folder).mkdir(parents=True)
        Path(name, "cache").chmod(0o700)
        Path(name, "cache/xmem-slurm/estimates/known.json").write_text("{}")
        Path(name, "state/xmem-slurm/jobs/1/job.sh").write_text("#!/bin/sh\n")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{name}/cache")
        monkeypatch.setenv("XDG_STATE_HOME", f"{name}/state")
        monkeypatch.chdir(Path(name, "job"))
        yield Path(name, "job")


def job(place: Path, script: str, **environ: str) -> Job:
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place.parent / "home"), "LANG": "C"}
    base["XDG_CACHE_HOME"] = str(place.parent / "cache")
    return from_submission(Submission(("--gres=gpu:1", "job.sh"), base | environ, script.encode()))


def why(place: Path, script: str, **environ: str) -> str:
    """Return why there is no estimate."""
    with pytest.raises(NoEstimate) as caught:
        assert runner.run(DryRunOrder.of(job(place, script, **environ), GPU, BUDGET)).traces
    return str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_nothing_of_ours_is_seen_or_changed(place: Path) -> None:
    """Kept answers above all: a script that was only looked at wrote one, and the next submission
    ran its text."""
    before = (
        contents(place.parent / "cache"),
        contents(place.parent / "state"),
        set(place.parent.rglob("*")),
    )
    script = """#!/bin/bash
    cd $XDG_CACHE_HOME/xmem-slurm
    ls estimates ../../state/xmem-slurm device/making; cat estimates/known.json 2> /dev/null
    for file in estimates/known.json device/evil device/making/evil "${0%/*}"/{slurm_script,bin/srun,bin/evil} \\
        ../../state/xmem-slurm/evil
    do (echo evil > $file) 2> /dev/null && echo "written: $file"; done
    rm -rf estimates device; mv "${0%/*}/bin" /tmp/bin
    (exec 9< device/making/x.lock) 2> /dev/null && echo locked
    exit 9"""
    said = why(place, script)
    assert "written" not in said
    assert "locked" not in said
    after = (
        contents(place.parent / "cache"),
        contents(place.parent / "state"),
        set(place.parent.rglob("*")),
    )
    assert after[:2] == before[:2] or not [name for name in after[0] if "evil" in name]
    assert (place.parent / "cache/xmem-slurm/estimates/known.json").read_text() == "{}"


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount anything here")
def test_no_room_for_our_own_files_is_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = place.parent / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(full)], check=True)
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(full))
        with pytest.raises(
            SandboxError, match=f"own files cannot be written: {full}.*: No space left on device"
        ):
            runner.run(DryRunOrder.of(job(place, "#!/bin/sh\n"), GPU, BUDGET))
    finally:
        subprocess.run(["umount", str(full)], check=True)


HOSTILE_WORDS = r"\033]0;title\007\033[2J\rSubmitted batch job 1\302\233x\342\200\256"


@pytest.mark.parametrize(
    "script",
    [
        f"printf 'one\\nlast {HOSTILE_WORDS}\\n'; exit 3",
        f"printf '\"{HOSTILE_WORDS}\"\\n' > $XMEM_TRACE_DIR/notes.jsonl",
        "echo '\"a\\nSubmitted batch job 1\\n\\u001b[2J\"' > $XMEM_TRACE_DIR/notes.jsonl",
        f"printf '{HOSTILE_WORDS}\\n' > $XMEM_TRACE_DIR/network.log; exit 3",
        (
            "mkfifo $XMEM_TRACE_DIR/notes.jsonl $XMEM_TRACE_DIR/files.log $XMEM_TRACE_DIR/network.log; "
            "exit 3"
        ),
        (
            "ln -s /dev/zero $XMEM_TRACE_DIR/notes.jsonl; ln -s /dev/zero $XMEM_TRACE_DIR/files.log; "
            "exit 3"
        ),
        "head -c 20M /dev/zero > $XMEM_TRACE_DIR/notes.jsonl",
        "head -c 2000 /dev/zero | tr '\\0' '[' > $XMEM_TRACE_DIR/notes.jsonl",
        "echo > $XMEM_TRACE_DIR/notes.jsonl",
        "echo '{' | gzip > $XMEM_TRACE_DIR/1-1.json.gz",
        (
            "head -c 4M /dev/zero | gzip > x; for n in $(seq 80); do cat x; done > "
            "$XMEM_TRACE_DIR/1-1.json.gz"
        ),
        "rm -rf $XMEM_TRACE_DIR/* $XMEM_TRACE_DIR; exit 3",
        "rm -f $XMEM_TRACE_DIR/spent; ln -s /etc/passwd $XMEM_TRACE_DIR/spent; sleep 0.3; exit 3",
    ],
)
def test_what_it_says_is_one_plain_line(place: Path, script: str) -> None:
    said = why(place, f"#!/bin/bash\n{script}\n")
    assert said.isprintable()
    assert len(said) < 1500


def test_a_trace_of_its_own_making_is_checked_as_such(place: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz", place / "trace.json.gz")
    raw = json.loads(gzip.decompress((place / "trace.json.gz").read_bytes()))
    raw["events"]["size"][0] = -5
    (place / "trace.json.gz").write_bytes(gzip.compress(json.dumps(raw).encode()))
    assert "not a trace: events.size.0" in why(
        place, "#!/bin/sh\ncp trace.json.gz $XMEM_TRACE_DIR/1-1.json.gz\n"
    )


# -- stand-ins that are asked for ------------------------------------------------------------------

ASK = """#!/bin/bash
exec 2>&1
ask() { python3 - "$1" <<'END'
import json, os, socket, sys
os.chdir(os.path.dirname(os.environ["XMEM_TRACE_DIR"]))
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect("ask")
    asked.sendall(eval(sys.argv[1]))
    print(asked.makefile().read() or "no answer")
END
}
torch() { ask "json.dumps(['$1', '']).encode() + b'\\\\n'"; }
"""
"""Our shims are Python; a job's own connection to who builds them may say anything."""


@pytest.fixture
def fake_torch(place: Path) -> Path:
    """A torch in the job's folder: version.py and a library that is linked to the CUDA runtime."""
    torch = place / "site-packages" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
    (place / "used.c").write_text("int cudaMalloc(void) { return 0; }\n")
    (place / "used.map").write_text("libcudart.so.13 { global: *; };\n")
    (place / "user.c").write_text("int cudaMalloc(void);\nint use(void) { return cudaMalloc(); }\n")
    gcc, name = ["gcc", "-shared", "-fPIC", "-o"], "libcudart.so.13"
    script = ["-Wl,--version-script,used.map", f"-Wl,-soname,{name}"]
    subprocess.run([*gcc, name, "used.c", *script], cwd=place, check=True)
    subprocess.run(
        [*gcc, torch / "lib" / "libtorch_cuda.so", "user.c", name], cwd=place, check=True
    )
    return torch


ASKED = {
    "nonsense": ("ask 'b\"nonsense\\n\"'", "no answer"),
    "a list of nothing": ("ask 'b\"[]\\n\"'", "no answer"),
    "deep": ('ask \'b"[" * 16000 + b"\\n"\'', "no answer"),
    "too long": ('ask \'b"x" * 100000 + b"\\n"\'', "Connection reset"),
    "a relative path": ("torch site-packages/torch", "no answer"),
    "no torch": ("torch /tmp", "no torch in /tmp"),
    "a version that is a FIFO": (
        "rm $T/version.py; mkfifo $T/version.py; (echo x > $T/version.py &) ; torch $T",
        "CUDA",
    ),
    "a version without an end": ("ln -sf /dev/zero $T/version.py; torch $T", "is not a CUDA build"),
    "a library without an end": ("ln -sf /dev/zero $T/lib/libtorch_cuda.so; torch $T", "64-bit"),
    "a library that is cut off": (
        "truncate -s 2000 $T/lib/libtorch_cuda.so; torch $T",
        "beyond its end",
    ),
    "a library of 1 TiB of tables": (
        (
            "printf '\\377\\377\\377\\377' | dd of=$T/lib/libtorch_cuda.so bs=1 seek=58 conv=notrunc "
            "status=none; torch $T"
        ),
        "cannot be read",
    ),
    "a symbol that is C": (
        "sed -i s/cudaMalloc/cuda=alloc/ $T/lib/libtorch_cuda.so; torch $T",
        "needs 'cuda=alloc'",
    ),
    "a library's name that is a path": (
        "sed -i s/libcudart.so.13/libcudart.so.../ $T/lib/libtorch_cuda.so; torch $T",
        "needs",
    ),
    "a version that is a command": ('sed -i "s/2.11.0/\\$(id)/" $T/version.py; torch $T', "needs"),
    "a ring of links": ("rm -r $T; ln -s torch $T; torch $T", "Symlink loop"),
    "more torches than a job has": (
        "for n in $(seq 9); do torch /tmp/$n; done",
        "more than 8 torches",
    ),
}


@pytest.mark.parametrize("first", range(0, len(ASKED), 8))
def test_asking_for_stand_ins_says_no_and_no_more(
    place: Path, fake_torch: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = list(ASKED.values())[first : first + 8]
    script, real, said = ASK, sandbox.run, []

    def heard(*arguments: Any, **settings: Any) -> sandbox.Outcome:
        outcome = real(*arguments, **settings)
        said.append(outcome.output_tail.decode())
        return outcome

    monkeypatch.setattr(sandbox, "run", heard)
    for number, (asking, _) in enumerate(some):
        script += (
            f"T=/tmp/{number}/torch; mkdir /tmp/{number}; cp -r {fake_torch} $T; ({asking}) "
            "2>&1 | tail -1\n"
        )
    why(place, f"{script}exit 9\n")
    for line, (_, answer) in zip(said[0].splitlines(), some, strict=True):
        assert answer in line
        assert line.isprintable()
    assert not list((place.parent / "cache/xmem-slurm/device").glob("*/build.json"))


def test_an_environment_that_the_script_unpacks_has_stand_ins(
    place: Path, fake_torch: Path
) -> None:
    """It is nowhere but in the dry run, behind a link that means another place outside."""
    script = (
        f"{ASK}mkdir -p /tmp/env/real; cp -r {fake_torch} /tmp/env/real/torch; ln -s "
        "/tmp/env/real /tmp/env/link\n"
    )
    said = why(place, script + "torch /tmp/env/link/torch\nexit 9\n")
    (built,) = (place.parent / "cache/xmem-slurm/device").glob("*/build.json")
    assert f'["{built.parent}", ""]' in said
    assert json.loads(built.read_text())["torch_folder"] == "/tmp/env/real/torch"


# -- what is left ----------------------------------------------------------------------------------


DRIVER = """
import sys
from pathlib import Path
from tests.integration.sandbox import test_hostile
from xmem_slurm.state import signals
with signals.clearing_up():
    job = test_hostile.job(Path.cwd(), sys.argv[1])
    test_hostile.runner.run(test_hostile.DryRunOrder.of(job, test_hostile.GPU, test_hostile.BUDGET)).traces
"""
UNCATCHABLE = (signal.SIGKILL, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM)
"""Signals that nobody catches, or would."""


def test_what_a_signal_leaves_is_cleared_by_the_next_start(place: Path) -> None:
    temporary = place.parent / "tmp"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[3])}

    def start(script: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", DRIVER, f"#!/bin/sh\n{script}\n"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=place, env=environ)

    def left() -> set[Path]:
        return set(temporary.glob("xmem-*"))

    with start("sleep 1000") as alive:
        wait_until(lambda: len(left()) == 1)
        (its_own,) = left()
        killed = [start("sleep 1000") for _ in UNCATCHABLE]
        wait_until(lambda: len(list(temporary.glob("*/ask"))) == 1 + len(UNCATCHABLE))
        for process, number in zip(killed, UNCATCHABLE, strict=True):
            process.send_signal(number)
            assert process.wait() == -number
        assert len(left()) == 1 + len(UNCATCHABLE)
        # when their last processes are gone
        wait_until(lambda: start("exit 3").wait() == 1 and left() == {its_own})
        assert (its_own / "slurm_script").is_file()
        alive.terminate()
        assert alive.wait() == -signal.SIGTERM
    assert left() == set()


LATE = """
import os, time
from xmem_slurm.sandbox import linux
prctl = linux.prctl
def late(option, *values):
    if option == linux.PR_SET_PDEATHSIG and os.getpid() == 1:
        open("late", "w").close()
        time.sleep(1)
    prctl(option, *values)
linux.prctl = late
"""


def test_process_1_ends_with_its_keeper_however_late_it_gets_a_core(place: Path) -> None:
    held, end = os.pipe()  # process 1 inherits its end, and gets no other program
    command = [sys.executable, "-c", LATE + DRIVER, "#!/bin/sh\nsleep 1000\n"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, cwd=place, env=environ, pass_fds=[end]) as driver:
        os.close(end)
        wait_until((place / "late").exists)
        driver.kill()
    assert select.select([held], [], [], HANG_SECONDS)[0]
    assert os.read(held, 1) == b""
    os.close(held)
