"""Which margins did jobs here teach (`learning`)? The user's own go before the site's, and both
before what ships.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xmem_slurm.errors import SilentPlace
from xmem_slurm.outcomes import fields
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing import margins as shipped
from xmem_slurm.sizing.margins import LearnedMargin, Margin
from xmem_slurm.state import own_files, silent

MOST_BYTES = 1 << 20


def own_file() -> Path:
    """Return where the user's own margins are; there need be none."""
    return own_files.record_folder(shipped.FILE)


def files(site: Site | None) -> list[Path]:
    """Return the files that count, those that are not there, too."""
    of_site = site.outcomes.margins if site is not None else None
    return [own_file(), *([of_site] if of_site is not None else [])]


def margins(site: Site | None, tell: Callable[[str], None]) -> list[LearnedMargin]:
    """Return what the files say, the nearest first; `tell` takes a line on each that is there and
    cannot be read.
    """
    own_path, *of_site = files(site)
    readers: list[tuple[Path, Callable[[], bytes]]] = [
        (own_path, lambda: own_files.read(own_path, MOST_BYTES))
    ]
    readers += [(path, path.read_bytes) for path in of_site]
    learned_margins: list[LearnedMargin] = []
    for path, read in readers:
        try:
            silent.require_answers([path])
            learned_margins += parse(read().decode())
        except SilentPlace as error:
            tell(f"{path}: its margins are left out: {error}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = (
                isinstance(error, OSError) and error.strerror
            ) or f"not as `learn` writes it: {error}"
            tell(
                f"{path}: its margins are left out until `xmem-slurm learn` writes it again: {why}"
            )
    return learned_margins


def parse(text: str) -> list[LearnedMargin]:
    """Return the margins of a file's text.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is of another form.
    """
    content: dict[str, Any] = tomllib.loads(text)
    source = f"{content['jobs']} ({content['made']})"
    return [
        LearnedMargin(
            fields.word(entry["engine"]),
            frozenset(map(fields.name, entry["gpus"])),
            frozenset(map(fields.word, entry["unseen"])),
            _margin(entry, source),
        )
        for entry in content.get("learned", [])
    ]


def _margin(entry: Mapping[str, Any], source: str) -> Margin:
    share, probability = fields.number(entry["share"]), fields.number(entry["probability"], 1)
    return Margin(
        share, probability, fields.size(entry["runs"]), fields.size(entry["scripts"]), of=source
    )


def text(learned_margins: Sequence[LearnedMargin], source: str, date: str) -> str:
    """Return the text of a file; `source` says of whose jobs it is."""
    lines = [
        (
            "# Margins that jobs taught: what to add to the peak of an estimate, as a share of it. "
            "Written by"
        ),
        "# `xmem-slurm learn`; do not edit. docs/administrators.md says what the rule is.",
        "schema_version = 1",
        f"jobs = {_string(source)}",
        f"made = {_string(date)}",
    ]
    for learned in learned_margins:
        lines += ["", "[[learned]]", f"engine = {_string(learned.engine)}"]
        lines += [
            f"{name} = {_strings(values)}"
            for name, values in (("gpus", learned.gpus), ("unseen", learned.unseen))
        ]
        lines += [
            f"share = {learned.margin.share:.4f}",
            f"probability = {learned.margin.probability}",
        ]
        lines += [f"runs = {learned.margin.runs}", f"scripts = {learned.margin.models}"]
    return "\n".join([*lines, ""])


def _strings(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_string, sorted(values))) + "]"


def _string(value: str) -> str:
    # what can be shown (`fields.name`) is TOML so, too
    return json.dumps(value, ensure_ascii=False)
