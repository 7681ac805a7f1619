"""Which lines of the script failed that set up what the rest needs? By what shells and environment
tools say of them.

A script goes on after such a line, with another Python perhaps, and ends well: nothing else tells.
"""

import re
from collections.abc import Sequence

from xmem_slurm import checked

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Programs that stand beside the Python of the job's environment, and nowhere else."""
_FAILURES = (
    re.compile(
        r"slurm_script: line (?P<line>\d+): "
        r"(?P<words>.+: (?:command not found|No such file.*|Permission denied))"
    ),
    re.compile(
        r"slurm_script: (?P<line>\d+): "
        r"(?P<words>(?:.+: not found|(?:.+: )?cannot (?:open|create) .+))"
    ),
    re.compile(
        r"(?:slurm_script|:\.|:source):(?P<line>\d+): "
        r"(?P<words>(?:command not found|no such file or directory): .+)"
    ),
    re.compile(rf"^(?P<words>(?:{'|'.join(LAUNCHERS)}): command not found)$"),
    re.compile(r"(?P<words>(?:EnvironmentNameNotFound|CondaError|CommandNotFoundError): .+)"),
    re.compile(
        r"(?P<words>Lmod has detected the following error: .+"
        r"|.*Unable to locate a modulefile for .+)"
    ),
)
"""bash, dash, zsh; our own shims; conda; Lmod and Environment Modules."""

_MOST_LINES = 3
"""So many are named: a script that has more of them has one cause."""
_NOT_FOUND = re.compile(
    r"(?P<before>\S+): (?:command )?not found$|command not found: (?P<after>\S+)$"
)
_STARTERS = ("python", "python3", *LAUNCHERS, "mpirun", "mpiexec")
"""What starts a training, and whose misspelt names no program has. Shorter names are left out: of
those one letter makes another program (srun, prun)."""


def failures(output: bytes) -> Sequence[str]:
    """Return what is said of such lines in what a script printed, the first few."""
    found = dict[str, None]()
    for line in output.decode(errors="replace").splitlines():
        matches = (match for pattern in _FAILURES if (match := pattern.search(line)) is not None)
        match = next(matches, None)
        if match is not None:
            at = f"line {match['line']}: " if "line" in match.groupdict() else ""
            found[checked.plain(f"{at}{match['words'].strip()[:200]}")] = None
    return [*found][:_MOST_LINES]


def not_found(failed_line: str) -> str:
    """Return the name of the command that was not found; "" where the line failed otherwise."""
    missing = _NOT_FOUND.search(failed_line)
    return "" if missing is None else missing["before"] or missing["after"]


def meant(name: str) -> str:
    """Return the program whose name is misspelt, of a command that was not found; "" where the name
    may be right, and the program on other nodes.
    """
    return next((starter for starter in _STARTERS if name in _misspelt(starter)), "")


def _misspelt(name: str) -> set[str]:
    """Return a name with two letters swapped, one left out, or one doubled, after the first."""
    places = range(1, len(name))
    swapped = {name[:n] + name[n + 1 : n + 2] + name[n] + name[n + 2 :] for n in places[:-1]}
    shorter = {name[:n] + name[n + 1 :] for n in places}
    doubled = {name[: n + 1] + name[n:] for n in places}
    return (swapped | shorter | doubled) - {*_STARTERS}
