"""The list's true peaks, and what a dry run makes of each script today.

XMEM_TEST_PYTHON=JOB_PYTHON python -m tests.integration.later_peaks peaks [NAME...]   # written to true_peaks.json
XMEM_TEST_PYTHON=JOB_PYTHON python -m tests.integration.later_peaks table [NAME...]   # one dry run each

Without names all scripts are run, one after another. The table leaves out nothing: a line a script, the worst first,
then how many there are of each kind.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.text_table import text_table
from tests.integration.later_peaks import measure
from tests.integration.later_peaks.cases import CASES
from tests.integration.later_peaks.verdict import ratios, verdict

HEADINGS = ("script", "verdict", "expected", "estimate/true", "true, MiB", "confidence", "state", "steps", "CPU s")


def write_peaks(names: Sequence[str], python: Path) -> None:
    """Measure the true peaks of these scripts; those of the others stay as they are."""
    for name in names:
        if not CASES[name].truth:
            continue
        with tempfile.TemporaryDirectory() as folder:
            version, peaks = measure.whole_run(name, python, Path(folder))
        file = measure.TRUE_PEAKS
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        known[version] = dict(sorted({**known.get(version, {}), name: peaks}.items()))
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(name, peaks, flush=True)


def print_table(names: Sequence[str], python: Path) -> None:
    """Run these scripts dry and print what came of each."""
    rows, verdicts, said = [], Counter[str](), []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            answer = measure.dry_run(name, python, Path(folder))
        true = measure.true_peaks(answer.version).get(name, {})
        found = verdict(CASES[name], answer, true)
        verdicts[found] += 1
        compared = " ".join(f"{ratio:.3f}" for ratio in ratios(CASES[name], answer, true).values())
        mib = f"{true['allocated'] >> 20}" if true else "-"
        seen = (answer.confidence, answer.state, str(answer.steps), f"{answer.cpu_seconds:.1f}")
        rows.append([name, found, CASES[name].expects, compared or "-", mib, *seen])
        said.append(f"{name}: {'; '.join(answer.reasons) or 'no reasons'}")
        print(*rows[-1], file=sys.stderr, flush=True)
    print("\n".join([*text_table(HEADINGS, rows), "", *said, ""]))
    print(", ".join(f"{count} {found}" for found, count in verdicts.most_common()))


def main() -> None:
    """Run the command line."""
    verbs = {"peaks": write_peaks, "table": print_table}
    if len(sys.argv) < 2 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    names = [name for name in sorted(CASES) if not sys.argv[2:] or name in sys.argv[2:]]
    verbs[sys.argv[1]](names, Path(os.environ["XMEM_TEST_PYTHON"]))


if __name__ == "__main__":
    main()
