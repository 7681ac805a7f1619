"""A job and a GPU option in, the changed job out: its options, its job steps, its limits, all of it
in one script.
"""
