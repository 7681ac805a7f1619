"""What a job's own Python runs where its user or its site wants to know what it took of the GPUs:
one file.

`sitecustomize.py` is on the job's PYTHONPATH and knows nothing of us; what it writes
`outcomes.records` reads.
"""
