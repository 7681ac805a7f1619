"""The largest rank as torch's own memory snapshot: for pytorch.org/memory_viz and
torch/cuda/_memory_viz.py.
"""

import pickle
from pathlib import Path

from xmem_slurm.allocator.replay import Run
from xmem_slurm.allocator.snapshot import snapshot
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.state import own_files


def write(path: Path, sizing: Sizing) -> None:
    """Write the history of the whole run, without a limit, and the state at its end, pickled."""
    own_files.write_for_user(path, pickle.dumps(snapshot(Run(sizing.estimate.largest.trace))))
