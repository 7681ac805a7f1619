"""The engine `profile`: a few real steps on the CPU.

redirect    lets a script that says "cuda" run on the CPU
cuda        describes the GPU there
as_gpu      has torch take a GPU's way where that keeps other memory
profiler    runs the steps under torch's profiler, and writes what it saw
guard       refuses early what would not end within its memory and time; `forecast` by shapes alone
workspaces  asks, when the steps are over, what their convolutions would take of a GPU beside their results
"""
