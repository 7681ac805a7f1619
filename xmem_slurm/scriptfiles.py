"""Which files does a batch script read, as far as its text tells?

Every word that names a file counts, variables replaced by what the environment and the script say of them; shell
scripts that are sourced or run are read in turn. What is written to does not count. A script that cannot be read, or
that sources or evaluates what cannot be told from here, is Unknown.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.slurm import body

DEPTH = 4
"""How deep scripts may run each other."""

_SOURCE = ("source", ".")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_ENVIRONMENTS = re.compile(r"\$\((?:\S*/)?(?:conda|mamba|micromamba|spack|pyenv)\s")
"""What is commonly evaluated to set up an environment: programs of the site, which change as seldom as its modules."""


class Unknown(Exception):  # noqa: N818 - what it says: it is not known what the script reads
    """The script reads something that cannot be told from its text."""


class _Found(NamedTuple):
    """What a script reads: every file, and of these the shell scripts that are sourced or run."""

    files: set[Path]
    scripts: dict[Path, bytes]


def named_files(script: bytes, folder: Path, environ: Mapping[str, str]) -> set[Path]:
    """Return the files that a shell script reads when it is run in `folder`.

    Raises:
        Unknown: it cannot be told.
    """
    found = _Found(set(), {})
    _read(script, folder, environ, found, DEPTH)
    return found.files


def scripts_run(script: bytes, folder: Path, environ: Mapping[str, str]) -> Mapping[Path, bytes]:
    """Return the shell scripts that a shell script sources or runs, as far as that can be told."""
    found = _Found(set(), {})
    with suppress(Unknown, OSError):
        _read(script, folder, environ, found, DEPTH)
    return found.scripts


def _read(script: bytes, folder: Path, environ: Mapping[str, str], found: _Found, depth: int) -> None:
    lists = body.commands(script) if depth else None
    if lists is None:
        raise Unknown
    known = dict(environ)
    for words in lists:
        assigned = _ASSIGNMENT.fullmatch(words[0]) if words else None
        if assigned is not None:
            known[assigned[1]] = _expanded(assigned[2], known)
            continue
        command = words[0].rpartition("/")[2] if words else ""
        if command == "eval" and not (len(words) > 1 and _ENVIRONMENTS.match(words[1])):
            raise Unknown
        named = [word.rpartition("=")[2] if word.startswith("-") else word for word in words]
        files = [_file(_expanded(word, known), folder, known) for word in named]
        if command in _SOURCE and (len(files) < 2 or files[1] is None):
            raise Unknown
        for index, file in enumerate(files):
            if file is not None and file not in found.files:
                found.files.add(file)
                run = command in _SOURCE or (command in body.SHELLS and index > 0)
                if run or (index == 0 and _is_shell_script(file)):
                    found.scripts[file] = file.read_bytes()
                    _read(found.scripts[file], folder, known, found, depth - 1)


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
    return first.startswith("#!") and bool(names & set(body.SHELLS))
