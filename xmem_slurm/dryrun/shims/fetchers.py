"""What programs that fetch over the network do in a dry run, which has none: they try once, and
what failed is noted.

The real program runs, so that whatever needs no network (a local clone, file://, a server on this
host, a package that is installed) is as in the job. What it does again and again where nothing
answers is switched off: it would eat the budget.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xmem_slurm import checked, untrusted
from xmem_slurm.dryrun.shims.workers import find, not_found


class _Fetcher(NamedTuple):
    """`first` and `last` are put on its command line; where it fetches one of `verbs` is there, or
    it always does.
    """

    first: Sequence[str] = ()
    last: Sequence[str] = ()
    verbs: Sequence[str] = ()


_PIP = _Fetcher(verbs=("install", "download", "wheel", "sync", "add", "run"))
FETCHERS: Mapping[str, _Fetcher] = {
    "curl": _Fetcher(last=("--retry", "0")),
    "wget": _Fetcher(last=("--tries=1",)),
    "git": _Fetcher(verbs=("clone", "fetch", "pull", "push", "ls-remote", "submodule", "lfs")),
    **dict.fromkeys(("pip", "pip3", "uv"), _PIP),
    "gsutil": _Fetcher(first=("-o", "Boto:num_retries=0")),
    "s5cmd": _Fetcher(first=("--retry-count", "0")),
    **dict.fromkeys(
        ("ssh", "scp", "sftp", "rsync", "rclone", "aws", "gcloud", "azcopy"), _Fetcher()
    ),
    **dict.fromkeys(("hf", "huggingface-cli", "kaggle", "gdown"), _Fetcher()),
}
"""By name. Of two that say how often to try, each of them heeds the last."""
ONCE = {
    "PIP_RETRIES": "0",
    "UV_HTTP_RETRIES": "0",
    "CONDA_REMOTE_MAX_RETRIES": "0",
    "AWS_MAX_ATTEMPTS": "1",
    "RCLONE_RETRIES": "1",
    "RCLONE_LOW_LEVEL_RETRIES": "1",
}
"""The same, in the environment, of those that read it there: however they are started (python -m
pip)."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_CONSOLE": "off"}
"""What has Python packages go by what is here, where the user has not said it himself: they would
try for a minute. wandb sends each line that a script prints to a process of its own, too: with a
bar of progress, half of a dry run."""

_LOG = "network.log"
_MOST_SAID = 200
"""Characters of what was asked for."""
_MOST_LOGGED_BYTES = 1 << 20
_URL = re.compile(r"[a-z][a-z0-9+]*://\S+")
_HERE = re.compile(
    r"\b(localhost|127(\.\d+){3}|" + re.escape(os.uname().nodename) + r")\b|::1|^file:"
)


def fetch(name: str, arguments: Sequence[str]) -> None:
    """Be the program `name`, which may ask for what is not on this machine."""
    program = find(name)
    if program is None:
        not_found(name)
    fetcher = FETCHERS[name]
    if any(map(_HERE.search, arguments)) or not set(fetcher.verbs or arguments) & set(arguments):
        os.execv(program, [name, *arguments])
    end = arguments.index("--") if "--" in arguments else len(arguments)
    code = subprocess.call(
        [program, *fetcher.first, *arguments[:end], *fetcher.last, *arguments[end:]]
    )
    if code:
        url = next((word for word in arguments if _URL.fullmatch(word)), None)
        with Path(os.environ["XMEM_TRACE_DIR"], _LOG).open("a", encoding="utf-8") as file:
            file.write(" ".join([url] if url else " ".join([name, *arguments]).split()) + "\n")
    raise SystemExit(code if code >= 0 else 128 - code)


_NOT_LOADED = re.compile(rb"Couldn't (?:reach|find) '([\w./-]+)' on the Hub")
"""What datasets says (datasets/load.py, 5.2) of a data set that is not in its cache."""


def missing(traces: Path, output: bytes = b"") -> str:
    """Return in words what the script could not fetch, or nothing.

    `traces` is the folder of its programs' notes, `output` the end of what it printed.
    """
    if (not_loaded := _NOT_LOADED.search(output)) is not None:
        return (
            f"; a dry run has no network: load_dataset('{not_loaded[1].decode()}') once on the "
            "login node"
        )
    try:
        lines = (
            untrusted.read(traces / _LOG, _MOST_LOGGED_BYTES).decode(errors="replace").splitlines()
        )
    except (OSError, ValueError):
        return ""
    sources = checked.plain(", ".join(dict.fromkeys(lines))[:_MOST_SAID])
    return f"; the script had asked for {sources}, and a dry run has no network"
