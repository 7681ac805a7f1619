"""The paper's own way (xMem, arXiv 2510.21048): what would the steps that ran on this CPU have
asked of a GPU?

`recording` reads what the probe's profiler saw (`probe/_xmem/cpu/profiler.py`), `analyzer` makes
blocks of it, `orchestrator` turns them into a GPU's. The paper's third part, the Simulator, is the
project's one model of the allocator: this ends in a `Trace`, as a run on the stand-in device does.
"""
