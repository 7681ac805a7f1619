"""Run a batch script dry, as whoever this process is: `container_driver.py SCRIPT GPUS`; JSON on
stdout."""

import json
import os
import sys
from pathlib import Path

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.slurm.submission import Submission


def main(script: str, gpus: str) -> None:
    job = from_submission(
        Submission((f"--gres=gpu:{gpus}", "job.sh"), dict(os.environ), Path(script).read_bytes())
    )
    ran = runner.run(DryRunOrder.of(job, load_catalogue()["h200"], Budget(seconds=240)))
    answer = {"said": ran.outcome.output_tail.decode(), "cpu_seconds": ran.outcome.cpu_seconds}
    try:
        answer["error"] = next((each.error for each in ran.traces if each.error), None)
        found = [each for each in ran.traces if each.allocations]
        answer["ranks"] = [[each.rank, each.world_size, each.torch_version] for each in found]
        answer["bytes"] = [each.recorded for each in found]
        answer["files"] = [each.path for each in ran.traces[0].files if each.kind != "A"]
    except NoEstimate as error:
        answer["why"] = str(error)
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
