"""Lets torch.cuda describe the GPU that the site would give, on a machine that has none; part of
`cpu/redirect`.

Where a script would talk to the GPU, nothing happens, and it is done at once.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Environ, Function


class _Idle:
    """A stream, an event or a context of the GPU: accepts everything, does nothing, is always
    done.
    """

    device_index = 0
    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_error: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, *_args: Any, **_kwargs: Any) -> float:
        return 1.0

    def record(self, *_args: Any, **_kwargs: Any) -> None:
        return None

    def record_event(self, *_args: Any, **_kwargs: Any) -> _Idle:
        return _Idle()

    def synchronize(self) -> None:
        return None

    def is_capturing(self) -> bool:
        return False

    wait = wait_event = wait_stream = record


class SiteGpu:
    """The GPU of the site, as `torch.cuda` describes it; `environ` holds the XMEM_DEVICE_*
    variables.
    """

    def __init__(self, torch: ModuleType, environ: Environ) -> None:
        name, count = environ["XMEM_DEVICE_NAME"], int(environ.get("XMEM_DEVICE_COUNT", "1"))
        major, _, minor = environ["XMEM_DEVICE_CAPABILITY"].partition(".")
        total = int(environ["XMEM_DEVICE_TOTAL_BYTES"])
        capability = (int(major), int(minor))
        properties = types.SimpleNamespace(
            name=name,
            major=capability[0],
            minor=capability[1],
            total_memory=total,
            multi_processor_count=int(environ["XMEM_DEVICE_MULTIPROCESSORS"]),
            warp_size=32,
            is_integrated=0,
            is_multi_gpu_board=0,
        )
        self._torch = torch
        self._answers: dict[str, Any] = {
            "is_available": True,
            "is_initialized": True,
            "device_count": count,
            "current_device": 0,
            "current_device_index": 0,
            "current_device_idx": 0,
            "get_device_name": name,
            "get_device_capability": capability,
            "get_device_properties": properties,
            "get_arch_list": ["sm_%d%d" % capability],
            "mem_get_info": (total, total),
            "is_bf16_supported": capability >= (8, 0),
            "is_current_stream_capturing": False,
            "can_device_access_peer": True,
            "memory_summary": "",
            **dict.fromkeys(_NONE_USED.split(), 0),
        }
        self._computed: dict[str, Callable[[], Any]] = {
            "get_rng_state": torch.get_rng_state,
            "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
            "memory_stats": lambda: collections.defaultdict(int),
            "current_accelerator": lambda: torch.device("cuda"),
        }

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def answer(self, question: Function, _owner: object) -> Function:
        """Say it of the site's GPU: a function of its own for each, as torch._dynamo looks them up
        by identity.
        """
        name = question.__name__
        compute = self._computed.get(name)
        if compute is not None:
            return lambda *_args, **_kwargs: compute()
        value = self._answers.get(name)
        return lambda *_args, **_kwargs: value

    def idle(self, kind: type, _owner: object) -> type:
        """Stand for a stream, an event or a context."""
        return type(kind.__name__, (_Idle,), {})

    def version(self, version: str | None, _owner: object) -> str:
        """Scripts and libraries take a None for "no GPU"."""
        return version or "12.8"

    def pinned(self, _pin: Function, _owner: object) -> Function:
        """Memory is as it is; a data loader's thread calls this, outside of the mode."""
        return lambda tensor, device=None: tensor

    def is_pinned(self, _ask: Function, _owner: object) -> Function:
        """It never is."""
        return lambda tensor, device=None: False


_NONE_USED = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization"
