"""Watches the Python of a job during a dry run.

Every Python of one imports `imports`, `process/files` and `process/network` as it starts, and the
rest with torch. What is here imports what stands below it:

    imports     waits for `import torch`, and for other modules
    start       which engine watches this process: stand-in CUDA libraries, or real steps on the CPU
    record/     the stand-ins: records what torch's allocator is asked for, and writes the trace
    cpu/        real steps: lets a script that says "cuda" run on the CPU under torch's profiler,
                and writes what it saw
    engine      what both are: hooks in, writes what was seen, ends the process
    triton      stands in for Triton's compiler and driver
    advice      makes one change to the job, where a dry run asks what that would do
    offline/    serves well-known data sets and weights that are not there
    ranks/      lets this process be one rank of many
    repeat/     skips what was met before, and has the trace tell of it as if it had been
    course/     how far the run goes, and what of the script was seen
    values/     keeps the values that came from the host, and says what the others are taken for
    process/    this process: what it opens, starts and is held to, how it ends, what a trace says
                of it

    patches     the table of all that is hooked into and read of torch, and the loop that applies it
    doubts      what could not be seen

    annotations         in no process: what annotations call the things of torch's
    outside_allocator   in no dry run: what `xmem-slurm site calibrate` runs on a GPU node
"""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
"""Where all of this lies: frames of files within it are not the script's."""
