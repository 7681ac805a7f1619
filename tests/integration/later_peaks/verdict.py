"""Is what a dry run said of a script good enough?"""

import re
from collections.abc import Mapping

from tests.integration.later_peaks.causes import END
from tests.integration.later_peaks.listing import Case, Peaks
from tests.integration.later_peaks.measure import TOLERANCE, Answer

EXACT, SAID, SILENTLY_LOW, UNNAMED, TOO_HIGH = (
    "exact",
    "said",
    "silently low",
    "low, cause not named",
    "too high",
)


def ratios(case: Case, answer: Answer, true: Peaks) -> Mapping[str, float]:
    """Return estimate / truth of each peak that counts: where shapes vary, what it fits on in place
    of reserved."""
    names = ["allocated", "fits" if case.varies else "reserved"]
    return {
        name: answer.peaks[name] / true[name]
        for name in names
        if name in answer.peaks and name in true
    }


def verdict(case: Case, answer: Answer, true: Peaks) -> str:
    """Say whether the peak is right, or the doubt is stated, or neither."""
    found = ratios(case, answer, true)
    if found and all(abs(ratio - 1) <= TOLERANCE for ratio in found.values()):
        return EXACT
    causes = f"{case.cause}|{END}"
    named = bool(case.cause) and any(
        re.search(causes, reason, re.IGNORECASE) for reason in answer.reasons
    )
    doubted = answer.confidence != "high"
    if doubted and named:
        return SAID
    if found and min(found.values()) >= 1 - TOLERANCE:
        return TOO_HIGH
    return UNNAMED if doubted else SILENTLY_LOW
