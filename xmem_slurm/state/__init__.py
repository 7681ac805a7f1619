"""Our own folders and files: whose they are, how a file is written whole, what a signal or a kill
leaves.
"""
