"""This process: what it opens, starts and is held to, how it ends, what a trace says of it."""
