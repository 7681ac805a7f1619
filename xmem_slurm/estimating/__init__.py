"""Estimate a job that nobody submits: `asked` knows the answer, or `by_dry_run` finds it. No Slurm
is needed.
"""
