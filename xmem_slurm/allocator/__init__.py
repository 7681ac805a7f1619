"""How does torch's CUDA caching allocator behave? A model of it, exact to the byte, in Python and
without torch.

Names are upstream's (c10/cuda/CUDACachingAllocator.cpp), in Python's spelling. Not modelled,
because no trace says that it happened: callbacks of FreeCudaMemoryCallbacksRegistry,
MemPool(use_on_oom, no_split), checkpoints of CUDA graph pools, and the order in which frees
deferred during a capture end.
"""
