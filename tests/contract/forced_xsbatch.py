"""xsbatch with a fixed answer in place of the dry run: `python forced_xsbatch.py OPTION [xsbatch's arguments]`."""

import sys
from collections.abc import Mapping
from pathlib import Path

from xmem_slurm import sizing, trace
from xmem_slurm.cli.xsbatch import main
from xmem_slurm.estimate import estimate
from xmem_slurm.placement import Placement, Verdict
from xmem_slurm.site.schema import Gpu

GPT2 = trace.read(Path(__file__).parents[1] / "data" / "gpt2-small.json.gz")


def answer(option: str) -> None:
    """Let every job need the GPU option of this name."""

    def size(_job: object, _site: object, gpus: Mapping[str, Gpu], *_: object) -> sizing.Sizing:
        placement = Placement([Verdict(option, gpus[option], fits=True)], option)
        return sizing.Sizing(estimate([GPT2], option, gpus[option]), placement, 0.0)

    sizing.size = size


if __name__ == "__main__":
    answer(sys.argv.pop(1))
    main()
