"""Which estimates were made here lately? Kept whole, with their traces, so that they can be read again in any form.

Each is a file in the user's cache, one for a command in a folder; the newest `MOST` of them stay. Its first line is the
answer as it was said, in JSON, which is all that most readers want; the traces come behind it. Whoever made one before
this version of ours did, or has other types, has none: it is made again.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xmem_slurm import __version__
from xmem_slurm.errors import XmemError
from xmem_slurm.state import own_files
from xmem_slurm.submission import evidence
from xmem_slurm.submission.evidence import Evidence

if TYPE_CHECKING:
    from xmem_slurm.sizing.sizing import Sizing

_FOLDER = "sizings"
MOST = 20
MOST_BYTES = 64 << 20


class Said(NamedTuple):
    """What is said of an estimate: lines, in brief and in full, and the object of `estimate --json`."""

    brief: Sequence[str]
    full: Sequence[str]
    document: Mapping[str, Any]


class KeptEstimate(NamedTuple):
    """What was said of each component of a job, and of which: `command` as it was typed in `folder`.

    It was `made` at that time (seconds since the epoch) under the name `key`, and rests on `files`; None of them where
    it does not last. `several`: it was a heterogeneous job. `templates` is the site's own folder of them. `packed` is
    what it was said of.
    """

    made: float
    key: str
    command: Sequence[str]
    folder: str
    said: Mapping[int, Said]
    left: Mapping[int, str]
    several: bool
    templates: Path | None
    files: "Sequence[Evidence] | None"
    packed: bytes

    def is_of(self, script: str) -> bool:
        """Whether a file of this name was one of its words."""
        wanted = Path(script).resolve()
        return any(path.resolve() == wanted for path in self._named())

    def outdated_by(self) -> str | None:
        """Return a file that has changed since, of those that the command names or that it rests on; else None."""
        for path in self._named():
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime > self.made:
                    return str(path)
        found = evidence.changed(self.files or ())
        return None if found is None else found.path

    def _named(self) -> Sequence[Path]:
        words = dict.fromkeys(part for word in self.command for part in (word, *word.split()))
        return [Path(self.folder, word) for word in words]

    def sized(self) -> "Mapping[int, Sizing]":
        """Return what it was said of, with the traces.

        Raises:
            XmemError: it cannot be read.
        """
        import gzip  # noqa: PLC0415 - as `_form`
        import zlib  # noqa: PLC0415

        try:
            sized: Mapping[int, Sizing] = _form().validate_json(gzip.decompress(self.packed))
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise XmemError("what is kept of this estimate cannot be read; --fresh makes it again") from error
        return sized


def keep(
    command: Sequence[str],
    sized: "Mapping[int, Sizing]",
    left: Mapping[int, str],
    *,
    several: bool,
    templates: Path | None = None,
    key: str = "",
    files: "Sequence[Evidence] | None" = None,
) -> Mapping[int, Said]:
    """Keep what was estimated, if there is room for it; return what is said of it."""
    import gzip  # noqa: PLC0415 - as `_form`

    said = {component: _said(each) for component, each in sized.items()}
    head = {"version": __version__, "made": time.time(), "key": key, "command": command, "folder": str(Path.cwd())}
    head |= {"said": said, "left": left, "several": several, "files": files}
    head["templates"] = None if templates is None else str(templates)
    with contextlib.suppress(OSError, ValueError):  # what is no text cannot be kept; no estimate is lost over that
        place = _file_of(command)
        own_files.make(place.parent)
        for _, path in own_files.by_age(place.parent)[MOST - 1 :]:
            path.unlink(missing_ok=True)
        content = json.dumps(head, ensure_ascii=False).encode() + b"\n" + gzip.compress(_form().dump_json(sized), 1)
        own_files.write(place, content)
    return said


def find(command: Sequence[str], folder: Path | None = None) -> KeptEstimate | None:
    """Return what is kept of this command in a folder, None for the one that this process is in."""
    return _read(_file_of(command, folder))


def newest() -> Iterator[KeptEstimate]:
    """Yield all that can be read, the newest first."""
    with contextlib.suppress(OSError):
        for _, path in own_files.by_age(own_files.cache_folder(_FOLDER)):
            kept = _read(path)
            if kept is not None:
                yield kept


def _said(sized: "Sizing") -> Said:
    from xmem_slurm.report import json as json_report  # noqa: PLC0415 - as `_form`
    from xmem_slurm.report import terminal  # noqa: PLC0415
    from xmem_slurm.report.largest import at_peak  # noqa: PLC0415
    from xmem_slurm.report.options import outlooks, remedy  # noqa: PLC0415

    options = terminal.option_lines(outlooks(sized), remedy(sized), sized.advice)
    full = terminal.estimate_lines(sized.estimate, at_peak(sized.estimate.largest))
    brief = [terminal.brief_line(sized.estimate), *options]
    return Said(brief, [*full, *options], json_report.estimate_object(sized))


def _file_of(command: Sequence[str], folder: Path | None = None) -> Path:
    name = hashlib.sha256(
        repr((list(command), str(folder or Path.cwd()))).encode(errors="surrogateescape")
    ).hexdigest()[:32]
    return own_files.cache_folder(_FOLDER) / name


def _read(path: Path) -> KeptEstimate | None:
    """Return what a file says, but for what it was said of; None where it is not of this version, or cannot be read."""
    try:
        head, _, packed = own_files.read(path, MOST_BYTES).partition(b"\n")
        kept = json.loads(head)
        if kept["version"] != __version__:
            return None
        return KeptEstimate(
            float(kept["made"]),
            str(kept["key"]),
            [*map(str, kept["command"])],
            str(kept["folder"]),
            {int(number): Said(*each) for number, each in kept["said"].items()},
            {int(number): str(why) for number, why in kept["left"].items()},
            bool(kept["several"]),
            None if kept["templates"] is None else Path(kept["templates"]),
            None if kept["files"] is None else [Evidence(*each) for each in kept["files"]],
            packed,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _form() -> Any:
    """Return how what is estimated becomes JSON and is read again; who is only told what was said needs none of it."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    from xmem_slurm.sizing.sizing import Sizing  # noqa: PLC0415

    return TypeAdapter(Mapping[int, Sizing])
