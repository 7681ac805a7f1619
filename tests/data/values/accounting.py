"""The most bytes that torch's CPU allocator held while a script ran, by its own account:
accounting.py SCRIPT WORD...

Printed as one number. torch reports the running total with every allocation
(c10/core/CPUAllocator.cpp)."""

import runpy
import sys

import torch

PEAK = 0


def look(event):
    global PEAK  # noqa: PLW0603
    PEAK = max(PEAK, getattr(event.extra_fields, "total_allocated", 0))
    for child in event.children:
        look(child)


def main():
    del sys.argv[0]
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profile:
        runpy.run_path(sys.argv[0], run_name="__main__")
    for root in profile.kineto_results.experimental_event_tree():
        look(root)
    sys.stdout.write(f"{PEAK}\n")


main()
