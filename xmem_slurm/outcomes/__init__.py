"""What jobs really used: kept as their recorders wrote it, held against what was predicted, and
learned from.
"""
