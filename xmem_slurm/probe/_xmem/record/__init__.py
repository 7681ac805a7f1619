"""The engine `device`: what torch's caching allocator is asked for, written as a trace."""
