"""The filter with a fixed answer in place of the dry run: `forced_filter.py OPTION SITE_FILE
PROCESS [TIMES]`, as an installed hook starts it but for the first."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from tests.contract import forced_xsbatch
from xmem_slurm.filter.start import main

if __name__ == "__main__":
    forced_xsbatch.answer(sys.argv.pop(1).split(","))
    main()
