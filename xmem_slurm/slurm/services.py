"""Does a script end in a worker or a server, or was it written for a pool of workers? No dry run of
what waits for work that others give it shows any.
"""

import re
from collections.abc import Iterator

_SERVICES = re.compile(
    r"(?:^|[\s/])("
    r"dask[ -](?:cuda[ -])?worker|distributed\.cli\.dask_(?:worker|spec)|dask_cuda\.cli"
    r"|ray start"
    r"|jupyter(?:[ -](?:lab|notebook|server))"
    r"|code-server|openvscode-server|code (?:tunnel|serve-web)"
    r")(?=\s|$)"
)
"""dask (distributed, dask-cuda, what dask-jobqueue writes), Ray, Jupyter, VS Code in a browser."""
_POOLS = re.compile(
    r"^[ \t]*(?:\S*/)?(process_worker_pool\.py|work_queue_worker|vine_worker)\s", re.MULTILINE
)
"""The workers of parsl's executors (2026.11; Work Queue's and TaskVine's are of cctools): a client
wrote the whole script for them, and its launchers start them in a loop, or from a file that the
script writes, so the command stands anywhere."""
_NO_WORK = re.compile(r"(?:wait|exit|sleep|fi|done|esac|\}|;;)\b.*|\}|#.*")
"""What may come behind it."""
_SAID = re.compile(r"\s*(?:echo|printf|#)\b|\s*#")


def service(text: str) -> str | None:
    """Return the program that a shell script's last command starts, if it is such a one, or the
    pool of workers that the script was written for.
    """
    if pool := _POOLS.search(text):
        return pool[1]
    for line in _commands_backwards(text):
        match = None if _SAID.match(line) else _SERVICES.search(line)
        return match[1] if match else None
    return None


def _commands_backwards(text: str) -> Iterator[str]:
    """Yield what is left of a script's lines, the last first, with those that go on in the next put
    together.
    """
    lines = text.replace("\\\n", " ").splitlines()
    return (
        line.strip()
        for line in reversed(lines)
        if line.strip() and not _NO_WORK.fullmatch(line.strip())
    )
