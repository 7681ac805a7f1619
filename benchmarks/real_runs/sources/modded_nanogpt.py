"""GPT-2 speed runs on 8 x H100: the script of each is the head of its log, which ends with torch's
peaks.

Needs triton, and one script a checkout of KellerJordan/Muon beside it, of the day of its log.
Another asks a hub for FlashAttention-3, and cannot be had. The token files are of the true form and
sizes, but all tokens are 0: no document ends in them. What nvidia-smi says in the same logs is no
peak of a job: `benchmarks.nccl` has it.

Four scripts of early nightlies of 2.7 and one of 2.6 have no stable torch that runs them as they
are: 2.6.0 has no backward kernel of FlexAttention for heads of 128 on an H100, and 2.7 asserts what
four of them say wrongly, the strides of an fp8 gradient. So they run in 2.7.1 without inductor's
assertions, which hold no memory (`_ENVIRON`).
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run, gpu_of

SOURCE = "KellerJordan/modded-nanogpt"
MUON = "KellerJordan+Muon"
JOB = """\
#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:8
exec torchrun --standalone --nproc_per_node=8 train_gpt.py
"""
_ENVIRON = {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}
_END_OF_CODE = "=" * 100
_MAGIC, _VERSION, _TOKENS = 20240520, 1, 100_000_000
"""Of a token file: 256 numbers of 32 bits, these first, then tokens of 16 (`_load_data_shard` in
the scripts)."""
_FILES = {"fineweb_val_{:06}.bin": range(1), "fineweb_train_{:06}.bin": range(1, 10)}


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for each script of which a peak was published."""
    data = folder / "data" / "fineweb10B"
    data.mkdir(parents=True)
    for name, numbers in _FILES.items():
        for number in numbers:
            _write_tokens(data / name.format(number))
    peaks = sorted(
        (row for row in rows if row.metric.startswith("peak")), key=lambda row: row.columns["path"]
    )
    for path, of_path in groupby(peaks, lambda row: row.columns["path"]):
        log = checkout / path
        if log.is_dir():  # of several logs of one script
            log = min(log.glob("*.txt"))
        home = folder / path.replace("/", "+")
        home.mkdir()
        (home / "data").symlink_to(folder / "data")
        code, _, _ = log.read_text(encoding="utf-8").partition(_END_OF_CODE)
        (home / "train_gpt.py").write_text(code, encoding="utf-8")
        answered = list(of_path)
        environ = {"PYTHONPATH": str(checkout.parent / MUON), **_ENVIRON}
        yield Run(
            path, answered, JOB, home, gpu_of(answered[0]), answered[0].torch, environ=environ
        )


def _write_tokens(path: Path) -> None:
    """Write a file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.write(struct.pack("<256i", _MAGIC, _VERSION, _TOKENS, *[0] * 253))
        file.truncate(file.tell() + 2 * _TOKENS)
