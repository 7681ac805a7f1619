"""What the filter in every sbatch makes of a changed job: options alone."""

import pytest

from xmem_slurm import filter as site_filter
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.edit import Job


def job(script: str) -> Job:
    return Job(("job.sh",), {}, f"#!/bin/sh\n{script}".encode())


def test_what_is_set_in_the_script_is_an_option_to_the_hook() -> None:
    before, after = job("#SBATCH --gres=gpu:h200:1\nsrun x"), job("#SBATCH --gres=gpu:l4:1\n# why\nsrun x")
    assert site_filter._changes(before, after) == {"gres": "gpu:l4:1"}


def test_a_hook_cannot_change_a_script() -> None:
    before = job("#SBATCH --gres=gpu:h200:1\nsrun --gres=gpu:h200:1 x")
    after = job("#SBATCH --gres=gpu:l4:1\n# why\nsrun --gres=gpu:l4:1 x")
    with pytest.raises(UsageError, match=r"line 3 of the script: srun --gres=gpu:h200:1 would have to be changed"):
        site_filter._changes(before, after)
