"""Does the script use memory on other streams than it was made on (record_stream)?

When such memory is freed, the allocator keeps it until an event on those streams is over. Nothing runs on the stand-in
device, so that is at once; on a GPU it takes as long as the work that was queued there.
"""

import functools

_recorded = []
"""Bytes of the tensors that were recorded."""


def install(torch):
    """Note the calls from Python: the script's own, and FSDP1's. NCCL's, from C++, have the doubt of its buffers."""
    record_stream = torch.Tensor.record_stream

    @functools.wraps(record_stream)
    def noted(tensor, *args, **kwargs):
        _recorded.append(tensor.nbytes)
        return record_stream(tensor, *args, **kwargs)

    noted.__module__, noted.__qualname__ = "torch", "Tensor.record_stream"  # as pickle finds it
    torch.Tensor.record_stream = noted


def doubts():
    """Return that there were such calls, in the form of a trace's doubts."""
    if not _recorded:
        return []
    detail = "tensors of up to %d MiB" % (max(_recorded) >> 20)
    return [{"code": "record-stream", "detail": detail, "count": len(_recorded)}]
