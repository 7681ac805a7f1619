"""What NCCL takes: the table follows from the measurements, and holds for runs like those alone."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks import nccl as benchmark
from xmem_slurm import trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing import nccl
from xmem_slurm.trace import Noted, Trace
from xmem_slurm.units import MIB

H100, L4 = (load_catalogue()[name] for name in ("h100-sxm5-80gb", "l4"))
ONE = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")


def run(
    ranks: int = 8, torch: str = "2.8.0+cu128", communicators: int = 1, nodes: int = 1
) -> Trace:
    doubts = [Noted(Doubt.NCCL, "", communicators)]
    return dataclasses.replace(
        ONE, world_size=ranks, torch_version=torch, nodes=nodes, doubts=doubts
    )


def test_the_table_is_what_the_measurements_say() -> None:
    written = benchmark.OUT.read_text(encoding="utf-8")
    assert written == benchmark.text(benchmark.rows()), "run `python -m benchmarks.nccl`"


def test_context_and_nccl_together_are_no_less_than_any_row_shows() -> None:
    rows = benchmark.rows()
    gpus = {gpu.cuda_name: gpu for gpu in load_catalogue().values()}
    assert len(rows) > 50
    for row in rows:
        gpu = gpus[row["gpu"]]
        taken, known = nccl.taken(run(int(row["ranks"]), row["torch"]), gpu)
        assert known
        assert gpu.context_bytes + taken >= int(row["most_mib"]) * MIB


def test_nothing_of_the_measured_was_measured_with_a_model() -> None:
    """Where NCCL had not begun, nvidia-smi showed an idle GPU or a model: such rows are in the data
    and count not."""
    assert {row["nccl_begun"] for row in benchmark.rows()} == {"yes"}
    assert max(int(row["most_mib"]) for row in benchmark.rows()) < 3500 < 18682


def test_torch_2_7_and_newer_take_less_and_a_nightly_counts_as_the_release_before() -> None:
    new, old = nccl.taken(run(), H100)[0], nccl.taken(run(torch="2.6.0+cu124"), H100)[0]
    assert 900 * MIB < new < 1100 * MIB
    assert 2800 * MIB < old < 3000 * MIB
    assert nccl.taken(run(torch="2.7.0.dev20250208+cu126"), H100)[0] == old
    assert nccl.taken(run(torch="2.7.0a0+79aa17489c.nv25.04"), H100)[0] == new


@pytest.mark.parametrize("unlike", [{"communicators": 2}, {"nodes": 2}, {"ranks": 64}])
def test_what_has_no_bound_has_the_nearest_figure_and_stays_a_doubt(unlike: dict[str, int]) -> None:
    assert nccl.taken(run(**unlike), H100) == (nccl.taken(run(), H100)[0], False)  # type: ignore[arg-type]
    blackwell = H100.model_copy(update={"cuda_name": "newer", "capability": "10.0"})
    assert nccl.taken(run(), blackwell) == (0, False)


@pytest.mark.parametrize("unlike", [{"torch": "2.12.0"}, {"torch": "2.3.1"}])
def test_another_release_has_the_most_of_all_for_a_bound(unlike: dict[str, str]) -> None:
    """NCCL before 2.22 connected everything at once."""
    assert nccl.taken(run(**unlike), H100) == (nccl.taken(run(torch="2.6.0"), H100)[0], True)  # type: ignore[arg-type]


def test_fewer_ranks_take_no_more() -> None:
    assert nccl.taken(run(ranks=4), H100) == (nccl.taken(run(), H100)[0], True)
    assert nccl.taken(run(ranks=1), H100)[0] < nccl.taken(run(), H100)[0]


def test_a_gpu_that_nobody_measured_has_the_bound_where_it_has_nvlink_or_what_its_site_says() -> (
    None
):
    a100 = load_catalogue()["a100-sxm4-80gb"]
    assert nccl.taken(run(), a100) == (nccl.taken(run(torch="2.6.0"), H100)[0], True)
    site = L4.model_copy(update={"nccl_bytes": 7})
    assert nccl.taken(run(), L4) == (0, False)
    assert nccl.taken(run(), site) == (7, False)
    assert nccl.taken(run(ranks=2), site) == (7, True)
    assert nccl.taken(dataclasses.replace(run(), doubts=[]), L4) == (0, True)
