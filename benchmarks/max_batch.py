"""Is the largest batch exact? What `estimate --max-batch` finds, and what is said of the script
given it, and one more.

    python -m benchmarks.max_batch --python JOB_PYTHON [--gpu l4] [--only NAME]

The last two columns are estimates of their own, of the script with its batch written on its command
line. With a Python that has no accelerate the Trainer's row has its reason.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.text_table import markdown_table
from xmem_slurm.units import GIB

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = (
    "job",
    "largest batch",
    "it needs, GiB",
    "one more, GiB",
    "CPU s",
    "given it",
    "given one more",
)
FOUR_GPUS = (
    "#!/bin/sh\n#SBATCH --gpus-per-node=4 --ntasks=1\nexec torchrun --standalone "
    "--nproc-per-node=4 {command}\n"
)


@dataclass(frozen=True)
class Case:
    """A script with the option that gives its batch; `vary`: it is found by that option, else by
    its DataLoader.
    """

    script: str
    option: str
    arguments: str = ""
    vary: bool = False
    launched: bool = False

    def written(self, folder: Path, batch: int) -> list[str]:
        """Return what is to be estimated: the script with this batch."""
        command = f"{ROOT / self.script} {self.arguments} {self.option} {batch}"
        if not self.launched:
            return ["python", *command.split()]
        (folder / f"{batch}.sh").write_text(FOUR_GPUS.format(command=command))
        return [str(folder / f"{batch}.sh")]


CASES = {
    "GPT-2": Case("examples/gpt2/train.py", "--batch-size", vary=True),
    "ResNet-50": Case("examples/resnet50/train.py", "--batch-size"),
    "ViT-B/16": Case("benchmarks/workloads/vit.py", "--batch-size"),
    "HF Trainer, 4 GPUs": Case(
        "benchmarks/workloads/hf_trainer.py",
        "--per_device_train_batch_size",
        "--output_dir out --bf16 --max_steps 1000 --report_to none",
        launched=True,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="it has torch, torchvision, transformers"
    )
    parser.add_argument("--gpu", default="l4")
    parser.add_argument("--only", choices=CASES, action="append")
    given = parser.parse_args()
    rows = []
    for name in given.only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append([name, *_row(CASES[name], given.python, given.gpu, Path(folder))])
        print(*rows[-1], sep=" | ", file=sys.stderr)
    print("\n".join(markdown_table(HEADINGS, rows)))
    return 0


def _row(case: Case, python: Path, gpu: str, folder: Path) -> list[str]:
    vary = ["--vary", f"batch_size={case.option}"] if case.vary else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = _estimate(
        ["--max-batch", *vary, "--gpu", gpu, *case.written(folder, 8)], python, folder
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if isinstance(found, str):
        return [found, *[""] * 5]
    (most,) = found["max_batch"]
    plain = [
        _estimate(["--gpu", gpu, *case.written(folder, batch)], python, folder)
        for batch in (most["batch"], most["batch"] + 1)
    ]
    return [
        str(most["batch"]),
        f"{most['required_bytes'] / GIB:.2f}",
        f"{most['required_bytes_with_one_more'] / GIB:.2f}",
        f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.0f}",
        *(each if isinstance(each, str) else _verdict(each) for each in plain),
    ]


def _verdict(estimate: dict[str, Any]) -> str:
    (option,) = estimate["options"]
    return f"{estimate['required_bytes'] / GIB:.2f}, {'fits' if option['fits'] else 'does not fit'}"


def _estimate(arguments: list[str], python: Path, folder: Path) -> dict[str, Any] | str:
    """Return the JSON object that it prints, or why it printed none."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = [
        str(Path(sys.executable).with_name("xmem-slurm")),
        "estimate",
        "--json",
        "--fresh",
        *arguments,
    ]
    environ = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.stdout else done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
