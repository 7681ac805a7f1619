"""Batch scripts written from templates, each asking for the GPU that its command needs."""
