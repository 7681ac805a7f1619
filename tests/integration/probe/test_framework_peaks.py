"""Training by frameworks whose memory is largest later than in the first steps: its list, and a few
of it run dry.

The scripts stand in framework_peaks/scripts, what is expected of each in framework_peaks/cases.py.
The whole list would take most of an hour: `python -m tests.integration.framework_peaks table`
prints its outcomes."""

from pathlib import Path

import pytest

from tests.integration.framework_peaks.cases import CASES, CONTROLS, FRAMEWORK_PEAKS
from tests.integration.later_peaks.listing import Expects
from tests.integration.probe.test_later_peaks import check

SOME = [
    "accelerate_control_nlp_example",
    "hf_eval_larger_batch",
    "lightning_backbone_finetuning",
    "steps_context_doubles_twice",
]


def test_each_script_is_in_the_list_and_says_what_peaks_when() -> None:
    files = {name: path.read_text(encoding="utf-8") for name, path in FRAMEWORK_PEAKS.files.items()}
    assert files.keys() == CASES.keys()
    assert all(text.startswith('"""') for text in files.values())
    assert all(CASES[name].expects is Expects.HIGH for name in CONTROLS)
    assert {name for name, case in CASES.items() if not case.cause} == CONTROLS.keys()
    assert all(known.keys() == CASES.keys() for known in FRAMEWORK_PEAKS.all_measured().values())


@pytest.mark.torch
@pytest.mark.slow(
    covers=["xmem_slurm/probe/*", "xmem_slurm/device/*", "xmem_slurm/dryrun/*", "xmem_slurm/sizing/*",
            "tests/integration/framework_peaks/*"],
)  # fmt: skip
@pytest.mark.parametrize("name", SOME)
def test_the_peak_is_right_or_the_doubt_is_named(
    name: str, trainer_python: Path, tmp_path: Path
) -> None:
    check(FRAMEWORK_PEAKS, name, trainer_python, tmp_path)
