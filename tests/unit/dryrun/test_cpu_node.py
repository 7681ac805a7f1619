"""What a node that ran a job dry says of it arrives whole: what it spent, and whether another GPU
would change that."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from xmem_slurm import trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import cpu_node, exchange, on_node, runner
from xmem_slurm.dryrun import job as dryrun_job
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SandboxError, SlurmError, UnusedGpu
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.trace import File, Noted

NODE = DryRuns(where="srun", partition="cpu")
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
ORDER = DryRunOrder(
    Job(b"#!/bin/sh\n", (), Path("/"), dict(os.environ)), load_catalogue()["h200"], Budget()
)


@pytest.fixture
def by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step by srun that is this process."""

    def step(_command: object, order: bytes, _seconds: object, _place: object) -> bytes:
        return b"a prolog's words\n" + on_node.answer(order.decode()).encode()

    monkeypatch.setattr(cpu_node, "_step", step)
    monkeypatch.setattr(dryrun_job, "on_this_host", lambda job: job)


@pytest.mark.usefixtures("by_node")
@pytest.mark.parametrize("kind", [NoEstimate, UnusedGpu])
def test_why_there_is_no_estimate_arrives_with_what_it_cost(
    kind: type[NoEstimate], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [File("R", 1, 2, "/x\udc80")]
    stopped = DryRunResult(kind("it stopped", files, on_any_gpu=True), Spent(7.0))
    monkeypatch.setattr(runner, "run", lambda _order: stopped)
    found = cpu_node.run(ORDER, NODE)
    with pytest.raises(kind, match="it stopped") as caught:
        assert found.traces
    assert (caught.value.on_any_gpu, caught.value.busy, caught.value.files) == (True, False, files)
    assert found.spent.seconds == pytest.approx(7.0)


@pytest.mark.usefixtures("by_node")
def test_traces_arrive_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each run that the node made of the order, all that was spent."""
    read = replace(
        GPT2,
        doubts=[Noted(Doubt.FORWARD_READ, "train.py:3", 2, 0.25)],
        files=[File("R", 1, 2, "/x\udc80")],
    )
    results = iter(
        [DryRunResult([read], Spent(3.0)), DryRunResult(NoEstimate("no time"), Spent(4.0))]
    )
    monkeypatch.setattr(runner, "run", lambda _order: next(results))
    found = cpu_node.run(ORDER, NODE)
    (trace,) = found.traces
    assert trace.doubts[0] == read.doubts[0]
    assert [noted.doubt for noted in trace.doubts[1:]] == [Doubt.ENGINE]
    assert replace(trace, doubts=read.doubts) == read
    assert found.spent.seconds == pytest.approx(7.0)


@pytest.mark.usefixtures("by_node")
def test_a_node_that_cannot_run_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_order: object) -> DryRunResult:
        raise SandboxError("no namespaces")

    monkeypatch.setattr(runner, "run", refuse)
    with pytest.raises(SlurmError, match=r"the dry run in partition cpu: .*: no namespaces"):
        cpu_node.run(ORDER, NODE)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"traces": []}', b'{"seconds": 1, "NoEstimate": [1]}']
)
def test_what_is_no_answer_says_nothing_of_the_job(text: bytes) -> None:
    with pytest.raises(SlurmError, match="no answer that can be read"):
        exchange.result_from_json(text, "c1")


def test_a_node_has_as_long_as_the_wall_limit() -> None:
    assert "--time=11" in cpu_node.words(Budget(seconds=60), NODE)
    assert "--time=2" in cpu_node.words(Budget(seconds=60).within(DryRuns(wall_seconds=60)), NODE)
