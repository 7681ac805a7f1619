"""A list of scripts: what is expected of each, where they lie, and what torch itself needed for the
whole of each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Peaks = Mapping[str, int]


class Expects(StrEnum):
    """What a dry run of a script has to come to; less is a regression."""

    HIGH = "high"
    """The true peak, within 2 %, and confidence "high"."""
    EXACT = "exact"
    """The true peak, within 2 %, whatever the confidence."""
    DOUBT = "doubt"
    """The true peak, or less than "high" with a reason that names the cause."""


@dataclass(frozen=True)
class Case:
    """One script of the folder `scripts`; its docstring says what peaks when."""

    expects: Expects
    cause: str = ""
    """What a reason has to match (any case) where the peak was not seen; empty where no reason
    would be good enough."""
    twin: Mapping[str, str] = field(default_factory=dict)
    """Text to replace in the whole run, where that would take too long or stop at the zeros that
    stand-ins compute; the peak is the same."""
    varies: bool = False
    """Shapes differ from step to step: reserved bytes without a limit are fragments then, and the
    need is what it fits on."""
    values: bool = False
    """Shapes follow from masks that the script makes: the whole run keeps values, too, by the
    probe's own table."""
    truth: bool = True
    """False where there is no true peak: the script takes what it gets."""


@dataclass(frozen=True)
class Listing:
    """The cases by name; in the folder a file of `scripts` for each, and true_peaks.json."""

    folder: Path
    cases: Mapping[str, Case]

    @property
    def files(self) -> Mapping[str, Path]:
        """All scripts that lie there, by name."""
        return {path.stem: path for path in (self.folder / "scripts").glob("*.py")}

    def script(self, name: str) -> Path:
        """Return where this one lies."""
        return self.folder / "scripts" / f"{name}.py"

    def twin(self, name: str) -> str:
        """Return the text that is run whole in its place."""
        text = self.script(name).read_text(encoding="utf-8")
        for old, new in self.cases[name].twin.items():
            assert old in text, (name, old)
            text = text.replace(old, new)
        return text

    @property
    def measured(self) -> Path:
        """{torch version: {script: {allocated, reserved, fits}}}, bytes; written by the verb
        `peaks`.

        `fits`, of scripts whose shapes vary, is the least memory on which torch ran the whole
        script."""
        return self.folder / "true_peaks.json"

    def true_peaks(self, version: str) -> Mapping[str, Peaks]:
        """Return what is known under this release of torch."""
        known = self.all_measured()
        return known.get(version.partition("+")[0], {})

    def all_measured(self) -> dict[str, dict[str, Peaks]]:
        """Return all that is known."""
        if not self.measured.is_file():
            return {}
        known: dict[str, dict[str, Peaks]] = json.loads(self.measured.read_text(encoding="utf-8"))
        return known
