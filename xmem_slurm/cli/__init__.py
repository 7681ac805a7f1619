"""The command lines: `xsbatch` and `xmem-slurm VERB`. Arguments and printing, no logic."""
