"""What differs between torch releases? One row of rules per release in which something changed.

Every row is checked against that release's own library by
tests/contract/test_allocator_oracle_releases.py.
"""

import re
from dataclasses import dataclass, field, replace

_KEYS_2_4 = frozenset(
    {
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "max_split_size_mb",
        "pinned_num_register_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "roundup_power2_divisions",
    }
)
_KEYS_2_6 = _KEYS_2_4 | {"max_non_split_rounding_mb", "pinned_use_background_threads"}
_KEYS_2_9 = _KEYS_2_6 | {"graph_capture_record_stream_reuse"}
_KEYS_2_10 = _KEYS_2_9 | {"per_process_memory_fraction", "pinned_reserve_segment_size_mb"}
_KEYS_2_11 = _KEYS_2_10 | {"large_segment_size_mb"}
_KEYS_2_12 = _KEYS_2_11 | {"pinned_free_catch_all", "throw_on_cudamalloc_oom"}
_KEYS_2_13 = _KEYS_2_12 | {"pinned_max_cached_size_mb", "pinned_max_round_threshold_mb"}
_KEYS_2_15 = _KEYS_2_13 | {"expandable_segments_reserve", "expandable_segments_reserve_by_class"}


@dataclass(frozen=True, slots=True)
class Release:
    """The rules of one torch release and those after it, up to the next row."""

    since: tuple[int, int]
    """The first release with these rules: (major, minor)."""
    keys: frozenset[str] = field(repr=False)
    """The keys of PYTORCH_CUDA_ALLOC_CONF."""
    oldest_block_first: bool = False
    """Of free blocks of one size, the one made first is taken, not the one with the lowest
    address."""
    private_pools_expand: bool = True
    """Private pools use expandable segments too."""
    keeps_short_segments: bool = True
    """An expandable segment stays although the request that it was reserved for is larger than its
    address space."""
    full_fraction_limits: bool = False
    """A memory fraction of 1 is a limit too, and so switches garbage collection on."""
    limits_may_equal_segment: bool = True
    """max_split_size_mb and max_non_split_rounding_mb may be as small as the large segment, not
    only larger."""
    mem_pool_is_capture: bool = False
    """torch.cuda.use_mem_pool counts as a graph capture: nothing is synchronised or released while
    it lasts."""
    roundup_rest_starts_after: int = 1
    """In roundup_power2_divisions:[...,>:n], how many intervals after the last named one `>`
    begins."""


_2_4 = Release(
    (2, 4),
    _KEYS_2_4,
    private_pools_expand=False,
    full_fraction_limits=True,
    limits_may_equal_segment=False,
    mem_pool_is_capture=True,
    roundup_rest_starts_after=0,
)
_2_5 = replace(_2_4, since=(2, 5), private_pools_expand=True)
_2_6 = replace(_2_5, since=(2, 6), keys=_KEYS_2_6)
_2_9 = replace(_2_6, since=(2, 9), keys=_KEYS_2_9)
_2_10 = Release((2, 10), _KEYS_2_10, mem_pool_is_capture=True)
_2_11 = replace(_2_10, since=(2, 11), keys=_KEYS_2_11)
_2_12 = replace(_2_11, since=(2, 12), keys=_KEYS_2_12, oldest_block_first=True)
_2_13 = Release((2, 13), _KEYS_2_13)
_2_15 = replace(_2_13, since=(2, 15), keys=_KEYS_2_15, keeps_short_segments=False)
RELEASES = (_2_4, _2_5, _2_6, _2_9, _2_10, _2_11, _2_12, _2_13, _2_15)


def release(torch_version: str) -> Release:
    """Return the rules of a torch version such as `2.11.0+cu130`; the oldest known ones for
    anything older.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(match[1]), int(match[2])) if match else RELEASES[-1].since
    return next((rules for rules in reversed(RELEASES) if rules.since <= version), RELEASES[0])
