"""What runs on a CPU node of a site that wants its dry runs there: a step of srun's, or a task of
an array job.
"""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

from xmem_slurm.dryrun import dispatch, job
from xmem_slurm.dryrun.exchange import order_from_json, result_to_json
from xmem_slurm.errors import XmemError
from xmem_slurm.state import signals


def main() -> None:
    """Be the step: read what to run from standard input, and write what came of it, one line, to
    standard output.
    """
    with signals.clearing_up():
        # a site's prolog may have printed something
        sys.stdout.write(f"\n{answer(sys.stdin.read())}\n")


def task() -> None:
    """Be a task of the array: run what is ordered of it, and leave the answer beside the order,
    whole or not at all.
    """
    order = Path(os.environ.pop("XMEM_ORDERS"), f"{os.environ['SLURM_ARRAY_TASK_ID']}.json")
    order.with_suffix(".begun").touch()
    part = order.with_suffix(".part")
    part.write_text(answer(order.read_text(encoding="utf-8")), encoding="utf-8")
    part.replace(order.with_suffix(".answer"))


def answer(text: str) -> str:
    """Run on this node what is ordered, and return what came of it."""
    order = order_from_json(text)
    try:
        return result_to_json(dispatch.here(replace(order, job=job.on_this_host(order.job))))
    except XmemError as error:
        return result_to_json(type(error)(f"{platform.node()}: {error}"))
