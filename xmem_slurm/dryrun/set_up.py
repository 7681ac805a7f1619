"""Did a line of the script fail that sets up what the rest needs? By what shells and environment
tools say of it.

A script goes on after such a line, with another Python perhaps, and ends well: nothing else tells.
"""

import re

from xmem_slurm import checked

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
    re.compile(r"(?P<words>(?:EnvironmentNameNotFound|CondaError|CommandNotFoundError): .+)"),
    re.compile(
        r"(?P<words>Lmod has detected the following error: .+"
        r"|.*Unable to locate a modulefile for .+)"
    ),
)
"""bash, dash, zsh; conda; Lmod and Environment Modules."""


def failure(output: bytes) -> str:
    """Return what is said of the first such line in what a script printed; "" where none is."""
    for line in output.decode(errors="replace").splitlines():
        for pattern in _FAILURES:
            if (match := pattern.search(line)) is not None:
                at = f"line {match['line']}: " if "line" in match.groupdict() else ""
                return checked.plain(f"{at}{match['words'].strip()[:200]}")
    return ""
