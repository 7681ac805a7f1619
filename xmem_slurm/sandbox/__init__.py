"""Run a command so that it changes nothing and ends: namespaces, mounts, limits. Knows nothing of
torch or Slurm.
"""
