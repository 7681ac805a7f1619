"""How does a command line that starts a container become one that starts it with folders and
variables of ours?

Words in, words out; nothing is looked up. What the user binds, sets and lays over stays, in its
order; ours comes last, where it wins.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xmem_slurm.dryrun.containers.runtimes import OF_STORAGE, Runtime


class Start(NamedTuple):
    """A command line that starts a container: what is before its options (the verb), they, the
    image, the command.
    """

    before: Sequence[str]
    options: Sequence[str]
    image: str
    command: Sequence[str]


def read(runtime: Runtime, arguments: Sequence[str]) -> Start | None:
    """Return what the words after the runtime's name start; None for a command that starts nothing
    in an image.
    """
    begin = 0
    if runtime.verbs:
        verb = _first_word(runtime, arguments, 0)
        if verb == len(arguments) or arguments[verb] not in runtime.verbs:
            return None
        begin = verb + 1
    image = _first_word(runtime, arguments, begin)
    if image == len(arguments):
        return None
    options = [word for word in arguments[begin:image] if word != "--"]
    return Start(arguments[:begin], options, arguments[image], arguments[image + 1 :])


def from_registry(runtime: Runtime, image: str) -> bool:
    """Whether an image is named that the runtime would have to fetch."""
    scheme, named, _ = image.partition("://")
    return bool(named) and scheme in runtime.registry


def entered(
    runtime: Runtime,
    start: Start,
    folders: Sequence[str],
    settings: Mapping[str, str],
    path: str = "",
) -> list[str]:
    """Return the words after the runtime's name with which these folders and variables are inside,
    too.

    The first folder is that of the run, whose shims are first on PATH; `path` is the image's own.
    """
    words = [*runtime.first, *start.before, *_kept(runtime, start.options), *runtime.added]
    for folder in folders:
        words += [word.format(folder) for word in runtime.bind]
    for name, value in settings.items():
        words += [word.format(name=name, value=value) for word in runtime.setting]
    if not any(word.startswith(runtime.own_path) for word in start.options):
        words += [word.format(run=folders[0], path=path) for word in runtime.path]
    return [*words, start.image, *start.command]


def variables(runtime: Runtime, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the runtime itself: its own, and those that become variables
    inside.
    """
    inside = {
        f"{prefix}{name}": value for prefix in runtime.prefixes for name, value in settings.items()
    }
    return {**runtime.outside, **inside}


def storage(start: Start) -> list[str]:
    """Return the options of a `podman run` that say where its images are."""
    words = [*start.before, *start.options]
    chosen: list[str] = []
    for at, word in enumerate(words):
        name, has_value, _ = word.partition("=")
        if name in OF_STORAGE:
            chosen += [word] if has_value else words[at : at + 2]  # else the next word is its value
    return chosen


def of_root(start: Start, config: Mapping[str, Any], root: str) -> Start:
    """Return a `podman run` of an image as that of its root folder, which Podman knows nothing
    else of: what the image's configuration has stands before the options that go before it.

    Source: podman-run(1), --rootfs; "config" of the OCI image specification 1.1.
    """
    said = [word for variable in config.get("Env") or () for word in ("--env", variable)]
    folder, entrypoint = config.get("WorkingDir"), config.get("Entrypoint")
    said += ["--workdir", folder] if folder else []
    said += ["--entrypoint", json.dumps(entrypoint)] if entrypoint else []
    own_entrypoint = any(word.startswith("--entrypoint") for word in start.options)
    command = start.command or ([] if own_entrypoint else config.get("Cmd") or [])
    return Start(start.before, [*said, *start.options, "--rootfs"], root, command)


def _kept(runtime: Runtime, options: Sequence[str]) -> list[str]:
    """Return the options without those that a dry run does without."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in runtime.dropped:
            if runtime.dropped[name] and not has_value:
                next(words, None)
        elif word in runtime.replaced:
            kept += runtime.replaced[word]
        else:
            kept += [word, *([next(words, "")] if _takes_next(runtime, word) else [])]
    return kept


def _first_word(runtime: Runtime, words: Sequence[str], at: int) -> int:
    """Return where the first word that is no option, and no option's value, stands."""
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        at += 2 if _takes_next(runtime, words[at]) else 1
    return min(at, len(words))


def _takes_next(runtime: Runtime, word: str) -> bool:
    """Whether an option's value is the next word: `--bind`, `-B`, `-eB`; not `--bind=/data`,
    `-B/data`.
    """
    if word.startswith("--"):
        return word in runtime.valued or runtime.dropped.get(word, False)
    first = next(
        (at for at, letter in enumerate(word[1:], 1) if f"-{letter}" in runtime.valued), None
    )
    return first == len(word) - 1
