"""xsbatch's man page and shell completions, from its option table and sbatch's.

`python -m xmem_slurm.cli.pages` writes them into share/, from where they go into the wheel: man and
the shells look there for a program of the same prefix. `xmem-slurm completion SHELL` prints one.
"""

from typing import NamedTuple

from xmem_slurm import __version__, resources
from xmem_slurm.cli import verb_pages
from xmem_slurm.cli.xsbatch import SUMMARY
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.options import NONE, REQUIRED, SBATCH
from xmem_slurm.submission import changed_scripts
from xmem_slurm.submission.settings import ANYWHERE, OWN_OPTIONS, OwnOption

PAGES = {
    "bash": "xsbatch.bash.j2",
    "zsh": "xsbatch.zsh.j2",
    "fish": "xsbatch.fish.j2",
    "man": "xsbatch.1.j2",
}
SHARE = {
    "bash": "bash-completion/completions/xsbatch",
    "zsh": "zsh/site-functions/_xsbatch",
    "fish": "fish/vendor_completions.d/xsbatch.fish",
    "man": "man/man1/xsbatch.1",
}
"""Where each page is installed, below PREFIX/share."""

_FILES = (
    "xmem-site",
    "xmem-report",
    "batch",
    "bbf",
    "container",
    "error",
    "export-file",
    "input",
    "nodefile",
    "output",
)
_FOLDERS = ("chdir",)
_ASKED = {
    "partition": "sinfo --noheader --format=%R",
    "reservation": "scontrol --oneliner show reservation | sed -n 's/^ReservationName=\\([^ "
    "]*\\).*/\\1/p'",
    "constraint": "sinfo --noheader --format=%f | tr , '\\n'",
    "nodelist": "sinfo --noheader --Node --format=%N",
    "exclude": "sinfo --noheader --Node --format=%N",
}
"""Options whose values the cluster knows, and the command that asks it."""


class _Entry(NamedTuple):
    name: str
    short: str
    value: str
    help: str
    words: str = ""
    """The values that it takes, if those are words."""

    @property
    def fish(self) -> str:
        """What completes the value, in fish's words."""
        if not self.value:
            return ""
        if self.name in _ASKED:
            return f' -x -a "({_ASKED[self.name]} 2>/dev/null)"'
        if self.name in (*_FILES, *_FOLDERS):
            return " -r"
        return f" -x -a '{self.words}'" if self.words else " -x"

    @property
    def zsh(self) -> str:
        """What completes the value, in zsh's words."""
        if not self.value:
            return ""
        action = f"({self.words})" if self.words else ""
        if self.name in _FOLDERS:
            action = "_files -/"
        elif self.name in _FILES:
            action = "_files"
        return f":{self.value}:{action}"


def render(page: str) -> str:
    """Return the page `bash`, `zsh` or `man`.

    Raises:
        UsageError: there is no such page.
    """
    if page not in PAGES:
        raise UsageError(f"{page}: no such page; there are {', '.join(PAGES)}")
    theirs = [
        _Entry(o.name, o.short, "value" if o.arity == REQUIRED else "", "")
        for o in SBATCH.options
        if not o.until
    ]
    ours = [
        _Entry(o.name, "", o.value, o.help.replace("[", "(").replace("]", ")"), _words(o))
        for o in OWN_OPTIONS
    ]
    words = [f"--{e.name}" + ("=" if e.value else "") for e in [*ours, *theirs]]
    words += [f"--{o.name}=" for o in SBATCH.options if o.arity not in (NONE, REQUIRED)]
    values = {
        "options": [*ours, *theirs],
        "own": OWN_OPTIONS,
        "anywhere": ANYWHERE,
        "words": words,
        "values": _bash_values(),
        "summary": SUMMARY,
        "version": __version__,
        "kept_days": changed_scripts.KEPT_DAYS,
    }
    return resources.render([resources.tree("templates") / "pages"], PAGES[page], values)


def _words(option: OwnOption) -> str:
    return " ".join(word for word in option.takes if isinstance(word, str))


def _bash_values() -> dict[str, str]:
    """Return patterns of the word before, and the command that completes what follows it."""

    def patterns(names: tuple[str, ...]) -> str:
        letters = [f"-{SBATCH.by_name[name].short}" for name in names if name in SBATCH.by_name]
        return "|".join(
            [*(f"--{name}" for name in names), *(letter for letter in letters if letter != "-")]
        )

    values = {
        patterns(_FILES): 'mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames',
        patterns(_FOLDERS): 'mapfile -t COMPREPLY < <(compgen -d -- "$word"); compopt -o filenames',
    }
    for name, command in _ASKED.items():
        values[patterns((name,))] = (
            f'mapfile -t COMPREPLY < <(compgen -W "$({command} 2>/dev/null)" -- "$word")'
        )
    for option in filter(_words, OWN_OPTIONS):
        values[patterns((option.name,))] = (
            f'mapfile -t COMPREPLY < <(compgen -W "{_words(option)}" -- "$word")'
        )
    return values


def shipped() -> dict[str, str]:
    """Return every page of both programs, by its place below share/."""
    from xmem_slurm.cli.main import whole  # noqa: PLC0415 - which has a verb that prints these

    command = whole()
    verbs = {place: verb_pages.render(page, command) for page, place in verb_pages.SHARE.items()}
    return {**{place: render(page) for page, place in SHARE.items()}, **verbs}


def main() -> None:
    """Write all pages into share/ of the checkout."""
    for place, text in shipped().items():
        path = resources.tree("share") / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
