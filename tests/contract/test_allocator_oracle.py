"""The model against torch's own allocator: the library of the torch that a job would use, on the
stand-in runtime."""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from benchmarks.allocator_fuzz import SIZES, first_difference, fuzz_one, torch_of_test_python
from benchmarks.allocator_model import ModelRun, Operation
from benchmarks.allocator_oracle import Case, Conversation, Oracle, build
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.releases import release
from xmem_slurm.allocator.replay import Run
from xmem_slurm.allocator.snapshot import snapshot
from xmem_slurm.errors import UsageError
from xmem_slurm.trace_file import read
from xmem_slurm.units import GIB, MIB

pytestmark = pytest.mark.torch

RECORDED = Path(__file__).parents[1] / "data" / "gpt2-small.json.gz"


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return build(torch_of_test_python())


@pytest.mark.parametrize("seed", range(40))
def test_random_operations(oracle: Oracle, seed: int) -> None:
    """The cases of the fuzzer, which `python -m benchmarks.allocator_fuzz` runs by the million."""
    assert fuzz_one(oracle, seed) is None


@pytest.mark.parametrize(
    ("text", "capacity", "operations"),
    [
        # A free block exactly max_non_split_rounding_mb larger is already too large.
        ("max_split_size_mb:64,max_non_split_rounding_mb:40", 1024, "a0:104 f0 a1:64"),
        # The same, with the default: a large segment more.
        (
            "large_segment_size_mb:64,max_split_size_mb:128",
            1024,
            "a0:192 f0 a1:128 a2:150 f2 a3:148",
        ),
        # Two of three oversize blocks are exactly enough: the third stays cached.
        (
            "max_split_size_mb:64,max_non_split_rounding_mb:20",
            256,
            "a0:64 a1:64 a2:64 a3:60 f0 f1 f2 a4:128",
        ),
        # A remainder of 1 MiB stays with the block, one of 512 bytes more is split off.
        ("", 1024, "a0:40 f0 a1:39 f1 a2:38.9990234375 f2"),
        # Requests of exactly 1, 10 and 20 MiB.
        ("", 1024, "a0:1 a1:10 a2:20 f1 a3:9.9990234375 f0 f3"),
    ],
)
def test_boundaries_of_the_rules(oracle: Oracle, text: str, capacity: int, operations: str) -> None:
    """`aN:MIB` allocates, `fN` frees."""
    steps: list[Operation] = []
    for word in operations.split():
        number, *size = word[1:].split(":")
        steps.append(
            ("a", int(number), int(float(size[0]) * MIB), 0, -1) if size else ("f", int(number))
        )
    assert first_difference(oracle, Case(text, capacity * MIB, capacity * MIB), steps) is None


def values(torch_version: str) -> list[str]:
    keys = release(torch_version).keys
    return ["", *(text for key, texts in SIZES.items() if key in keys for text in texts)]


class Differential(RuleBasedStateMachine):
    """Any sequence of operations: after each, the same answer and statistics; at the end, the same
    segments."""

    oracle: Oracle
    """Set by the test below."""

    conversation: Conversation

    @initialize(
        data=st.data(),
        megabytes=st.sampled_from([64, 256, 1000]),
        streams=st.integers(1, 3),
        pools=st.sampled_from([0, 0, 2]),
        pending=st.booleans(),
        fraction=st.sampled_from([None, None, 0.5, 1.0]),
    )
    def start(
        self,
        data: st.DataObject,
        megabytes: int,
        streams: int,
        pools: int,
        pending: bool,
        fraction: float | None,
    ) -> None:
        chosen = data.draw(st.sampled_from(values(self.oracle.torch_version)))
        case = Case(chosen, megabytes * MIB, megabytes * MIB, fraction, streams, pools, pending)
        self.case = case
        self.model = ModelRun(parse(chosen, self.oracle.torch_version), case)
        self.conversation = self.oracle.start(case)
        self.made = 0

    def both(self, *operation: object) -> None:
        expected = self.model.step(operation)
        answer, stats = self.conversation.ask(" ".join(map(str, operation)))
        assert answer == expected
        ours = self.model.stats()
        assert ours == {name: stats[name] for name in ours}

    @rule(
        size=st.one_of(
            st.integers(1, 4096),
            st.integers(1, 70 * MIB),
            st.builds(
                lambda edge, offset: edge * MIB + offset,
                st.sampled_from([1, 2, 10, 20, 32]),
                st.integers(-513, 513),
            ),
        ),
        stream=st.integers(0, 2),
        pool=st.integers(-1, 1),
    )
    def allocate(self, size: int, stream: int, pool: int) -> None:
        self.made += 1
        self.both("a", self.made, size, stream % self.case.streams, pool if self.case.pools else -1)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.both("f", data.draw(st.sampled_from(list(self.model.live))))

    @precondition(lambda self: self.model.live and self.case.streams > 1)
    @rule(data=st.data(), stream=st.integers(0, 2))
    def record_stream(self, data: st.DataObject, stream: int) -> None:
        self.both(
            "r", data.draw(st.sampled_from(list(self.model.live))), stream % self.case.streams
        )

    @rule()
    def empty_cache(self) -> None:
        self.both("e")

    @precondition(lambda self: self.case.pending_events)
    @rule()
    def synchronize(self) -> None:
        self.both("s")

    @rule()
    def launch(self) -> None:
        self.both("l")

    def teardown(self) -> None:
        with suppress(AttributeError), self.conversation:  # no conversation when a draw failed
            assert [
                line.rstrip("\n") for line in self.conversation.segments()
            ] == self.model.segments()


def test_any_sequence_of_operations(oracle: Oracle) -> None:
    Differential.oracle = oracle
    machine = settings(
        max_examples=60,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(Differential, settings=machine)


def random_texts() -> Iterator[str]:
    """Settings strings, whole and broken."""
    dice = random.Random(1)
    pieces = [text for texts in SIZES.values() for text in texts]
    for _ in range(60):
        text = ",".join(dice.sample(pieces, dice.randint(1, 3)))
        at = dice.randrange(len(text))
        yield dice.choice(
            [
                text,
                text,
                text[:at] + dice.choice("0:,x [") + text[at + 1 :],
                text.replace("True", "1"),
            ]
        )


@pytest.mark.parametrize("text", sorted(set(random_texts())))
def test_a_settings_string_is_accepted_by_both_or_by_neither(oracle: Oracle, text: str) -> None:
    try:
        parse(text, oracle.torch_version)
        accepted = True
    except UsageError:
        accepted = False
    assert bool(oracle.answers(Case(text), ["a 0 1 0 -1"])) == accepted


def test_torch_s_own_viewer_reads_a_snapshot(job_python: Path) -> None:
    """torch/cuda/_memory_viz.py stands alone, so it is loaded without torch, and given whole
    replays and half ones."""
    trace = read(RECORDED)
    code = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('viewer', sys.argv[1])\n"
        "viewer = importlib.util.module_from_spec(spec); spec.loader.exec_module(viewer)\n"
        "data = json.load(sys.stdin)\n"
        "print(viewer.trace(data)); print(viewer.segsum(data))\n"
        "assert viewer.trace_plot(data) and viewer.segment_plot(data)\n"
    )
    viewer = torch_of_test_python() / "cuda" / "_memory_viz.py"
    for run, event, words in (
        (Run(trace), None, "total_reserved: 14.2GiB"),
        (Run(trace), 5640, "total_allocated: 12.7GiB"),
        (Run(trace, 13 * GIB), None, "raise OutOfMemoryError"),
        (
            Run(trace, settings=parse("expandable_segments:True", trace.torch_version)),
            None,
            "segment_map",
        ),
    ):
        data = json.dumps(snapshot(run, event))
        ran = subprocess.run(
            [job_python, "-c", code, viewer], input=data, capture_output=True, text=True, check=True
        )
        assert words in ran.stdout
