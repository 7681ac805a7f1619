"""What does the user of a submission read about what was decided? Lines for stderr, of which
nothing is read back.

Those of sizes are made in `terminal`, as they are decided. This is on the way of jobs that must not
wait, so it imports little.
"""

import re
import time
from collections.abc import Mapping

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.slurm.request import Request

_AS_WRITTEN = "submitted as written"
UNASKED = "this job asks for no GPU, and would use one: ask for it with --gres=gpu:1"
UNUSED = (
    "this job asks for a GPU, and its dry run used none that torch knows of: it would start "
    "sooner without"
)
_LATE = (
    "there is no answer yet; its dry run continues, and the next submission of this job will have "
    "its answer"
)


def lines(decision: Decision, *, dry_run: bool = False, verbose: bool = False) -> list[str]:
    """Return the lines about a decision; with `dry_run` nothing is submitted."""
    shown = [*_first(decision, dry_run=dry_run), *(decision.lines if verbose else decision.brief)]
    if decision.known_since is None:
        return shown
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(decision.known_since))
    return [*shown, f"known since {when}: nothing that the dry run read has changed"]


def _first(decision: Decision, *, dry_run: bool) -> list[str]:
    """Return what is said before any size."""
    match decision.kind:
        case Kind.UNASKED_GPU:
            return [UNASKED]
        case Kind.UNUSED_GPU:
            return [UNUSED]
        case Kind.LATE:
            return [as_written(_LATE, dry_run=dry_run)]
        case Kind.REFUSED:
            return [f"not submitted: {decision.why}"]
        case Kind.NOT_ESTIMATED | Kind.FAILED:
            again = " [XMEM_FRESH=1 tries again]" if decision.known_since is not None else ""
            return [as_written(decision.why + again, dry_run=dry_run)]
    return []


def as_written(why: str, *, dry_run: bool = False) -> str:
    """Say why a job goes as it was written."""
    return f"{'would be ' if dry_run else ''}{_AS_WRITTEN}: {why}"


def refusal(*reasons: str) -> str:
    """Say why the site wants no such job, and what its user can do."""
    return "; ".join([*reasons, "XMEM_OFF=1 submits it anyway"])


_HINT = re.compile(
    r"\bXMEM_(KEEP_TYPE|FRESH|OFF|RAISE_MEM)=1"
    r"(?= (?:keeps the type|tries again|submits it|raises it))"
)


def by_options(line: str) -> str:
    """Return a line with xsbatch's options for the variables, which are all that plain sbatch has.

    An answer is kept with its words, and may be given to either.
    """
    return _HINT.sub(lambda match: f"--xmem-{match[1].lower().replace('_', '-')}", line)


def of_component(request: Request, component: int, text: str) -> str:
    """Say of which component of a heterogeneous job something is said."""
    return f"component {component}: {text}" if request.other_components else text


def of_components(request: Request, reasons: Mapping[int, str]) -> str:
    """Say of each component why there is no estimate; once where it is the same."""
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(
        of_component(request, component, reason) for component, reason in sorted(reasons.items())
    )
