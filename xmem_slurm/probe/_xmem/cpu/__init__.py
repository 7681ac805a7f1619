"""The engine `profile`: a few real steps on the CPU, under torch's profiler."""
