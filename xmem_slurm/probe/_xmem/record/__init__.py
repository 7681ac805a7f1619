"""The engine `device`: what torch's caching allocator is asked for, written as a trace.

recorder  one for each process: begins, marks steps, writes
history   what was asked for without its repeats; `pools` are those of CUDA graphs
served    what the allocator counts itself
sites     which line of the script asked, for reports
tags      what memory is for
steps     counts optimizer steps, and tells when they only repeat themselves
streams   whether memory is used on other streams
"""
