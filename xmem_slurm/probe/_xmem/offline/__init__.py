"""What a job would fetch and a dry run has no network for: well-known data sets, and weights of
published models.
"""
