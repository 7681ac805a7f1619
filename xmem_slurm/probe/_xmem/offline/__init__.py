"""What a job would fetch and a dry run has no network for.

downloads  serves the files of well-known data sets, as `datasets` makes them
weights    hands out weights of models of torchvision and timm
"""
