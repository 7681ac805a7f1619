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
    own, *of_site = files(site)
    readers: list[tuple[Path, Callable[[], bytes]]] = [
        (own, lambda: own_files.read(own, MOST_BYTES))
    ]
    readers += [(path, path.read_bytes) for path in of_site]
    found: list[LearnedMargin] = []
    for path, read in readers:
        try:
            silent.require_answers([path])
            found += parse(read().decode())
        except SilentPlace as error:
            tell(f"{path}: its margins are left out: {error}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = (
                isinstance(error, OSError) and error.strerror
            ) or f"not as `learn` writes it: {error}"
            tell(f"{path}: its margins are left out until `xmem-slurm learn` writes it anew: {why}")
    return found


def parse(text: str) -> list[LearnedMargin]:
    """Return the margins of a file's text.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is of another form.
    """
    content: dict[str, Any] = tomllib.loads(text)
    whose = f"{content['jobs']} ({content['made']})"
    return [
        LearnedMargin(
            fields.word(each["engine"]),
            frozenset(map(fields.name, each["gpus"])),
            frozenset(map(fields.word, each["unseen"])),
            _margin(each, whose),
        )
        for each in content.get("learned", [])
    ]


def _margin(entry: Mapping[str, Any], whose: str) -> Margin:
    share, probability = fields.number(entry["share"]), fields.number(entry["probability"], 1)
    return Margin(
        share, probability, fields.size(entry["runs"]), fields.size(entry["scripts"]), of=whose
    )


def text(found: Sequence[LearnedMargin], whose: str, made: str) -> str:
    """Return the text of a file; `made` is a date."""
    lines = [
        (
            "# Margins that jobs taught: what to add to the peak of an estimate, as a share of it. "
            "Written by"
        ),
        "# `xmem-slurm learn`; do not edit. docs/administrators.md says what the rule is.",
        "schema_version = 1",
        f"jobs = {_string(whose)}",
        f"made = {_string(made)}",
    ]
    for each in found:
        lines += ["", "[[learned]]", f"engine = {_string(each.engine)}"]
        lines += [
            f"{name} = {_strings(values)}"
            for name, values in (("gpus", each.gpus), ("unseen", each.unseen))
        ]
        lines += [f"share = {each.margin.share:.4f}", f"probability = {each.margin.probability}"]
        lines += [f"runs = {each.margin.runs}", f"scripts = {each.margin.models}"]
    return "\n".join([*lines, ""])


def _strings(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_string, sorted(values))) + "]"


def _string(value: str) -> str:
    return json.dumps(
        value, ensure_ascii=False
    )  # what can be shown (`fields.name`) is TOML so, too
