"""What runs inside the job's own Python during a dry run.

This folder goes first on PYTHONPATH, so its modules are imported by name, not as part of this package:

    sitecustomize    run by every Python that starts; chains to the one that was there before
    _xmem_files      notes which files are opened, so that an estimate can be cached
    _xmem_import     waits for `import torch`
    _xmem_engine     which engine watches this process: stand-in CUDA libraries, or real steps on the CPU
    _xmem_device     maps the stand-in CUDA libraries, before torch looks for the real ones
    _xmem_record     records what torch's allocator is asked for, and writes the trace: _xmem_history is that without
                     its repeats, _xmem_served what the allocator counts, _xmem_tags what memory is for
    _xmem_steps      counts optimizer steps, and tells when they only repeat themselves
    _xmem_course     how far the run then goes, and what of the script was seen: _xmem_ahead reads from its source what
                     is to come (_xmem_source, _xmem_expressions), _xmem_loops how far a loop is, _xmem_batches
                     what a data loader gives
    _xmem_budget     how much of its time the dry run has left
    _xmem_clock      stands still while others have the CPU: that is no time of the run
    _xmem_known      keeps the values that came from the host, and says what the others are taken for:
                     _xmem_known_values is the table, _xmem_known_lazy what large ones are made from, _xmem_known_rules
                     what operators do to it, _xmem_known_factories what makes tensors, _xmem_known_shapes what has
                     a shape that follows from values, _xmem_known_plausible makes up the rest, and
                     _xmem_known_assumed says where that may decide something
    _xmem_downloads  serves well-known data sets that are not there, as _xmem_datasets makes them, and _xmem_weights
                     the weights of models
    _xmem_ranks      lets it be one rank of many: _xmem_launch starts ranks, _xmem_peers is what goes between them,
                     _xmem_mail how that gets there, _xmem_checkpoints what a checkpoint gathers
    _xmem_network    notes what was asked for over the network, which is not there
    _xmem_ends       makes every way out of the process lead past the recorder
    _xmem_advice     makes one change to the job, where a dry run asks what that would do
    _xmem_values     notes where a model reads values that are not known
    _xmem_process    what both engines write of the process, and how
    _xmem_redirect   lets a script that says "cuda" run on the CPU: _xmem_cuda describes the GPU, _xmem_as_gpu has torch
                     take a GPU's way
    _xmem_profile    runs a few steps there under torch.profiler, and writes what it saw
    _xmem_workspaces asks, when those are over, what their convolutions would take of a GPU beside their results
    _xmem_guard      refuses early what would not end within its memory and time, _xmem_forecast from shapes alone
    _xmem_outside    in no dry run: what `xmem-slurm site calibrate` runs on a GPU node

Python 3.9 and newer, the standard library and the job's torch (2.4 and newer), nothing else: nothing here imports the
rest of xmem_slurm, and nothing there imports this. They meet in the trace file, described in `xmem_slurm/trace.py`.
"""
