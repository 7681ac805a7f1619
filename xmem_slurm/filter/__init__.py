"""What Slurm's hooks call at a site that wants every plain sbatch looked at, and those hooks
themselves.
"""
