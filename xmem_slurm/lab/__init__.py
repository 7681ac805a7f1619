"""A real, throw-away Slurm cluster on this machine, whose nodes and GPUs mirror a site file.

Nothing outside the lab's folder is written and no privilege is needed: every daemon runs as whoever
called `up`. Called by root, jobs of all users run; called by another user, that user's jobs run.

Known limitations:
- The GPUs are links to /dev/null: Slurm allocates them and sets CUDA_VISIBLE_DEVICES. A job's torch
  finds stand-in libraries that hold it to the memory of the GPU that its node declares, and run no
  kernel.
- CPUs and memory of the nodes are declared, not there, and nothing is confined to its share.
- Slurm must be built with `--enable-multiple-slurmd`, as Debian's is; one slurmd takes 7 MB.
- The daemons listen on the loopback address only where this machine's host name stands for one
  (127.x.y.z, as on Debian); elsewhere Slurm can only listen on all addresses, and the lab's munge
  key is what keeps others out.
- With accounting, slurmctld tells slurmdbd of a new job every five seconds: sacct knows a job that
  late.
- A job's process that left its job (double fork) with an emptied environment outlives `down`.
"""

from xmem_slurm.lab.cluster import Lab, Status, down, environment, records, status, up
from xmem_slurm.lab.folder import default as default_folder

__all__ = ["Lab", "Status", "default_folder", "down", "environment", "records", "status", "up"]
