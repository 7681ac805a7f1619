"""What was done before is not done again: calls of modules, optimizer steps, and the memory that
they would have.
"""
