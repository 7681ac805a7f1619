"""Sizing: which kinds of GPU are run dry, in which order, and what a failure on one of them
means."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.traces import growing_batches
from xmem_slurm import resources, trace, trace_file
from xmem_slurm.allocator.replay import replay
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import dispatch, runner
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.report import terminal
from xmem_slurm.report.options import outlooks
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import DryRuns as DryRunRules
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.demand import demand_of
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Verdict
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission

HERE = DryRunRules()
SITE = load_site(resources.tree("site-config") / "example.toml")
GPUS = option_gpus(SITE, load_catalogue())
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
LARGE = dataclasses.replace(
    GPT2, allocations=[a._replace(size=a.size * 3) for a in GPT2.allocations]
)
JOB = Submission(("--gres=gpu:h200:1", "job.sh"), {}, b"#!/bin/sh\n")


class DryRuns:
    """Stands for `runner.run`: gives the same trace on every GPU, or fails on some, and notes what
    was asked."""

    def __init__(
        self, result: trace.Trace, fails_on: set[str] | None = None, seconds: float = 0.0
    ) -> None:
        self.result, self.fails_on, self.asked = result, fails_on or set(), []
        self.most = list[int | None]()
        self.seconds = seconds

    def __call__(self, order: DryRunOrder) -> DryRunResult:
        self.asked.append(order.gpu.description)
        self.most.append(order.most_bytes)
        if order.gpu.description in self.fails_on:
            return DryRunResult(
                NoEstimate("no kernel image is available for execution on the device")
            )
        return DryRunResult([self.result], Spent(self.seconds))


def size(monkeypatch: pytest.MonkeyPatch, dry_runs: DryRuns, budget: float = 60) -> sizing.Sizing:
    monkeypatch.setattr(runner, "run", dry_runs)
    return dispatch.one(sizing.size(JOB, Premises(SITE, GPUS, Budget(seconds=budget))), HERE)


def described(*names: str) -> list[str]:
    return [GPUS[name].description for name in names]


def test_where_the_cheapest_fits_one_dry_run_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    dry_runs = DryRuns(GPT2)
    sized = size(monkeypatch, dry_runs)
    assert (sized.placement.choice, sized.estimate.gpu_name) == ("l4", "l4")
    assert dry_runs.asked == described("l4")


def test_a_job_whose_batches_vary_goes_where_it_fits_not_where_its_fragments_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    varied, _, most = growing_batches(GPT2, weights=1 << 30, largest=4 << 30, count=60)
    assert most < GPUS["l4"].total_bytes
    sized = size(monkeypatch, DryRuns(varied))
    assert sized.placement.choice == "l4"
    assert sized.estimate.uses_up_to_bytes > GPUS["h200"].total_bytes


def test_a_job_that_asks_for_no_gpu_is_sized_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`xmem-slurm estimate train.py`, at a site."""
    monkeypatch.setattr(runner, "run", DryRuns(GPT2))
    job = Submission(("--wrap", "python train.py"), {}, None)
    (found,) = dispatch.one(
        sizing.size_components(job, [0], Premises(SITE, GPUS, Budget())), HERE
    ).values()
    assert isinstance(found, sizing.Sizing)
    assert found.placement.choice == "l4"
    assert (found.script, found.component) == ("", None)


def test_components_start_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other both would go to the only node that has the cheapest GPUs on which they
    fit."""
    monkeypatch.setattr(runner, "run", DryRuns(dataclasses.replace(LARGE, component=0)))
    both = [dataclasses.replace(LARGE, component=n) for n in range(2)]
    monkeypatch.setattr(runner, "run", lambda *_: DryRunResult(both))

    def choices(*asked: str) -> list[str | None]:
        job = Submission((asked[0], ":", asked[1], "job.sh"), {}, b"#!/bin/sh\n")
        sized = dispatch.one(
            sizing.size_components(job, [0, 1], Premises(SITE, GPUS, Budget())), HERE
        )
        return [each.placement.choice for each in sized.values() if isinstance(each, sizing.Sizing)]

    assert choices("--gres=gpu:2", "--gres=gpu:2") == ["a100_80", "h200"]
    assert choices("--gres=gpu:1", "--gres=gpu:1") == ["a100_80", "a100_80"]
    assert choices("--gres=gpu:2", "--gres=gpu:a100_80:2") == ["h200", "a100_80"], (
        "as it was asked for it could start"
    )


def test_what_cannot_fit_by_a_known_trace_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    dry_runs = DryRuns(LARGE)  # 43 GiB
    sized = size(monkeypatch, dry_runs)
    assert [(v.name, v.fits) for v in sized.placement.verdicts][:2] == [
        ("l4", False),
        ("a100_40", False),
    ]
    assert sized.placement.choice == "a100_80"
    assert dry_runs.asked == described("l4", "a100_80")


OLD = SITE.model_copy(
    update={
        "option": {
            **SITE.option,
            "v100": SITE.option["l4"].model_copy(update={"gpu": "v100-sxm2-32gb", "type": "v100"}),
        },
        "nodes": (
            *SITE.nodes,
            SITE.nodes[0].model_copy(update={"names": "v[1-2]", "gpus": {"v100": 4}}),
        ),
    }
)
"""The same site with older GPUs, as cheap as the cheapest."""


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("asked", ["v100", "h200"])
def test_a_gpu_that_the_jobs_torch_has_no_kernels_for_is_named_and_not_chosen(
    fails: bool, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = option_gpus(OLD, load_catalogue())
    modern = dataclasses.replace(GPT2, arch_list=["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"])
    failed = dataclasses.replace(
        modern,
        allocations=[],
        events=[],
        marks=[],
        failure=trace_file.failure("no kernel image"),
        state="exit",
    )
    asked_for: list[str] = []

    def run(order: DryRunOrder) -> DryRunResult:
        asked_for.append(order.gpu.description)
        found = failed if fails and order.gpu.capability == "7.0" else modern
        return DryRunResult([found])

    monkeypatch.setattr(runner, "run", run)
    job = Submission((f"--gres=gpu:{asked}:1", "job.sh"), {}, b"#!/bin/sh\n")
    sized = dispatch.one(sizing.size(job, Premises(OLD, gpus, Budget())), HERE)
    assert sized.placement.choice == "l4"
    told = "the job's torch has no kernels for v100 (compute capability 7.0): it has sm_75, "
    assert sized.without_kernels.startswith(told) == (asked == "v100")
    assert bool(sized.without_kernels) == (asked == "v100")
    on_v100 = Verdict("v100", gpus["v100"], fits=False)
    only_v100 = dataclasses.replace(
        sized, placement=dataclasses.replace(sized.placement, verdicts=[on_v100])
    )
    (line,) = terminal.option_lines(outlooks(only_v100), None)
    assert f"does not fit: {told}" in line
    only = OLD.model_copy(update={"nodes": OLD.nodes[-1:]})
    asked_for.clear()
    with pytest.raises(NoEstimate, match="no kernels for v100"):
        dispatch.one(sizing.size(job, Premises(only, gpus, Budget())), HERE)
    assert len(asked_for) == 1


def test_a_gpu_on_which_the_run_fails_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    dry_runs = DryRuns(GPT2, fails_on=set(described("l4")))
    sized = size(monkeypatch, dry_runs)
    assert sized.placement.choice == "a100_40"
    assert dry_runs.asked == described("l4", "h200", "a100_40"), (
        "the GPU asked for shows whose fault it is"
    )


def test_a_job_that_fails_on_its_own_gpu_too_has_no_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dry_runs = DryRuns(GPT2, fails_on=set(described("l4", "h200")))
    with pytest.raises(NoEstimate, match="no kernel image"):
        size(monkeypatch, dry_runs)
    assert dry_runs.asked == described("l4", "h200")


def test_a_script_that_stops_by_itself_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "ModuleNotFoundError: No module named 'x' (train.py:3)"
    before = dataclasses.replace(
        GPT2, allocations=[], marks=[], recorded={}, state="exit", failure=trace_file.failure(error)
    )
    dry_runs = DryRuns(before)
    with pytest.raises(NoEstimate, match="No module named 'x'") as caught:
        size(monkeypatch, dry_runs)
    assert dry_runs.asked == described("l4")
    assert str(caught.value).count("No module") == 1


def test_a_gpu_for_which_no_time_is_left_is_not_said_to_be_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that the job asks for gets what is left of the budget."""
    dry_runs = DryRuns(LARGE, seconds=40)
    sized = size(monkeypatch, dry_runs)
    assert dry_runs.asked == described("l4", "h200")
    assert sized.placement.choice == "h200"
    assert {v.name: v.fits for v in sized.placement.verdicts} == {
        "l4": False,
        "a100_40": False,
        "a100_80": None,
        "h200": True,
    }
    assert "no time was left to try a100_80 (a larger --xmem-budget has it)" in terminal.reason(
        sized
    )
    of_80 = terminal.option_lines(outlooks(sized), None)[2]
    assert "not taken: no time was left in the budget to try it" in of_80


def room_on(name: str) -> int:
    return GPUS[name].total_bytes - GPUS[name].context_bytes


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        # both a100s are of one kind
        (("--gres=gpu:h200:1", "job.sh"), [room_on("l4"), room_on("a100_80")]),
        (("--gres=gpu:l4:1", "job.sh"), [room_on("l4"), room_on("a100_80")]),
        # by one run it is to be known which task needs the most
        (("--gres=gpu:1", "--array=1-9", "job.sh"), [None, None, None]),
    ],
)
def test_a_run_on_a_gpu_that_is_too_small_need_not_go_on(
    asked: tuple[str, ...], most: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dry_runs = DryRuns(LARGE)
    monkeypatch.setattr(runner, "run", dry_runs)
    job = Submission(asked, {}, b"#!/bin/sh\n")
    sized = dispatch.one(sizing.size(job, Premises(SITE, GPUS, Budget())), HERE)
    assert (sized.placement.choice, dry_runs.most) == ("a100_80", most)


def test_a_run_that_was_cut_rules_out_only_what_is_too_small_whatever_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the margin of a script that was not seen to its end it would not fit on an a100_40; and
    that what the cut process would have left is missing is no fault of the script's."""
    whole = dataclasses.replace(
        GPT2, allocations=[a._replace(size=a.size * 255 // 100) for a in GPT2.allocations]
    )
    peak = {"allocated_bytes": replay(whole).peak_allocated_bytes}
    whole = dataclasses.replace(whole, recorded=peak, seen=trace.Seen(9, end=True))
    cut = dataclasses.replace(
        whole,
        seen=trace.Seen(3, end=False),
        doubts=[trace.Noted(Doubt.NOT_REACHED, "the script's own end")],
    )
    missing = trace.ScriptFailure("FileNotFoundError: net.pt", "FileNotFoundError")
    failed = dataclasses.replace(GPT2, recorded={}, failure=missing)

    def run(order: DryRunOrder) -> DryRunResult:
        on_l4 = order.gpu.description == GPUS["l4"].description
        return DryRunResult([cut, failed] if on_l4 else [whole])

    monkeypatch.setattr(runner, "run", run)
    sized = dispatch.one(sizing.size(JOB, Premises(SITE, GPUS, Budget())), HERE)
    assert sized.placement.choice == "a100_40"
    assert not sized.estimate.fits(GPUS["l4"])
    with_its_margin = estimate([cut], "l4", GPUS["l4"])
    assert not with_its_margin.fits(GPUS["a100_40"])


def test_on_the_largest_gpu_a_run_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = dataclasses.replace(
        GPT2, allocations=[a._replace(size=a.size * 12) for a in GPT2.allocations]
    )
    dry_runs = DryRuns(huge)
    assert size(monkeypatch, dry_runs).placement.choice is None
    assert dry_runs.most[-1] is None


def test_where_larger_gpus_were_not_tried_none_is_said_to_be_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "run", DryRuns(LARGE, seconds=40))
    job = Submission(("--gres=gpu:l4:1", "job.sh"), {}, b"#!/bin/sh\n")
    sized = dispatch.one(sizing.size(job, Premises(SITE, GPUS, Budget(seconds=60))), HERE)
    assert sized.placement.choice is None
    assert terminal.too_small(sized) == (
        "no GPU that was tried is large enough; no time was left to try a100_80, h200 "
        "(a larger --xmem-budget has it)"
    )


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = dataclasses.replace(
        GPT2, allocations=[a._replace(size=a.size * 12) for a in GPT2.allocations]
    )
    sized = size(monkeypatch, DryRuns(huge))
    assert sized.placement.choice is None
    assert sized.estimate.required_bytes > GPUS["h200"].total_bytes


@pytest.mark.parametrize(
    ("argv", "cpus", "memory"),
    [
        ((), 1, 0),
        (("-c24", "--mem=200G"), 24, 200 << 30),
        (("-c8", "--ntasks-per-node=2", "--mem-per-cpu=4G"), 16, 64 << 30),
        (("--mem-per-gpu=32G", "--gpus-per-node=2"), 1, 64 << 30),
        (("--mem=0",), 1, 0),
    ],
)
def test_what_a_node_must_have_beside_gpus(argv: tuple[str, ...], cpus: int, memory: int) -> None:
    demand = demand_of(Submission((*argv, "job.sh"), {}, b"#!/bin/sh\n").request, SITE)
    assert (demand.cpus_per_node, demand.memory_bytes) == (cpus, memory)


def test_nodes_with_too_few_cpus_or_too_little_memory_are_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Submission(("-c24", "--mem=200G", "--gres=gpu:h200:1", "job.sh"), {}, b"#!/bin/sh\n")
    monkeypatch.setattr(runner, "run", DryRuns(GPT2))
    sized = dispatch.one(sizing.size(job, Premises(SITE, GPUS, Budget())), HERE)
    assert [verdict.name for verdict in sized.placement.verdicts] == ["a100_40", "a100_80", "h200"]


LARGE_TASK = dataclasses.replace(
    LARGE, recorded={name: 3 * size for name, size in GPT2.recorded.items()}
)


class Tasks:
    """Stands for `runner.run`: some tasks of an array are large, and each run takes some
    seconds."""

    def __init__(self, large: Collection[int] = (), seconds: float = 1.0) -> None:
        self.large, self.seconds, self.ran = large, seconds, list[int]()

    def __call__(self, order: DryRunOrder) -> DryRunResult:
        self.ran.append(int(order.job.environ["SLURM_ARRAY_TASK_ID"]))
        return DryRunResult(
            [LARGE_TASK if self.ran[-1] in self.large else GPT2], Spent(self.seconds)
        )


def sized_array(
    monkeypatch: pytest.MonkeyPatch,
    tasks: Tasks,
    array: str,
    script: bytes = b"python train.py\n",
    gres: str = "gpu:h200:1",
    **environ: str,
) -> sizing.Sizing:
    monkeypatch.setattr(runner, "run", tasks)
    job = Submission(
        (f"--array={array}", f"--gres={gres}", "job.sh"), environ, b"#!/bin/sh\n" + script
    )
    return dispatch.one(sizing.size(job, Premises(SITE, GPUS, Budget(seconds=60))), HERE)


BY_NUMBER = b"python train.py --size $SLURM_ARRAY_TASK_ID\n"


def test_of_an_array_whose_tasks_are_alike_the_ends_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = Tasks()
    sized = sized_array(monkeypatch, tasks, "2-9:3%2")
    assert tasks.ran == [2, 8]
    assert (sized.placement.choice, sized.estimate.reasons) == ("l4", [])
    assert "task" not in terminal.brief_line(sized)


def test_of_an_array_that_reads_its_number_all_are_run_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = Tasks(large=[6])
    sized = sized_array(monkeypatch, tasks, "0-9", BY_NUMBER)
    assert tasks.ran == [0, 9, 4, 2, 6, 1, 3, 5, 7, 8, 6], (
        "on another kind of GPU the one that needs the most"
    )
    assert (sized.placement.choice, sized.estimate.reasons) == ("a100_80", [])
    assert ", by task 6 of the array; confidence" in terminal.brief_line(sized)


def test_where_there_is_not_the_job_gets_no_smaller_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(seconds=9.0)
    sized = sized_array(monkeypatch, tasks, "0-99", BY_NUMBER)
    assert tasks.ran == [0, 99, 49, 24, 74, 0], "time is left for another kind of GPU"
    assert sized.placement.choice == "h200"
    assert sized.no_smaller
    assert (
        "of the array's 100 tasks only tasks 0, 24, 49, 74 and 99 ran, and they read their number"
        " (--xmem-array-tasks=12,37,61,86 runs others)" in str(sized.estimate.reasons)
    )
    assert not sized.unseen_tasks
    lines = terminal.option_lines(outlooks(sized), None)
    assert "not taken: no smaller GPU than the one asked for" in lines[0]


@pytest.mark.parametrize(("seconds", "unseen"), [(9.0, True), (0.1, False)])
def test_where_no_gpu_is_named_unseen_tasks_may_need_any(
    seconds: float, unseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized = sized_array(monkeypatch, Tasks(seconds=seconds), "0-9", BY_NUMBER, "gpu:1")
    assert (sized.placement.choice, sized.unseen_tasks) == ("l4", unseen)


def test_ends_that_need_another_amount_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(large=[9], seconds=19.0)
    sized = sized_array(monkeypatch, tasks, "0-9")
    assert tasks.ran[:2] == [0, 9]
    assert sized.placement.choice == "h200"


def test_whoever_names_tasks_answers_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks()
    sized = sized_array(monkeypatch, tasks, "0-9", BY_NUMBER, XMEM_ARRAY_TASKS="5")
    assert tasks.ran == [5]
    assert sized.placement.choice == "l4"
    assert "of the array's 10 tasks only task 5 ran" in sized.estimate.reasons[0]


def test_a_task_between_that_fails_is_said_and_loses_no_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(order: DryRunOrder) -> DryRunResult:
        number = order.job.environ["SLURM_ARRAY_TASK_ID"]
        return DryRunResult(NoEstimate("no such file") if number == "1" else [GPT2], Spent(1.0))

    monkeypatch.setattr(runner, "run", run)
    job = Submission(("--array=0-2", "--gres=gpu:l4:1", "job.sh"), {}, b"#!/bin/sh\n" + BY_NUMBER)
    sized = dispatch.one(sizing.size(job, Premises(SITE, GPUS, Budget(seconds=60))), HERE)
    assert "task 1: no such file" in sized.estimate.reasons[0]


HET = Submission(
    ("--gres=gpu:h200:1", ":", "-n2", ":", "-G", "a100_80:1", "job.sh"), {}, b"#!/bin/sh\n"
)


def test_components_share_the_dry_runs_and_are_sized_by_their_own_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def run(order: DryRunOrder) -> DryRunResult:
        asked.append(order.gpu.description)
        assert list(order.job.gpus) == [1, 0, 1]
        traces = [dataclasses.replace(LARGE, component=0), dataclasses.replace(GPT2, component=2)]
        return DryRunResult(traces)

    monkeypatch.setattr(runner, "run", run)
    found = dispatch.one(sizing.size_components(HET, [0, 2], Premises(SITE, GPUS, Budget())), HERE)
    sized = {index: each for index, each in found.items() if isinstance(each, sizing.Sizing)}
    assert {index: each.placement.choice for index, each in sized.items()} == {
        0: "a100_80",
        2: "l4",
    }
    assert [(each.script, each.component) for each in sized.values()] == [
        ("job.sh", 0),
        ("job.sh", 2),
    ]
    assert asked == described("l4", "a100_80")


def test_a_component_that_fails_or_is_not_seen_says_so_and_leaves_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = dataclasses.replace(
        GPT2, component=2, marks=[], failure=trace_file.failure("ValueError: no"), state="exit"
    )
    for others, why in (
        ([], "no process of its own used GPU memory"),
        ([failed], "ValueError: no"),
    ):
        dry_runs = DryRuns(GPT2)
        results = DryRunResult([GPT2, *others])
        monkeypatch.setattr(
            runner, "run", lambda *words, it=results, asked=dry_runs: (asked(*words), it)[1]
        )
        found = dispatch.one(
            sizing.size_components(HET, [0, 2], Premises(SITE, GPUS, Budget())), HERE
        )
        assert isinstance(found[0], sizing.Sizing)
        assert why in str(found[2])
        assert dry_runs.asked == described("l4") if not others else described("l4", "a100_80")


def test_no_component_of_several_is_given_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    site = load_site(resources.tree("site-config") / "examples" / "mig-and-shares.toml")
    gpus = option_gpus(site, load_catalogue())
    small = [a._replace(size=a.size // 8) for a in GPT2.allocations]
    monkeypatch.setattr(
        runner, "run", DryRuns(dataclasses.replace(GPT2, torch_version="2.11.0", allocations=small))
    )
    choices = []
    for argv in (("--gres=gpu:1",), ("--gres=gpu:1", ":", "-n1")):
        job = Submission((*argv, "job.sh"), {}, b"#!/bin/sh\n")
        (found,) = dispatch.one(
            sizing.size_components(job, [0], Premises(site, gpus, Budget())), HERE
        ).values()
        assert isinstance(found, sizing.Sizing)
        choices.append(site.option[found.placement.choice or ""].share is not None)
    assert choices == [True, False]
