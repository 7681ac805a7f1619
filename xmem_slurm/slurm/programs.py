"""Which programs does a job's shell script run, whatever it gives them? By that the points of a
sweep are one script.

A sweep is made by arguments: of `--wrap`, of a script's own, or of a here-document that is another
script each time. So a command is its program alone: the file that a Python or a launcher runs, the
module behind -m, the script of a shell, and what stands in the text of its -c. Known limitations:
where no program can be told (`./train`, `python -c`), all that counts are the first words of the
commands; a sweep by files that differ is not seen to be one.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from xmem_slurm.slurm import body, script_files

MOST_BYTES = 1 << 20
"""A longer file is no script, and known by its name."""
_SCRIPT = re.compile(r"(?!-).*\.(?:py|sh)", re.DOTALL)
_PYTHON = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_LAUNCHER = re.compile(r"(?:torch|accelerate|deepspeed)(?:\..*)?")
"""Modules that start another program."""
_DEPTH = 4


def programs(script: bytes, folder: Path, depth: int = _DEPTH) -> Sequence[str]:
    """Return what a shell script runs from this folder, each program once: the hash of its file,
    else its name.

    Where no program can be told, the first word of each command; nothing of what the grammar of
    shells does not take.
    """
    commands = [
        words for words in (body.commands(script) if depth else None) or () if _is_command(words)
    ]
    names = {program for words in commands for program in _programs(words, folder, depth)}
    return sorted(names or {words[0] for words in commands})


def _is_command(words: Sequence[str]) -> bool:
    return (
        bool(words and words[0] not in ("", ">")) and re.match(r"[A-Za-z_]\w*=", words[0]) is None
    )


def _programs(words: Sequence[str], folder: Path, depth: int) -> Iterator[str]:
    """Yield the program that a command runs, where it is told; of the text of a shell's -c all."""
    python = False
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in body.SHELLS:
            source = script_files.given_to_a_shell(words[at:])
            if isinstance(source, bytes):
                yield from programs(source, folder, depth - 1)
            elif source is not None and at + source < len(words):
                yield _known_by(words[at + source], [folder / words[at + source]])
            return
        if _SCRIPT.fullmatch(word):
            yield _known_by(word, [folder / word])
            return
        module = (
            words[at + 1] if python and word in ("-m", "--module") and at + 1 < len(words) else ""
        )
        if module and not _LAUNCHER.fullmatch(module):
            place = folder / module.replace(".", "/")
            yield _known_by(f"-m {module}", [Path(f"{place}.py"), place / "__main__.py"])
            return
        if python and word == "-c":
            return
        python = python or _PYTHON.fullmatch(name) is not None


def _known_by(name: str, paths: Sequence[Path]) -> str:
    """Return the hash of the first of these files that can be read, else the name."""
    for path in paths:
        try:
            if path.is_file() and path.stat().st_size <= MOST_BYTES:
                return hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, ValueError):
            continue
    return name
