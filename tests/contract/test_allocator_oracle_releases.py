"""Every difference between torch releases that releases.py states, shown by each release's own
library.

The releases are that of XMEM_TEST_PYTHON, those of .venvs/, and those that `python -m
benchmarks.allocator_oracle VERSION...` has fetched. A difference is shown when torch and the model
agree under the release's rule, and the model disagrees with torch once that one rule is turned
around."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.allocator_fuzz import first_difference, fuzz_one, torch_of_test_python
from benchmarks.allocator_model import Operation
from benchmarks.allocator_oracle import Case, Oracle, build, fetched
from xmem_slurm.allocator import config, releases
from xmem_slurm.allocator.releases import RELEASES, release
from xmem_slurm.errors import UsageError
from xmem_slurm.units import MIB

pytestmark = pytest.mark.torch


class Difference(NamedTuple):
    """A rule, its other value, and operations whose outcome depends on it."""

    rule: str
    values: tuple[int, int]
    case: Case
    operations: list[Operation]


DIFFERENCES = [
    Difference(
        "roundup_rest_starts_after",
        (0, 1),
        Case("roundup_power2_divisions:[4:2,>:8]"),
        [("a", 0, 4_538_740, 0, -1)],
    ),
    Difference(
        "full_fraction_limits",
        (False, True),
        Case("garbage_collection_threshold:0.2", 256 * MIB, 256 * MIB, fraction=1.0),
        [("a", 0, 100 * MIB, 0, -1), ("f", 0), ("a", 1, 120 * MIB, 0, -1)],
    ),
    Difference(
        "mem_pool_is_capture",
        (False, True),
        Case(capacity=64 * MIB, total=64 * MIB, pools=1),
        [("a", 0, 40 * MIB, 0, -1), ("f", 0), ("a", 1, 41 * MIB, 0, 0)],
    ),
    Difference(
        "keeps_short_segments",
        (False, True),
        Case("expandable_segments:True", 64 * MIB, 64 * MIB),
        [("a", 0, 90 * MIB, 0, -1), ("a", 1, 4 * MIB, 0, -1)],
    ),
    Difference(
        "private_pools_expand",
        (False, True),
        Case("expandable_segments:True", pools=1),
        [("a", 0, 40 * MIB, 0, 0)],
    ),
    Difference(
        "oldest_block_first",
        (False, True),
        Case(),
        [
            *(("a", 0, 80 * MIB, 0, -1), ("a", 1, 80 * MIB, 0, -1), ("f", 1), ("f", 0)),
            # The first segment is split and merged again: the block that is left was made after the
            # second segment's.
            *(("a", 2, 40 * MIB, 0, -1), ("f", 2), ("a", 3, 70 * MIB, 0, -1)),
        ],
    ),
]

VALUES = {
    "backend": "native",
    "expandable_segments": "True",
    "expandable_segments_reserve": "0.5",
    "expandable_segments_reserve_by_class": "[serving:0.5]",
    "garbage_collection_threshold": "0.5",
    "graph_capture_record_stream_reuse": "True",
    "large_segment_size_mb": "64",
    "max_non_split_rounding_mb": "64",
    "max_split_size_mb": "64",
    "per_process_memory_fraction": "0.5",
    "pinned_free_catch_all": "True",
    "pinned_max_cached_size_mb": "8",
    "pinned_max_round_threshold_mb": "8",
    "pinned_num_register_threads": "2",
    "pinned_reserve_segment_size_mb": "8",
    "pinned_use_background_threads": "True",
    "pinned_use_cuda_host_register": "True",
    "pinned_use_hip_host_register": "True",
    "release_lock_on_cudamalloc": "True",
    "release_lock_on_hipmalloc": "True",
    "roundup_power2_divisions": "4",
    "throw_on_cudamalloc_oom": "True",
}
"""A good value for every key of every release."""


def torches() -> list[Path]:
    try:
        return [torch_of_test_python(), *fetched()]
    except SystemExit:
        return [Path("XMEM_TEST_PYTHON")]  # skipped for want of it


@cache
def oracle_of(torch: Path) -> Oracle:
    return build(torch)


@pytest.fixture(
    params=torches(),
    ids=lambda path: path.parent.name if path.parent.name[:5] == "torch" else "default",
)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return oracle_of(request.param)


@pytest.mark.parametrize(
    "difference", DIFFERENCES, ids=[difference.rule for difference in DIFFERENCES]
)
def test_a_rule_is_as_stated(
    oracle: Oracle, difference: Difference, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = release(oracle.torch_version)
    if not all(key in rules.keys for key in difference.case.settings.split(":")[:1] if key):
        pytest.skip("the release has no such setting")
    assert first_difference(oracle, difference.case, difference.operations) is None
    stated = getattr(rules, difference.rule)
    other = next(value for value in difference.values if value != stated)
    turned = replace(rules, **{difference.rule: other})
    monkeypatch.setattr(config, "release", lambda _: turned)
    assert first_difference(oracle, difference.case, difference.operations) is not None


def accepts(oracle: Oracle, text: str) -> bool:
    return bool(oracle.answers(Case(text), ["a 0 1 0 -1"]))


def parses(oracle: Oracle, text: str) -> bool:
    try:
        config.parse(text, oracle.torch_version)
    except UsageError:
        return False
    return True


def test_the_keys_are_as_stated(oracle: Oracle) -> None:
    accepted = {key for key, value in VALUES.items() if accepts(oracle, f"{key}:{value}")}
    assert accepted == release(oracle.torch_version).keys


@pytest.mark.parametrize("key", ["max_split_size_mb", "max_non_split_rounding_mb"])
def test_the_least_limits_are_as_stated(oracle: Oracle, key: str) -> None:
    for megabytes in (19, 20, 21):
        text = f"{key}:{megabytes}"
        assert accepts(oracle, text) == parses(oracle, text)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_random_operations(oracle: Oracle, seed: int) -> None:
    assert fuzz_one(oracle, seed) is None


def test_every_rule_has_its_test() -> None:
    shown = {difference.rule for difference in DIFFERENCES} | {
        "since",
        "keys",
        "limits_may_equal_segment",
    }
    assert set(releases.Release.__slots__) == shown
    assert set().union(*(rules.keys for rules in RELEASES)) == set(VALUES)
