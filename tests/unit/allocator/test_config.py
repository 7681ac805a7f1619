"""PYTORCH_CUDA_ALLOC_CONF, as each release reads it."""

import math

import pytest

from xmem_slurm.allocator.config import Settings, parse
from xmem_slurm.allocator.releases import RELEASES, release
from xmem_slurm.errors import UsageError
from xmem_slurm.units import GIB, MIB


def test_nothing_set_is_torch_s_defaults() -> None:
    settings = parse("", "2.11.0+cu130")
    assert settings == Settings(release("2.11.0"))
    assert settings.max_split_size == math.inf
    assert settings.large_segment_size == 20 * MIB


def test_every_key_that_changes_sizes() -> None:
    text = (
        "large_segment_size_mb:64, "
        "max_split_size_mb:128,max_non_split_rounding_mb:100,expandable_segments:True,"
        "garbage_collection_threshold:0.6,roundup_power2_divisions:4,per_process_memory_fraction:0.5,"
        "throw_on_cudamalloc_oom:True,expandable_segments_reserve:2G"
    )
    settings = parse(text, "2.15.0")
    assert settings.large_segment_size == 64 * MIB
    assert settings.max_split_size == 128 * MIB
    assert settings.max_non_split_rounding_size == 100 * MIB
    assert settings.expandable_segments
    assert settings.garbage_collection_threshold == 0.6
    assert settings.roundup_power2_divisions == (4,) * 16
    assert settings.per_process_memory_fraction == 0.5
    assert settings.throw_on_cudamalloc_oom
    assert settings.expandable_segments_reserve == 2 * GIB


@pytest.mark.parametrize(
    ("version", "table"),
    [
        ("2.9.1", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 8, 8)),
        ("2.10.0", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8)),
    ],
)
def test_a_list_of_divisions(version: str, table: tuple[int, ...]) -> None:
    """Up to 2.9 the rest (`>`) begins at the last named size and overwrites it."""
    settings = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", version)
    assert settings.roundup_power2_divisions == table


def test_the_large_segment_counts_wherever_it_stands() -> None:
    settings = parse("max_split_size_mb:15,large_segment_size_mb:12", "2.11.0")
    assert settings.max_split_size == 15 * MIB
    assert settings.max_non_split_rounding_size == 12 * MIB


def test_keys_that_change_no_size_are_passed_over() -> None:
    text = "pinned_num_register_threads:8,release_lock_on_cudamalloc:True,backend:native,expandable_segments:True"
    assert parse(text, "2.6.0") == Settings(release("2.6.0"), expandable_segments=True)


def test_an_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no key 'max_split'.* max_split_size_mb") as raised:
        parse("max_split:3", "2.11.0")
    assert all(key in str(raised.value) for key in release("2.11.0").keys)


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:many",
        "max_split_size_mb=64",
        "max_split_size_mb",
        "expandable_segments:true",
        "garbage_collection_threshold:1.0",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:3]",
        "roundup_power2_divisions:[300:4]",
        "roundup_power2_divisions:[256:4",
        "large_segment_size_mb:10",
        "large_segment_size_mb:64,max_split_size_mb:32",
        "max_split_size_mb:32,large_segment_size_mb:64",
        "per_process_memory_fraction:1.5",
        "backend:cudamallocasync",
    ],
)
def test_a_bad_value_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="PYTORCH_CUDA_ALLOC_CONF"):
        parse(text, "2.15.0")


def test_cuda_malloc_async_leaves_the_other_settings_out() -> None:
    settings = parse("backend:cudaMallocAsync,max_split_size_mb:64", "2.11.0")
    assert settings == Settings(
        release("2.11.0"), expandable_segments=True, backend="cudaMallocAsync"
    )


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("2.3.1", (2, 4)),
        ("2.4.1+cu121", (2, 4)),
        ("2.8.0", (2, 6)),
        ("2.14.0a0+git", (2, 13)),
        ("3.0", (2, 15)),
    ],
)
def test_a_version_between_two_rows_has_the_older_row_s_rules(
    version: str, since: tuple[int, int]
) -> None:
    assert release(version).since == since


def test_rows_stand_in_order() -> None:
    assert [rules.since for rules in RELEASES] == sorted({rules.since for rules in RELEASES})
