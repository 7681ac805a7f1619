"""Which GPUs a torch runs on, by what it was compiled for."""

import pytest

from xmem_slurm.sizing import kernels

CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("arch_list", "runs", "does_not"),
    [
        (
            CUDA_13,
            ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1", "13.0"],
            ["6.1", "7.0", "7.2", "11.0"],
        ),
        (["sm_90a"], ["9.0"], ["8.9", "9.1", "10.0"]),
        (["sm_100f"], ["10.0", "10.3"], ["9.0", "12.0"]),
        (["compute_80"], ["8.0", "9.0"], ["7.5"]),
        (["compute_90a"], ["9.0"], ["10.0"]),
        ([], ["3.5", "9.0"], []),
        (["gfx90a"], ["9.0"], []),
    ],
)
def test_what_runs_where(arch_list: list[str], runs: list[str], does_not: list[str]) -> None:
    assert [kernels.run_on(arch_list, each) for each in runs] == [True] * len(runs)
    assert [kernels.run_on(arch_list, each) for each in does_not] == [False] * len(does_not)
