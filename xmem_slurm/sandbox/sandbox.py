"""How is a command run so that it cannot change anything here, and so that nothing of it is left
afterwards?

In new user (unless we are root), mount, PID, network, IPC and UTS namespaces: `mounts` says what it
sees of the file system, `first_process` how it is started and held to its limits. Nothing outside
the process tree is set up, so nothing needs cleaning up: when the tree is gone, so are its files.

Needs, unless we are root, user namespaces for everyone with overlays in them: Linux 5.11, or a
vendor's older one that has this too (RHEL 8.5). It forks, so it wants a process with one thread.
"""

import errno
import json
import os
import platform
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from xmem_slurm.errors import SandboxError
from xmem_slurm.sandbox import answering, cgroup, first_process, linux, mounts, new_root, progress
from xmem_slurm.sandbox.first_process import Limits
from xmem_slurm.units import KIB

__all__ = ["Limits", "Outcome", "run"]

OUTPUT_BYTES = 16 * KIB
LAST_SECONDS = 60.0
"""Beyond its limit on the wall: the first process may have been made to wait, by a file system that
the job serves."""
SETUP_SECONDS = 15.0
"""How long the set-up may wait for anything but a core: a network file system that does not answer
does so for ever."""
LONGEST_SETUP_SECONDS = 300.0
"""How long it may take on the wall: what does not answer is seen from outside, and may look like
what is busy."""
_LOOK_SECONDS = 0.25
OLDEST_LINUX = (5, 11)
_SETTINGS = (
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0 or an AppArmor profile with userns"),
)
"""What turns user namespaces off: Linux itself, Debian's and Ubuntu's kernels; setting, value, what
to set."""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    `returncode` is negative for a signal. `stopped` names the limit that ended it: "time",
    "memory", "processes" or "scratch" (only where what it writes goes to a disk; elsewhere it meets
    a full disk at that size). `seconds` is wall time, set-up included; `spent_seconds` is what
    counted against its limit (`progress`), and `cpu_seconds` how much of that was CPU time.
    `peak_memory_bytes` is host memory, sampled, the files that it wrote included. `output_tail` is
    the end of stdout and stderr together, `output_head` the beginning. `read_only` are the folders
    that it could not write to because no layer could be put over them. `kept_back` says why not all
    of its results came out, if so. `disturbed` says what of this machine's may have ended it, or
    come in its way: a signal from outside, a full disk. Then how it ended is no fact about the
    command.
    """

    returncode: int | None
    stopped: str | None
    seconds: float
    peak_memory_bytes: int
    output_tail: bytes
    read_only: tuple[str, ...] = ()
    spent_seconds: float = 0.0
    cpu_seconds: float = 0.0
    kept_back: str | None = None
    output_head: bytes = b""
    disturbed: str | None = None


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    limits: Limits,
    show: Sequence[Path] = (),
    hide: Sequence[Path] = (),
    results: Path | None = None,
    cover: Mapping[Path, Path] = MappingProxyType({}),
    meter: Path | None = None,
    containers: bool = False,
    fuse: bool = False,
    held_up: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a command in the sandbox and wait for its end; call it from the main thread.

    Its standard input is empty. All writes go to a layer that vanishes. The folders `show`, which
    must exist, are there read-only, as they are outside at any time; the folders `hide` are empty.
    `results`, a folder in one of those that are shown, is empty and can be written to: what is in
    it at the end is copied to the real one, as `results.hand_out` has it. In the place of each file
    that `cover` names, by whatever path, the command finds the file that it is mapped to, which
    must be in a shown folder. With `containers` it may make namespaces of its own, and mount there
    what has no size that we set: the watch counts what it finds of that. With `fuse` it has
    /dev/fuse.

    What the command leaves running is killed when it ends, as Slurm does with a batch script's.
    When time is up all its processes get SIGTERM, and SIGKILL five seconds later, counted as its
    time is. What it has spent of that so far stands inside in the file `meter`, a double, brought
    up to date several times a second. While `held_up` (asked in another process) says that it waits
    for what is made for it outside, only what it does counts. A command that cannot be started ends
    with a shell's 126 or 127 and says why in its output. SIGINT, SIGTERM and SIGHUP end the
    sandbox, then do to this process what they would have done.

    Raises:
        SandboxError: this machine refuses what the sandbox needs; the command was not started.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        signals = stack.enter_context(_caught_signals())
        plan = _plan(
            cwd, environ, limits, stack, show=show, hide=hide, results=results, cover=cover
        )
        plan = replace(plan, containers=containers, fuse=fuse)
        group = stack.enter_context(
            cgroup.own(limits.memory_bytes, 2 * limits.processes, limits.cpus)
        )
        output, output_end = os.pipe()
        status, status_end = os.pipe()
        stack.callback(os.close, output)
        stack.callback(os.close, status)
        with ExitStack() as theirs:
            theirs.callback(os.close, output_end)
            theirs.callback(os.close, status_end)
            command = first_process.Command(
                argv, cwd, environ, output_end, limits, meter, group, held_up
            )
            keeper = _fork_keeper(command, plan, status_end)
        listening = _Listening(keeper, output, status, signals, limits.wall_seconds + LAST_SECONDS)
        try:
            listening.until_the_end()
        finally:
            listening.end()
    return _beside_silence(_outcome(listening, time.monotonic() - started), plan.silent)


def _beside_silence(outcome: Outcome, silent: Sequence[Path]) -> Outcome:
    """Say so where a command that failed speaks of a file system that did not answer."""
    named = (point for point in silent if os.fsencode(point) in outcome.output_tail)
    point = next(named, None) if outcome.returncode and outcome.disturbed is None else None
    if point is None:
        return outcome
    return replace(outcome, disturbed=f"the file system at {point} does not answer")


def _plan(
    cwd: Path,
    environ: Mapping[str, str],
    limits: Limits,
    stack: ExitStack,
    *,
    show: Sequence[Path],
    hide: Sequence[Path],
    results: Path | None,
    cover: Mapping[Path, Path],
) -> mounts.Plan:
    """Say what the command is to see of the file system; `stack` clears away the layers that need a
    place on disk.
    """
    mounted = mounts.visible(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    # before anything else looks at one
    silent = answering.silent(mounted, new_root.PSEUDO_FILE_SYSTEMS)
    for place in (cwd, Path(environ.get("HOME", "/")), *show):
        hangs = mounts.within(place, silent)
        if hangs is not None:
            raise SandboxError(f"the file system at {hangs} does not answer")
    user_namespace = mounts.needs_user_namespace()
    layers = None
    if user_namespace and not mounts.tmpfs_keeps_marks():
        layers = stack.enter_context(mounts.layers_on_disk())
    return mounts.Plan(
        mounts=[mount for mount in mounted if mounts.within(mount.point, silent) is None],
        silent=silent,
        sockets=mounts.bound_sockets(
            Path("/proc/net/unix").read_text(errors="surrogateescape"), silent
        ),
        writable=mounts.places_to_write(cwd, environ),
        foreign=mounts.foreign(cwd.resolve()) if user_namespace else (),
        show=[folder.resolve(strict=True) for folder in show],
        hide=[folder.resolve() for folder in hide],
        results=None if results is None else results.resolve(strict=True),
        cover={file.resolve(): ours.resolve(strict=True) for file, ours in cover.items()},
        scratch_bytes=limits.scratch_bytes,
        user_namespace=user_namespace,
        layers=layers,
    )


def _fork_keeper(command: first_process.Command, plan: mounts.Plan, status: int) -> int:
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        number = os.fork()
        if number == 0:
            first_process.keep(command, plan, parent, status)
        return number
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _caught_signals() -> Iterator[int]:
    """Give a descriptor that becomes readable when a signal asks us to end; raise that signal again
    at the end.
    """
    received: list[int] = []
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        os.write(wake_end, b"!")

    # Under nohup SIGHUP is ignored, and stays so.
    heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in heeded}
    try:
        yield wake
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
        os.close(wake)
        os.close(wake_end)
        for number in received[:1]:
            signal.raise_signal(number)


class _Listening:
    """The sandbox seen from outside: its output and its reports, until all its processes are
    gone.
    """

    def __init__(self, keeper: int, output: int, status: int, signals: int, longest: float) -> None:
        self.keeper = keeper
        self.longest = longest
        self.overdue = False
        self.late_after: float | None = None
        """The limit in seconds that the set-up did not keep."""
        self.tail = self.head = b""
        self.reports: list[dict[str, Any]] = []
        self._status = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(output, selectors.EVENT_READ, self._hear)
        self._selector.register(status, selectors.EVENT_READ, self._note)
        self._selector.register(signals, selectors.EVENT_READ, self._ask_to_end)

    def until_the_end(self) -> None:
        """Listen until both pipes are closed: no process of the sandbox is left but, for a moment,
        its keeper.
        """
        self._until_ready()
        end_by = time.monotonic() + self.longest
        while self._is_open() and self.late_after is None:
            seconds_left = end_by - time.monotonic()
            if seconds_left <= 0:
                self.overdue = True
                os.kill(self.keeper, signal.SIGKILL)
                return
            self._listen(seconds_left)

    def _until_ready(self) -> None:
        """Listen until the set-up is done, or has waited for too long."""
        waiting = progress.Progress(disks_count=True)
        latest = time.monotonic() + LONGEST_SETUP_SECONDS
        while self._is_open() and not self._reported("ready"):
            waiting.look([self.keeper, *self._reported("first")])
            if waiting.idle_seconds >= SETUP_SECONDS:
                self.late_after = SETUP_SECONDS
            elif time.monotonic() >= latest:
                self.late_after = LONGEST_SETUP_SECONDS
            if self.late_after is not None:
                os.kill(self.keeper, signal.SIGKILL)
                return
            self._listen(_LOOK_SECONDS)

    def _is_open(self) -> bool:
        return len(self._selector.get_map()) > 1

    def _listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            chunk = os.read(key.fd, 1 << 16)
            if chunk:
                key.data(chunk)
            else:
                self._selector.unregister(key.fd)

    def _reported(self, key: str) -> list[Any]:
        return [report[key] for report in self.reports if key in report]

    def end(self) -> None:
        """Leave no process behind."""
        self._selector.close()
        os.kill(self.keeper, signal.SIGTERM)
        os.waitpid(self.keeper, 0)

    def _hear(self, chunk: bytes) -> None:
        self.tail = (self.tail + chunk)[-OUTPUT_BYTES:]
        self.head += chunk[: OUTPUT_BYTES - len(self.head)]

    def _note(self, chunk: bytes) -> None:
        *lines, self._status = (self._status + chunk).split(b"\n")
        self.reports += [json.loads(line) for line in lines]

    def _ask_to_end(self, _chunk: bytes) -> None:
        os.kill(self.keeper, signal.SIGTERM)


def _outcome(listening: _Listening, seconds: float) -> Outcome:
    """Put together what the processes inside reported."""
    facts: dict[str, Any] = {}
    for report in listening.reports:
        facts |= report
    if "failed" in facts:
        raise SandboxError(_why(facts["failed"], facts["errno"], facts["where"]))
    if listening.late_after is not None:
        raise SandboxError(
            f"the sandbox was not ready after {listening.late_after:.0f} s: does a network file "
            "system here not answer?"
        )
    if "stopped" not in facts:
        why = "did not end when its time was up" if listening.overdue else "was ended from outside"
        raise SandboxError(f"the sandbox {why}")
    del facts["first"]
    read_only = tuple(facts.pop("ready"))
    return Outcome(
        seconds=seconds,
        output_tail=listening.tail,
        output_head=listening.head,
        read_only=read_only,
        **facts,
    )


_BY_ERROR = {
    errno.ENODEV: "the kernel has no overlay file system (modprobe overlay)",
    errno.EMFILE: "`ulimit -n` shows how many files may be open",
}
"""What is behind an error, whatever was refused by it."""


def _why(stage: str, number: int | None, where: str) -> str:
    """Say in one line what was refused and what an administrator would change."""
    if number is None:
        return f"the sandbox failed: {stage}"
    if stage == "results":
        return (
            "what the dry run found could not be written to its temporary folder: "
            f"{os.strerror(number)}"
        )
    refused = {
        "namespaces": "user namespaces are refused",
        "user map": "a user namespace without privileges is refused",
        "mounts": f"mounting {where or 'the new root'} is refused",
    }[stage]
    words = f"no sandbox here: {refused} ({os.strerror(number)})"
    if number in _BY_ERROR:
        return f"{words}; {_BY_ERROR[number]}"
    for setting, off, change in _SETTINGS:
        file = Path("/proc/sys", setting.replace(".", "/"))
        if file.is_file() and file.read_text().strip() == off:
            return f"{words}; {setting} is {off}, an administrator would set {change}"
    if linux.release() < OLDEST_LINUX:
        return (
            f"{words}; it needs Linux {'.'.join(map(str, OLDEST_LINUX))}, this is "
            f"{platform.release()}"
        )
    return f"{words}; a container or a security module forbids it"
