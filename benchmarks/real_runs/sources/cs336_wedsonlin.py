"""Memory snapshots of one step of a transformer of 420 M parameters, in fp32 and bf16, training and
inference.

Needs Python 3.12 with einops, einx and jaxtyping. Nothing is synthetic: the script draws its own
tokens. It wants a folder `results` beside its own, which is there. By their dates the snapshots are
of the script's version in 8630bcf, whose option was `--memory-profile true`; it allocates what the
rows' commands do.
"""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from benchmarks.real_runs import histories
from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run, peak_between_resets

SOURCE = "Wedsonlin/assignment2-systems"
GPU = "rtx-4090"
"""The card is not named: its cuBLAS workspaces are those of no 9.0 or 10.0, and 23.4 GiB were
reserved on it."""


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for each snapshot; every command starts in `scripts`, as the repository's own
    script has it.
    """
    del folder

    def run(row: Row) -> tuple[str, str, str]:
        return row.columns["path"], row.columns["command_or_config"], row.torch

    for (path, command, torch), of_run in groupby(sorted(rows, key=run), run):
        words = shlex.split(command)
        words[1] = f"../{words[1]}"
        yield Run(
            key=Path(path).stem,
            rows=list(of_run),
            script=f"#!/bin/bash\n#SBATCH --gres=gpu:1\nexec {shlex.join(words)}\n",
            folder=checkout / "scripts",
            gpu=GPU,
            torch=torch,
            answer=peak_between_resets,
            parting=partial(histories.parting, checkout / path),
            environ={"PYTHONPATH": str(checkout / "cs336-basics")},
        )
