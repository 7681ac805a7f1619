"""How a dry run goes into the container that a script runs: the job's own runtime starts it, with
our folders in it.
"""
