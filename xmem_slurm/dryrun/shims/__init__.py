"""What stands in the place of launchers, of Slurm's commands and of what fetches, in a dry run."""
