"""Does the script use memory on other streams than it was made on (record_stream)?

When such memory is freed, the allocator keeps it until an event on those streams is over. When that
is on a GPU hangs on how far it is behind; the stand-ins take the furthest (Note [Queued events] in
device/src/cudart/streams.c).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _xmem.annotations import Function, Note, Tensor


class Streams:
    """The calls from Python: the script's own, and FSDP1's. NCCL's, from C++, have the doubt of its
    buffers.
    """

    def __init__(self) -> None:
        self._recorded: list[int] = []  # bytes of the tensors

    def noted(self, record_stream: Function, _owner: object) -> Function:
        """Around Tensor.record_stream."""

        @functools.wraps(record_stream)
        def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._recorded.append(tensor.nbytes)
            return record_stream(tensor, *args, **kwargs)

        noted.__module__, noted.__qualname__ = "torch", "Tensor.record_stream"  # as pickle finds it
        return noted

    def doubt(self, note: Note) -> None:
        """Say that there were such calls."""
        if self._recorded:
            note(
                "record-stream",
                "tensors of up to %d MiB" % (max(self._recorded) >> 20),
                len(self._recorded),
            )
