"""What runs inside the job's own Python during a dry run.

This folder goes first on PYTHONPATH, so its modules are imported by name, not as part of this package: `sitecustomize`
(run by every Python that starts), `_xmem_import` (waits for `import torch`, maps the stand-in CUDA libraries first) and
`_xmem_record` (records what torch's allocator is asked for and writes the trace).

Python 3.9 and newer, the standard library and the job's torch (2.4 and newer), nothing else: nothing here imports the
rest of xmem_slurm, and nothing there imports this. They meet in the trace file, described in `xmem_slurm/trace.py`.
"""
