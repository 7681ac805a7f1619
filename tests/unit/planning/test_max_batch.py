"""The largest batch is one that fits, and one more does not, whatever the way from batch to bytes
looks like."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces import trace_of
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import DryRunResult, drive
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.planning import max_batch
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.max_batch import MaxBatch, largest
from xmem_slurm.report.max_batch import lines, objects
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu

CATALOGUE = load_catalogue()
SCRIPT = (
    b"#!/bin/sh\npython train.py --batch-size 32 --eval-batch-size=64\npython test.py "
    b"--batch-size='32'\n"
)
JOB = Job(SCRIPT, ["--batch-size", "4", "--lr=3"], Path("/"), {})


def gpu(mib: int, name: str = "h200") -> Gpu:
    return CATALOGUE[name].model_copy(update={"total_bytes": mib << 20, "context_bytes": 1})


def order_of(job: Job = JOB) -> DryRunOrder:
    return DryRunOrder.of(job, gpu(1), Budget())


def found_with(
    needs: Callable[[int], float], *gpus: Gpu, changed: str = "a batch of that"
) -> tuple[list[MaxBatch], list[int]]:
    """Search where a batch makes one allocation of so many MiB; return what is found and the
    batches that were run."""
    tried = []

    def run(order: DryRunOrder) -> DryRunResult:
        assert (order.change, order.engine) == ("batch", "device")
        assert order.batch is not None
        tried.append(order.batch)
        trace = trace_of(f"+a:{needs(order.batch)}")
        return DryRunResult(
            [dataclasses.replace(trace, changed=changed, recorded={"allocated_bytes": 0})]
        )

    orders = largest(
        order_of(), BatchLever(), 0, {str(number): each for number, each in enumerate(gpus)}
    )
    return list(drive(orders, run)), tried


@pytest.mark.parametrize(
    "needs",
    [
        pytest.param(lambda batch: 100 + 60 * batch, id="a line"),
        pytest.param(
            lambda batch: max(3000, 45 * batch), id="the optimizer's peak, then activations"
        ),
        pytest.param(
            lambda batch: 500 + 40 * batch + (700 if batch > 60 else 0),
            id="another kernel from 61 on",
        ),
        pytest.param(lambda batch: 20 + batch * batch, id="a parabola"),
        pytest.param(lambda batch: 9000 * batch, id="not even two"),
        pytest.param(lambda batch: 2 * batch, id="thousands"),
    ],
)
def test_the_largest_fits_and_one_more_does_not(needs: Callable[[int], float]) -> None:
    ((found,), tried) = found_with(needs, gpu(10_000))
    assert found.estimate is not None
    assert found.over is not None
    assert found.estimate.fits(found.gpu)
    assert not found.over.fits(found.gpu)
    assert {found.batch, found.batch + 1} <= set(tried)
    assert len(tried) <= 14  # as many at the most, whatever the GPU has: a parabola takes 12 or 14
    assert len(set(tried)) == len(tried)


def test_gpus_of_one_kind_share_their_dry_runs_and_others_their_line() -> None:
    found, tried = found_with(
        lambda batch: 100 + 60 * batch, gpu(20_000), gpu(10_000), gpu(15_000, "l4")
    )
    assert [each.option for each in found] == ["1", "2", "0"]
    assert [each.batch for each in found] == sorted(each.batch for each in found)
    assert len(tried) <= 5 + 2 * 3


def test_where_not_one_sample_fits_that_is_said() -> None:
    ((found,), tried) = found_with(lambda batch: 20_000 + batch, gpu(10_000))
    assert (found.batch, found.estimate) == (0, None)
    assert found.over is not None
    assert min(tried) == 1
    assert "none: 1 needs" in lines([found])[1]


def test_what_needs_no_more_with_any_batch_is_not_called_a_largest_batch() -> None:
    ((found,), _) = found_with(lambda _: 300, gpu(10_000))
    assert found.over is None
    assert found.batch == max_batch.MOST
    assert "needs no more" in lines([found])[1]
    assert objects([found])["max_batch"][0]["required_bytes_with_one_more"] is None


def test_no_line_of_another_kind_of_gpu_leads_beyond_the_largest_that_is_tried() -> None:
    """A sample needs 1 KiB from 32,768 on: by that line a GPU of 64 GiB would take millions of
    them."""
    found, tried = found_with(
        lambda batch: 4000 + max(0, batch - 32768) / 1024, gpu(8300), gpu(65_536, "l4")
    )
    assert [each.batch for each in found] == [max_batch.MOST] * 2
    assert max(tried) == max_batch.MOST


def test_a_search_that_takes_too_long_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_batch, "MOST_DRY_RUNS", 2)
    ((found,), tried) = found_with(lambda batch: 100 + 60 * batch, gpu(10_000))
    assert tried == [8, 16]
    assert (found.batch, found.over) == (16, None)
    assert "not found in 2 dry runs" in found.why_not


def test_a_job_whose_batches_no_dataloader_makes_is_told_what_to_name() -> None:
    with pytest.raises(NoEstimate, match=r"--vary batch_size=--OPTION"):
        found_with(lambda batch: batch, gpu(10_000), changed="")


def test_an_option_is_varied_wherever_the_job_gives_it_a_number() -> None:
    job = BatchLever.parse("batch_size=--batch-size").at(order_of(), 7).job
    assert job.script == SCRIPT.replace(b"--batch-size 32", b"--batch-size 7").replace(
        b"size='32'", b"size='7'"
    )
    assert job.arguments == ["--batch-size", "7", "--lr=3"]
    job = BatchLever.parse("batch_size=--lr").at(order_of(), 7).job
    assert (job.script, job.arguments) == (SCRIPT, ["--batch-size", "4", "--lr=7"])
    assert BatchLever.parse("batch_size=BATCH").at(order_of(), 7).job.environ["BATCH"] == "7"
    script = b"export BATCH=${BATCH:-32}\nif [ $BIG ]; then export BATCH=64; fi\npython train.py\n"
    job = (
        BatchLever.parse("batch_size=BATCH")
        .at(order_of(dataclasses.replace(JOB, script=script)), 7)
        .job
    )
    assert (job.script, job.environ) == (script.replace(b"64", b"7"), {"BATCH": "7"})


@pytest.mark.parametrize(
    "text", ["--batch-size", "batch_size=", "batch=--batch-size", "batch_size=a b"]
)
def test_what_is_no_lever_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--vary"):
        BatchLever.parse(text)


def test_an_option_that_the_job_does_not_give_is_refused() -> None:
    with pytest.raises(UsageError, match="write it there first"):
        BatchLever.parse("batch_size=--batch").at(order_of(), 7)
