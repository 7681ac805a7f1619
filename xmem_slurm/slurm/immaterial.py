"""What of a submission can change neither what its job needs of memory nor what is chosen for it?
Options that say when a job runs, and what people are told of it.

They are found where sbatch finds them, by its own parser's rules: on the command line, in the
environment, and on the `#SBATCH` lines of a script, which keeps its number of lines without them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from xmem_slurm.slurm.options import SBATCH, Occurrence
from xmem_slurm.slurm.script import Script, ScriptWord

_NOT_OF_MEMORY = """
    acctg-freq begin comment deadline delay-boot dependency error hold job-name
    kill-on-invalid-dep mail-type mail-user mcs-label nice no-requeue open-mode output parsable
    priority quiet reboot requeue signal verbose wait wckey
"""
OPTIONS = frozenset(_NOT_OF_MEMORY.split())
"""sbatch's. A job's name, and all else that Slurm says of a job, counts where the job reads it:
that is up to who asks."""
VARIABLES = frozenset(variable for name in OPTIONS for variable in SBATCH.by_name[name].variables)
"""Of the environment, those that set one of them."""


class Parted(NamedTuple):
    """A script, taken apart: what stands before, between and behind what cannot matter, and what
    cannot.
    """

    material: tuple[bytes, ...]
    immaterial: tuple[bytes, ...]


def words(occurrences: Iterable[Occurrence]) -> set[int]:
    """Return which words hold such options, and nothing else, by their places in the list that was
    read.
    """
    of_word: dict[int, list[bool]] = {}
    for occurrence in occurrences:
        for at in {occurrence.at, occurrence.value_at}:
            of_word.setdefault(at, []).append(occurrence.name in OPTIONS)
    return {at for at, immaterial in of_word.items() if all(immaterial)}


def parted(script: Script) -> Parted:
    """Take a script apart.

    All of it matters where sbatch would read on after what it does not know, as that may have a
    value; where there are several components, whose options are each other's; and where its own
    `#SBATCH` lines are what the script reads, as `grep '#SBATCH -J' "$0"` does.
    """
    only = script.components[0]
    whole = Parted((script.data,), ())
    if len(script.components) > 1 or only.stray or script.unknown or _reads_itself(script):
        return whole
    material, immaterial, at = list[bytes](), list[bytes](), 0
    for first, last in _runs(only.words, words(d.occurrence for d in only.directives)):
        material.append(script.data[at : first.start])
        immaterial.append(script.data[first.start : last.end])
        at = last.end
    return Parted((*material, script.data[at:]), tuple(immaterial))


def joined(material: Sequence[bytes], immaterial: Sequence[bytes]) -> bytes:
    """Return the script of these parts.

    Raises:
        ValueError: they are not of one script.
    """
    pairs = zip(material, (*immaterial, b""), strict=True)
    return b"".join(part for pair in pairs for part in pair)


def _runs(
    of_script: Sequence[ScriptWord], numbers: set[int]
) -> Iterator[tuple[ScriptWord, ScriptWord]]:
    """Yield the first and the last of such words that stand next to each other on a line."""
    for _, on_line in groupby(enumerate(of_script), lambda numbered: numbered[1].line):
        for is_immaterial, group in groupby(on_line, lambda numbered: numbered[0] in numbers):
            if is_immaterial:
                run = [word for _, word in group]
                yield run[0], run[-1]


def _reads_itself(script: Script) -> bool:
    """Whether a command of it has `#SBATCH` lines to do with."""
    lines = script.data.splitlines() if script.data.count(b"SBATCH") else []
    return any(b"SBATCH" in line and not line.lstrip().startswith(b"#") for line in lines)
