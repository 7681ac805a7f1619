"""All that asks a live Slurm: its commands (`client`), its nodes (`live`), when a job would start
there.
"""
