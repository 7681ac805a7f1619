"""What does a dry run see as its file system? Everything that is here, with a throw-away layer over
it.

The new root is a tree on one tmpfs. Each ordinary folder is an overlay: the real folder below, a
folder of the tmpfs above. A folder that has other mounts below it cannot be the lower layer of an
overlay (inside a user namespace the kernel locks those mounts: fs/namespace.c,
has_locked_children), so such a folder is made anew and each of its entries is laid over on its own;
files directly in it are read-only. The root folder is always one of these. Where a file system
refuses to be a lower layer (older Lustre, two overlays already), it is there read-only. Where a
tmpfs cannot be an upper layer (`mounts.tmpfs_keeps_marks`), the upper layers are in a folder on
disk.

Kept out of reach:
- /dev has null, zero, full, random, urandom, a new pts and an overlaid shm: no disk, no GPU. For
  containers that are image files it has fuse: what is mounted by that, in namespaces of the job's
  own, the job itself serves. The nodes are read-only, which lets through what is written to a
  device and keeps its mode, owner and times. /dev/tty says that there is no terminal, as it does in
  a batch job: the kernel sets the times of the real one at each use.
- /run is empty but for name lookups (NAME_SERVICES), symlinks and file systems mounted below it:
  the sockets of munge, D-Bus, Docker and the like would be reachable through an overlay, as they
  are through a network namespace.
- Every other socket that /proc/net/unix lists is whited out, or an empty file where its folder is
  read-only: ssh agents, X11, tmux, databases.
- Of a file system that does not answer there is an empty folder.
- Of a pseudo file system elsewhere, an automounter's for one, only what is mounted below it is
  there.
- /proc is new; /proc/sys and the like, and all of /sys, are read-only. So is all of /proc where the
  kernel refuses a new one: that outside has the scores and schedules of the user's other processes.
- Folders of our own are shown read-only or empty (`mounts.Plan`), but for one for results, on a
  tmpfs of its own: what is in it is looked at and copied out when nothing runs any more
  (`results`).

Note [Owners inside a user namespace] Only our own user and group exist there. Copying a file up
into the upper layer gives it its old owner and group, and fails with EOVERFLOW where that is
someone else's: /tmp is root's, a project's folders are often the group's. So the folders on the way
to where a job writes are made in the upper layer beforehand, owned by us. Below its working
directory every folder of another owner or group is, and small files (logs to append to) are copied,
as far as `mounts.foreign` looks. What remains: writing to other files that are not of our own user
and group fails.
"""

import errno
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from xmem_slurm.sandbox import linux, results
from xmem_slurm.sandbox.mounts import Plan, visible

DEVICES = ("null", "zero", "full", "random", "urandom")
FUSE = Path("/dev/fuse")
NAME_SERVICES = ("nscd", "nslcd", "systemd/userdb")
"""Folders of /run with sockets that the C library asks who a user is; they change nothing for an
ordinary user..."""
OF_ROOT = ("systemd/userdb",)
"""...and these do for nobody: nscd takes commands of root's (nscd(8), --shutdown), nslcd a new
password for anybody."""
KERNEL_FILES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "1")
"""Entries of /proc through which root could change the machine, or the process that watches it."""
PSEUDO_FILE_SYSTEMS = frozenset(
    {
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
    }
    | {
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
    }
    | {"tracefs"}
)

_KEPT_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
"""A remount inside a user namespace must name these again (mount_namespaces(7)). statvfs has the
same numbers."""
_MOST_TERMINALS = 128
"""Of the 3,072 that all of a machine's containers may have together."""
_ROOT = Path("/")
_MADE_HERE = frozenset(map(Path, ("/dev", "/proc", "/run", "/sys")))
_BASE = Path("/tmp")  # noqa: S108 - only a folder that every machine has, to mount on
_OLD = Path("/old")
_NEW = Path("/new")
_LAYERS = Path("/layers")
_EMPTY = Path("/empty")
_NOTHING = Path("/nothing")
_RESULTS = Path("/results")


@dataclass(frozen=True, slots=True)
class Built:
    """A new root: its tmpfs, that of its results, `Plan.layers`, all open; and the folders that
    became read-only.
    """

    scratch: int
    results: int
    layers: int | None
    read_only: list[str]


def build(plan: Plan) -> Built:
    """Put this process into a new root. It is in a new mount namespace, and the first of a new PID
    namespace.

    Raises OSError.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    inodes = max(100_000, plan.scratch_bytes // 8192)  # each costs about 1 KiB of kernel memory
    options = f"size={plan.scratch_bytes},nr_inodes={inodes},mode=755"
    linux.mount("tmpfs", _BASE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for folder in (_OLD, _NEW, _LAYERS, _EMPTY, _RESULTS):
        _under(_BASE, folder).mkdir()
    _under(_BASE, _NOTHING).touch()
    linux.pivot_root(_BASE, _under(_BASE, _OLD))
    os.chdir("/")
    linux.mount(_NEW, _NEW, None, linux.MS_BIND)
    scratch = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    options = f"size={results.MOST_BYTES},nr_inodes={results.MOST_INODES},mode=755"
    linux.mount("tmpfs", _RESULTS, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    results_fd = os.open(_RESULTS, os.O_RDONLY | os.O_DIRECTORY)
    layers = (
        None if plan.layers is None else os.open(_old(plan.layers), os.O_RDONLY | os.O_DIRECTORY)
    )
    root = _NewRoot(plan)
    root.make()
    os.chdir(_NEW)
    linux.pivot_root(".", ".")
    linux.detach(".")
    os.chdir("/")
    return Built(scratch, results_fd, layers, root.read_only)


@dataclass
class _NewRoot:
    """The tree under construction: the real one is at _OLD, the new one at _NEW. Folders are named
    as outside.
    """

    plan: Plan
    read_only: list[str] = field(default_factory=list)
    _overlays: int = 0
    _refusal: OSError | None = None
    _made_anew: set[Path] = field(default_factory=set)
    _bare: set[Path] = field(default_factory=set)

    def make(self) -> None:
        """Build the whole of it: layers over what can be written, then what is shown, hidden,
        covered.

        Raises:
            OSError: no layer at all can be mounted.
        """
        self._made_anew.add(_ROOT)
        for mount in self.plan.mounts:
            self._made_anew.update(mount.point.parents)
            if mount.kind in PSEUDO_FILE_SYSTEMS:
                self._bare.add(mount.point)
        for point in self.plan.silent:
            self._made_anew.update(point.parents)
        if self.plan.layers is not None:  # an upper layer may not lie in its lower one
            self._made_anew.update(self.plan.layers.parents)
        self._make_anew(_ROOT)
        self._dev()
        self._run()
        if self._refusal is not None and len(self.read_only) == self._overlays:
            raise self._refusal
        _bind(_old(Path("/sys")), _new(Path("/sys")), read_only=True)
        self._proc()
        for folder in self.plan.show:
            _new(folder).mkdir(parents=True, exist_ok=True)
            _bind(_old(folder), _new(folder), read_only=True)
        for folder in filter(_is_folder, map(_new, self.plan.hide)):
            _bind(_EMPTY, folder, read_only=True)
        if self.plan.results is not None:
            _bind(_RESULTS, _new(self.plan.results))
        for file, ours in self.plan.cover.items():
            with suppress(OSError):  # it is in a folder that is not shown
                _bind(_old(ours), _new(file), read_only=True)

    def _place(self, folder: Path) -> None:
        """Make one real folder, and what is below it, appear writable; its parent is there."""
        self._copy_folder(_old(folder), _new(folder))
        if folder in _MADE_HERE:
            return
        if folder in self._made_anew:
            self._make_anew(folder)
        elif folder not in self._bare:
            self._overlay(folder)

    def _make_anew(self, folder: Path) -> None:
        try:
            if folder in self._bare:
                names = self._needed_names(folder)
            else:
                names = {entry.name for entry in _old(folder).iterdir()}
        except PermissionError:  # it may still be passed through
            names = self._needed_names(folder)
        for path in (folder / name for name in names):
            if path != self.plan.layers:
                # It has just gone, or it is a mount that we may not look into.
                with suppress(OSError):
                    self._entry(path)

    def _needed_names(self, folder: Path) -> set[str]:
        """Return the names in a folder that mounts, or the job's own folders, lie below."""
        mounts = [mount.point for mount in self.plan.mounts]
        places = [*mounts, *self.plan.writable, *self.plan.show]
        return {place.relative_to(folder).parts[0] for place in places if folder in place.parents}

    def _entry(self, path: Path) -> None:
        if path in self.plan.silent:
            _new(path).mkdir()
            return
        mode = _old(path).lstat().st_mode
        if stat.S_ISLNK(mode):
            _new(path).symlink_to(_old(path).readlink())
        elif stat.S_ISDIR(mode):
            self._place(path)
        elif stat.S_ISREG(mode):
            _new(path).touch()
            _bind(_old(path), _new(path), read_only=True)

    def _overlay(self, folder: Path) -> None:
        """Put a layer that takes all writes over a folder; where none can be, the folder is
        read-only.
        """
        layer = (_LAYERS if self.plan.layers is None else _old(self.plan.layers)) / str(
            self._overlays
        )
        self._overlays += 1
        upper, work = layer / "upper", layer / "work"
        layer.mkdir()
        work.mkdir()
        self._copy_folder(_old(folder), upper)
        try:
            os.chdir(_old(folder))  # the lower layer is ".": no path to quote in the options
        except PermissionError:
            return
        self._fill(folder, upper)
        options = f"lowerdir=.,upperdir={upper},workdir={work}"
        if self.plan.user_namespace:
            options += ",userxattr"
        try:
            linux.mount(
                "overlay", _new(folder), "overlay", linux.MS_NOSUID | linux.MS_NODEV, options
            )
        except OSError as error:
            self._refusal = error
            self.read_only.append(str(folder))
            _bind(_old(folder), _new(folder), read_only=True)
            for socket in self.plan.sockets:
                if socket.is_relative_to(folder):
                    with suppress(OSError):  # it has just gone
                        _bind(_NOTHING, _new(socket), read_only=True)
        finally:
            os.chdir("/")

    def _fill(self, folder: Path, upper: Path) -> None:
        """Make what must be in an upper layer before it is mounted."""
        for place in self.plan.writable:
            if place.is_relative_to(folder):
                self._open(folder, place, upper)
        for place in self.plan.foreign:
            if place.is_relative_to(folder):
                self._take_over(folder, place, upper)
        for socket in self.plan.sockets:
            if socket.is_relative_to(folder) and self._open(folder, socket.parent, upper):
                # an overlay's "deleted"
                os.mknod(upper / socket.relative_to(folder), stat.S_IFCHR, os.makedev(0, 0))

    def _open(self, folder: Path, place: Path, upper: Path) -> bool:
        """Make the folders from `folder` down to `place` in its upper layer; tell whether they are
        all there.
        """
        reached = folder
        for name in place.relative_to(folder).parts:
            reached /= name
            target = upper / reached.relative_to(folder)
            if target.is_dir():
                continue
            if not _is_folder(_old(reached)):
                return False
            self._copy_folder(_old(reached), target)
        return True

    def _take_over(self, folder: Path, place: Path, upper: Path) -> None:
        """Note [Owners inside a user namespace]: have `place`, a folder or a file, in the upper
        layer as our own.
        """
        if _is_folder(_old(place)):
            self._open(folder, place, upper)
        elif self._open(folder, place.parent, upper):
            with suppress(OSError):  # one that we may not read
                shutil.copy2(_old(place), upper / place.relative_to(folder), follow_symlinks=False)

    def _copy_folder(self, source: Path, target: Path) -> None:
        """Make an empty folder that looks like `source`: mode, times and, where it can be ours to
        give, owner.
        """
        status = source.lstat()
        target.mkdir()
        if not self.plan.user_namespace:
            os.chown(target, status.st_uid, status.st_gid)
        target.chmod(stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _dev(self) -> None:
        """Make /dev of a few harmless devices, terminals and shared memory of its own."""
        dev = _new(Path("/dev"))
        for name in (*DEVICES, *(["fuse"] if self.plan.fuse and _old(FUSE).exists() else [])):
            (dev / name).touch()
            _bind(_old(Path("/dev", name)), dev / name, read_only=True, devices=True)
        # to open a socket's name is the error of having no terminal
        os.mknod(dev / "tty", stat.S_IFSOCK | 0o666)
        for name, target in {
            "fd": "fd",
            "stdin": "fd/0",
            "stdout": "fd/1",
            "stderr": "fd/2",
        }.items():
            (dev / name).symlink_to(f"/proc/self/{target}")
        (dev / "pts").mkdir()
        flags = linux.MS_NOSUID | linux.MS_NOEXEC
        linux.mount(
            "devpts",
            dev / "pts",
            "devpts",
            flags,
            f"newinstance,ptmxmode=0666,mode=620,max={_MOST_TERMINALS}",
        )
        (dev / "ptmx").symlink_to("pts/ptmx")
        shm = Path("/dev/shm")  # noqa: S108 - the real one is only read
        if _is_folder(_old(shm)):
            self._place(shm)

    def _run(self) -> None:
        """Make /run of what programs look up there: links, name services, the user's own folder as
        an empty copy.
        """
        run = Path("/run")
        if not _is_folder(_old(run)):
            return
        for entry in _old(run).iterdir():
            if run / entry.name not in self.plan.silent and entry.is_symlink():
                (_new(run) / entry.name).symlink_to(entry.readlink())
        for folder in (run / "lock", run / "user" / str(os.getuid())):
            if _is_folder(_old(folder)):
                _new(folder.parent).mkdir(exist_ok=True)
                self._copy_folder(_old(folder), _new(folder))
        for name in NAME_SERVICES if self.plan.user_namespace else OF_ROOT:
            if _is_folder(_old(run / name)):
                _new(run / name).mkdir(parents=True)
                _bind(_old(run / name), _new(run / name), read_only=True)
        for mount in self.plan.mounts:
            if run in mount.point.parents and mount.kind not in {
                *PSEUDO_FILE_SYSTEMS,
                "tmpfs",
                "ramfs",
            }:
                with suppress(OSError):  # another user's, or not a folder
                    _new(mount.point.parent).mkdir(parents=True, exist_ok=True)
                    self._place(mount.point)

    def _proc(self) -> None:
        proc = _new(Path("/proc"))
        try:
            linux.mount("proc", proc, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        except PermissionError:  # a container that hides parts of its own /proc
            _bind(_old(Path("/proc")), proc, read_only=True)
        for name in KERNEL_FILES:
            if (proc / name).exists():
                _bind(proc / name, proc / name, read_only=True)


def _old(path: Path) -> Path:
    return _under(_OLD, path)


def _new(path: Path) -> Path:
    return _under(_NEW, path)


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to(_ROOT)


def _bind(source: Path, target: Path, *, read_only: bool = False, devices: bool = False) -> None:
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    if read_only:
        _make_read_only(target, 0 if devices else linux.MS_NODEV)


def _make_read_only(target: Path, flags: int) -> None:
    """Make the mount at `target`, and all that can be reached below it, read-only, with these
    flags, too.

    One by one: mount_setattr(2) does it in one call, but is not in every kernel that has the rest
    (RHEL 8's).
    """
    points = [target]
    if _is_folder(target):
        mountinfo = _old(Path("/proc/self/mountinfo")).read_text(errors="surrogateescape")
        points = [mount.point for mount in visible(mountinfo) if mount.point.is_relative_to(target)]
    for point in points:
        try:
            kept = os.statvfs(point).f_flag & _KEPT_FLAGS
            linux.mount(
                "none",
                point,
                None,
                linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags | kept,
            )
        except OSError as error:
            # EACCES: a folder on the way is closed to us, and so to the job.
            if error.errno != errno.EACCES:
                raise


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
