"""Is what a job really uses to be recorded, where, and beside which prediction? It is so by the
job's environment.

A recorder (`recorder/sitecustomize.py`) comes first on its PYTHONPATH, and the prediction goes with
it as one variable: no number of a job is known before sbatch has it.
"""

import json
import os
import platform
import random
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.errors import SilentPlace
from xmem_slurm.outcomes import records
from xmem_slurm.outcomes.prediction import Prediction
from xmem_slurm.report import audit
from xmem_slurm.site import places
from xmem_slurm.state import silent
from xmem_slurm.submission.answer import Wishes

RECORDER = Path(__file__).resolve().parents[1] / "recorder"
_NOT = (Kind.LEFT_ALONE, Kind.REFUSED, Kind.UNASKED_GPU)


def sampled(decision: Decision, wishes: Wishes) -> Decision:
    """Leave some jobs as they were written, where the site wants a sample of what all jobs really
    use.
    """
    if decision.kind is not Kind.REWRITTEN or decision.prediction is None:
        return decision
    with suppress(LookupError, TypeError, ValueError):
        share = float(_tables(decision, wishes)["as_written"])
        if random.random() < share and is_wanted(decision, wishes):  # noqa: S311 - a sample, no secret
            of_sample = decision.prediction._replace(sampled=True)
            as_written = decision._replace(ready=decision.written, prediction=of_sample, retries=())
            return as_written.noting(
                f"submitted as written: one of the {share:.1%} that the site leaves unchanged, to "
                "compare"
            )
    return decision


def recorded(decision: Decision, wishes: Wishes) -> Decision:
    """Return the decision with the recorder in the job's environment, if that is wanted; it is not
    over any error.
    """
    if decision.kind in _NOT or not is_wanted(decision, wishes):
        return decision
    try:
        written, ready = decision.written, decision.ready
        own_folder = records.make_folder()
        spool = _tables(decision, wishes).get("spool")
        spool = spool if isinstance(spool, str) and _is_there(Path(spool)) else None
        predicted = (decision.prediction or Prediction())._replace(
            script=records.key_of_script(written, own_folder),
            run=records.key_of_run(written, own_folder),
            asked=audit.asks_for(written.request),
            given=audit.asks_for(ready.request),
        )
        content = {**predicted._asdict(), "submitted_on": platform.node()}
        variables = {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(RECORDER), ready.environ.get("PYTHONPATH")])
            ),
            "XMEM_RECORD_TO": os.pathsep.join(filter(None, [str(own_folder), spool])),
            "XMEM_PREDICTION": json.dumps(content, separators=(",", ":")),
            **({"XMEM_SUMMARY": "1"} if wishes.summary else {}),
        }
    except (OSError, SilentPlace) as error:
        return decision.noting(f"what it uses is not recorded: {error}")
    decision = decision._replace(ready=ready.but(environ={**ready.environ, **variables}))
    export = written.request.value("export")
    if export is None or "ALL" in export.upper().split(","):
        return decision
    return decision.noting(
        f"what it uses is not recorded: with --export={export} the recorder does not reach the job"
    )


def _is_there(folder: Path) -> bool:
    """Whether there is such a folder; one that does not answer is as good as none."""
    return silent.mount_on_the_way([folder]) is None and folder.is_dir()


def is_wanted(decision: Decision, wishes: Wishes) -> bool:
    """Whether the user wants it, or, where they do not say, their site does, of this share of its
    users.
    """
    if wishes.record is not None or wishes.summary or wishes.retry:
        return bool(wishes.record) or wishes.summary or wishes.retry > 0
    tables = _tables(decision, wishes)
    try:
        share = float(tables.get("share_of_users", 1))
    except (TypeError, ValueError):
        return False
    return (
        tables.get("record") is True and zlib.crc32(str(os.getuid()).encode()) % 1000 < 1000 * share
    )


def _tables(decision: Decision, wishes: Wishes) -> Mapping[str, Any]:
    tables = places.tables(wishes.site, decision.written.environ, b"outcomes").get("outcomes", {})
    return tables if isinstance(tables, dict) else {}
