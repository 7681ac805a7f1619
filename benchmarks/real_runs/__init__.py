"""How far are estimates from what real GPUs showed in public repositories? `python -m
benchmarks.real_runs`.
"""
