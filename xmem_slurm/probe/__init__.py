"""What runs inside the job's own Python during a dry run: this folder goes first on PYTHONPATH.

`sitecustomize` is run by every Python that starts; it chains to the one that was there before. All
else is the package `_xmem`, which is imported by that name, not as part of this package.

Python 3.9 and newer, the standard library and the job's torch (2.4 and newer), nothing else:
nothing here imports the rest of xmem_slurm, and nothing there imports this. They meet in the trace
file, described in `xmem_slurm/trace.py`.
"""
