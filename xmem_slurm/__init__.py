"""xmem-slurm: right-size the GPU request of a Slurm job before it is queued."""

__version__ = "0.2.0"
