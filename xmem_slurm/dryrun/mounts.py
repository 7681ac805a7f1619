"""What does a dry run see as its file system? Everything that is here, with a throw-away layer over it.

The new root is a tree on one tmpfs. Each ordinary folder is an overlay: the real folder below, a folder of the tmpfs
above. A folder that has other mounts below it cannot be the lower layer of an overlay (inside a user namespace the
kernel locks those mounts: fs/namespace.c, has_locked_children), so such a folder is made anew and each of its entries is
laid over on its own; the file system's root is always one of these. Where a file system refuses to be a lower layer
(older Lustre, two overlays already), it is there read-only.

Kept out of reach:
- /dev has null, zero, full, random, urandom, tty, a new pts and an overlaid shm: no disk, no GPU.
- /run is empty but for name lookups (NAME_SERVICES), symlinks and file systems mounted below it: the sockets of munge,
  D-Bus, Docker and the like would be reachable through an overlay, as they are through a network namespace.
- Every other socket that /proc/net/unix lists is whited out (ssh agents, X11, tmux, databases); not those of sssd.
- /proc is new; /proc/sys and the like, and all of /sys, are read-only.

Note [Owners inside a user namespace]
Only our own user and group exist there. Copying a file up into the upper layer gives it its old owner and group, and
fails with EOVERFLOW where that is someone else's. The folders on the way to where a job writes (`open_for_writing`: its
working directory, its home, the folders for temporary files) are therefore made in the upper layer beforehand, owned by
us.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.dryrun import linux

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
NAME_SERVICES = ("/run/nscd", "/run/nslcd", "/run/systemd/userdb")
"""Folders of sockets that the C library asks who a user is; they change nothing."""
NAME_SERVICE_SOCKETS = "/var/lib/sss/"
KERNEL_FILES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")
"""Entries of /proc through which root could change the machine."""
PSEUDO_FILE_SYSTEMS = frozenset(
    """autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl hugetlbfs mqueue nsfs
    proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs""".split()
)
_MADE_HERE = frozenset({"/dev", "/proc", "/run", "/sys"})

_BASE = "/tmp"  # noqa: S108 - only a folder that every machine has, to mount on
_OLD = "/old"
_NEW = "/new"
_LAYERS = "/layers"


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    number: int
    parent: int
    point: str
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the new root is made from; all paths are absolute and without symlinks."""

    mounts: Sequence[Mount]
    sockets: Sequence[str]
    open_for_writing: Sequence[str]
    keep: Sequence[str]
    scratch_bytes: int
    user_namespace: bool


def visible(mountinfo: str) -> list[Mount]:
    """Return the mounts that a path can reach, from the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).

    A mount is out of reach when a later one lies on top of it or on a folder above it.
    """
    mounts = [_parse(line) for line in mountinfo.splitlines()]
    by_number = {mount.number: mount for mount in mounts}
    places = {(mount.parent, mount.point) for mount in mounts}

    def covered(mount: Mount) -> bool:
        if any((mount.parent, str(folder)) in places for folder in Path(mount.point).parents):
            return True
        parent = by_number.get(mount.parent)
        return parent is not None and covered(parent)

    return [mount for mount in mounts if (mount.number, mount.point) not in places and not covered(mount)]


def _parse(line: str) -> Mount:
    fields = line.split(" ")
    kind = fields[fields.index("-") + 1]
    point = fields[4].encode("ascii", "surrogateescape").decode("unicode_escape").encode("latin-1")
    return Mount(int(fields[0]), int(fields[1]), os.fsdecode(point), kind)


def bound_sockets(net_unix: str) -> list[str]:
    """Return the paths of the Unix sockets in the text of /proc/net/unix (its eighth column), symlinks resolved."""
    paths = {line.split(" ", 7)[-1].strip() for line in net_unix.splitlines()[1:] if "/" in line}
    return sorted(
        {os.path.realpath(path) for path in paths if path.startswith("/") and not path.startswith(NAME_SERVICE_SOCKETS)}
    )


def build(plan: Plan) -> tuple[int, list[str]]:
    """Put this process (in a new mount namespace, with CAP_SYS_ADMIN, first of a new PID namespace) into a new root.

    Returns a descriptor of the tmpfs that holds all the upper layers (for fstatvfs) and the folders that had to be made
    read-only. Raises OSError.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    inodes = max(100_000, plan.scratch_bytes // 8192)
    linux.mount(
        "tmpfs",
        _BASE,
        "tmpfs",
        linux.MS_NOSUID | linux.MS_NODEV,
        f"size={plan.scratch_bytes},nr_inodes={inodes},mode=755",
    )
    for name in (_OLD, _NEW, _LAYERS):
        os.mkdir(_BASE + name)
    linux.pivot_root(_BASE, _BASE + _OLD)
    os.chdir("/")
    linux.mount(_NEW, _NEW, None, linux.MS_BIND)
    scratch = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = _NewRoot(plan)
    root.make()
    os.chdir(_NEW)
    linux.pivot_root(".", ".")
    linux.detach(".")
    os.chdir("/")
    return scratch, root.read_only


@dataclass
class _NewRoot:
    """The tree under construction: the real one is at _OLD, the new one at _NEW."""

    plan: Plan
    read_only: list[str] = field(default_factory=list)
    _overlays: int = 0
    _refusal: OSError | None = None
    _split: set[str] = field(default_factory=set)

    def make(self) -> None:
        for mount in self.plan.mounts:
            self._split.update(str(folder) for folder in Path(mount.point).parents)
        self._split.add("/")
        self._remake("/")
        if self._refusal is not None and len(self.read_only) == self._overlays:
            raise self._refusal
        self._dev()
        self._run()
        self._sys()
        self._proc()
        for folder in self.plan.keep:
            linux.mount(_OLD + folder, _NEW + folder, None, linux.MS_BIND | linux.MS_REC)

    def _place(self, folder: str) -> None:
        """Make one real folder (and what is below it) appear, writable, in the new tree; its parent is there."""
        _copy_folder(_OLD + folder, _NEW + folder, self.plan.user_namespace)
        if folder in _MADE_HERE:
            return
        if folder in self._split:
            self._remake(folder)
        else:
            self._overlay(folder)

    def _remake(self, folder: str) -> None:
        try:
            entries = list(os.scandir(_OLD + folder))
        except PermissionError:
            return
        kinds = {mount.point: mount.kind for mount in self.plan.mounts}
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if kinds.get(path) in PSEUDO_FILE_SYSTEMS and path not in _MADE_HERE:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), _NEW + path)
            elif entry.is_dir(follow_symlinks=False):
                self._place(path)
            elif entry.is_file(follow_symlinks=False):
                _bind_file(_OLD + path, _NEW + path)
                linux.make_read_only(_NEW + path)

    def _overlay(self, folder: str) -> None:
        layer = f"{_LAYERS}/{self._overlays}"
        self._overlays += 1
        upper, work = layer + "/upper", layer + "/work"
        os.mkdir(layer)
        os.mkdir(work)
        lower = _OLD + folder
        _copy_folder(lower, upper, self.plan.user_namespace)
        try:
            os.chdir(lower)  # the lower layer is ".": no path to quote in the options
        except PermissionError:
            return
        for place in _below(folder, self.plan.open_for_writing):
            self._open(folder, place, upper)
        for place in _below(folder, self.plan.sockets):
            if self._open(folder, os.path.dirname(place), upper):
                os.mknod(upper + place[len(folder) :], stat.S_IFCHR, os.makedev(0, 0))
        options = f"lowerdir=.,upperdir={upper},workdir={work}"
        if self.plan.user_namespace:
            options += ",userxattr"
        try:
            linux.mount("overlay", _NEW + folder, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options)
        except OSError as error:
            self.read_only.append(folder)
            self._refusal = error
            linux.mount(lower, _NEW + folder, None, linux.MS_BIND | linux.MS_REC)
            linux.make_read_only(_NEW + folder)
        finally:
            os.chdir("/")

    def _open(self, folder: str, place: str, upper: str) -> bool:
        """Make the folders from `folder` down to `place` in the upper layer; see Note [Owners inside a user namespace]."""
        reached = folder
        for name in place[len(folder) :].strip("/").split("/"):
            reached = os.path.join(reached, name)
            if not name or os.path.isdir(upper + reached[len(folder) :]):
                continue
            if not _is_folder(_OLD + reached):
                return False
            _copy_folder(_OLD + reached, upper + reached[len(folder) :], self.plan.user_namespace)
        return True

    def _dev(self) -> None:
        for name in DEVICES:
            _bind_file(f"{_OLD}/dev/{name}", f"{_NEW}/dev/{name}")
        links = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
        for name, target in links.items():
            os.symlink(f"/proc/self/{target}", f"{_NEW}/dev/{name}")
        os.mkdir(_NEW + "/dev/pts")
        options = "newinstance,ptmxmode=0666,mode=620"
        linux.mount("devpts", _NEW + "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
        os.symlink("pts/ptmx", _NEW + "/dev/ptmx")
        if _is_folder(_OLD + "/dev/shm"):  # noqa: S108 - the real one is only read
            self._place("/dev/shm")  # noqa: S108

    def _run(self) -> None:
        if not _is_folder(_OLD + "/run"):
            return
        for entry in os.scandir(_OLD + "/run"):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), f"{_NEW}/run/{entry.name}")
        user = f"/run/user/{os.getuid()}"
        for folder in (user, "/run/lock"):
            if _is_folder(_OLD + folder):
                self._parents(folder)
                _copy_folder(_OLD + folder, _NEW + folder, self.plan.user_namespace)
        for folder in NAME_SERVICES:
            if _is_folder(_OLD + folder):
                self._parents(folder)
                os.mkdir(_NEW + folder)
                linux.mount(_OLD + folder, _NEW + folder, None, linux.MS_BIND | linux.MS_REC)
                linux.make_read_only(_NEW + folder)
        for mount in self.plan.mounts:
            if mount.point.startswith("/run/") and mount.kind not in {*PSEUDO_FILE_SYSTEMS, "tmpfs", "ramfs"}:
                with suppress(OSError):  # another user's, or one that is not a folder
                    self._parents(mount.point)
                    self._place(mount.point)

    def _parents(self, folder: str) -> None:
        os.makedirs(os.path.dirname(_NEW + folder), mode=0o755, exist_ok=True)

    def _sys(self) -> None:
        linux.mount(_OLD + "/sys", _NEW + "/sys", None, linux.MS_BIND | linux.MS_REC)
        linux.make_read_only(_NEW + "/sys")

    def _proc(self) -> None:
        proc = _NEW + "/proc"
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        try:
            linux.mount("proc", proc, "proc", flags)
        except PermissionError:  # a container that hides parts of its own /proc
            linux.mount(_OLD + "/proc", proc, None, linux.MS_BIND | linux.MS_REC)
        for name in KERNEL_FILES:
            path = f"{proc}/{name}"
            if os.path.exists(path):
                linux.mount(path, path, None, linux.MS_BIND | linux.MS_REC)
                linux.make_read_only(path)


def _below(folder: str, places: Sequence[str]) -> Iterator[str]:
    return (place for place in places if place.startswith(folder + "/"))


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _copy_folder(source: str, target: str, user_namespace: bool) -> None:
    """Make an empty folder that looks like `source`: mode, times and, where it can be ours to give, owner."""
    found = os.lstat(source)
    os.mkdir(target)
    if not user_namespace:
        os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _bind_file(source: str, target: str) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    linux.mount(source, target, None, linux.MS_BIND)


def places_to_write(cwd: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the folders where a job may be expected to make files: its working directory, its home, temporary ones."""
    wanted = [str(cwd), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108 - the job's, not ours
    wanted += [environ[name] for name in ("HOME", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME") if environ.get(name)]
    return sorted({os.path.realpath(path) for path in wanted if os.path.isabs(path)})
