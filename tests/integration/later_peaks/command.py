"""A list's true peaks, and what a dry run makes of each script today.

XMEM_TEST_PYTHON=JOB_PYTHON python -m tests.integration.{name} peaks [NAME...]   # written to true_peaks.json
XMEM_TEST_PYTHON=JOB_PYTHON python -m tests.integration.{name} table [--budget SECONDS] [NAME...]   # one dry run each

With --budget the dry runs have so many seconds, in which few scripts come to their end: whole
epochs then stand for the rest, or a reason says that it was not reached. Without names all scripts
are run, one after another. The table leaves out nothing: a line a script, then how many there are
of each kind."""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.text_table import text_table
from tests.integration.later_peaks import measure
from tests.integration.later_peaks.listing import Listing
from tests.integration.later_peaks.verdict import ratios, verdict

HEADINGS = (
    "script",
    "verdict",
    "expected",
    "estimate/true",
    "true, MiB",
    "confidence",
    "state",
    "steps",
    "CPU s",
)


def write_peaks(scripts: Listing, names: Sequence[str], python: Path) -> None:
    """Measure the true peaks of these scripts; those of the others stay as they are."""
    for name in names:
        if not scripts.cases[name].truth:
            continue
        with tempfile.TemporaryDirectory() as folder:
            version, peaks = measure.whole_run(scripts, name, python, Path(folder))
        known = scripts.all_measured()
        known[version] = dict(sorted({**known.get(version, {}), name: peaks}.items()))
        scripts.measured.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, peaks, flush=True)


def print_table(scripts: Listing, names: Sequence[str], python: Path, seconds: float) -> None:
    """Run these scripts dry and print what came of each."""
    rows, verdicts, said = [], Counter[str](), []
    for name in names:
        case = scripts.cases[name]
        with tempfile.TemporaryDirectory() as folder:
            answer = measure.dry_run(scripts, name, python, Path(folder), seconds)
        true = scripts.true_peaks(answer.version).get(name, {})
        found = verdict(case, answer, true)
        verdicts[found] += 1
        compared = " ".join(f"{ratio:.3f}" for ratio in ratios(case, answer, true).values())
        mib = f"{true['allocated'] >> 20}" if true else "-"
        seen = (answer.confidence, answer.state, str(answer.steps), f"{answer.cpu_seconds:.1f}")
        rows.append([name, found, case.expects, compared or "-", mib, *seen])
        said.append(f"{name}: {'; '.join(answer.reasons) or 'no reasons'}")
        print(*rows[-1], file=sys.stderr, flush=True)
    print("\n".join([*text_table(HEADINGS, rows), "", *said, ""]))
    print(", ".join(f"{count} {found}" for found, count in verdicts.most_common()))


def main(scripts: Listing) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(name=scripts.folder.name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=["peaks", "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, default=measure.SECONDS)
    asked = parser.parse_intermixed_args()
    names = [name for name in sorted(scripts.cases) if not asked.names or name in asked.names]
    python = Path(os.environ["XMEM_TEST_PYTHON"])
    if asked.verb == "peaks":
        write_peaks(scripts, names, python)
    else:
        print_table(scripts, names, python, asked.budget)
