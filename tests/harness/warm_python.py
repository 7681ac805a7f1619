"""The job's Python, warm: takes the arguments of a Python and behaves as that, but for the seconds
of importing torch.

Run as `python -IS warm_python.py PYTHON FOLDER OWNER ARGUMENTS...` (`warm.installed` makes a
program of it). The first one starts a server (`warm_server`), which lives as long as the process
OWNER; so for each environment of what native libraries read as they are loaded. What tests how a
Python starts has no use for this: options of Python's, and what has no probe in its PYTHONPATH, are
run by PYTHON itself, always."""

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READ_AS_LOADED = (
    "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "CUDA_", "NCCL_", "NVIDIA_", "TRITON_",
    "LANG", "LC_", "PYTHON", "MALLOC_",
)  # fmt: skip
"""How the names of variables begin that a library reads as it is loaded, or a module of torch's as
it is imported."""
READ_LATER = ("PYTHONPATH", "CUDA_VISIBLE_DEVICES")
START_SECONDS = 120


def is_warm(arguments: list[str], environ: dict[str, str]) -> bool:
    """Whether what is run is a script, a module or a command, and the probe is to be in it."""
    probe = environ.get("XMEM_PROBE", "")
    return (
        bool(arguments)
        and (arguments[0] in ("-m", "-c") or not arguments[0].startswith("-"))
        and bool(probe)
        and environ.get("PYTHONPATH", "").split(os.pathsep)[0] == probe
        and "XMEM_TRACE_DIR" in environ
    )


def loaded_with(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that decide what a Python with torch is once it is loaded.

    What leads to the probe (`xmem_slurm/device/preload.py`) is not needed where that is started
    anyway."""
    theirs = ":".join(
        each for each in environ.get("LD_PRELOAD", "").split(":") if "/preload-" not in each
    )
    return {
        name: value
        for name, value in sorted({**environ, "LD_PRELOAD": theirs}.items())
        if name.startswith(READ_AS_LOADED) and name not in READ_LATER
    }


def connected(python: str, folder: Path, owner: str, environ: dict[str, str]) -> socket.socket:
    """Return a connection to the server for this environment, which is started if there is none.

    Settings of torch's allocator are mostly those of one run: there it is started as it is asked
    for again.

    Raises ConnectionError: there is none.
    """
    variables = loaded_with(environ)
    name = hashlib.sha256(json.dumps([python, variables]).encode()).hexdigest()[:16]
    address, first = folder / name, folder / f"{name}.first"
    connection = socket.socket(socket.AF_UNIX)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            if any(each.startswith("PYTORCH_") for each in variables) and not first.exists():
                first.touch()
                raise ConnectionError("the first one")
            others = {
                each: environ[each]
                for each in ("PATH", "HOME", "XMEM_DEVICE_BUILD")
                if each in environ
            }
            with (folder / f"{name}.log").open("w") as log:
                server = subprocess.Popen(
                    [python, Path(__file__).with_name("warm_server.py"), address, owner],
                    # as the probe sets it
                    env={**variables, **others, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
                    cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            until = time.monotonic() + START_SECONDS
            while not address.exists():
                if server.poll() is not None or time.monotonic() > until:
                    raise ConnectionError(Path(log.name).read_text())
                time.sleep(0.02)
    connection.connect(str(address))
    return connection


def ended(connection: socket.socket, arguments: list[str], environ: dict[str, str]) -> int:
    """Have the arguments run; return the status of the process (`os.waitpid`). Signals to this one
    are for that."""
    umask = os.umask(0)
    request = {"argv": arguments, "environ": environ, "cwd": str(Path.cwd()), "umask": umask}
    text = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [text], [0, 1, 2])
    connection.sendall(text[sent:])
    answers = connection.makefile()
    process = int(answers.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _frame: os.kill(process, number))
    return int(answers.readline())


def main() -> None:
    """Run the command line."""
    python, folder, owner, *arguments = sys.argv[1:]
    environ = dict(os.environ)
    if not is_warm(arguments, environ):
        os.execv(python, [python, *arguments])
    try:
        connection = connected(python, Path(folder), owner, environ)
    except ConnectionError:
        os.execv(python, [python, *arguments])
    status = ended(connection, arguments, environ)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
