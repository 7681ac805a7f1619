"""What a container runtime does in a dry run: it starts the job's container, with the probe and the
stand-ins in it.

The runtime is the job's own, and so is its image. Into the container come four folders, at the same
paths (that of the run, its traces, the stand-ins, this package) and the variables of the dry run.
The stand-ins for a torch inside are built outside (`build_server`), by what is read through the
asker's /proc/PID/root: the image needs no compiler.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from xmem_slurm.dryrun.containers import command_line, images, layout, refusals
from xmem_slurm.dryrun.containers.refusals import CannotEnterError
from xmem_slurm.dryrun.containers.runtimes import RUNTIMES, Runtime
from xmem_slurm.dryrun.shims import fetchers
from xmem_slurm.dryrun.shims.workers import find, note

STAND_INS = "XMEM_STAND_INS"
"""The variable that names the folder with all stand-ins."""
ASIDE = "real"
"""The folder, in that of the run, where a runtime is whose own path leads to its shim."""
STARTED = "container"
"""The file, among traces, that says which container was started last: its runtime and image."""
IMAGE = "image"
"""The folder, in that of the run, on which an image is laid out anew."""
_OF_PODMAN = "containers/storage/*-images/images.json"
"""Where Podman lists its images: it changes with each of them."""
_PACKAGE = Path(__file__).resolve().parents[2]
_PSEUDO = ("/proc", "/sys", "/dev")
_CARRIED = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_WAIT_POLICY",
    *fetchers.ONCE,
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where runtimes look in an image that says nothing."""
_ENROOT_CONF = """hooks() {{
    path=$(sed -n s/^PATH=//p "$ENROOT_ENVIRON" | tail -n 1)
    echo "PATH={shims}:${{path:-{usual}}}" >> "$ENROOT_ENVIRON"
}}
"""
"""Enroot's file of environment, after the image's, is its hooks' to change (doc/cmd/start.md)."""


def lay_out(run: Path) -> None:
    """Make what is here for containers in the folder of a run, before it is read-only."""
    (run / ASIDE).mkdir()
    (run / IMAGE).mkdir()
    (run / "enroot.conf").write_text(
        _ENROOT_CONF.format(shims=run / "bin", usual=_PATH), encoding="utf-8"
    )


def container(name: str, arguments: Sequence[str]) -> NoReturn:
    """Be the runtime `name`."""
    if "XMEM_TRACE_DIR" not in os.environ:
        sys.exit(
            f"{name}: the script has emptied the environment, and the dry run's variables are gone"
        )
    program = _real(name)
    runtime = RUNTIMES.get(name)
    start = command_line.read(runtime, arguments) if runtime else None
    try:
        if runtime and start:
            refusals.check_registry(name, runtime, start)
        if program is None:
            raise CannotEnterError(
                f"there is no {name} on this machine, with which a dry run would"
            )
        if runtime is None:
            raise CannotEnterError(
                f"{name} starts containers as root, and a dry run cannot; another runtime can"
            )
        if start is None:
            root_variables = _become_root() if runtime.as_root and os.getuid() else {}
            os.execve(program, [name, *arguments], _outside() | root_variables)
        _enter(name, program, runtime, start)
    except (CannotEnterError, OSError) as error:
        image = " ".join(arguments[:2]) if start is None else start.image
        container_words = f"{name} {image}"
        note(
            f"the script runs a container ({container_words}), and the dry run cannot go inside: "
            f"{error}"
        )
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(127 if program is None else 1) from None


def _enter(name: str, program: str, runtime: Runtime, start: command_line.Start) -> NoReturn:
    """Become the runtime.

    Raises:
        CannotEnterError: it could not start the container here.
    """
    traces = Path(os.environ["XMEM_TRACE_DIR"])
    run, stand_ins = traces.parent, os.environ[STAND_INS]
    folders, environ = [str(run), str(traces), stand_ins, str(_PACKAGE)], _outside()
    refusals.check(program, start)
    _remember(name, start.image)
    (traces / STARTED).write_bytes(os.fsencode(f"{name} {start.image}"))
    settings, path = _settings(run), _PATH
    if runtime.prefixes:
        before = [
            environ[name]
            for name in (f"{prefix}PREPEND_PATH" for prefix in runtime.prefixes)
            if name in environ
        ]
        settings["PREPEND_PATH"] = os.pathsep.join([os.environ["XMEM_SHIMS"], *before[:1]])
    if not runtime.lays_over:
        layout.own_namespaces()
        root = layout.laid_over(Path(start.image), run / IMAGE, folders, environ)
        start = start._replace(image=str(root))
    if runtime.as_root:
        environ |= _become_root()
        if "--rootfs" not in start.options:
            podman = [program, *command_line.storage(start)]
            image = _inspected(podman, start.image, environ, runtime.remedy.format(name=name))
            config = image.get("Config") or {}
            path = _path_of(config)
            if (image.get("GraphDriver") or {}).get("Name") == "vfs":
                folder = _said_by([*podman, "image", "mount", start.image], environ).strip()
                root = layout.laid_over(Path(folder), run / IMAGE, folders, environ)
                start = command_line.of_root(start, config, str(root))
    environ |= command_line.variables(runtime, settings)
    os.execve(
        program, [name, *command_line.entered(runtime, start, folders, settings, path)], environ
    )


def _inspected(
    podman: Sequence[str], image: str, environ: Mapping[str, str], remedy: str
) -> Mapping[str, Any]:
    """Return what Podman says of an image.

    Raises:
        CannotEnterError: there is no such image.
    """
    try:
        (inspected,) = json.loads(_said_by([*podman, "image", "inspect", image], environ))
    except CannotEnterError as error:
        command = [*podman, "image", "exists", image]
        if subprocess.run(command, env=environ, check=False).returncode:
            raise CannotEnterError(f"the image is not on this machine: {remedy}") from error
        raise
    found: Mapping[str, Any] = inspected
    return found


def _said_by(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what a command prints.

    Raises:
        CannotEnterError: it fails; with its last words.
    """
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotEnterError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout


def _path_of(config: Mapping[str, Any]) -> str:
    """Return the PATH that an image sets."""
    variables = config.get("Env") or ()
    return next((line[5:] for line in variables if line.startswith("PATH=")), _PATH)


def _become_root() -> dict[str, str]:
    """Be root of a user namespace, and return what tells Podman so (pkg/rootless, as `podman
    unshare` sets it).

    Raises:
        CannotEnterError: there are no user namespaces.
    """
    variables = {
        "_CONTAINERS_ROOTLESS_UID": str(os.getuid()),
        "_CONTAINERS_ROOTLESS_GID": str(os.getgid()),
    }
    refusals.check_namespaces()
    layout.own_namespaces(as_root=True)
    return {"_CONTAINERS_USERNS_CONFIGURED": "done", **variables}


def _remember(name: str, image: str) -> None:
    """Note the image among the files that the dry run read: a kept answer holds while it is the
    same.
    """
    home = Path(os.environ.get("HOME", "/"), ".local", "share")
    stores = [Path(image), Path(os.environ.get("ENROOT_DATA_PATH", home / "enroot"), image)]
    stores += home.glob(_OF_PODMAN) if name.startswith("podman") else []
    for path in {store.resolve() for store in stores if store.exists()}:
        status = path.stat()
        noted = [("D" if stat.S_ISDIR(status.st_mode) else "R", status.st_size, status.st_mtime_ns)]
        noted += [("I", images.identity(path), 0)] if path.is_file() else []
        with (Path(os.environ["XMEM_TRACE_DIR"]) / "files.log").open("ab") as file:
            for kind, size, mtime_ns in noted:
                file.write(b"%s %d %d %s\0" % (kind.encode(), size, mtime_ns, os.fsencode(path)))


def _settings(run: Path) -> dict[str, str]:
    """Return the variables of the dry run for inside. This Python is not there: the job's own asks
    for stand-ins.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("XMEM_") or name in _CARRIED
    }
    ours["XMEM_DEVICE_BUILD"] = json.dumps(["", str(_PACKAGE / "device" / "ask.py"), str(run)])
    mounts = (
        line.split(" ", 5)[2:5]
        for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    )
    ours["XMEM_MOUNTS"] = json.dumps(
        [mount for mount in mounts if not mount[2].startswith(_PSEUDO)][::-1]
    )
    # It leads to the probe; the image or the job may set it anew.
    to_probe = "LD_PRELOAD" if "LD_PRELOAD" in os.environ else "PYTHONPATH"
    ours |= {to_probe: os.environ[to_probe]} if to_probe in os.environ else {}
    return ours


def _outside() -> dict[str, str]:
    """Return the environment of the runtime itself: it is a program of this machine, and no part of
    the dry run.
    """
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("BASH_FUNC_")
    }
    ours = tuple(
        environ[name] for name in ("XMEM_SHIMS", "XMEM_PROBE", STAND_INS) if name in environ
    )
    for name in ("PATH", "PYTHONPATH", "LD_PRELOAD"):
        theirs = [
            path
            for path in environ.pop(name, "").split(os.pathsep)
            if path and not path.startswith(ours)
        ]
        environ |= {name: os.pathsep.join(theirs)} if theirs else {}
    environ.setdefault("USER", environ.get("SLURM_JOB_USER", "nobody"))  # ch-run wants both
    environ.setdefault("HOME", "/")
    return environ


def _real(name: str) -> str | None:
    aside = Path(os.environ["XMEM_TRACE_DIR"]).parent / ASIDE / name
    return str(aside) if os.access(aside, os.X_OK) else find(name)
