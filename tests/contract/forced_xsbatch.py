"""xsbatch with a fixed answer in place of the dry run: `forced_xsbatch.py OPTION[,OPTION]
[xsbatch's arguments]`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm import trace_file
from xmem_slurm.cli.xsbatch import main
from xmem_slurm.dryrun.exchange import Orders
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.premises import Premises

GPT2 = trace_file.read(Path(__file__).parents[1] / "data" / "gpt2-small.json.gz")


def answer(options: Sequence[str]) -> None:
    """Let every job need the GPU option of this name; with several, each component of a
    heterogeneous job its own."""

    def size(option: str, gpu: Gpu) -> sizing.Sizing:
        placement = Placement([Verdict(option, gpu, fits=True)], option)
        return sizing.Sizing(estimate([GPT2], option, gpu), placement, 0.0)

    def size_components(
        _job: object,
        components: Sequence[int],
        premises: Premises,
        **_: object,
    ) -> Orders[Mapping[int, sizing.Sizing]]:
        chosen = {index: options[min(index, len(options) - 1)] for index in components}
        return {index: size(option, premises.gpus[option]) for index, option in chosen.items()}
        yield  # a generator that wants no dry run

    sizing.size_components = size_components


if __name__ == "__main__":
    answer(sys.argv.pop(1).split(","))
    main()
