"""What happens between the sandbox's fork and the command's exec? Three processes, each the parent
of the next.

    keeper    in our PID namespace: enters the new namespaces, waits for the first process; SIGTERM
              makes it kill that
    first     process 1 of the new PID namespace: builds the new root, starts the command, reaps,
              watches the limits. When it dies the kernel kills every process of the namespace,
              whatever they did to get away
    command   gives up its privileges and becomes the user's program

Each dies with its parent (PR_SET_PDEATHSIG). They talk to the sandbox over one pipe, a line of JSON
each time: {"first": its number}, {"ready": [read-only folders]}, then what `_Tending` returns and
what of the results could not be handed out; or {"failed": stage, "errno"}. None of these functions
returns: the process ends in them.
"""

import gc
import json
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fcntl import ioctl
from pathlib import Path
from typing import Any, NoReturn

from xmem_slurm.descriptors import close_all_but
from xmem_slurm.sandbox import cgroup, linux, mounts, new_root, progress, results, syscalls, watch
from xmem_slurm.units import GIB, KIB, MIB

GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL when time is up, counted as time is: long enough for the probe to
write its trace..."""
GRACE_ON_THE_WALL_SECONDS = 2.0
"""...but not for longer than the wall limit has it, or this where that is up: somebody waits."""
WATCH_SECONDS = 0.1
WATCH_SHARE = 0.1
"""At most this share of a CPU goes into watching..."""
LONGEST_PAUSE_SECONDS = 2.0
"""...but for a dry run that takes long to look at: in this time it may do what it likes."""
DATA_HEADROOM_BYTES = 512 * GIB
"""What a process may map beyond the limit on memory without touching it, which takes none: a model
of 70 B parameters in fp32 and once more in 16 bits is 420 GB. The watch, or a control group, sees
what is touched."""

KEPT_CAPABILITIES = frozenset(
    {linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER, linux.CAP_FSETID}
    | {linux.CAP_KILL, linux.CAP_SETGID, linux.CAP_SETUID}
)
"""What root in a dry run may still do. Not CAP_DAC_READ_SEARCH: open_by_handle_at would reach below
the overlay."""

MOST_FILE_BYTES = 1 << 44
"""The end of one file, far beyond what all may take: of a checkpoint the probe leaves large tensors
out, as holes."""
MOST_TIMERS = 8192
"""Timers and queued signals: all of a user's are counted as one..."""
MOST_QUEUED_BYTES = 256 * KIB
"""...and so are POSIX message queues."""
FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU}
)
"""Signals by which people, schedulers and the kernel end programs, and a script hardly itself."""
_SHELLS_SIGNALS = 128
"""A shell's exit code where a signal ended its last command, less that."""
_FULL_BYTES = MIB
_OUR_PROCESSES = 2  # keeper and first
_FIRST_TO_GO = b"1000"
"""The highest oom_score_adj (proc_pid_oom_score_adj(5))."""
_LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")
"""What the kernel goes on from in this PID namespace; not every kernel has it."""
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = "16sh14x"
_ALL_SIGNALS = signal.valid_signals()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a dry run may use. `scratch_bytes`: what all files that it writes take, holes left out.

    `processes` counts threads too. `memory_bytes` is host memory: anonymous and shared memory and
    what was written to files; not the address space that stands for GPU memory. `seconds` are what
    `progress` counts, `wall_seconds` those of a clock.
    """

    seconds: float
    wall_seconds: float
    memory_bytes: int
    processes: int
    scratch_bytes: int
    cpus: int = 2
    nice: int = 10


@dataclass(frozen=True, slots=True)
class Command:
    """The program to run, and its world.

    `output` is an open descriptor. What was spent of `Limits.seconds` is written to `meter`, a path
    inside, again and again, as a double. `group` is a control group to run it in. `held_up` says
    whether it waits for what is made for it outside.
    """

    argv: Sequence[str]
    cwd: Path
    environ: Mapping[str, str]
    output: int
    limits: Limits
    meter: Path | None = None
    group: Path | None = None
    held_up: Callable[[], bool] = lambda: False


class StageError(Exception):
    """A step of the set-up was refused; carries its name and the errno."""

    def __init__(self, stage: str, cause: OSError) -> None:
        super().__init__(f"{stage}: {cause}")
        self.stage = stage
        self.cause = cause


def keep(command: Command, plan: mounts.Plan, parent: int, status: int) -> NoReturn:
    """Be the keeper. Called right after the fork, with all signals blocked; `parent` is who
    forked.
    """
    gc.disable()
    _ending(status, lambda: _keep(command, plan, parent, status))


def _ending(status: int, body: Callable[[], object]) -> NoReturn:
    """Run `body` and end this process, never returning into the code that it was forked from."""
    try:
        body()
    except StageError as error:
        _tell(
            status,
            {
                "failed": error.stage,
                "errno": error.cause.errno,
                "where": str(error.cause.filename or ""),
            },
        )
    except BaseException as error:
        _tell(status, {"failed": f"{type(error).__name__}: {error}", "errno": None, "where": ""})
    finally:
        os._exit(1)


def _tell(status: int, report: Mapping[str, Any]) -> None:
    os.write(status, json.dumps(report).encode() + b"\n")


def _keep(command: Command, plan: mounts.Plan, parent: int, status: int) -> NoReturn:
    """Be the keeper, outside of the PID namespace: make the namespaces, start process 1, end it
    when told to.
    """
    os.setsid()
    # where it is ignored, there is nothing to wait for
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map is root's
    if command.group is None:
        limits = command.limits
        command = replace(
            command, group=cgroup.scope(limits.memory_bytes, 2 * limits.processes, limits.cpus)
        )
    user, group = os.geteuid(), os.getegid()
    spaces = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
    try:
        linux.unshare(spaces | (linux.CLONE_NEWUSER if plan.user_namespace else 0))
    except OSError as error:
        raise StageError("namespaces", error) from error
    if plan.user_namespace:
        _map_ourselves(user, group)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    alive, ours = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(ours)
        _ending(status, lambda: _first(command, plan, alive, status))
    os.close(alive)
    _tell(status, {"first": first})
    os.write(ours, b"!")
    os.close(command.output)
    while True:
        if signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
            os.kill(first, signal.SIGKILL)
        elif os.waitpid(first, os.WNOHANG)[0]:
            os._exit(0)


def _map_ourselves(user: int, group: int) -> None:
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        raise StageError("user map", error) from error


def _first(command: Command, plan: mounts.Plan, alive: int, status: int) -> NoReturn:
    """Be process 1: build the root, start the command, watch it to its end, hand out what is left,
    say how it went.
    """
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The keeper may have died before it could take us along; who its parent is, process 1 of a PID
    # namespace cannot ask, but the keeper's end of the pipe goes with it.
    if not os.read(alive, 1) or _hung_up(alive):
        os._exit(1)
    # the command's, too; its own /proc may be read-only
    Path("/proc/self/oom_score_adj").write_bytes(_FIRST_TO_GO)
    group = cgroup.Opened(command.group)
    handed_out = (
        None if plan.results is None else os.open(plan.results, os.O_RDONLY | os.O_DIRECTORY)
    )
    with suppress(OSError):  # where the user's own limit and the watch have to do
        # twice, so that the watch sees the limit passed
        linux.bound_processes(2 * command.limits.processes)
    with suppress(OSError):
        linux.bound_shared_memory(2 * command.limits.memory_bytes)
    unseen = watch.Unseen(linux.bound_sockets())
    own_users = None if plan.user_namespace else _own_users()
    # the command is number 2 for anybody, as scripts are told (SLURM_TASK_PID)
    with suppress(OSError):
        _LAST_NUMBER.write_text("1")
    if plan.user_namespace:
        with suppress(OSError):
            linux.bound_watches()
    try:
        linux.unshare(linux.CLONE_NEWNS)
        root = new_root.build(plan)
    except OSError as error:
        raise StageError("mounts", error) from error
    _raise_loopback()
    tending = _Tending(command, root, group, unseen, containers=plan.containers)
    child = tending.child = os.fork()
    if child == 0:
        group.join()
        _become(command, plan, own_users)
    # the command, the same user, may not reach into this process
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    os.close(command.output)
    _tell(status, {"ready": root.read_only})
    report = tending.until_the_end()
    try:
        kept_back = None if handed_out is None else results.hand_out(root.results, handed_out)
    except OSError as error:
        raise StageError("results", error) from error
    _tell(status, report | {"kept_back": kept_back})
    os._exit(0)


def _hung_up(pipe: int) -> bool:
    """Whether nobody holds the other end any more."""
    poll = select.poll()
    poll.register(pipe, 0)  # POLLHUP is always told
    return bool(poll.poll(0))


def _own_users() -> int | None:
    """Make a user namespace in which everybody is who they are outside; None where the kernel has
    no more of them.

    Root's rights in it are over files that it can write to, which are those of its own layer; over
    nothing that is the machine's, and what it does under another user's number is counted as
    root's.
    """
    ours, theirs = socket.socketpair()
    holder = os.fork()
    if holder == 0:
        ours.close()
        with suppress(OSError):
            linux.unshare(linux.CLONE_NEWUSER)
            theirs.send(bytes(Path("/proc/self").readlink()))  # /proc is still the one outside
            theirs.recv(1)
            linux.bound_watches()
            theirs.send(b"!")
            theirs.recv(1)
        os._exit(0)
    theirs.close()
    try:
        process_folder = Path("/proc", ours.recv(20).decode())
        for name in ("uid_map", "gid_map"):
            (process_folder / name).write_text(_same_as(Path("/proc/self", name).read_text()))
        ours.send(b"!")
        ours.recv(1)
        return os.open(process_folder / "ns/user", os.O_RDONLY)
    except OSError:
        return None
    finally:
        ours.close()
        os.waitpid(holder, 0)


def _same_as(numbers: str) -> str:
    """Return the map of a namespace (user_namespaces(7)) in which all numbers of the one that has
    this map are.
    """
    return "\n".join("{0} {0} {2}".format(*line.split()) for line in numbers.splitlines())


def _raise_loopback() -> None:
    """Torch's rendezvous and many servers listen on 127.0.0.1; a new network namespace starts with
    it down.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = ioctl(any_socket, _SIOCGIFFLAGS, struct.pack(_IFREQ, b"lo", 0))
        flags = struct.unpack(_IFREQ, request)[1]
        ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))


class _Tending:
    """Process 1's work while the command runs: reap, measure, stop what goes beyond the limits."""

    def __init__(
        self,
        command: Command,
        root: new_root.Built,
        group: cgroup.Opened,
        unseen: watch.Unseen,
        *,
        containers: bool,
    ) -> None:
        self.child = 0
        self.limits, self.held_up = command.limits, command.held_up
        self.meter: int | None = None
        if command.meter is not None:
            self.meter = os.open(command.meter, os.O_WRONLY | os.O_CREAT, 0o600)
        self.root = root
        self.containers = containers
        self.group = group
        self.unseen = unseen
        self.killed_before = _killed_for_memory()
        # not 1 where /proc is the one outside
        self.own_number = int(str(Path("/proc/self").readlink()))
        self.code: int | None = None
        self.peak = 0
        self.progress = progress.Progress()
        self.lowered = set[int]()

    def until_the_end(self) -> dict[str, Any]:
        """Reap and measure until the command ends or goes beyond a limit, then kill what is left;
        say how it went.
        """
        stopped: str | None = None
        look = time.monotonic()
        end = look + self.limits.wall_seconds
        while self._reap() and self.code is None:
            now, worked = time.monotonic(), time.process_time()
            if now >= look:
                stopped = self._beyond()
                if stopped is not None:
                    break
                pause = (time.process_time() - worked) / WATCH_SHARE
                look = now + min(max(WATCH_SECONDS, pause), LONGEST_PAUSE_SECONDS)
            if now >= end or self.progress.spent_seconds >= self.limits.seconds:
                stopped = "time"
                self._ask_to_end(end)
                break
            signal.sigtimedwait({signal.SIGCHLD}, max(0.0, min(look, end) - time.monotonic()))
        self._kill()
        if stopped is None and self.group.was_killed():
            stopped = "memory"
            self.peak = max(self.peak, self.limits.memory_bytes)  # it got there between two looks
        self.progress.look(())
        return {
            "returncode": self.code,
            "stopped": stopped,
            "spent_seconds": self.progress.spent_seconds,
            "cpu_seconds": self.progress.cpu_seconds,
            "peak_memory_bytes": self.peak,
            "disturbed": self._disturbed(stopped),
        }

    def _disturbed(self, stopped: str | None) -> str | None:
        """Say what of this machine's may have ended it, or come in its way."""
        if stopped == "memory" and self.unseen.may_be_others:
            return "shared memory grew on this machine, which may be that of others"
        if stopped is not None:
            return None
        if self.root.layers is not None:
            disk = os.fstatvfs(self.root.layers)
            if disk.f_bavail * disk.f_frsize < _FULL_BYTES:
                return "the disk of temporary files is full"
        number = 0
        if self.code is not None:  # a signal is negative, or above 128 where a shell says it
            number = -self.code if self.code < 0 else self.code - _SHELLS_SIGNALS
        if number not in FROM_OUTSIDE:
            return None
        short = _killed_for_memory() > self.killed_before and number == signal.SIGKILL
        return (
            "this machine ran out of memory" if short else f"{signal.Signals(number).name} ended it"
        )

    def _beyond(self) -> str | None:
        """Look, and return the limit that is passed now, if one is."""
        usage = self._look()
        # Before it is asked what each of them holds: that takes its time.
        if usage.threads > self.limits.processes:
            return "processes"
        elsewhere = watch.elsewhere(usage.processes) if self.containers else 0
        memory, limit = usage.memory_bytes + elsewhere, self.limits.memory_bytes
        unseen = 0 if self.group.is_there() else self.unseen.held(usage, limit - memory)
        if memory + unseen > limit:
            memory = (
                watch.proportional(self.own_number, self.root.scratch, self.root.results)
                + elsewhere
            )
        is_full = self.group.thrashes() or memory + unseen > limit
        self.peak = max(self.peak, memory, limit if is_full else 0)
        if is_full:
            return "memory"
        if (
            self.root.layers is not None
            and watch.on_disk(self.root.layers, usage.processes) > self.limits.scratch_bytes
        ):
            return "scratch"
        return None

    def _look(self) -> watch.Usage:
        usage = watch.usage(self.own_number, self.root.scratch, self.root.results)
        self.progress.look(usage.processes, held_up=self.held_up())
        for number in usage.processes:
            self._first_to_go(number)
            self._last_to_run(number)
        if self.meter is not None:
            os.pwrite(self.meter, struct.pack("d", self.progress.spent_seconds), 0)
        return usage

    def _first_to_go(self, number: int) -> None:
        """Keep a process the one that is killed where this machine is out of memory; one that will
        not be ends now.
        """
        score = Path("/proc", str(number), "oom_score_adj")
        with suppress(FileNotFoundError, ProcessLookupError):
            if score.read_bytes().strip() != _FIRST_TO_GO:
                try:
                    score.write_bytes(_FIRST_TO_GO)
                except PermissionError:
                    os.kill(number if self.own_number == 1 else self.child, signal.SIGKILL)

    def _last_to_run(self, number: int) -> None:
        """Lower the session of a process, which may have begun one: the kernel takes a few such
        words a second.
        """
        with suppress(OSError):
            session = os.getsid(number)
            if session not in self.lowered:
                linux.lower_session(number)
                self.lowered.add(session)

    def _ask_to_end(self, end: float) -> None:
        """Let all processes write what they have; `end` is when the time on the wall is up."""
        _signal_all(signal.SIGTERM)
        end = max(end, time.monotonic() + GRACE_ON_THE_WALL_SECONDS)
        most_seconds = self.progress.spent_seconds + GRACE_SECONDS
        while (
            self._reap() and time.monotonic() < end and self.progress.spent_seconds < most_seconds
        ):
            signal.sigtimedwait({signal.SIGCHLD}, WATCH_SECONDS)
            self._look()

    def _kill(self) -> None:
        _signal_all(signal.SIGKILL)
        while self._reap():
            signal.sigtimedwait({signal.SIGCHLD}, WATCH_SECONDS)

    def _reap(self) -> bool:
        """Collect every process that has ended; tell whether any is left."""
        try:
            while True:
                number, state = os.waitpid(-1, os.WNOHANG)
                if number == 0:
                    return True
                if number == self.child:
                    self.code = os.waitstatus_to_exitcode(state)
        except ChildProcessError:
            return False


def _killed_for_memory() -> int:
    """Return how many processes this machine has killed as it ran out of memory (a count of Linux
    4.13).
    """
    match = re.search(rb"^oom_kill (\d+)", Path("/proc/vmstat").read_bytes(), re.MULTILINE)
    return 0 if match is None else int(match[1])


def _signal_all(number: signal.Signals) -> None:
    """Send a signal to every process of the namespace but its first."""
    with suppress(ProcessLookupError):
        os.kill(-1, number)


def _become(command: Command, plan: mounts.Plan, own_users: int | None) -> NoReturn:
    """Be the command. What goes wrong is said on its stderr, with a shell's exit codes."""
    code = 126
    try:
        os.setsid()
        if own_users is not None:
            linux.join(own_users)
        for number, descriptor in enumerate(
            (os.open(os.devnull, os.O_RDONLY), command.output, command.output)
        ):
            os.dup2(descriptor, number)
        close_all_but()
        _limit(command.limits, plan)
        linux.keep_capabilities(KEPT_CAPABILITIES)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        # of 2 MiB of which a page is mapped all stays, and that page counts
        with suppress(OSError):
            linux.prctl(linux.PR_SET_THP_DISABLE, 1)
        linux.leave_session_keyring()
        syscalls.give_up(namespaces=plan.containers)
        os.chdir(command.cwd)
        for number in _ALL_SIGNALS - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):  # the C library keeps two for itself
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command.argv[0], list(command.argv), command.environ)
    except FileNotFoundError as error:
        code = 127
        os.write(2, f"{error.filename or command.argv[0]}: {error.strerror}\n".encode())
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="replace"))
    os._exit(code)


def _limit(limits: Limits, plan: mounts.Plan) -> None:
    """Put the limits of this process, and so of the command, in place; the watch holds what these
    cannot.
    """
    # Not 0: a core_pattern that is a pipe, to a program outside, runs at 0 (core(5)).
    linux.lower_limit(resource.RLIMIT_CORE, 1)
    linux.lower_limit(resource.RLIMIT_DATA, limits.memory_bytes + DATA_HEADROOM_BYTES)
    linux.lower_limit(resource.RLIMIT_FSIZE, MOST_FILE_BYTES)
    linux.lower_limit(resource.RLIMIT_RTPRIO, 0)
    linux.lower_limit(resource.RLIMIT_SIGPENDING, MOST_TIMERS)
    linux.lower_limit(resource.RLIMIT_MSGQUEUE, MOST_QUEUED_BYTES)
    if plan.user_namespace:
        # Since Linux 5.14 a user namespace counts its own processes. Twice the limit, so that the
        # watch sees it passed and stops the run, where a refused fork might only be tried again.
        linux.lower_limit(resource.RLIMIT_NPROC, 2 * limits.processes + _OUR_PROCESSES)
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, random.sample(allowed, min(limits.cpus, len(allowed))))
    os.nice(limits.nice)
    linux.lower_io_priority()
