"""The trace reader: numbers in place of addresses, categories from tags and phases, errors for what
is no trace."""

import gzip
import json
from pathlib import Path

import pytest

from xmem_slurm import trace, trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.errors import NoEstimate
from xmem_slurm.trace import NOWHERE, Category, Noted, Op, Origin

GPT2 = Path(__file__).parents[1] / "data" / "gpt2-small.json.gz"

HEADER = {
    "schema_version": 1,
    "state": "exit",
    "error": None,
    "pid": 1,
    "argv": ["python"],
    "rank": 0,
    "world_size": 1,
    "torch_version": "2.11.0+cu130",
    "cuda_version": "13.0",
    "allocator_settings": "",
    "gpu": {"name": "H200", "capability": "9.0", "multiprocessors": 132, "total_bytes": 1 << 37},
    "marks": [],
    "tags": [],
    "recorded": {},
    "doubts": [],
}


def read(
    tmp_path: Path, history: list[tuple[str, int, int, int]], **changes: object
) -> trace.Trace:
    columns = dict(
        zip(
            ("action", "address", "size", "stream"),
            map(list, zip(*history, strict=True)),
            strict=True,
        )
    )
    file = tmp_path / "1.json.gz"
    file.write_bytes(gzip.compress(json.dumps(HEADER | {"events": columns} | changes).encode()))
    return trace_file.read(file)


def test_an_address_used_twice_is_two_allocations(tmp_path: Path) -> None:
    once = [
        ("alloc", 4096, 100, 0),
        ("free_requested", 4096, 100, 0),
        ("free_completed", 4096, 100, 0),
    ]
    found = read(tmp_path, [("segment_alloc", 4096, 2 << 20, 0), *once, ("alloc", 4096, 200, 0)])
    assert [a.size for a in found.allocations] == [100, 200]
    assert list(found.events) == [
        (Op.ALLOC, 0),
        (Op.FREE_REQUESTED, 0),
        (Op.FREE_COMPLETED, 0),
        (Op.ALLOC, 1),
    ]


def test_streams_become_small_numbers_and_zero_is_the_default(tmp_path: Path) -> None:
    found = read(
        tmp_path, [("alloc", 1, 10, 99887766), ("alloc", 2, 10, 0), ("alloc", 3, 10, 99887766)]
    )
    assert [a.stream for a in found.allocations] == [1, 0, 1]


def test_segments_given_back_are_one_empty_cache(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [
            ("alloc", 1, 10, 0),
            ("segment_free", 8, 9, 0),
            ("segment_free", 9, 9, 0),
            ("alloc", 2, 1, 0),
        ],
    )
    assert [event.op for event in found.events] == [Op.ALLOC, Op.EMPTY_CACHE, Op.ALLOC]


def test_an_allocation_is_asked_back_once(tmp_path: Path) -> None:
    found = read(
        tmp_path, [("alloc", 7, 10, 0), ("free_requested", 7, 10, 0), ("free_requested", 7, 10, 0)]
    )
    assert [event.op for event in found.events] == [Op.ALLOC, Op.FREE_REQUESTED]


def test_steps_that_are_left_out_name_the_events_of_one_and_no_event_twice(tmp_path: Path) -> None:
    once = [
        ("alloc", 4096, 100, 0),
        ("free_requested", 4096, 100, 0),
        ("free_completed", 4096, 100, 0),
    ]
    found = read(
        tmp_path,
        [*once, ("left_out", 7, 3, 0), *once, ("left_out", 9, 1 << 40, 0), ("left_out", -1, 3, 0)],
    )
    assert found.repeats == [trace.Repeat(0, 3, 7), trace.Repeat(3, 6, 9)]
    assert len(found.events) == 6


def test_frees_of_what_was_allocated_before_recording_are_left_out(tmp_path: Path) -> None:
    found = read(
        tmp_path, [("free_requested", 7, 10, 0), ("free_completed", 7, 10, 0), ("alloc", 7, 20, 0)]
    )
    assert [event.op for event in found.events] == [Op.ALLOC]


def test_what_is_allocated_where_something_was_has_freed_it(tmp_path: Path) -> None:
    waits = [
        ("alloc", 7, 10, 0),
        ("free_requested", 7, 10, 0),
        ("alloc", 7, 20, 0),
        ("alloc", 7, 30, 0),
    ]
    ops = [(event.op, event.allocation) for event in read(tmp_path, waits).events]
    assert ops == [
        (Op.ALLOC, 0),
        (Op.FREE_REQUESTED, 0),
        (Op.FREE_COMPLETED, 0),
        (Op.ALLOC, 1),
        (Op.FREE_REQUESTED, 1),
        (Op.FREE_COMPLETED, 1),
        (Op.ALLOC, 2),
    ]


def test_a_tag_names_the_allocation_that_held_the_address_then(tmp_path: Path) -> None:
    reused = [
        ("alloc", 5, 10, 0),
        ("free_requested", 5, 10, 0),
        ("free_completed", 5, 10, 0),
        ("alloc", 5, 20, 0),
    ]
    tags = [{"category": "PARAM", "allocations": 2, "addresses": [5]}]
    found = read(tmp_path, reused, tags=tags)
    assert [a.category for a in found.allocations] == [Category.TEMP, Category.PARAM]


def test_what_lives_from_forward_into_backward_is_an_activation(tmp_path: Path) -> None:
    history = [
        ("alloc", 1, 10, 0),  # freed before backward: temporary
        ("free_requested", 1, 10, 0),
        ("free_completed", 1, 10, 0),
        ("alloc", 2, 10, 0),  # freed in backward: activation
        ("alloc", 3, 10, 0),  # made in backward: temporary
        ("free_requested", 2, 10, 0),
        ("free_completed", 2, 10, 0),
        ("free_requested", 3, 10, 0),
        ("free_completed", 3, 10, 0),
        ("alloc", 4, 10, 0),  # kept for ever, by whom is not known
    ]
    marks = [
        {"kind": "backward", "allocations": 2, "seconds": 0},
        {"kind": "step", "allocations": 3, "seconds": 0},
    ]
    found = read(tmp_path, history, marks=marks)
    assert [a.category for a in found.allocations] == [
        Category.TEMP,
        Category.ACT,
        Category.TEMP,
        Category.OTH,
    ]
    assert found.steps == 1


def test_an_allocation_knows_its_line_and_a_parameter_its_name(tmp_path: Path) -> None:
    line = ["/a/train.py", 7, "main", "h.0"]
    found = read(
        tmp_path,
        [
            ("alloc", 5, 10, 0),
            ("free_requested", 5, 10, 0),
            ("alloc", 6, 20, 0),
            ("alloc", 7, 20, 0),
        ],
        sites={"found": [["", 0, "", ""], line, line], "of": [2, 0, 1]},
        tags=[
            {
                "category": "PARAM",
                "allocations": 3,
                "addresses": [6, 7],
                "names": ["h.0.weight", ""],
            }
        ],
    )
    assert found.site_of(0) == Origin(*line)
    assert found.site_of(1) == NOWHERE._replace(module="h.0.weight")
    assert found.site_of(2) == Origin(*line)


def test_a_trace_of_an_earlier_release_has_no_lines(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [("alloc", 5, 10, 0)],
        tags=[{"category": "PARAM", "allocations": 1, "addresses": [5]}],
    )
    assert found.site_of(0) == NOWHERE


@pytest.mark.parametrize("of", [[0], [0, 1], [0, 0, 0]])
def test_lines_that_are_not_those_of_the_allocations_make_no_trace(
    tmp_path: Path, of: list[int]
) -> None:
    with pytest.raises(NoEstimate, match="other sites than allocations"):
        read(
            tmp_path,
            [("alloc", 5, 10, 0), ("alloc", 6, 10, 0)],
            sites={"found": [["", 0, "", ""]], "of": of},
        )


WRONG = {"empty": b"", "not gzip": b"{}"} | {
    text: gzip.compress(text.encode()) for text in ("{", "{}", "[1]")
}


@pytest.mark.parametrize(
    "content", [*WRONG.values(), gzip.compress(b"x" * 99)[:-9]], ids=[*WRONG, "cut off"]
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.json.gz"
    file.write_bytes(content)
    with pytest.raises(NoEstimate, match=r"bad\.json\.gz"):
        trace_file.read(file)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoEstimate, match="schema version 2"):
        read(tmp_path, [("alloc", 1, 1, 0)], schema_version=2)


def test_the_recorded_run_of_gpt2_is_read_whole() -> None:
    found = trace_file.read(GPT2)
    parameters = sum(a.size for a in found.allocations if a.category is Category.PARAM)
    assert found.steps == 3
    # GPT-2 small's parameters in fp32, the tied head counted once
    assert parameters == 4 * 124_439_808
    live = peak = 0
    for event in found.events:
        size = found.allocations[event.allocation].size
        live += {Op.ALLOC: size, Op.FREE_COMPLETED: -size}.get(Op(event.op), 0)
        peak = max(peak, live)
    assert peak == found.recorded["requested_bytes"]


def test_a_doubt_that_nobody_knows_makes_it_no_trace(tmp_path: Path) -> None:
    history = [("alloc", 5, 10, 0)]
    known = {"code": "nccl", "detail": "buffers of a communicator", "count": 2}
    assert read(tmp_path, history, doubts=[known]).doubts == [
        Noted(Doubt.NCCL, "buffers of a communicator", 2)
    ]
    with pytest.raises(NoEstimate, match=r"not a trace: doubts\.1\.code: .*no doubt that there is"):
        read(tmp_path, history, doubts=[known, known | {"code": "cudnn-plans"}])


@pytest.mark.parametrize(
    ("error", "of_type", "of_no_gpu"),
    [
        ("ValueError: loss is 0 (train.py:3)", "ValueError", False),
        ("FileNotFoundError: data.bin (train.py:3)", "FileNotFoundError", True),
        ("KeyboardInterrupt (train.py:3)", "KeyboardInterrupt", False),
        ("EOFError", "EOFError", True),
        ("torch._C._LinAlgError: singular", "torch._C._LinAlgError", False),
        ("SystemExit: 2 (train.py:3)", "SystemExit", False),
        ("os._exit(3)", "os._exit", False),
        ("an end before the first step of its optimizer (see its log)", "", False),
        ("torch 2.13.0+cpu in /x is not a CUDA build", "", False),
        (
            "URLError: no; it had asked for https://x, and a dry run has no network",
            "URLError",
            True,
        ),
    ],
)
def test_how_a_script_was_ended_is_read_once(
    tmp_path: Path, error: str, of_type: str, of_no_gpu: bool
) -> None:
    found = read(tmp_path, [("alloc", 5, 10, 0)], error=error)
    assert found.failure is not None
    assert (found.error, found.failure.type, found.failure.of_no_gpu) == (error, of_type, of_no_gpu)
    assert read(tmp_path, [("alloc", 5, 10, 0)]).failure is None
