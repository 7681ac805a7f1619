"""Which job steps in a script's body ask for GPUs themselves?

A typed `--gres` of the job and an untyped one of an inner `srun` do not go together in Slurm, nor the reverse: whoever
changes the type must know of them. This reads the body line by line, as a shell would read simple commands. It does not
follow variables, functions or files that the script sources: what it finds is there, what it does not find may be.
"""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from xmem_slurm.slurm.options import Occurrence, Table, scan, srun_table
from xmem_slurm.slurm.request import GPU_OPTIONS

_COMMANDS = ("srun", "salloc", "sbatch")
_SEPARATORS = ";&|()`"


class Step(NamedTuple):
    """One option with which an inner command asks for GPUs. `line` counts from 1, at the command's first line."""

    line: int
    command: str
    option: str
    value: str


def gpu_steps(script: str) -> tuple[Step, ...]:
    """Return the options of `srun`, and of nested `salloc` and `sbatch`, that ask for GPUs, in order."""
    table = srun_table()
    return tuple(step for number, words in commands(script) for step in _steps(number, words, table))


def commands(script: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the simple commands of a script, as words with their quotes resolved, and the line each begins in."""
    for number, line in _logical_lines(script):
        for words in _simple_commands(line):
            yield number, words


def _steps(number: int, words: list[str], table: Table) -> list[Step]:
    at = next((at for at, word in enumerate(words) if word.rpartition("/")[2] in _COMMANDS), None)
    if at is None:
        return []
    command = words[at].rpartition("/")[2]
    options, _ = scan(words[at + 1 :], table)
    return [Step(number, command, o.name, o.value or "") for o in options if _asks_for_gpu(o)]


def _asks_for_gpu(occurrence: Occurrence) -> bool:
    """Whether an option is of the GPU kind; a `--gres` of something else is not, one with a variable in it may be."""
    if occurrence.name not in GPU_OPTIONS or occurrence.value is None:
        return False
    return occurrence.name.startswith("gpus") or "gpu" in occurrence.value or "$" in occurrence.value


def _logical_lines(script: str) -> list[tuple[int, str]]:
    """Join lines that end with a backslash; comments and empty lines are left out."""
    lines: list[tuple[int, str]] = []
    joined, begun = "", 0
    for number, line in enumerate(script.split("\n"), 1):
        begun = begun or number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        joined += line
        if joined.strip() and not joined.lstrip().startswith("#"):
            lines.append((begun, joined))
        joined, begun = "", 0
    return [*lines, (begun, joined)] if joined.strip() else lines


def _simple_commands(line: str) -> list[list[str]]:
    """Split a line into simple commands; one whose quotes go on in the next line is split at white space."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        words = line.split()
    commands: list[list[str]] = [[]]
    for word in words:
        if word.strip(_SEPARATORS):
            commands[-1].append(word)
        else:
            commands.append([])
    return commands
