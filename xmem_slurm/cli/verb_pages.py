"""xmem-slurm's man page and shell completions, from its verbs and their options."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from xmem_slurm import __version__, resources
from xmem_slurm.site import loading

PAGES = {
    "bash": "xmem-slurm.bash.j2",
    "zsh": "xmem-slurm.zsh.j2",
    "fish": "xmem-slurm.fish.j2",
    "man": "xmem-slurm.1.j2",
}
SHARE = {
    "bash": "bash-completion/completions/xmem-slurm",
    "zsh": "zsh/site-functions/_xmem-slurm",
    "fish": "fish/vendor_completions.d/xmem-slurm.fish",
    "man": "man/man1/xmem-slurm.1",
}
"""Where each page is installed, below PREFIX/share."""

_EXAMPLES = (
    ("xmem-slurm estimate train.py --lr 1e-4", "Dry-run a Python file, on the GPUs of the site."),
    (
        "xmem-slurm estimate --gpu l4 --html page.html job.sh",
        "The same for a job script, on one GPU, with a report.",
    ),
    (
        "xmem-slurm explain --html page.html train.py",
        "Draw the last estimate of that script; nothing is run.",
    ),
    ("xmem-slurm compare before.json train.py", "What is different between two estimates?"),
    ("xmem-slurm config job.sh", "Which settings apply to this script, and where is each set?"),
    ("xmem-slurm gpus", "What GPUs are known, and which of them are here?"),
    (
        "xmem-slurm generate --template plain -- python train.py",
        "Write a job script that asks for the right GPU.",
    ),
    ("xmem-slurm site check", "Is the site file right?"),
)


class _VerbOption(NamedTuple):
    name: str
    value: str
    help: str
    words: Sequence[str] = ()
    """What its value can be, where that is known."""


class _Verb(NamedTuple):
    path: str
    help: str
    options: Sequence[_VerbOption]
    verbs: Sequence["_Verb"]

    @property
    def name(self) -> str:
        return self.path.rpartition(" ")[2]

    @property
    def words(self) -> list[str]:
        """What can come next."""
        return [
            *(verb.name for verb in self.verbs),
            *(f"--{option.name}" for option in self.options),
        ]

    @property
    def fish(self) -> str:
        """When this is the verb that is typed, in fish's words."""
        if not self.path:
            return "__fish_use_subcommand"
        conditions = [f"__fish_seen_subcommand_from {word}" for word in self.path.split()]
        inner = " ".join(verb.name for verb in self.verbs)
        return "; and ".join(
            [*conditions, *([f"not __fish_seen_subcommand_from {inner}"] if inner else [])]
        )


def render(page: str, command: Any) -> str:
    """Return the page `bash`, `zsh`, `fish` or `man` of a command of click's with its verbs."""
    verbs = list(_all(_verb(command)))
    with_words = {
        option.name: option.words for verb in verbs for option in verb.options if option.words
    }
    values = {
        "verbs": verbs,
        "with_words": with_words,
        "examples": _EXAMPLES,
        "version": __version__,
    }
    return resources.render([resources.tree("templates") / "pages"], PAGES[page], values)


def _words(option: str) -> Sequence[str]:
    """Return what the value of an option can be, where that is a list that is known."""
    return [*loading.load_catalogue()] if option == "gpu" else []


def _all(verb: _Verb) -> Iterator[_Verb]:
    yield verb
    for inner in verb.verbs:
        yield from _all(inner)


def _verb(command: Any, path: str = "") -> _Verb:
    """Return a verb and those below it, as click has them."""
    options = [_option(param) for param in command.params if param.param_type_name == "option"]
    inner = [
        _verb(subcommand, f"{path} {name}".strip())
        for name, subcommand in getattr(command, "commands", {}).items()
        if not subcommand.hidden
    ]
    about = (command.help or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
    return _Verb(path, about, options, inner)


def _option(param: Any) -> _VerbOption:
    name = next(name for name in param.opts if name.startswith("--")).removeprefix("--")
    value = "" if param.is_flag else "value"
    return _VerbOption(name, value, (param.help or "").rstrip("."), _words(name))
