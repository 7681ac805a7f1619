"""xsbatch, xmem-slurm or the filter, whose dry runs are no more than processes, as a warm Python
has to be.

Run as `python -I unsandboxed_start.py MODULE ARGUMENTS...`: the module of xmem_slurm whose `main`
is started."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.harness import unsandboxed
from xmem_slurm.sandbox import sandbox

if __name__ == "__main__":
    sandbox.run = unsandboxed.run
    importlib.import_module(sys.argv.pop(1)).main()
