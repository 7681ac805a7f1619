"""What a node that ran a job dry says of it arrives whole: what it spent, and whether another GPU would change that."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from xmem_slurm.dryrun import cpu_node, engines, spending
from xmem_slurm.dryrun import job as dryrun_job
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UnusedGpu
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.trace import Trace

NODE = DryRuns(where="srun", partition="cpu")


@pytest.mark.parametrize("kind", [NoEstimate, UnusedGpu])
def test_why_there_is_no_estimate_arrives_with_what_it_cost(
    kind: type[NoEstimate], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_order: DryRunOrder) -> Sequence[Trace]:
        spending.add(7.0)
        raise kind("it stopped", [], on_any_gpu=True)

    def by_node(order: str, _budget: object, _where: object) -> bytes:
        here = spending.now().spent
        said = cpu_node.answer(order).encode()
        spending.add(here - spending.now().spent)  # the node is another process
        return b"a prolog's words\n" + said

    monkeypatch.setattr(engines, "run", run)
    monkeypatch.setattr(dryrun_job, "on_this_host", lambda job: job)
    job = Job(b"#!/bin/sh\n", (), Path("/"), dict(os.environ))
    before = spending.now()
    asked = cpu_node.ask.set(by_node)
    try:
        with pytest.raises(kind, match="it stopped") as caught:
            cpu_node.run(DryRunOrder(job, load_catalogue()["h200"], Budget()), NODE)
    finally:
        cpu_node.ask.reset(asked)
    assert (caught.value.on_any_gpu, spending.now().since(before).spent) == (True, pytest.approx(7.0))


def test_a_node_has_as_long_as_the_wall_limit() -> None:
    assert "--time=11" in cpu_node.words(Budget(seconds=60), NODE)
    assert "--time=2" in cpu_node.words(Budget(seconds=60).within(DryRuns(wall_seconds=60)), NODE)
