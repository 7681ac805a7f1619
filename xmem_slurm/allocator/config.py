"""What does PYTORCH_CUDA_ALLOC_CONF change? Its keys, parsed as each torch release parses them.

Note [cudaMallocAsync]: CUDA's own pool is not modelled. Like expandable segments it maps pages
behind address ranges and keeps what is freed, so `backend:cudaMallocAsync` is replayed as
expandable_segments:True. What differs: its pages are 32 MiB, and it gives free ones back at every
synchronisation, so the replay's peak of reserved bytes is on the high side.

Sources: c10/cuda/CUDAAllocatorConfig.{h,cpp} (2.4 to 2.15) and c10/core/AllocatorConfig.{h,cpp}
(2.9 to 2.15).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from xmem_slurm.allocator.releases import Release, release
from xmem_slurm.errors import UsageError
from xmem_slurm.units import GIB, MIB

ROUNDUP_INTERVALS = 16
"""One number of divisions for each power of two from 1 MiB to 64 GiB
(kRoundUpPowerOfTwoIntervals)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that change sizes; bytes unless said otherwise. The defaults are torch's."""

    release: Release
    max_split_size: float = math.inf
    """Free blocks of this size and more are never split."""
    max_non_split_rounding_size: int = 20 * MIB
    """A request of `max_split_size` and more takes a free block up to this much larger; by default
    a large segment."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    """For sizes from 1 MiB, 2 MiB, ... 32 GiB on: the steps between powers of two to which sizes
    are rounded up."""
    garbage_collection_threshold: float = 0.0
    """Fraction of the allowed memory above which old cached blocks are freed; only with a memory
    fraction. 0: off."""
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB
    """Segment of requests from 1 to 10 MiB, and page of expandable segments in the large pool
    (2.11)."""
    per_process_memory_fraction: float | None = None
    """Fraction of the GPU that the allocator may use; None: not set."""
    throw_on_cudamalloc_oom: bool = False
    """A request that would pass the GPU's total fails at once, without freeing cached memory first
    (2.12)."""
    expandable_segments_reserve: float | int | None = None
    """Address space of an expandable segment: a fraction of the GPU, or whole bytes (2.15); None: 1
    1/8 of the GPU."""
    backend: str = "native"


def parse(text: str, torch_version: str) -> Settings:
    """Read a PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) string as this torch release does.

    Raises:
        UsageError: an unknown key (the message lists the known ones), a bad value, or bad
            punctuation.
    """
    rules = release(torch_version)
    tokens = _Tokens(text)
    settings = _large_segment_first(Settings(rules), tokens)
    while not tokens.at_end:
        key = tokens.take()
        if key not in rules.keys:
            keys = ", ".join(sorted(rules.keys))
            raise UsageError(
                f"PYTORCH_CUDA_ALLOC_CONF: torch {torch_version} has no key '{key}'; it has {keys}"
            )
        tokens.expect(":")
        settings = replace(settings, **_read(key, settings, tokens))
        if not tokens.at_end:
            tokens.expect(",")
    if settings.backend == "cudaMallocAsync":
        # See Note [cudaMallocAsync]; torch ignores the other settings then, and says so.
        return Settings(rules, expandable_segments=True, backend=settings.backend)
    return settings


class _Tokens:
    """`key:value,key:[a:b,c:d]` cut at the punctuation, white space dropped (upstream:
    ConfigTokenizer).
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", "".join(text.split()))
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self) -> str:
        return "" if self.at_end else self._tokens[self._at]

    def take(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def expect(self, token: str) -> None:
        actual = self.take()
        if actual != token:
            raise UsageError(
                f"PYTORCH_CUDA_ALLOC_CONF: expected '{token}', found '{actual}' in '{self.text}'"
            )

    def skip_value(self) -> None:
        if self.take() == "[":
            while not self.at_end and self.take() != "]":
                pass

    def values_of(self, key: str) -> "Iterator[_Tokens]":
        """Yield, for every time that a key is given, the tokens from its value on."""
        for at in range(len(self._tokens) - 1):
            if self._tokens[at] == key and self._tokens[at + 1] == ":":
                value_tokens = _Tokens(self.text)
                value_tokens._at = at + 2
                yield value_tokens

    def number(self, key: str, accept: Callable[[float], bool], wanted: str) -> float:
        """Take a number that `accept` accepts; `wanted` says which those are."""
        token = self.take()
        try:
            value = float(token)
        except ValueError:
            value = math.nan
        if not accept(value):
            raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {key} must be {wanted}, not '{token}'")
        return value

    def one_of(self, key: str, one: str, alternative: str) -> str:
        token = self.take()
        if token not in {one, alternative}:
            raise UsageError(
                f"PYTORCH_CUDA_ALLOC_CONF: {key} must be {one} or {alternative}, not '{token}'"
            )
        return token


def _read(key: str, settings: Settings, tokens: _Tokens) -> Mapping[str, Any]:
    """Return the settings that a key's value changes: none where that is no size on the GPU (pinned
    memory, locks).
    """
    match key:
        case "expandable_segments" | "throw_on_cudamalloc_oom":
            changed: Mapping[str, Any] = {key: tokens.one_of(key, "True", "False") == "True"}
        case "garbage_collection_threshold":
            changed = {key: tokens.number(key, lambda part: 0 < part < 1, "between 0 and 1")}
        case "per_process_memory_fraction":
            changed = {key: tokens.number(key, lambda part: 0 <= part <= 1, "from 0 to 1")}
        case "max_split_size_mb":
            changed = {"max_split_size": _limit(key, settings, tokens)}
        case "max_non_split_rounding_mb":
            changed = {"max_non_split_rounding_size": _limit(key, settings, tokens)}
        case "expandable_segments_reserve":
            changed = _reserve(tokens)
        case "backend":
            changed = {key: tokens.one_of(key, "native", "cudaMallocAsync")}
        case "roundup_power2_divisions":
            changed = {key: _divisions(settings, tokens)}
        case _:
            tokens.skip_value()
            changed = {}
    return changed


def _limit(key: str, settings: Settings, tokens: _Tokens) -> int:
    """Read a number of megabytes that the large segment bounds from below; return bytes."""
    minimum = settings.large_segment_size // MIB + (
        0 if settings.release.limits_may_equal_segment else 1
    )
    return (
        int(
            tokens.number(
                key, lambda mb: mb >= minimum, f"at least {minimum}, by the large segment"
            )
        )
        * MIB
    )


def _large_segment_first(settings: Settings, tokens: _Tokens) -> Settings:
    """Read large_segment_size_mb before all else: it bounds other keys and is the rounding where
    that is not given.
    """
    if "large_segment_size_mb" not in settings.release.keys:
        return settings
    for value in tokens.values_of("large_segment_size_mb"):
        size = int(value.number("large_segment_size_mb", lambda mb: mb > 10, "more than 10")) * MIB
        settings = replace(settings, large_segment_size=size, max_non_split_rounding_size=size)
    return settings


def _reserve(tokens: _Tokens) -> Mapping[str, Any]:
    """Read `0.5` (of the GPU) or `40G`; torch ignores what is neither."""
    token = tokens.take()
    try:
        value = float(token.rstrip("Gg"))
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        return {}
    return {"expandable_segments_reserve": int(value * GIB) if token[-1] in "Gg" else value}


def _is_power_of_two(value: float) -> bool:
    return value >= 1 and value == int(value) and int(value).bit_count() == 1


def _divisions(settings: Settings, tokens: _Tokens) -> tuple[int, ...]:
    """Read `4` or `[256:1,512:2,1024:4,>:8]`: megabytes and, from there on, the number of
    divisions.
    """
    wanted = "a power of 2"

    def divisions() -> int:
        return int(
            tokens.number(
                "roundup_power2_divisions",
                lambda n: n == 0 or _is_power_of_two(n),
                f"{wanted} or 0",
            )
        )

    if tokens.peek() != "[":
        return (divisions(),) * ROUNDUP_INTERVALS
    tokens.expect("[")
    table = list(settings.roundup_power2_divisions)
    last, first = 0, True
    while tokens.peek() != "]" and not tokens.at_end:
        if tokens.peek() == ">":
            tokens.take()
            tokens.expect(":")
            start = last + settings.release.roundup_rest_starts_after
            table[start:] = [divisions()] * (ROUNDUP_INTERVALS - start)
        else:
            megabytes = int(
                tokens.number("roundup_power2_divisions", _is_power_of_two, f"{wanted} (megabytes)")
            )
            tokens.expect(":")
            value = divisions()
            last = min(megabytes.bit_length() - 1, ROUNDUP_INTERVALS - 1)
            if first:
                table[:last] = [value] * last
                first = False
            table[last] = value
        if tokens.peek() != "]":
            tokens.expect(",")
    tokens.expect("]")
    return tuple(table)
