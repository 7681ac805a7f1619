"""Run by a job's Python in a dry run: a training script once for each hook of the probe, under a
torch without it.

`hook_faults.py TABLE SCRIPT` imports torch once, unhooked, and forks for each name that
`_xmem.patches.TABLE` reads and for each replacement: in the child these are not there. What is read
is taken away, where torch itself can do without; else the row asks for another name. A line of JSON
on stdout says of each child which names those were and how it ended."""

import importlib
import importlib.util
import itertools
import json
import os
import runpy
import sys

from _xmem import engine, patches

OF_TORCH_ITSELF = {
    "_builtin_table",
    "_call_impl",
    "_cuda_getDeviceCount",
    "_cuda_memoryStats",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_InferenceMode",
    "_len_torch_dispatch_stack",
    "_wrapped_call_impl",
}
"""What torch needs in any training script."""


def unhooked():
    """Import torch; return (recorder that has not hooked in, torch)."""
    hook_in, recorders = engine.ProbeEngine.after_torch, []
    engine.ProbeEngine.after_torch = lambda recorder, _torch: recorders.append(recorder)
    torch = importlib.import_module("torch")
    engine.ProbeEngine.after_torch = hook_in
    return recorders[0], torch


def is_there(row):
    """Whether the module of a row is; what is waited for may be no part of this Python, and its
    import begins CUDA."""
    module = row.owner.partition(":")[0]
    try:
        return bool(
            importlib.util.find_spec(module) if row.late else importlib.import_module(module)
        )
    except ImportError:
        return False


def asked_otherwise(row):
    """Return the row with a name that torch has not; as it is, where that name is to be taken away.

    A class may have a name from its base, which is torch's C++.
    """
    taken_away = row.is_read and row.name.startswith("_") and row.name not in OF_TORCH_ITSELF
    return (
        row
        if taken_away and row.name in vars(patches._owner(row))
        else row._replace(name=row.name + "_once")
    )


def kinds(table):
    """Return the rows that are taken away together: those of one replacement; of what is read,
    those of one name."""

    def kind(row):
        return row.by, row.name if row.is_read else ""

    return [list(rows) for _, rows in itertools.groupby(sorted(set(table), key=kind), kind)]


def main():
    """Fork for each."""
    name, script = sys.argv[1:]
    recorder, torch = unhooked()
    table = tuple(filter(is_there, (*getattr(patches, name), *patches.OFFLINE)))
    patches.OFFLINE = ()
    for missing in kinds(table):
        asked = [asked_otherwise(row) for row in missing]
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            recorder._begin()
            for row in set(missing) & set(asked):
                delattr(patches._owner(row), row.name)
            recorder.table = tuple(
                asked[missing.index(row)] if row in missing else row for row in table
            )
            recorder.after_torch(torch)
            for row in missing:
                importlib.import_module(row.owner.partition(":")[0])
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
            return
        _, status = os.waitpid(child, 0)
        names = [(str(row), row.doubt) for row in asked]
        sys.stdout.write(json.dumps({"pid": child, "status": status, "names": names}) + "\n")


main()
