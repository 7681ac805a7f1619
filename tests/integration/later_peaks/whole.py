"""Run a script to its end on the stand-ins alone, nothing of the probe beside it; print torch's own
peaks as JSON.

Run by the job's Python: `whole.py SCRIPT FOLDER_OF_STAND_INS [BYTES]`, the last being all that
torch may take. With an empty folder it runs on a real GPU. Where PROBE_FOR_VALUES names the folder
of the probe, its table of values is there, too, and what lets Triton's kernels be launched on the
stand-ins, and nothing else of it: shapes that follow from masks are those of a GPU."""

import ctypes
import json
import os
import runpy
import sys
from pathlib import Path

script, folder, *most = sys.argv[1:]
# The runtime first: the others link to it (as the probe does it).
libraries = sorted(
    Path(folder).glob("*.so*"), key=lambda path: ("libcudart" not in path.name, path)
)
mapped = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in libraries]

import torch  # noqa: E402 - it finds the stand-ins mapped

if "PROBE_FOR_VALUES" in os.environ:
    sys.path.insert(0, os.environ["PROBE_FOR_VALUES"])
    import triton.backends as of_triton
    from _xmem import patches
    from _xmem.triton import Triton
    from _xmem.values.known_values import KnownValues

    known = KnownValues(torch, {})
    of_triton.backends = Triton(torch, known).backends(of_triton.backends, of_triton)
    patches.apply(patches.DEVICE, {"values": known}, torch.__version__)
    known.begin()
if most:
    torch.cuda.set_per_process_memory_fraction(
        int(most[0]) / torch.cuda.get_device_properties(0).total_memory
    )
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
peaks = {"torch": torch.__version__.partition("+")[0], "gpu": torch.cuda.get_device_name()}
for name in ("allocated", "reserved"):
    peaks[name] = torch.cuda.memory_stats()[f"{name}_bytes.all.peak"]
print("\n" + json.dumps(peaks))
