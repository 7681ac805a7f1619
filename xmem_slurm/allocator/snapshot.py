"""What does memory look like now? Segments and history in torch's own forms.

`snapshot` is what torch.cuda.memory._snapshot() would have returned at a moment of a replay:
torch/cuda/_memory_viz.py and pytorch.org/memory_viz read it. A stack has the script's own lines;
outermost stand the module and the category.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from xmem_slurm.allocator.blocks import Block
from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator, TraceEntry
from xmem_slurm.allocator.replay import Run
from xmem_slurm.trace import Op, Trace


def snapshot(run: Run, event: int | None = None) -> dict[str, Any]:
    """Replay up to and with `event` (None: to the end or the failure) and return the state and the
    history.

    The result has `segments` and `device_traces`, the history of device 0; its times count the
    entries. Pickle it for pytorch.org/memory_viz.
    """
    trace = run.trace
    history: list[TraceEntry] = []
    run.allocator.history = history
    run.to_event(event)
    frames = {
        block.ptr: _frames(trace, number) for number, block in run.blocks.items() if block.allocated
    }
    live = {block: None for block in run.blocks.values() if block.allocated}
    state = segments(run.allocator, live)
    for segment in state:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                block["frames"] = frames[block["address"]]
    served = (number for op, number in trace.events if op == Op.ALLOC)
    entries = [
        _entry(time, entry, _frames(trace, next(served)) if entry.action == "alloc" else [])
        for time, entry in enumerate(history)
    ]
    return {"segments": state, "device_traces": [entries]}


def _entry(time: int, entry: TraceEntry, frames: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "action": entry.action,
        "device_free" if entry.action == "oom" else "addr": entry.address,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": time,
        "frames": frames,
    }


def _frames(trace: Trace, number: int) -> list[dict[str, Any]]:
    """Return what is known of where an allocation was asked for, innermost first, as torch gives
    its stacks.
    """
    stack = [site for site in trace.stack_of(number) if site.function]
    names = [
        name
        for name in (trace.site_of(number).module, trace.allocations[number].category.value)
        if name
    ]
    return [
        *({"name": site.function, "filename": site.file, "line": site.line} for site in stack),
        *({"name": name, "filename": "", "line": 0} for name in names),
    ]


def segments(allocator: DeviceCachingAllocator, live: Iterable[Block]) -> list[dict[str, Any]]:
    """Return the segments, by address, as torch.cuda.memory_snapshot() does; `live` are the blocks
    not freed yet.

    An expandable segment gives one entry for each run of mapped blocks.
    """
    waiting = {block: None for stream in allocator.cuda_events.values() for block in stream}
    pools = [allocator.small_blocks, allocator.large_blocks]
    for private in allocator.graph_pools.values():
        pools += [private.small_blocks, private.large_blocks]
    every = [*(block for pool in pools for block in pool), *live, *waiting]
    heads = [block for block in every if block.prev is None or not block.prev.mapped]
    return [_segment(head) for head in sorted(heads, key=lambda block: block.ptr)]


def _segment(head: Block) -> dict[str, Any]:
    """Return one segment, from its first block on, as torch.cuda.memory_snapshot() has it; sizes in
    bytes.
    """
    pool = head.free_list.pool
    blocks = []
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(block)
        block = block.next
    active = [block for block in blocks if not block.cached]
    return {
        "device": 0,
        "address": head.ptr,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": head.free_list.stream,
        "segment_type": "small" if pool.is_small else "large",
        "segment_pool_id": (0, 0) if pool.owner is None else pool.owner.pool_id,
        "is_expandable": head.expandable_segment is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.ptr,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": _state(block),
                "frames": [],
            }
            for block in blocks
        ],
    }


def _state(block: Block) -> str:
    if block.allocated:
        return "active_allocated"
    return "inactive" if block.cached else "active_pending_free"
