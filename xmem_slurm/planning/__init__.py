"""How could a job be trained on this site's GPUs? Each answer is seen in dry runs of the job with
that change.
"""
