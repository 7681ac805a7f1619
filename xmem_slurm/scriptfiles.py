"""Which files does a batch script read, as far as its text tells?

Every word that names a file counts, variables replaced by what the environment and the script say of them; shell
scripts that are sourced or run are read in turn. What is written to does not count. A script that sources or evaluates
what cannot be told from here is Unknown.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from xmem_slurm.slurm.body import commands

DEPTH = 4
"""How deep scripts may run each other."""

_SOURCE = ("source", ".")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_OUTPUT = re.compile(r"(?:\d*|&)>[>|&]?")
_ENVIRONMENTS = re.compile(r"\$\((?:\S*/)?(?:conda|mamba|micromamba|spack|pyenv)\s")
"""What is commonly evaluated to set up an environment: programs of the site, which change as seldom as its modules."""


class Unknown(Exception):  # noqa: N818 - what it says: it is not known what the script reads
    """The script reads something that cannot be told from its text."""


def named_files(script: str, folder: Path, environ: Mapping[str, str], depth: int = DEPTH) -> set[Path]:
    """Return the files that a shell script reads when it is run in `folder`.

    Raises:
        Unknown: it cannot be told.
    """
    if not depth:
        raise Unknown
    known, found = dict(environ), set[Path]()
    for _, words in commands(script):
        for name, value in (match.groups() for match in map(_ASSIGNMENT.fullmatch, words) if match):
            known[name] = _expanded(value, known)
        plain = [word for word in _read(words) if not _ASSIGNMENT.fullmatch(word)]
        command = plain[0].rpartition("/")[2] if plain else ""
        if command == "eval" and not (len(plain) > 1 and _ENVIRONMENTS.match(plain[1])):
            raise Unknown
        files = [_file(_expanded(word, known), folder, known) for word in plain]
        if command in _SOURCE and (len(files) < 2 or files[1] is None):
            raise Unknown
        for index, file in enumerate(files):
            if file is not None and file not in found:
                found.add(file)
                run = command in _SOURCE or (command in _SHELLS and index > 0)
                if run or (index == 0 and _is_shell_script(file)):
                    text = file.read_bytes().decode(errors="surrogateescape")
                    found |= named_files(text, folder, known, depth - 1)
    return found


def _read(words: list[str]) -> Iterator[str]:
    """Yield the words that can name what is read: not the target of a redirection, and without the sign of one."""
    skip = False
    for word in words:
        output = _OUTPUT.match(word)
        if not skip and output is None:
            yield word.removeprefix("<").rpartition("=")[2] if word.startswith(("-", "<")) else word
        skip = output is not None and output.end() == len(word)


def _expanded(word: str, known: Mapping[str, str]) -> str:
    home = known.get("HOME", "~")
    word = home + word[1:] if word == "~" or word.startswith("~/") else word
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), word)


def _file(word: str, folder: Path, known: Mapping[str, str]) -> Path | None:
    """Return the file that a word names: from the folder, or, without a slash in it, on PATH."""
    places = [folder] if "/" in word else [folder, *map(Path, known.get("PATH", "").split(":"))]
    for place in places:
        try:
            if word and (place / word).is_file():
                return place / word
        except (OSError, ValueError):  # too long for a name, or not allowed to look
            continue
    return None


def _is_shell_script(file: Path) -> bool:
    with file.open("rb") as opened:
        first = opened.readline(200).decode(errors="replace")
    names = {Path(word).name for word in first.removeprefix("#!").split()}
    return first.startswith("#!") and bool(names & set(_SHELLS))
