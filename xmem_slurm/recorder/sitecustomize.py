"""Run by a job's Python as it starts: have noted what torch takes of the GPUs, then run the
sitecustomize of before.

Until `import torch` this is one entry in sys.meta_path; until CUDA is initialized it is one call in
torch's own queue. From then on a thread looks at the allocator's counters every few minutes and
calls nothing of CUDA: a call from another thread can break the capture of a CUDA graph. Nothing is
done at an allocation, and no signal is touched.

A line of JSON goes to the end of a file in each folder that XMEM_RECORD_TO names (`os.pathsep`
between them): as CUDA starts, with no GPU in it yet, so that a process which is killed or crashes
at once has left a word; now and then while the figures change, at first after a second; and at
exit. The last line of a process counts. One write a line, one file a user and host: with O_APPEND
they stay whole, on NFS, too; and each begins with a line break as well, so that none is lost behind
half a line, for which a disk had no more room. What goes wrong here stays here: a job never fails
by it and never hears of it. Python 3.8 and newer; standard library alone.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))

FIRST_SECONDS, MOST_SECONDS = 1.0, 300.0
"""Between two looks at the counters: at first, each time twice that, and in the end..."""
UNCHANGED_SECONDS = 3600.0
"""...and between two lines where nothing has changed."""
MOST_BYTES = 4 << 20
"""A longer file becomes the `.old` one, in the place of that."""
GRACE_SECONDS = 5.0
"""What a driver that does not answer may cost at exit..."""
FIRST_LINE_SECONDS = 1.0
"""...and a folder that does not, as CUDA starts."""


class _UntilTorch:
    """Finds `torch` as the others on sys.meta_path do, and has the recorder begin once it has been
    imported.

    Who only asks where it is (importlib.util.find_spec, as transformers does) does not use it up.
    """

    def __init__(self) -> None:
        # threads in which the others are being asked: one of them may ask us in turn
        self.asking: set[int] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's own, whose execution ends with the recorder's beginning; None of all
        else.
        """
        thread = _thread.get_ident()
        if name != "torch" or thread in self.asking:
            return None
        self.asking.add(thread)
        try:
            finders = [
                finder
                for finder in sys.meta_path
                if finder is not self and hasattr(finder, "find_spec")
            ]
            spec: Any = next(
                filter(None, (finder.find_spec(name, path, target) for finder in finders))
            )
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _quietly(sys.meta_path.remove, self)
                _quietly(_begin, module)

            spec.loader.exec_module = exec_module
        except Exception:
            return None
        finally:
            self.asking.discard(thread)
        return spec


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return None


def _begin(torch: Any) -> None:
    recorder = _Recorder(torch)
    torch.cuda._lazy_call(lambda: _quietly(recorder.watch))
    for place in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
        _quietly(recorder.note_before_reset, place)


class _Recorder:
    """What one process took of its GPUs so far."""

    process: Optional[int]
    highest: dict[int, dict[str, int]]
    written: Optional[str]

    def __init__(self, torch: Any) -> None:
        self.torch, self.process, self.began, self.highest = torch, None, 0.0, {}
        self.written, self.written_at, self.out_of_memory, self.failed = None, 0.0, False, False

    def note_before_reset(self, place: Any) -> None:
        """Have the peaks noted before the job resets them by a function of torch's."""
        import functools

        reset = place.reset_peak_memory_stats

        @functools.wraps(reset)
        def reset_peak_memory_stats(*args: Any, **kwargs: Any) -> Any:
            _quietly(self.look)
            return reset(*args, **kwargs)

        place.reset_peak_memory_stats = reset_peak_memory_stats

    def watch(self) -> None:
        """Begin, in the process that initializes CUDA: a fork of this one before that has its
        own.
        """
        import atexit
        import threading
        import time

        self.process, self.began = os.getpid(), time.time()
        self.first_line = threading.Event()
        self.ending, self.ended = threading.Event(), threading.Event()
        atexit.register(_quietly, self.end)
        workers = sys.modules.get("multiprocessing.util")
        if workers is not None:  # a worker of multiprocessing ends without atexit
            workers.Finalize(None, _quietly, (self.end,), exitpriority=100)
        _quietly(self.note_exits)
        threading.Thread(
            target=_quietly, args=(self.run,), name="xmem-recorder", daemon=True
        ).start()
        # What the job does next may be its last: the line is there before, if the folder answers.
        self.first_line.wait(FIRST_LINE_SECONDS)

    def note_exits(self) -> None:
        """Have it noted with which code the job ends by sys.exit, the `exit` that needs no import,
        or os._exit.
        """
        import functools

        of_os, of_sys, quitter = os._exit, sys.exit, sys.modules["_sitebuiltins"].Quitter
        of_quitter = quitter.__call__

        @functools.wraps(of_sys)
        def leave(*code: Any) -> NoReturn:
            _quietly(self.note_exit, *code)
            of_sys(*code)

        @functools.wraps(of_quitter)
        def leave_by_quitter(quitter: Any, code: Any = None) -> None:
            _quietly(self.note_exit, code)
            of_quitter(quitter, code)

        @functools.wraps(of_os)
        def leave_at_once(status: int) -> NoReturn:
            if os.getpid() == self.process:  # not a fork of it
                _quietly(self.note_exit, status)
                _quietly(self.end)
            of_os(status)

        os._exit, sys.exit, quitter.__call__ = leave_at_once, leave, leave_by_quitter

    def note_exit(self, code: object = None) -> None:
        """Note a call of sys.exit, which ends the process where nobody catches it: of several the
        last counts.
        """
        import threading

        if threading.current_thread() is threading.main_thread():
            self.failed = self.out_of_memory = False
            if code not in (None, 0):
                # who leaves while handling an error leaves for that (Hydra does)
                self.fail(sys.exc_info()[1])

    def run(self) -> None:
        """Write the first line, and look at the counters until the process ends: in the thread."""
        import time

        self.written, self.written_at = repr(self.highest), time.time()
        _quietly(self.write, "running")
        self.first_line.set()
        seconds = FIRST_SECONDS
        while not self.ending.wait(seconds):
            seconds = min(2 * seconds, MOST_SECONDS)
            _quietly(self.look)
            figures = repr(self.highest)
            if figures != self.written or time.time() - self.written_at > UNCHANGED_SECONDS:
                self.write("running")
                self.written, self.written_at = figures, time.time()
        _quietly(self.look)
        _quietly(self.look_at_driver)
        state = "error" if self.failed else "exit"
        if self.out_of_memory:  # that is an error, too
            state = "oom"
        self.write(state)
        self.ended.set()

    def fail(self, error: Optional[BaseException]) -> None:
        self.failed, self.out_of_memory = True, self.out_of_memory or self.is_out_of_memory(error)

    def is_out_of_memory(self, error: Optional[BaseException]) -> bool:
        """Whether an error, or one that it came of, is torch's for want of GPU memory."""
        kinds = tuple(
            getattr(place, "OutOfMemoryError", ()) or () for place in (self.torch, self.torch.cuda)
        )
        for _ in range(10):
            if error is None or isinstance(error, kinds):
                return error is not None
            error = error.__cause__ or error.__context__
        return False

    def end(self) -> None:
        """Have the last line written, by the thread: who ends does not wait for a driver that
        hangs.
        """
        if os.getpid() != self.process or self.ending.is_set():
            return
        error = sys.exc_info()[1]  # a worker of multiprocessing ends inside of what it ends by
        if error is None:
            # uncaught: Python notes it before it calls any excepthook
            error = getattr(sys, "last_value", None)
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.fail(error)
        self.ending.set()
        self.ended.wait(GRACE_SECONDS)

    def look(self) -> None:
        """Take the allocator's counters, which are no calls of CUDA's; peaks that the job has reset
        stay.
        """
        if not self.torch.cuda.is_initialized():
            return
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats_as_nested_dict(device)
            reserved, allocated = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
            untouched = not reserved["peak"] and not stats["num_ooms"]
            if untouched and device not in self.highest:
                continue
            highest = self.highest.setdefault(device, {})
            current = {"reserved": reserved["peak"], "allocated": allocated["peak"]}
            current.update(retries=stats["num_alloc_retries"], ooms=stats["num_ooms"])
            for name, value in current.items():
                highest[name] = max(highest.get(name, 0), value)
            highest["now"] = reserved["current"]

    def look_at_driver(self) -> None:
        """Ask, at the end, what is taken of each GPU that was used, by this process and others."""
        for device, highest in self.highest.items():
            free, total = self.torch.cuda.mem_get_info(device)
            highest.update(used=total - free, limit=highest["now"] + free)

    def devices(self) -> list[dict[str, Any]]:
        """Return what is known of each GPU that was used; of none before the first look."""
        rows = []
        for device, figures in sorted(self.highest.items()):
            properties = self.torch.cuda.get_device_properties(device)
            row = {"name": properties.name, "total": properties.total_memory}
            row["capability"] = "%d.%d" % (properties.major, properties.minor)
            rows.append(
                dict(row, **{name: value for name, value in figures.items() if name != "now"})
            )
        return rows

    def write(self, state: str) -> None:
        """Write the line, and at the end the one for people, where that is wanted."""
        import json
        import time

        devices = self.devices()
        environ, torch = os.environ, self.torch
        ranks = torch.distributed
        spread = ranks.is_available() and ranks.is_initialized()
        array = environ.get("SLURM_ARRAY_JOB_ID", "")
        line = {
            "v": 1,
            "job": environ.get("SLURM_JOB_ID", ""),
            "array": array and "%s_%s" % (array, environ.get("SLURM_ARRAY_TASK_ID", "")),
            "host": _host(),
            "process": self.process,
            "rank": ranks.get_rank() if spread else int(environ.get("RANK") or 0),
            "world": ranks.get_world_size() if spread else int(environ.get("WORLD_SIZE") or 1),
            "began": round(self.began, 3),
            "time": round(time.time(), 3),
            "state": state,
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda or torch.version.hip or ""),
            "python": "%d.%d.%d" % sys.version_info[:3],
            "devices": devices,
            "host_memory": _quietly(_host_memory),
            "prediction": _quietly(_prediction),
        }
        text = ("\n" + json.dumps(line, separators=(",", ":")) + "\n").encode()
        for folder in environ.get("XMEM_RECORD_TO", "").split(os.pathsep):
            _quietly(_append, os.path.join(folder, "%d-%s.jsonl" % (os.getuid(), _host())), text)
        is_for_people = state != "running" and environ.get("XMEM_SUMMARY") and not line["rank"]
        if is_for_people and devices and line["prediction"]:
            _say(line["prediction"], devices, ran_out=state == "oom")


def _host() -> str:
    return os.uname().nodename.partition(".")[0]


def _prediction() -> Optional[dict[str, Any]]:
    """Return what was predicted of this job; None of one that another job submitted with this
    environment.
    """
    import json

    predicted = json.loads(os.environ["XMEM_PREDICTION"])
    submitted_on = predicted.pop("submitted_on")
    return predicted if os.environ.get("SLURM_SUBMIT_HOST", submitted_on) == submitted_on else None


def _host_memory() -> dict[str, int]:
    """Return the peaks of host memory so far, in bytes, and what the job asked for on this node.

    They are of this process, of the largest of its children that have ended, and of its step of the
    job on this node, with files that the kernel keeps cached for it; of what is not known, none.
    """
    import resource

    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # KiB: getrusage(2)
    sizes = {"process": _quietly(_own_peak), "children": children}
    sizes.update(step=_quietly(_step_peak), asked=_quietly(_requested_bytes))
    return {name: size for name, size in sizes.items() if size}


def _own_peak() -> int:
    """Return the peak of this process by its VmHWM (proc_pid_status(5)).

    Its ru_maxrss is no less than what the process had that started it: execve(2) keeps that. So is
    a child's, which is then this process's own.
    """
    with open("/proc/self/status") as file:
        values = dict(line.split(":", 1) for line in file)
    return int(values["VmHWM"].split()[0]) * 1024


def _step_peak(
    groups_file: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup"
) -> Optional[int]:
    """Return the peak of the control group of this process's step (cgroups(7)), v2's or v1's.

    Slurm puts it at .../job_7/step_0, and groups of single tasks below it. v2 has had memory.peak
    since Linux 5.19.
    """
    import re

    with open(groups_file) as file:
        groups = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in groups:
        step = re.match(r".*/job_\d+/step_[^/]+", path)
        if step is not None and not controllers:
            return _number(mounted + step.group() + "/memory.peak")
        if step is not None and "memory" in controllers.split(","):
            return _number(mounted + "/memory" + step.group() + "/memory.max_usage_in_bytes")
    return None


def _number(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def _requested_bytes() -> Optional[int]:
    """Return the host memory that the job asked for on this node, as Slurm's variables have it."""
    environ = os.environ
    if environ.get("SLURM_MEM_PER_NODE"):
        return int(environ["SLURM_MEM_PER_NODE"]) << 20
    for unit, count in (("CPU", "SLURM_CPUS_ON_NODE"), ("GPU", "SLURM_GPUS_ON_NODE")):
        if environ.get("SLURM_MEM_PER_" + unit):
            return int(environ["SLURM_MEM_PER_" + unit]) * int(environ[count]) << 20
    return None


def _append(path: str, line: bytes) -> None:
    """Write a line at the end of a file of ours: no link, nobody else's, and not too long."""
    import stat

    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink == 1:
            os.write(descriptor, line)
            if status.st_size > MOST_BYTES:
                os.replace(path, path[: -len("jsonl")] + "old.jsonl")
    finally:
        os.close(descriptor)


def _say(predicted: dict[str, Any], devices: list[dict[str, Any]], ran_out: bool) -> None:
    fullest = max(devices, key=lambda device: device["reserved"])
    of_job = predicted["uses_bytes"], fullest.get("used") or fullest["reserved"], fullest["total"]
    estimated, used, total = ("%.1f" % (figure / 2**30) for figure in of_job)
    before = "estimated %s GiB of GPU memory, used" % estimated
    if not predicted["uses_bytes"]:
        before = "GPU memory was not estimated, used"
    end = ", and ran out" if ran_out else ""
    sys.stderr.write("xmem-slurm: %s %s of %s GiB%s\n" % (before, used, total, end))


def _chain() -> None:
    """Import the `sitecustomize` that Python would have found without this folder, which leaves
    sys.path for good.
    """
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if os.environ.get("XMEM_RECORD_TO") and "XMEM_SHIMS" not in os.environ:
    sys.meta_path.insert(0, _UntilTorch())

_chain()
