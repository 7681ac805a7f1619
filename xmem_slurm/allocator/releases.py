"""What differs between torch releases? One row of rules per release in which something changed.

Every row is checked against that release's own library by tests/contract/test_allocator_oracle_releases.py.
"""

import re
from dataclasses import dataclass, field

_KEYS_2_4 = frozenset(
    {
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "max_split_size_mb",
        "pinned_num_register_threads",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
        "roundup_power2_divisions",
    }
)


@dataclass(frozen=True, slots=True)
class Release:
    """The rules of one torch release and those after it, up to the next row."""

    since: tuple[int, int]
    """The first release with these rules: (major, minor)."""
    keys: frozenset[str] = field(repr=False)
    """The keys of PYTORCH_CUDA_ALLOC_CONF."""
    has_non_split_rounding: bool = True
    """max_non_split_rounding_mb exists; before it the limit was always 20 MiB."""
    mem_pool_is_capture: bool = False
    """torch.cuda.use_mem_pool counts as a graph capture: nothing is synchronised or released while it lasts."""
    roundup_rest_starts_after: int = 1
    """In roundup_power2_divisions:[...,>:n], how many intervals after the last named one `>` begins."""


RELEASES = (
    Release((2, 4), _KEYS_2_4, roundup_rest_starts_after=0),
    Release(
        (2, 9),
        _KEYS_2_4
        | {
            "graph_capture_record_stream_reuse",
            "large_segment_size_mb",
            "max_non_split_rounding_mb",
            "per_process_memory_fraction",
            "pinned_reserve_segment_size_mb",
            "pinned_use_background_threads",
            "throw_on_cudamalloc_oom",
        },
    ),
)


def release(torch_version: str) -> Release:
    """Return the rules of a torch version such as `2.11.0+cu130`; the oldest known ones for anything older."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(match[1]), int(match[2])) if match else RELEASES[-1].since
    return next((rules for rules in reversed(RELEASES) if rules.since <= version), RELEASES[0])
