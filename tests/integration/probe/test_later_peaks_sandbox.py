"""The scripts of test_later_peaks.py in the sandbox, by the clock; a file of its own, as one worker
runs a file."""

from pathlib import Path

import pytest

from tests.integration.later_peaks.cases import CASES, LATER_PEAKS
from tests.integration.probe.test_later_peaks import check


@pytest.mark.torch
@pytest.mark.slow(covers=["xmem_slurm/*course*", "tests/integration/later_peaks/*"], every=14)
@pytest.mark.parametrize("name", sorted(CASES))
def test_so_it_is_in_the_sandbox_and_by_the_clock(
    name: str, job_python: Path, tmp_path: Path
) -> None:
    check(LATER_PEAKS, name, job_python, tmp_path)
