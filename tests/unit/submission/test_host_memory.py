"""A request for host memory that is too small is raised where that is let, and never lowered."""

import dataclasses

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.report.test_report import GPT2, GPUS, SIZING
from xmem_slurm.decision import RaisedMemory
from xmem_slurm.rewriting.rewrite import recorded
from xmem_slurm.site.loading import load_site
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import host_memory
from xmem_slurm.submission.answer import Wishes

LETS = Wishes(raise_mem=True)
SITE = load_site(EXAMPLE_SITE)
HEAD = b"#!/bin/sh\n#SBATCH --gres=gpu:l4:1\n"
SIX_EACH = dataclasses.replace(
    SIZING,
    estimate=estimate(
        [dataclasses.replace(GPT2, host_bytes=6 << 30, world_size=4, nodes=2)], "l4", GPUS["l4"]
    ),
)
"""Two processes on each node hold 6 GiB each; 2 more are for CUDA."""


def raised(
    *options: str, wishes: Wishes = LETS, site: Site = SITE, script: bytes = HEAD
) -> tuple[Submission, RaisedMemory | None]:
    job = Submission((*options, "job.sh"), {}, script)
    return host_memory.raised(job, {0: SIX_EACH}, wishes, site, GPUS, in_script=True)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (["--mem=8G"], "--mem=14G"),
        (["--mem=12287"], "--mem=14G"),
        (["--mem-per-cpu=2G", "--cpus-per-task=3"], "--mem-per-cpu=4864M"),
        (["--mem-per-gpu=3G", "--gres=gpu:l4:2"], "--mem-per-gpu=7G"),
        (["--mem=12G"], None),
        (["--mem=0"], None),
        ([], None),
        (["--mem-per-cpu=1G", "--exclusive"], None),
        (["--mem-per-gpu=1G", "--gpus=3", "--nodes=2", "--gres=none"], None),
    ],
)
def test_it_is_raised_in_its_own_spelling_and_never_lowered(
    options: list[str], asked: str | None
) -> None:
    job, memory = raised(*options)
    assert [word for word in job.argv if word.startswith("--mem")] == [
        asked if asked and word.startswith("--mem") else word
        for word in options
        if word.startswith("--mem")
    ]
    assert (memory is not None) == (asked is not None)


def test_only_where_the_site_or_the_user_lets_it() -> None:
    lets = SITE.model_copy(update={"policy": SITE.policy.model_copy(update={"raise_mem": True})})
    only_advises = lets.model_copy(
        update={"policy": lets.policy.model_copy(update={"rewrite": False})}
    )
    assert raised("--mem=8G", wishes=Wishes())[1] == RaisedMemory()
    assert raised("--mem=8G", wishes=Wishes(), site=lets)[0].argv[0] == "--mem=14G"
    assert raised("--mem=8G", wishes=Wishes(raise_mem=False), site=lets)[1] == RaisedMemory()
    for wishes, site in ((LETS, only_advises), (LETS._replace(advise=True), lets)):
        job, memory = raised("--mem=8G", wishes=wishes, site=site)
        assert (job.argv[0], memory) == ("--mem=8G", None)


def test_not_beyond_what_nodes_have_nor_of_several_components() -> None:
    small = [group.model_copy(update={"memory_mib": 13 << 10}) for group in SITE.nodes]
    _, memory = raised("--mem=8G", site=SITE.model_copy(update={"nodes": tuple(small)}))
    assert memory is not None
    assert memory.why_not == (
        "it is not raised, as no node of this site with l4 has 14.00 GiB for the job"
    )
    job, memory = raised("--mem=8G", ":", "--mem=1G", "--gres=gpu:1")
    assert (job.argv[0], memory) == ("--mem=8G", None)


def test_the_script_says_it_in_a_comment() -> None:
    job, memory = raised(script=HEAD + b"#SBATCH --mem=8G\ntrue\n")
    assert memory is not None
    assert str(memory.change) == "--mem=8G -> --mem=14G"
    written = Submission(("job.sh",), {}, HEAD + b"#SBATCH --mem=8G\ntrue\n")
    said = recorded(job, written, "because", None).script
    assert said is not None
    before, _, after = said.partition(b"# xmem-slurm ")
    assert before == HEAD + b"#SBATCH --mem=14G\n"
    assert after.endswith(b": --mem=8G -> --mem=14G: because\ntrue\n")
