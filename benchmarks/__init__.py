"""Measurements of the product: its accuracy, its allocator model; each says how it is run."""
