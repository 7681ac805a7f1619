"""Reports: the lines that a person reads, the object that a program reads and the files of other
tools say the same."""

import contextlib
import contextvars
import dataclasses
import json
import os
import pty
import re
import sys
import time
from pathlib import Path

import markupsafe
import pydantic
import pytest

from tests.traces import growing_batches
from xmem_slurm import resources, trace, trace_file
from xmem_slurm.allocator.replay import replay
from xmem_slurm.decision import Decision, Kind, Part
from xmem_slurm.doubts import Doubt
from xmem_slurm.report import comparison, files, html, perfetto, terminal
from xmem_slurm.report import json as json_report
from xmem_slurm.report.options import Remedy, outlooks, remedy
from xmem_slurm.report.seen import seen_words
from xmem_slurm.rewriting.rewrite import Change
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Share
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Advice, Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import GIB, human

ROOT = Path(__file__).parents[3]
CATALOGUE = load_catalogue()
GPUS = option_gpus(load_site(resources.tree("site-config") / "example.toml"), CATALOGUE)
GPT2 = trace_file.read(ROOT / "tests" / "data" / "gpt2-small.json.gz")
FITS = {"l4": True, "a100_40": None, "a100_80": None, "h200": None}
SIZING = Sizing(
    estimate([GPT2], "l4", GPUS["l4"]),
    Placement([Verdict(name, GPUS[name], fits) for name, fits in FITS.items()], "l4"),
    8.25,
)


def on_gpu_of(total_bytes: int) -> Sizing:
    """GPT-2 where there is a GPU that is too small and one that is not."""
    gpus = {"small": GPUS["l4"].model_copy(update={"total_bytes": total_bytes}), "l4": GPUS["l4"]}
    found = estimate([GPT2], "l4", GPUS["l4"])
    verdicts = [Verdict(name, gpu, found.fits(gpu)) for name, gpu in gpus.items()]
    return Sizing(found, Placement(verdicts, "l4"), 1.0)


def test_the_object_has_everything_that_the_schema_names(tmp_path: Path) -> None:
    files.write(tmp_path / "report.json", {0: SIZING})
    found = json.loads((tmp_path / "report.json").read_text())
    rank = found["ranks"][0]
    assert found["schema_version"] == 1
    assert (found["engine"], found["torch_version"], found["gpu"]) == (
        "device",
        "2.11.0+cu130",
        "l4",
    )
    assert rank["peak_reserved_bytes"] == 15_252_586_496
    assert rank["required_bytes"] == found["required_bytes"]
    assert (
        found["required_bytes"]
        == 15_252_586_496 + rank["outside_allocator_bytes"] + found["margin_bytes"]
    )
    assert sum(rank["breakdown"].values()) == rank["peak_allocated_bytes"]
    assert list(rank["breakdown"]) == ["PARAM", "BUFFER", "GRAD", "ACT", "TEMP", "OPT", "OTH"]
    assert (rank["steps"], rank["growing"]) == (3, False)
    assert found["confidence"] == {"level": "high", "reasons": []}
    assert [(option["name"], option["fits"]) for option in found["options"]] == list(FITS.items())
    assert (found["choice"], found["wall_seconds"]) == ("l4", 8.25)
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            trace.Seen(40, end=True, batches=(20, 20)),
            "40 optimizer steps seen, 20 of 20 batches, the script's end",
        ),
        (
            trace.Seen(9, end=True, batches=(20, 20), evaluation=(2, 50), checkpoints=1),
            (
                "9 optimizer steps seen, 20 of 20 batches, an evaluation (2 of 50 batches), 1 "
                "file saved, the script's end by ending its loops over data early"
            ),
        ),
        (
            trace.Seen(9, end=True, batches=(20, 20), epochs=(3, 40)),
            (
                "9 optimizer steps seen, 20 of 20 batches, the script's end by ending its loops over "
                "data early"
            ),
        ),
        (trace.Seen(9), "9 optimizer steps seen"),
        (trace.Seen(0, end=True), "3 backward passes and no optimizer seen, the script's end"),
    ],
)
def test_what_was_seen_in_words(seen: trace.Seen, words: str) -> None:
    assert seen_words(dataclasses.replace(GPT2, seen=seen)) == words


def test_what_does_not_train_is_not_said_to_have_made_no_steps() -> None:
    forward = dataclasses.replace(GPT2, marks=[], seen=trace.Seen(0, end=True))
    assert seen_words(forward) == "forward passes and no training seen, the script's end"


def test_the_published_schema_is_the_one_that_is_kept() -> None:
    published = json.loads((ROOT / "docs" / "estimate.schema.json").read_text())
    print_it = (
        "import json; from xmem_slurm.report.json import schema; print(json.dumps(schema(), "
        "indent=2))"
    )
    assert published == json_report.schema(), f'python -c "{print_it}" > docs/estimate.schema.json'
    assert set(published["properties"]) == set(json_report.estimate_object(SIZING))
    added_since = {"host_per_node"}  # an object that an earlier version wrote is one, too
    assert set(published["properties"]) - set(published["required"]) == added_since


@pytest.mark.parametrize(
    "change", [{"extra": 1}, {"required_bytes": -1}, {"ranks": []}, {"schema_version": 2}]
)
def test_what_the_schema_does_not_allow_is_refused(change: dict[str, object]) -> None:
    found = json_report.estimate_object(SIZING)
    json_report.Report.model_validate(found)
    with pytest.raises(pydantic.ValidationError):
        json_report.Report.model_validate(found | change)


def test_the_lines_are_few_and_begin_with_the_answer() -> None:
    change = Change("gres", "gpu:h200:1", "gpu:l4:1", "line 3 of the script")
    lines = [
        *terminal.estimate_lines(SIZING.estimate),
        terminal.outcome([change], SIZING, typed=True),
    ]
    assert lines == [
        (
            "GPU memory needed: 15.35 GiB = 14.21 GiB peak + 640.00 MiB CUDA context + 530.00 MiB "
            "margin"
        ),
        (
            "at the peak: activations 8.15 GiB, temporary 3.07 GiB, optimizer state 957.65 MiB, "
            "parameters 475.46 MiB"
        ),
        (
            "confidence high: 3 optimizer steps seen; the margin is enough for 96% of runs like the "
            "160 measured"
        ),
        (
            "--gres=gpu:h200:1 -> --gres=gpu:l4:1 (line 3 of the script):\nl4 has 21.95 GiB (6.61 "
            "GiB to spare), of 4"
            " options the cheapest on which it fits [XMEM_KEEP_TYPE=1 keeps the type you wrote]"
        ),
    ]


def test_each_reason_has_a_line_of_its_own() -> None:
    noted = [trace.Noted(Doubt.NCCL, "", 2), trace.Noted(Doubt.NOT_REACHED, "the script's own end")]
    found = estimate([dataclasses.replace(GPT2, doubts=noted)], "l4", GPUS["l4"])
    first, *reasons = terminal.estimate_lines(found)[-3:]
    assert first.startswith("confidence medium: 3 optimizer steps seen; the margin is ")
    assert reasons == [f"- {reason}" for reason in found.reasons]


def test_where_the_need_is_less_than_the_peak_both_are_said_and_what_is_to_spare_is_never_negative() -> (
    None
):
    varied, least, _ = growing_batches(GPT2, weights=1 * GIB, largest=300 << 20)
    found = estimate([varied], "l4", GPUS["l4"])
    rank = found.largest
    tight = GPUS["l4"].model_copy(update={"total_bytes": found.required_bytes})
    sized = Sizing(found, Placement([Verdict("tight", tight, found.fits(tight))], "tight"), 1.0)
    first = terminal.estimate_lines(found)[0]
    assert f"= {human(rank.fits_in_bytes)} minimum + " in first
    assert first.endswith(
        f" margin; would use up to {human(rank.replay.peak_reserved_bytes + tight.context_bytes)}"
    )
    (line,) = terminal.option_lines(outlooks(sized), None)
    assert line.endswith("  fits; 0 B to spare")
    assert "(0 B to spare)" in terminal.reason(sized)
    less = dataclasses.replace(
        sized.placement.verdicts[0],
        gpu=tight.model_copy(update={"total_bytes": found.required_bytes - 1}),
    )
    sized_on_less = dataclasses.replace(
        sized, placement=dataclasses.replace(sized.placement, verdicts=[less])
    )
    assert "(enough, replayed on it)" in terminal.reason(sized_on_less)
    document = json_report.estimate_object(sized)
    assert document["required_bytes"] < 3 * least < document["uses_up_to_bytes"]
    assert document["ranks"][0]["fits_in_bytes"] == rank.fits_in_bytes
    assert "would use up to" in html.render(sized)
    assert "would use up to" not in html.render(SIZING)
    page = html.render(sized)
    assert page.index("torch reserves more than the job needs") < page.index("<figure")


def test_what_cudnn_tries_at_first_is_said_beside_the_need() -> None:
    tries = trace.Noted(Doubt.CUDNN_TRIALS, "torch.backends.cudnn.benchmark", 1)
    varied, _, _ = growing_batches(GPT2, weights=1 * GIB, largest=300 << 20)
    for seen in (GPT2, varied):
        found = estimate(
            [dataclasses.replace(seen, doubts=[*seen.doubts, tries])], "l4", GPUS["l4"]
        )
        assert found.confidence == estimate([seen], "l4", GPUS["l4"]).confidence
        assert "more while cudnn.benchmark tries plans" in terminal.estimate_lines(found)[0]


def test_an_option_on_which_every_step_frees_its_cache_says_so() -> None:
    sizes, made = (400, 500), 24
    repeated = dataclasses.replace(
        GPT2,
        allocations=[
            trace.Allocation(sizes[n % 2] << 20, n % 2, trace.Category.ACT) for n in range(made)
        ],
        events=[trace.Event(op, n) for n in range(made) for op in (0, 1, 2)],
        marks=[trace.Mark("step", n) for n in range(2, made + 1, 2)],
        sites=(),
        made_at=(),
    )
    found = estimate([repeated], "l4", GPUS["l4"])
    small = GPUS["l4"].model_copy(update={"total_bytes": found.required_bytes - (100 << 20)})
    sized = Sizing(found, Placement([Verdict("small", small, found.fits(small))], None), 1.0)
    (line,) = terminal.option_lines(outlooks(sized), None)
    assert (
        "does not fit: it would run, but have to free its cache in 11 of 11 steps that only "
        "repeat others" in line
    )
    assert json_report.estimate_object(sized)["options"][0]["short_steps"] == 11
    assert "in 11 of 11 steps" in html.render(sized)


def test_what_is_not_changed_is_said_with_the_flag_to_change() -> None:
    change = Change("gres", "gpu:1", "gpu:l4:1", "the command line")
    assert terminal.advice([change], SIZING).startswith(
        "nothing was changed; this would do:\n--gres=gpu:1 -> --gres=gpu:l4:1 (the command line):\n"
        "l4 has 21.95 GiB"
    )
    assert terminal.advice([], SIZING).startswith("the request stays as it is:\nl4 has")
    assert "KEEP_TYPE" not in terminal.outcome([change], SIZING, typed=False)


def test_every_option_has_a_line() -> None:
    lines = terminal.option_lines(outlooks(SIZING), remedy(SIZING))
    assert lines == [
        "* l4        21.95 GiB  fits; 6.61 GiB to spare",
        "  a100_40   39.38 GiB  not tried: a better one fits; 24.04 GiB to spare",
        "  a100_80   79.15 GiB  not tried: a better one fits; 63.80 GiB to spare",
        "  h200     139.71 GiB  not tried: a better one fits; 124.23 GiB to spare",
    ]


def test_a_share_has_its_own_units_memory_not_the_whole_gpus() -> None:
    share = Share(kind="shard", of="h200", per_gpu=139)
    verdicts = [
        Verdict("shard", GPUS["h200"], True, 16, share),
        Verdict("h200", GPUS["h200"], None),
    ]
    sized = Sizing(SIZING.estimate, Placement(verdicts, "shard"), 1.0)
    of_share, whole = outlooks(sized)
    unit = GPUS["h200"].total_bytes // 139
    assert of_share.gpu.total_bytes == 16 * unit
    assert whole.headroom_bytes - of_share.headroom_bytes == GPUS["h200"].total_bytes - 16 * unit
    assert "16 of 139 shards of h200 have 16.0" in terminal.reason(sized)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"order": "memory"}, "of 4 options the one that takes the least GPU memory"),
        (
            {"order": "start", "starts": {"l4": 43200.0}},
            "of 4 options the first to start (1970-01-01 ",
        ),
        (
            {"order": "start"},
            "of 4 options the cheapest on which it fits; Slurm did not say when each would start",
        ),
        (
            {"tied": ["a100_40"]},
            "of 4 options the cheapest on which it fits; a100_40 is no better and no smaller",
        ),
        ({"tied": ["a100_40", "h200"]}, "; a100_40, h200 are no better and no smaller"),
    ],
)
def test_the_reason_says_what_was_ranked_by_and_what_was_as_good(
    more: dict[str, object], why: str
) -> None:
    sized = dataclasses.replace(SIZING, placement=dataclasses.replace(SIZING.placement, **more))
    assert why in terminal.reason(sized)


def test_a_line_that_sets_up_and_failed_is_told_with_the_torch_that_was_found() -> None:
    noted = trace.Noted(Doubt.SET_UP, "line 3: module: command not found")
    failed = estimate(
        [dataclasses.replace(GPT2, doubts=[*GPT2.doubts, noted])], "h200", GPUS["h200"]
    )
    told = f"(line 3: module: command not found), so this is for torch {GPT2.torch_version}"
    assert terminal.brief_line(Sizing(failed, Placement([], None), 0.0)).endswith(told)


def test_what_is_needed_is_compared_with_what_was_asked_for() -> None:
    asked = dataclasses.replace(SIZING, asked=Verdict("h200", GPUS["h200"], True))
    share = SIZING.estimate.required_bytes / GPUS["h200"].total_bytes
    assert f", {share:.0%} of the h200 asked for; confidence" in terminal.brief_line(asked)
    assert "asked for" not in terminal.brief_line(SIZING)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("h200", "\nl4 can be 16 times slower than h200 (data sheets); the time limit stays"),
        ("a100-sxm4-40gb", "\nl4 can be 5 times slower than a100-sxm4-40gb (data sheets); "),
        ("l4", None),
        ("rtx-3060", None),  # a slower one
    ],
)
def test_a_gpu_that_is_much_slower_than_the_one_asked_for_is_called_that(
    asked: str, words: str | None
) -> None:
    change = Change("gres", "gpu:big:1", "gpu:l4:1", "the command line")
    sizing = dataclasses.replace(SIZING, asked=Verdict(asked, CATALOGUE[asked], True))
    for told in (
        terminal.outcome([change], sizing, typed=True),
        terminal.advice([change], sizing),
    ):
        assert words in told if words else "slower" not in told
    assert "slower" not in terminal.outcome([], sizing, typed=True)


@pytest.mark.parametrize(
    ("epochs", "words"), [((3, 200), " (3 of 200 epochs run whole)"), ((5, 5), ""), (None, "")]
)
def test_epochs_that_stand_for_others_are_on_the_screen(
    epochs: tuple[int, int] | None, words: str
) -> None:
    of_few = dataclasses.replace(GPT2, seen=trace.Seen(9, end=True, epochs=epochs))
    sizing = Sizing(estimate([of_few], "l4", GPUS["l4"]), Placement([], None), 1.0)
    assert terminal.brief_line(sizing).endswith(f"confidence high{words}")


def test_an_option_that_is_too_small_says_what_had_no_room() -> None:
    sizing = on_gpu_of(12 * GIB)
    small = outlooks(sizing)[0]
    oom = replay(GPT2, sizing.estimate.largest.capacity_on(small.gpu)).oom
    assert oom is not None
    assert small.failure is not None
    assert small.failure.requested_bytes == oom.requested_bytes
    assert small.failure.allocated_bytes == sum(oom.allocated_bytes.values())
    assert small.failure.phase == "forward, step 1"
    room = (
        f"9.43 GiB allocated of {human(small.allocator_bytes)}; the rest is CUDA context and margin"
    )
    assert terminal.option_lines([small], None) == [
        f"  small   12.00 GiB  does not fit: no room for 1.53 GiB in forward, step 1, with {room}"
    ]


def test_an_allocator_setting_is_advised_only_where_a_replay_shows_that_it_helps() -> None:
    margin, context = SIZING.estimate.largest.margin_bytes, GPUS["l4"].context_bytes
    allocated = SIZING.estimate.largest.replay.peak_allocated_bytes
    enough = on_gpu_of(allocated + margin + context + (512 << 20))
    assert [verdict.fits for verdict in enough.placement.verdicts] == [False, True], (
        "fragments are what is too much"
    )
    assert remedy(enough) == Remedy("small", "expandable_segments:True", enough=True)
    assert remedy(on_gpu_of(allocated + margin)) == Remedy(
        "small", "expandable_segments:True", enough=False
    )
    too_little = Remedy("small", "expandable_segments:True", enough=False)
    (line,) = terminal.option_lines([], too_little)
    assert line.endswith(
        "is not enough (replayed); `xmem-slurm plan` looks for another way to train it"
    )
    assert remedy(SIZING) is None, "no option is too small"
    shares = [Verdict("shard", GPUS["l4"], False, 0, Share(kind="shard", of="l4", per_gpu=22))]
    assert (
        Placement([*shares, *enough.placement.verdicts], "l4").too_small
        == enough.placement.verdicts[0]
    )


def test_a_change_is_advised_with_what_a_dry_run_saw_of_it() -> None:
    small = on_gpu_of(12 * GIB)
    tried = [
        Advice("small", "half the batch (4)", SIZING.estimate, fits=True),
        Advice("small", "x", None, why_not="y"),
    ]
    found = dataclasses.replace(small, advice=tried)
    lines = terminal.option_lines([], None, found.advice)
    assert lines == [
        "with half the batch (4): 15.35 GiB needed, fits small (seen in a dry run with it)",
        "x: not tried: y",
    ]
    first, second = json_report.estimate_object(found)["advice"]
    assert first["required_bytes"] == SIZING.estimate.required_bytes
    assert (second["required_bytes"], second["fits"], second["why_not"]) == (None, None, "y")
    page = html.render(found)
    assert page.index("With half the batch (4): ") < page.index("<figure"), "beside the answer"
    assert "<p>Not tried: x (y).</p>" in page
    assert "--advice" not in page
    assert "--advice" in html.render(small), "how it is found"


@pytest.mark.parametrize(
    ("confidence", "shared"),
    [
        ("high", ["its later epochs may have been cut short", "of 130 estimates compared with"]),
        (
            "medium",
            [
                "each reason says what, and what it could cost",
                "by up to 20 % of the peak",
                "does not mean that the figure is wrong",
            ],
        ),
    ],
)
def test_what_a_confidence_means_is_said_as_in_the_guide(
    confidence: str, shared: list[str]
) -> None:
    guide = " ".join((ROOT / "docs" / "guide.md").read_text().split())
    assert all(
        words in guide and words in terminal.HOW_SURE[confidence].replace(" Of ", " of ")
        for words in shared
    )


@pytest.mark.parametrize(
    ("known", "head"),
    [
        ({}, "GPU memory estimate</p>"),
        (
            {"script": "job.sh", "made": 0.0, "asked": Verdict("h200", GPUS["h200"], True)},
            "GPU memory estimate of <code>job.sh</code>, 1970-01-01 00:00; it asks for h200</p>",
        ),
        (
            {"script": "<a>.sh", "component": 0},
            "GPU memory estimate of <code>&lt;a&gt;.sh</code>, component 0</p>",
        ),
    ],
)
def test_the_head_of_the_page_says_of_which_job_it_is(
    known: dict[str, object], head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    assert f'<p class="over">{head}' in html.render(dataclasses.replace(SIZING, **known))


def test_the_page_says_how_sure_it_is_before_the_chart_with_every_reason() -> None:
    doubted = dataclasses.replace(GPT2, doubts=[trace.Noted(Doubt.NOT_REACHED, "", 1)])
    sure = html.render(SIZING)
    unsure = html.render(Sizing(estimate([doubted], "l4", GPUS["l4"]), SIZING.placement, 1))
    assert sure.index("everything it did was seen") < sure.index("<figure")
    (reason,) = estimate([doubted], "l4", GPUS["l4"]).reasons
    assert unsure.index("does not mean that the figure is wrong") < unsure.index(
        markupsafe.escape(reason)
    )
    assert unsure.index(markupsafe.escape(reason)) < unsure.index("<figure")


def test_a_job_that_has_the_setting_is_not_advised_to_take_it() -> None:
    has_it = dataclasses.replace(GPT2, allocator_settings="expandable_segments:True")
    small = GPUS["l4"].model_copy(update={"total_bytes": 10 * GIB})
    nowhere = Sizing(
        estimate([has_it], "l4", GPUS["l4"]), Placement([Verdict("small", small, False)], None), 1.0
    )
    assert remedy(nowhere) is None


def test_a_job_too_large_for_every_option_is_told_so() -> None:
    nowhere = Sizing(SIZING.estimate, Placement([Verdict("l4", GPUS["l4"], False)], None), 1.0)
    assert (
        "no GPU option open to this job is large enough; the largest has 21.95 GiB"
        in terminal.too_small(nowhere)
    )
    assert "no nodes for this partition" in terminal.too_small(
        Sizing(SIZING.estimate, Placement([], None), 1.0)
    )


def test_a_files_name_says_which_report_it_is(tmp_path: Path) -> None:
    for name, begin in {
        "r.html": b"<!DOCTYPE",
        "r.pickle": b"\x80",
        "r.trace.json": b'{"traceEvents',
        "r": b"{\n",
    }.items():
        files.write(tmp_path / name, {0: SIZING})
        assert (tmp_path / name).read_bytes().startswith(begin)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", ["r.html", "r.pickle", "r.trace.json", "r"])
def test_a_report_neither_replaces_a_pipe_nor_waits_for_its_reader(
    tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="neither a file nor a device"):
        files.write(tmp_path / name, {0: SIZING})
    assert (tmp_path / name).is_fifo()


def test_the_counters_reach_the_peaks_of_the_estimate() -> None:
    rank = SIZING.estimate.largest
    found = list(perfetto.events(rank))
    counters = [event for event in found if event["ph"] == "C"]
    allocated = [sum(event["args"].values()) for event in counters if event["name"] == "allocated"]
    assert max(allocated) == rank.replay.peak_allocated_bytes
    assert (
        max(event["args"].get("bytes", 0) for event in counters) == rank.replay.peak_reserved_bytes
    )
    assert [event["name"] for event in found if event["ph"] == "X"][:4] == [
        "forward, step 1",
        "backward, step 1",
        "optimizer, step 1",
        "forward, step 2",
    ]
    assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)


def test_the_page_asks_nothing_of_the_network_and_is_small() -> None:
    events, count = list(GPT2.events), len(GPT2.allocations)
    repeats = range(5)
    long = dataclasses.replace(
        GPT2,
        allocations=[allocation for _ in repeats for allocation in GPT2.allocations],
        events=[
            trace.Event(e.op, e.allocation + n * count)
            for n in repeats
            for e in [*events, *left_over(events)]
        ],
        marks=[
            mark._replace(allocations=mark.allocations + n * count)
            for n in repeats
            for mark in GPT2.marks
        ],
    )
    assert len(long.events) > 65_000
    page = html.render(Sizing(estimate([long], "l4", GPUS["l4"]), SIZING.placement, 1.0))
    assert len(page.encode()) < 1_000_000
    assert "http" not in page
    assert "url(" not in page
    assert ' src="' not in page


def left_over(events: list[trace.Event]) -> list[trace.Event]:
    """The frees of what a run leaves behind, so that it can be run again after itself."""
    alive: dict[int, None] = {}
    for event in events:
        if event.op == trace.Op.ALLOC:
            alive[event.allocation] = None
        elif event.op == trace.Op.FREE_REQUESTED:
            del alive[event.allocation]
    return [
        trace.Event(op, n)
        for n in alive
        for op in (trace.Op.FREE_REQUESTED, trace.Op.FREE_COMPLETED)
    ]


def test_a_page_says_nothing_in_the_voice_of_the_job() -> None:
    odd = dataclasses.replace(GPT2, argv=["python", "</script><script>alert(1)</script>.py"])
    page = html.render(Sizing(estimate([odd], "<b>", GPUS["l4"]), SIZING.placement, 1.0))
    assert "<script>alert" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, False), (1.6, True)])
def test_progress_is_shown_on_a_terminal_and_only_if_it_lasts(seconds: float, shown: bool) -> None:
    code = (
        "import time; from xmem_slurm.report import terminal\n"
        f"with terminal.progress('point 1') as say:\n    say('point 2 [/b]')\n    time.sleep({seconds})"
    )
    child, screen = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    written = b""
    with contextlib.suppress(OSError):  # the child has closed its terminal
        while part := os.read(screen, 65536):
            written += part
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bool(re.search(rb"point 2 \[/b\]: \d+ s, starting", written)) is shown
    assert b"point 1" not in written


def test_in_a_log_there_is_a_line_now_and_then_for_who_wants_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "NEWS_SECONDS", 0.01)
    with terminal.progress("point 1", 60, verbose=True):
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("point 1: 0 of 60 CPU seconds, starting\n")


def test_a_program_that_shows_it_is_told_as_often_as_it_wants(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE_SECONDS", 0.0)

    def wait() -> None:
        terminal.tell_every(0.01)
        with terminal.progress("point 1"):
            time.sleep(0.2)

    contextvars.copy_context().run(wait)
    assert capsys.readouterr().err.count("point 1: 0 s, starting\n") > 1


def test_progress_says_nothing_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("point 1") as say:
        say("point 2")
    assert capsys.readouterr() == ("", "")


FOUND_TORCH = f"(line 7: module: not found), so this is for torch {GPT2.torch_version}"


@pytest.mark.parametrize(
    ("doubts", "told"),
    [
        ([trace.Noted(Doubt.NCCL, "", 2)], "medium:\nNCCL's buffers were not seen"),
        (
            [
                trace.Noted(Doubt.NCCL, "", 2),
                trace.Noted(Doubt.NOT_REACHED, "the script's own end (719 steps seen)"),
            ],
            (
                "medium:\nthe script's own end (719 steps seen) was not reached [`xmem-slurm explain` "
                "says more]"
            ),
        ),
        (
            [
                trace.Noted(Doubt.SET_UP, "line 7: module: not found"),
                trace.Noted(Doubt.ASSUMED_VALUES, "a mask (a.py:3)"),
            ],
            f"medium:\na mask (a.py:3); part of the script failed in the dry run {FOUND_TORCH}",
        ),
    ],
)
def test_what_may_cost_the_most_is_on_the_screen(doubts: list[trace.Noted], told: str) -> None:
    found = estimate([dataclasses.replace(GPT2, doubts=doubts)], "l4", GPUS["l4"])
    assert terminal.brief_line(Sizing(found, Placement([], None), 0.0)).endswith(
        f"confidence {told}"
    )


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("jobs/train.sh", "`xmem-slurm explain jobs/train.sh`"),
        ("my job.sh", "`xmem-slurm explain 'my job.sh'`"),
        ("/dev/stdin", "`xmem-slurm explain`"),
        (None, "`xmem-slurm explain`"),
    ],
)
def test_explain_is_named_with_the_script(script: str | None, told: str) -> None:
    """Others may have been estimated since."""
    doubts = [trace.Noted(Doubt.NCCL, "", 2), trace.Noted(Doubt.NOT_REACHED, "its end")]
    found = estimate([dataclasses.replace(GPT2, doubts=doubts)], "l4", GPUS["l4"])
    sized = Sizing(found, Placement([], None), 0.0)
    assert terminal.brief_line(sized, script).endswith(f" [{told} says more]")
    job = Submission(("--gres=gpu:1", "train.sh"), {}, b"#!/bin/sh\n")
    decision = Decision(Kind.NOTHING_FITS, job, job, {0: Part(Kind.NOTHING_FITS, sized)})
    (line, *_) = terminal.decision_lines(decision, brief=True)
    assert "`xmem-slurm explain train.sh`" in line


def test_a_choice_that_was_kept_from_smaller_gpus_is_not_called_the_cheapest() -> None:
    kept = dataclasses.replace(SIZING, no_smaller="no smaller GPU than the one asked for")
    assert "the cheapest that is no smaller than what was asked for" in terminal.reason(kept)


def test_an_option_that_context_and_margin_fill_says_so() -> None:
    (small, *_) = outlooks(on_gpu_of(1 * GIB))
    assert small.allocator_bytes == 0
    assert "CUDA context and margin alone are more than it has" in "\n".join(
        terminal.option_lines([small], None)
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--mem=8G",),
            "it holds 2 x 6.00 GiB of host memory on each node, of which the job asks for 8.00 GiB",
        ),
        (("--mem-per-cpu=2G", "--cpus-per-task=2"), "of which the job asks for 4.00 GiB"),
        (("--mem-per-gpu=3G", "--gres=gpu:2"), "of which the job asks for 6.00 GiB"),
        (("--mem=16G",), ""),
        ((), ""),
    ],
)
def test_a_job_is_told_that_it_asks_for_less_host_memory_than_it_holds(
    options: tuple[str, ...], told: str
) -> None:
    found = estimate(
        [dataclasses.replace(GPT2, host_bytes=6 << 30, world_size=4, nodes=2)], "l4", GPUS["l4"]
    )
    said = terminal.lacks_host_memory(
        found, Submission((*options, "job.sh"), {}, b"#!/bin/sh\n").request
    )
    assert told in said
    assert bool(said) == bool(told)


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_held_on_the_host_is_said_to_be_of_so_far(*, ended: bool) -> None:
    seen = trace.Seen(9, end=ended)
    held = dataclasses.replace(GPT2, host_bytes=6 << 30, seen=seen)
    lines = terminal.estimate_lines(estimate([held], "l4", GPUS["l4"]))
    (line,) = (line for line in lines if line.startswith("host memory"))
    so_far = "" if ended else " when the dry run ended, perhaps more later"
    assert line.startswith(f"host memory on each node: 6.00 GiB{so_far}, and up to 1.00 GiB more")


@pytest.mark.parametrize(
    ("requested", "told"),
    [
        (0, "--mem must have room for it"),
        (8, "the job asks for 8.00 GiB, and may be killed"),
        (12, "the job asks for 12.00 GiB"),
    ],
)
def test_an_estimate_has_what_is_held_on_the_host_beside_what_the_job_asks_for(
    requested: int, told: str
) -> None:
    ended = trace.Seen(9, end=True)
    held = dataclasses.replace(GPT2, host_bytes=6 << 30, world_size=4, nodes=2, seen=ended)
    found = estimate([held], "l4", GPUS["l4"])
    line = f"host memory on each node: 2 x 6.00 GiB, and up to 2.00 GiB more for CUDA; {told}"
    assert line in terminal.estimate_lines(found, host_requested=requested << 30)
    sized = Sizing(found, SIZING.placement, 1.0, host_requested=requested << 30)
    assert f"H{line[1:]}.</p>" in html.render(sized)
    assert json_report.estimate_object(sized)["host_per_node"] == {
        "processes": 2,
        "held_bytes": 12 << 30,
        "for_cuda_bytes": 2 << 30,
        "requested_bytes": requested << 30 or None,
    }


def test_even_little_host_memory_is_said_where_the_job_asks_for_less() -> None:
    little = estimate([dataclasses.replace(GPT2, host_bytes=GIB // 2)], "l4", GPUS["l4"])
    assert terminal.on_host(little, GIB) == ""
    assert terminal.on_host(little, GIB // 4).endswith("for 256.00 MiB, and may be killed")


def test_the_page_says_what_is_held_on_the_host_in_the_words_of_the_terminal() -> None:
    held = dataclasses.replace(GPT2, host_bytes=6 << 30, world_size=4, nodes=2)
    found = estimate([held], "l4", GPUS["l4"])
    said = terminal.on_host(found)
    assert said in terminal.estimate_lines(found)
    page = html.render(Sizing(found, SIZING.placement, 1.0))
    assert f'id="host">H{said[1:]}.</p>' in page
    assert page.index('id="host"') < page.index("<figure"), "next to the answer"
    assert 'id="host"' not in html.render(SIZING), "no more than any process of torch holds"


def test_what_is_held_on_the_host_is_text_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "on_host", lambda *_: "host <b>memory</b>")
    assert 'id="host">Host &lt;b&gt;memory&lt;/b&gt;.</p>' in html.render(SIZING)


def test_a_comparison_fits_the_terminal() -> None:
    """What is long goes on in the next line; where nobody looks, each stays on one."""
    document = json_report.estimate_object(SIZING)
    found = json_report.Report.model_validate(document)
    document = json.loads(found.model_dump_json())
    document["ranks"][0]["largest"][0] |= {"module": "transformer.h.11.mlp.c_fc" * 3, "line": 81}
    larger = json_report.Report.model_validate(document)
    compared = comparison.compare(found, larger)
    names = "runs/one.sh", "runs/another.sh"
    whole, narrow = comparison.lines(compared, names), comparison.lines(compared, names, 80)
    assert max(map(len, narrow)) <= 80 < max(map(len, whole))
    assert len(narrow) > len(whole) == 1 + len(list(comparison.rows(compared)))
    letters = ("".join(sorted("".join("".join(lines).split()))) for lines in (whole, narrow))
    assert len(set(letters)) == 1  # nothing is cut
