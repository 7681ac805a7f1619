"""A plan finds ways that fit, advises nothing that was not run dry, and rules out what would not have fitted."""

import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.traces import trace_of
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.dispatch import InTurn
from xmem_slurm.dryrun.exchange import DryRunResult, Orders, T, drive
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.planning import speed
from xmem_slurm.planning.bounds import Persistent, bound, persistent_of
from xmem_slurm.planning.candidates import Base, Candidate, Space
from xmem_slurm.planning.changes import arguments_for, changed, variables_for
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import METHODS
from xmem_slurm.planning.on_site import Planned
from xmem_slurm.planning.search import Search, Ways
from xmem_slurm.report import plan as report
from xmem_slurm.rewriting import launch
from xmem_slurm.rewriting.launch import Processes
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Mark, Trace, Training
from xmem_slurm.work import Work

GPU = load_catalogue()["h200"]
SCRIPT = """#!/bin/bash
#SBATCH --gpus-per-node=4
#SBATCH --ntasks=1
torchrun --standalone --nproc-per-node=4 train.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2
"""
PARAMETERS, SAMPLE = 800, 100
"""MiB: of the parameters (gradients as much, the optimizer's state twice that), and of the activations of a sample."""


def site_of(**per_node: int) -> Site:
    return Site.model_validate(
        {
            "schema_version": 1,
            "name": "test",
            "option": {name: {"gpu": "h200", "type": name, "cost": 1 + at} for at, name in enumerate(per_node)},
            "nodes": [
                {"names": f"{name}[1-2]", "cpus": 64, "memory_mib": 512000, "gpus": {name: number}, "partitions": ["p"]}
                for name, number in per_node.items()
            ],
            "partition": {"p": {"default": True}},
        }
    )


def gpu(mib: int) -> Gpu:
    return GPU.model_copy(update={"total_bytes": mib << 20, "context_bytes": 1})


def trained(environ: Mapping[str, str], words: Sequence[str]) -> Trace:
    """Return what a dry run of this command would show: a trainer whose need is known by arithmetic."""
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word)) | dict(environ)
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    options |= dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    ranks = int(options["--nproc-per-node"]) * int(options.get("--nnodes", "1"))
    micro = int(options["--per_device_train_batch_size"])
    checkpointing = options.get("--gradient_checkpointing") == "True"
    method, parts = "ddp", (1, 1, 1)
    if given.get("ACCELERATE_USE_DEEPSPEED") == "true":
        stage = int(given["ACCELERATE_DEEPSPEED_ZERO_STAGE"])
        method, parts = f"zero{stage}", tuple(ranks if stage > at else 1 for at in (2, 1, 0))
    elif given.get("ACCELERATE_USE_FSDP") == "true":
        reshards = given["FSDP_RESHARD_AFTER_FORWARD"] == "true"
        shards = int(given.get("PARALLELISM_CONFIG_DP_SHARD_SIZE", ranks))
        method, parts = "hsdp" if shards != ranks else "fsdp2" if reshards else "fsdp2-grad", (shards,) * 3
    offloaded = any("OFFLOAD" in name for name in given)
    kept = [size / part for size, part in zip((PARAMETERS, PARAMETERS, 2 * PARAMETERS), parts, strict=True)]
    activations = SAMPLE * micro * (0.2 if checkpointing else 1)
    trace = trace_of(
        f"+p:{kept[0]}:PARAM +a:{activations} -a +g:{kept[1]}:GRAD +o:{kept[2]}:OPT +b:{activations} -b +t:1"
    )
    seen = Training(
        "transformers", method, micro, int(options["--gradient_accumulation_steps"]), checkpointing, offloaded
    )
    return replace(
        trace,
        world_size=ranks,
        training=seen,
        marks=[Mark("step", 4), Mark("step", 5)],
        argv=["python", "-u", "train.py"],
    )


def by(run: Callable[[DryRunOrder], DryRunResult], at_once: int = 1) -> InTurn:
    """Have dry runs made in this process: what comes next is chosen before what came of all but one is known."""

    def in_turn(another: Callable[[], Orders[T] | None]) -> Iterator[T]:
        found = deque[T]()
        while True:
            while len(found) < at_once and (orders := another()) is not None:
                found.append(drive(orders, run))
            if not found:
                return
            yield found.popleft()

    return in_turn


def command_of(script: bytes) -> list[str]:
    return shlex.split(next(line for line in script.decode().splitlines() if "train.py" in line))


def planned(
    script: str, site: Site, gpus: Mapping[str, Gpu], most: int = 8, at_once: int = 1, **wanted: object
) -> tuple[Ways, list[str]]:
    """Return a plan by such dry runs, and the commands that were run."""
    job, ran = Submission(("job.sh",), {}, script.encode()), list[str]()

    def run(order: DryRunOrder) -> DryRunResult:
        words = command_of(order.job.script)
        ran.append(" ".join(words))
        return DryRunResult([trained({}, words)], Spent(10))

    counts = [1 << power for power in range(most.bit_length())]
    space = Space(site, gpus, counts, list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), next(iter(gpus.values())), Budget())
    search = Search(order, job, space, **{"objective": "fewest", "top": 4, "seconds": 300.0, **wanted})  # type: ignore[arg-type]
    return search.plan(by(run, at_once)), ran


def test_what_is_advised_was_run_and_fits_and_its_batch_is_as_large_as_before() -> None:
    plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)})
    assert len(plan.verified) == 4
    for row in plan.verified:
        assert row.job is not None
        assert row.job.script is not None
        assert row.estimate is not None
        assert row.estimate.fits(gpu(3000))
        assert " ".join(command_of(row.job.script)) in ran
        assert row.candidate.micro_batch * row.candidate.accumulation * row.candidate.gpus == 32
    assert [row.candidate.gpus for row in plan.verified] == sorted(row.candidate.gpus for row in plan.verified)


def test_two_at_once_find_the_same_and_run_nothing_twice() -> None:
    for wanted in ({"top": 1}, {"top": 3}, {"top": 3, "objective": "cost"}):
        plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, **wanted)  # type: ignore[arg-type]
        other, ran_by_two = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, at_once=2, **wanted)  # type: ignore[arg-type]
        assert other.verified[0].candidate == plan.verified[0].candidate
        assert len(set(ran_by_two)) == len(ran_by_two) <= len(ran) + 1


def test_what_is_offloaded_is_tried_where_nothing_else_fits() -> None:
    for mib, is_tried in ((3000, False), (300, True)):
        _, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(mib)}, top=100, seconds=2000.0)
        assert any("OFFLOAD" in command for command in ran) == is_tried


def test_what_is_ruled_out_would_not_have_fitted() -> None:
    small = gpu(1100)
    plan, _ = planned(SCRIPT, site_of(small=8), {"small": small}, top=100, seconds=2000.0)
    ruled_out = [row for row in plan.rows if row.status == "ruled out"]
    assert {row.candidate.method.name for row in ruled_out} >= {"ddp", "zero1", "fsdp2"}
    for row in ruled_out:
        job = changed(plan.base, row.candidate, site_of(small=8))
        assert job.script is not None
        needed = max(map(persistent_bytes, [trained({}, command_of(job.script))]))
        assert needed >= row.bound_bytes > small.total_bytes - small.context_bytes


def persistent_bytes(trace: Trace) -> int:
    return persistent_of(trace).total


def test_no_bound_is_more_than_a_way_keeps() -> None:
    base = Base(Submission(("job.sh",), {}, SCRIPT.encode()), trained({}, command_of(SCRIPT.encode())))
    found = persistent_of(base.trace)
    assert found == Persistent(PARAMETERS << 20, PARAMETERS << 20, 2 * PARAMETERS << 20)
    space = Space(site_of(small=8), {"small": gpu(3000)}, [1, 2, 4, 8, 16], list(METHODS.values()))
    for candidate in space.all_of(base):
        job = changed(base, candidate, space.site)
        assert job.script is not None
        trace = trained({}, command_of(job.script))
        assert 0 <= bound(base, found, candidate) <= persistent_bytes(trace)
        assert candidate.is_seen(trace, base.training) == ""


def test_when_the_time_is_out_the_answer_is_the_best_so_far() -> None:
    plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, seconds=25.0)
    assert len(ran) == plan.dry_runs == 3
    assert plan.not_tried
    assert "were not tried" in "\n".join(report.lines(plan, {"small": gpu(3000)}))


def test_ways_that_are_as_fast_are_a_tie_and_cheaper_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes as long, but those of FSDP2: a twentieth longer, which is a tie, or a half."""
    monkeypatch.setattr(
        speed, "work_of", lambda trace: Work((), {"bf16": float(trace.training.method == "fsdp2")}, 0, 0, ())
    )
    orders = {}
    for more in (0.05, 0.5):
        monkeypatch.setattr(speed, "step_seconds", lambda work, _, more=more: 1 + more * work.flops["bf16"])
        plan, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(9000)}, 4, objective="time", top=50, seconds=2000.0)
        assert plan.not_ranked == ""
        orders[more] = [row.candidate for row in plan.verified]
        assert any("1.0x" in line for line in report.lines(plan, {"small": gpu(9000)}))
    assert [each.gpus for each in orders[0.05]] == sorted(each.gpus for each in orders[0.05])
    slow = [each.method.base == "fsdp2" for each in orders[0.5]]
    assert slow == sorted(slow)


def test_options_of_one_kind_of_gpu_share_their_dry_runs() -> None:
    gpus = {"small": gpu(3000), "large": gpu(9000)}
    plan, ran = planned(SCRIPT, site_of(small=8, large=8), gpus, top=8)
    assert {row.candidate.option for row in plan.verified} == {"small", "large"}
    assert len(set(ran)) == len(ran)


def test_a_lever_that_did_nothing_is_said() -> None:
    """The script has its batch from elsewhere behind its arguments: what is written there changes nothing."""
    script = SCRIPT.replace("train.py", 'train.py "$@"').replace("--per_device_train_batch_size 4", "$BATCH")
    job = Submission(("job.sh",), {}, script.encode())

    def run(order: DryRunOrder) -> DryRunResult:
        words = [*command_of(order.job.script), "--per_device_train_batch_size", "4"]
        return DryRunResult([trained({}, words)], Spent(10))

    space = Space(site_of(small=8), {"small": gpu(9000)}, [2], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(9000), Budget())
    plan = Search(order, job, space, "cost", 2, 300.0).plan(by(run))
    assert {row.why for row in plan.rows} == {"the change did not do what it should: micro batch, accumulation"} or {
        row.why.rpartition(": ")[2] for row in plan.rows
    } <= {"micro batch"}
    assert not plan.verified


def test_a_plan_is_a_script_that_asks_for_the_gpus_and_says_why() -> None:
    gpus = {"small": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(small=8), gpus)
    row = next(row for row in plan.verified if row.candidate.gpus != 4)
    job = Planned(plan, site_of(small=8), gpus).submission(row)
    assert job.script is not None
    assert job.request.gpus_per_node == row.candidate.gpus
    assert job.request.gpu_types == ("small",)
    assert f"planned: {row.candidate}" in job.script.decode()
    assert command_of(job.script)[-8:] == command_of(row.job.script)[-8:]  # type: ignore[union-attr, arg-type]


def test_over_nodes_there_is_a_task_on_each() -> None:
    base = Base(Submission(("job.sh",), {}, SCRIPT.encode()), trained({}, command_of(SCRIPT.encode())))
    space = Space(site_of(small=8), {"small": gpu(9000)}, [16], [METHODS["hsdp"]])
    job = changed(base, next(space.all_of(base)), space.site)
    assert (job.request.nodes, job.request.ntasks, job.request.gpus_per_node) == (2, 2, 8)


PYTHON = "python -u train.py --x | tee log"


@pytest.mark.parametrize(
    ("command", "after", "expected"),
    [
        (
            "torchrun --standalone --nproc_per_node=$N train.py --batch 4",
            (1, 2),
            "A='b c' torchrun --standalone --nproc_per_node=2 train.py --more 8 --batch 2",
        ),
        (
            "srun torchrun --nnodes 2 -m pkg.train --batch=4",
            (1, 4),
            "A='b c' srun torchrun --nproc-per-node=4 --nnodes 2 -m pkg.train --more 8 --batch=2",
        ),
        (PYTHON, (1, 2), "A='b c' torchrun --standalone --nproc-per-node=2 train.py --batch 2 --more 8 --x | tee log"),
        ("/v/bin/python3 train.py", (1, 2), "/v/bin/python3 -m torch.distributed.run --standalone --nproc-per-node=2"),
        ("srun -n4 --gpus-per-task=1 python train.py", (1, 2), "srun -n2 --gpus-per-task=1 python train.py"),
        ("srun --ntasks 4 -N 1 python train.py", (2, 8), "srun --ntasks 16 -N 2 python train.py"),
        ("accelerate launch --num_processes 4 train.py", (1, 2), "accelerate launch --num_processes 2 train.py"),
        ("deepspeed train.py", (1, 2), "deepspeed --num_gpus=2 train.py"),
        ("exec python -m torch.distributed.run 'train.py'", (1, 2), "distributed.run --nproc-per-node=2 'train.py' --"),
        ("torchrun train.py", (2, 8), "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 torchrun --nnodes=2"),
    ],
)
def test_the_command_that_launches_it_is_changed_and_nothing_else(
    command: str, after: tuple[int, int], expected: str
) -> None:
    script = f"#!/bin/bash\nif true; then\n  {command}\nfi\n# train.py\n".encode()
    found = launch.find(script, "pkg.train" if "pkg" in command else "train.py")
    text = launch.changed(
        script,
        found,
        (Processes(1, 1), Processes(*after)),
        variables={"A": "b c"},
        arguments={"--batch": "2", "--more": "8"},
    ).decode()
    assert expected in text
    assert text.startswith("#!/bin/bash\nif true; then\n  A='b c' ")
    assert text.endswith("\nfi\n# train.py\n")


@pytest.mark.parametrize("script", ["bash run.sh", "python train.py; python train.py", "train.py"])
def test_what_is_not_found_is_said(script: str) -> None:
    with pytest.raises(UsageError, match="how it is launched cannot be changed"):
        launch.find(f"#!/bin/sh\n{script}\n".encode(), "train.py")


def test_a_loop_of_the_scripts_own_gets_what_can_be_done_to_it() -> None:
    script = SCRIPT.replace("--per_device_train_batch_size 4", "--batch 4").replace("--gradient", "--own")
    job = Submission(("job.sh",), {}, script.encode())
    seen = replace(trained({}, command_of(SCRIPT.encode())), training=Training("", "ddp"))
    space = Space(site_of(small=8), {"small": gpu(9000)}, [1, 2, 4, 8], list(METHODS.values()))
    found = {(each.gpus, each.method.name) for each in space.all_of(Base(job, seen))}
    assert found == {(4, "ddp")}
    base = Base(job, seen, BatchLever.parse("batch_size=--batch"))
    varied = list(space.all_of(base))
    assert {(each.gpus, each.method.name, each.micro_batch) for each in varied} == {
        *((1, "single", 16), (2, "ddp", 8), (4, "ddp", 4), (8, "ddp", 2))
    }
    assert arguments_for(base, varied[0]) == {"--batch": "16"}
    assert variables_for(base, varied[0]) == {}


def test_where_only_fragments_are_in_the_way_expandable_segments_are_tried() -> None:
    """Of every two blocks in a segment of 20 MiB one is freed, and 12 MiB find no room there."""
    holes = " ".join(f"+a{n}:9 +b{n}:9" for n in range(20)) + " " + " ".join(f"-a{n}" for n in range(20))
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    needed = 580

    def run(order: DryRunOrder) -> DryRunResult:
        words = command_of(order.job.script)
        settings = next((word.partition("=")[2] for word in words if word.startswith("PYTORCH_CUDA_ALLOC_CONF=")), "")
        trace = trace_of(f"{holes} {' '.join(f'+c{n}:12' for n in range(15))}", settings)
        return DryRunResult([replace(trained({}, words), **parts_of(trace))], Spent(10))

    space = Space(site_of(small=8), {"small": gpu(needed)}, [4], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(needed), Budget())
    found = Search(order, job, space, "cost", 1, 300.0).plan(by(run))
    assert found.verified[0].candidate.expandable
    assert variables_for(found.base, found.verified[0].candidate) == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
    }


def parts_of(trace: Trace) -> dict[str, object]:
    """Return what a trace is made of, to be put into another one."""
    names = ("allocations", "events", "allocator_settings")
    return {**{name: getattr(trace, name) for name in names}, "marks": []}


def test_without_an_answer_of_the_job_as_it_is_there_is_no_plan() -> None:
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    space = Space(site_of(small=8), {"small": gpu(9000)}, [2], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(9000), Budget())
    with pytest.raises(NoEstimate, match="no such file"):
        Search(order, job, space, "cost", 2, 300.0).plan(by(lambda _: DryRunResult(NoEstimate("no such file"))))
    assert Path("job.sh").name == "job.sh"


def test_a_candidate_says_what_it_is() -> None:
    candidate = Candidate("a100", 8, 1, METHODS["fsdp2"], 8, 2, 4, checkpointing=True)
    assert str(candidate) == "8 x a100, fsdp2, 2 x 4, checkpointing"
