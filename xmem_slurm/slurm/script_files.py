"""Which files does a batch script read, as far as its text tells?

Every word that names a file counts, from each folder that the script may be in by then, variables
replaced by what the environment and the script say of them; shell scripts are read in turn. What is
written to does not count. A script that cannot be read, or that runs, sources or evaluates what
cannot be told from here, is Unknown. Of files that are not there those count that would be sourced
or run, those that a test asks after, and folders that output is to go to.

Scripts that set up an environment (a shell's start-up files, conda's and venv's `activate`, those
of modules) count as what they are, with what can be told of what they read. What cannot is the
doing of programs of the site, which change as seldom as its modules.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.slurm import body

DEPTH = 4
"""How deep scripts may run each other."""

_SOURCE = ("source", ".")
_TESTS = ("test", "")
"""`[` and `[[` come as "" (`body.commands`)."""
_FILE_TEST = re.compile("-[a-hkprsuwxGLNOS]")
"""What asks after a file: bash(1), "CONDITIONAL EXPRESSIONS"."""
_OUTPUT = ">"
_CHANGE_FOLDER = ("cd", "pushd")
_WITH_VALUE = ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
"""Options of bash whose value is the next word."""
_LEFT = re.compile(r"\$\{?[A-Za-z_]|\$\(|`")
"""An expansion that is not known."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_ENVIRONMENTS = re.compile(r"\$\((?:\S*/)?(?:conda|mamba|micromamba|spack|pyenv)\s")
"""What is commonly evaluated, or asked where the script to be sourced is, to set up an
environment."""
_SET_UP = re.compile(
    r"/\.?(?:bashrc|bash_profile|bash_login|profile|bash_aliases)$|/activate$|/profile\.d/|^/etc/|/init/\w*sh$"
)
"""Scripts that set one up: bash(1), "INVOCATION"; conda's etc/profile.d/conda.sh; Lmod's
init/bash."""


class Unknown(Exception):  # noqa: N818 - what it says: it is not known what the script reads
    """The script reads something that cannot be told from its text."""


class _Found(NamedTuple):
    """What a script reads: every file, and of these the shell scripts that are sourced or run; and
    folders it makes.
    """

    files: set[Path]
    scripts: dict[Path, bytes]
    made_folders: set[Path]


def named_files(script: bytes, folder: Path, environ: Mapping[str, str]) -> set[Path]:
    """Return the files that a shell script reads when it is run in `folder`.

    Raises:
        Unknown: it cannot be told.
    """
    reads = _Found(set(), {}, set())
    _read(script, [folder], environ, reads, DEPTH)
    return reads.files


def scripts_run(script: bytes, folder: Path, environ: Mapping[str, str]) -> Mapping[Path, bytes]:
    """Return the shell scripts that a shell script sources or runs, as far as that can be told."""
    reads = _Found(set(), {}, set())
    with suppress(Unknown, OSError):
        _read(script, [folder], environ, reads, DEPTH)
    return reads.scripts


def _read(
    script: bytes,
    folders: list[Path],
    environ: Mapping[str, str],
    reads: _Found,
    depth: int,
    *,
    sets_up: bool = False,
) -> None:
    """Add what a script reads, and what the scripts that it runs read; of one that `sets_up`, what
    can be told.
    """
    lists = body.commands(script) if depth else None
    if lists is None and not sets_up:
        raise Unknown
    variables, folders = {"SLURM_SUBMIT_DIR": str(folders[0]), **environ}, list(folders)
    for words in lists or ():
        assigned = _ASSIGNMENT.fullmatch(words[0]) if words else None
        if assigned is not None:
            variables[assigned[1]] = _expanded(assigned[2], variables)
            continue
        with suppress(Unknown) if sets_up else nullcontext():
            _read_command(words, folders, variables, reads, depth, sets_up=sets_up)


def _read_command(
    words: Sequence[str],
    folders: list[Path],
    variables: Mapping[str, str],
    reads: _Found,
    depth: int,
    *,
    sets_up: bool,
) -> None:
    """Add what one command reads; `cd` adds to the folders that the next may be in."""
    command = words[0].rpartition("/")[2] if words else ""
    expanded = [
        _expanded(word.rpartition("=")[2] if word.startswith("-") else word, variables)
        for word in words
    ]
    _check_told(command, words, expanded)
    if command in _CHANGE_FOLDER:
        targets = [folder / expanded[-1] for folder in folders]
        if not any(map(Path.is_dir, targets)):
            reads.files.update(targets)
        folders += _folders(expanded[-1], folders)
        return
    if command == _OUTPUT:
        reads.files.update(_missing_folders(expanded[-1], folders) - reads.made_folders)
        return
    if command == "mkdir":
        reads.made_folders.update(folder / name for folder in folders for name in expanded[1:])
    if command in _TESTS:
        reads.files.update(_asked_after(expanded, folders))
    files = [_files(word, folders, variables) for word in expanded]
    run = 1 if command in _SOURCE else given_to_a_shell(words)
    if isinstance(run, bytes):
        _read(run, folders, variables, reads, depth - 1, sets_up=sets_up)
    elif run is not None and not (run < len(files) and files[run]):
        reads.files.update(_absent(words, expanded, run, folders))
    new = _unread(files, run, reads)
    reads.files.update(new)
    for file in (file for file, is_script in new.items() if is_script or _is_shell_script(file)):
        if file.stat().st_size > body.MOST_BYTES:
            raise Unknown
        reads.scripts[file] = file.read_bytes()
        lenient = sets_up or _SET_UP.search(str(file)) is not None
        _read(reads.scripts[file], folders, variables, reads, depth - 1, sets_up=lenient)


def _unread(
    files: Sequence[Sequence[Path]], run: int | bytes | None, reads: _Found
) -> dict[Path, bool]:
    """Return the files that a command's words name and that are not read yet, and of each whether
    it is the word that is run.
    """
    unread: dict[Path, bool] = {}
    for index, named in enumerate(files):
        unread |= {file: index == run for file in named if file not in reads.files}
    return unread


def _asked_after(expanded: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """Return which of the files that a test asks after are not there: the job is another once they
    are.
    """
    names = [
        name for test, name in pairwise(expanded) if _FILE_TEST.fullmatch(test) and "$" not in name
    ]
    return [folder / name for folder in folders for name in names if not (folder / name).exists()]


def _missing_folders(output: str, folders: Sequence[Path]) -> set[Path]:
    """Return the folders that are not there for a command's output: without them it does not run at
    all.
    """
    if "$" in output:
        return set()
    return {parent for folder in folders if not (parent := (folder / output).parent).exists()}


def _absent(
    words: Sequence[str], expanded: Sequence[str], run: int, folders: Sequence[Path]
) -> list[Path]:
    """Return where the script would be that a command runs, if it is not there, or with the
    environment's programs.

    Raises:
        Unknown: it cannot be told.
    """
    if run >= len(words) or _LEFT.search(expanded[run]):
        if run < len(words) and _ENVIRONMENTS.match(words[run]):
            return []
        raise Unknown
    return [folder / expanded[run] for folder in folders]


def _check_told(command: str, words: Sequence[str], expanded: Sequence[str]) -> None:
    """Make sure that it can be told what a command runs, but for its own arguments ($@), which
    others name.

    Raises:
        Unknown: it cannot.
    """
    if command == "eval" and not (len(words) > 1 and _ENVIRONMENTS.match(words[1])):
        raise Unknown
    if expanded and (
        _LEFT.search(expanded[0]) or (command in _CHANGE_FOLDER and "$" in expanded[-1])
    ):
        raise Unknown


def given_to_a_shell(words: Sequence[str]) -> int | bytes | None:
    """Return which word is the script of a shell, also behind `srun` and the like, or the text that
    follows its -c.
    """
    shells = (index for index, word in enumerate(words) if word.rpartition("/")[2] in body.SHELLS)
    at, text = next(shells, len(words)) + 1, False
    while at < len(words) and words[at].startswith(("-", "+")):
        text = text or re.fullmatch("-[a-z]*c", words[at]) is not None
        at += 2 if words[at] in _WITH_VALUE else 1
    if at >= len(words):
        return None
    return words[at].encode(errors="surrogateescape") if text else at


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    home = variables.get("HOME", "~")
    word = home + word[1:] if word == "~" or word.startswith("~/") else word
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), word)


def _folders(word: str, folders: Sequence[Path]) -> list[Path]:
    """Return the folders that `cd` may go to. Those before stay: it may have been in a subshell, or
    fail.
    """
    return [
        folder / word
        for folder in folders
        if (folder / word).is_dir() and folder / word not in folders
    ]


def _files(word: str, folders: Sequence[Path], variables: Mapping[str, str]) -> list[Path]:
    """Return the files that a word may name: from each of the folders, or, without a slash in it,
    on PATH.
    """
    paths = list(
        dict.fromkeys(folder / word for folder in folders if word and _is_file(folder / word))
    )
    if paths or "/" in word:
        return paths
    on_path = (Path(place) / word for place in variables.get("PATH", "").split(":") if word)
    first = next(filter(_is_file, on_path), None)
    return [first] if first is not None else []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or not allowed to look
        return False


def _is_shell_script(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            first = opened.readline(200).decode(errors="replace")
    except OSError:  # nobody runs what cannot be read
        return False
    names = {Path(word).name for word in first.removeprefix("#!").split()}
    return first.startswith("#!") and bool(names & set(body.SHELLS))
