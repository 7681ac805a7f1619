"""Scripts whose steps change by what nothing tells of, and others of kinds that no other list has;
a few of them.

The scripts stand in unseen_peaks/scripts, what is expected of each in unseen_peaks/cases.py;
`python -m tests.integration.unseen_peaks table` prints the outcomes of all.
"""

from pathlib import Path

import pytest

from tests.integration.probe.test_later_peaks import check
from tests.integration.unseen_peaks.cases import CASES, UNSEEN_PEAKS

SOME = ["features_of_the_epoch", "singleton"]


def test_each_script_is_in_the_list_and_says_what_it_is() -> None:
    files = {name: path.read_text(encoding="utf-8") for name, path in UNSEEN_PEAKS.files.items()}
    assert files.keys() == CASES.keys()
    assert all(text.startswith('"""') for text in files.values())
    assert all(old in files[name] for name, case in CASES.items() for old in case.twin)
    assert all(known.keys() == CASES.keys() for known in UNSEEN_PEAKS.all_measured().values())


@pytest.mark.torch
@pytest.mark.slow(covers=["xmem_slurm/probe/*", "tests/integration/unseen_peaks/*"])
@pytest.mark.parametrize("name", SOME)
def test_the_peak_is_right_or_the_doubt_is_named(
    name: str, trainer_python: Path, tmp_path: Path
) -> None:
    check(UNSEEN_PEAKS, name, trainer_python, tmp_path)
