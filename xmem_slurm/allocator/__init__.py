"""How does torch's CUDA caching allocator behave? A model of it, exact to the byte, in Python and without torch.

    replay.py             replay(trace, capacity): peaks, retries, out-of-memory, what was live
    fit.py                smallest_capacity(trace, unlimited): what is enough for it
    config.py             PYTORCH_CUDA_ALLOC_CONF
    releases.py           what differs between torch releases, as data
    caching_allocator.py  DeviceCachingAllocator: malloc and free
    sizes.py              the rounding of requests and segments
    blocks.py             Block, FreeList, BlockPool, PrivatePool
    events.py             blocks that wait for other streams (record_stream)
    expandable.py         expandable segments
    reclaim.py            what is given back when memory is short
    device.py             the memory and the addresses below
    snapshot.py           statistics and segments in torch's own forms

Names are upstream's (c10/cuda/CUDACachingAllocator.cpp), in Python's spelling. Not modelled, because no trace says that
it happened: callbacks of FreeCudaMemoryCallbacksRegistry, MemPool(use_on_oom, no_split), checkpoints of CUDA graph
pools, and the order in which frees deferred during a capture end.
"""
