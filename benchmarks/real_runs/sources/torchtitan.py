"""Llama 3.1 8B with FSDP2 on 8 and 128 H100 of 96 GB, selective activation checkpointing, eager.

Needs torchdata, datasets, tensorboard, tiktoken and triton. The published page names the commit of
torchtitan that ran, which the checkout must have in its history. The catalogue's nearest GPU is the
GH200's. The tokenizer has as many words as the true one, 128,256, but others; made-up texts take
the place of C4. A seed is given: without, the script draws one that every other time is no int64,
at which torch 2.6 and 2.7 raise.

How it was started is not published. The command is that of multinode_trainer.slurm, which leaves
the allocator as it is; run_llama_train.sh asks for expandable segments. With those it would be 79.1
and 64.9 GiB in place of 82.4 and 67.0, and with --training.compile, of which no row is here, 75.4
and 61.1 in place of the published 77.0 and 62.0; without it is 76.9 and 61.9. (Where pytorch/ao
publishes run_llama_train.sh, batch 1 compiled, 47.65 GiB, it is 47.67 with them.)
"""

import base64
import io
import itertools
import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run

SOURCE = "pytorch/torchtitan"
GPU = "gh200-96gb"
JOB = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --gres=gpu:8
srun torchrun --nnodes {nodes} --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint localhost:29500 \\
  ./train.py --job.config_file ./train_configs/llama3_8b.toml {options}
"""
_WORDS = 128_000
"""In the tokenizer's file; it adds 256 special ones (torchtitan/datasets/tokenizer/tiktoken.py)."""
_OPTIONS = [
    *("--training.seed", "1", "--training.batch_size", "2", "--training.dataset", "c4_test"),
    *("--model.tokenizer_path", "./tests/assets/test_tiktoken.model"),
]


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for each row of Llama 3.1 8B under FSDP2."""
    page = checkout / rows[0].columns["path"]
    (commit,) = re.findall(r"pytorch/torchtitan/commit/(\w+)", page.read_text(encoding="utf-8"))
    command = ["git", "-C", str(checkout), "archive", commit, "--", ".", ":!tests/assets"]
    with tarfile.open(
        fileobj=io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)
    ) as files:
        files.extractall(folder, filter="data")
    _lay_out(folder / "tests" / "assets")
    for row in rows:
        layout = re.fullmatch(r"FSDP2 (\d+)", row.columns["parallelism"])
        release = re.search(r"\d+\.\d+\.\d+\S*\d", row.torch)
        if layout is None or release is None or row.columns["model"] != "Llama 3.1 8B":
            continue
        script = JOB.format(nodes=int(layout[1]) // 8, options=shlex.join(_OPTIONS))
        yield Run(layout[0], [row], script, folder, GPU, release[0])


def _lay_out(assets: Path) -> None:
    """Write a tokenizer, in tiktoken's form, and texts."""
    (assets / "c4_test").mkdir(parents=True)
    words = itertools.chain.from_iterable(
        itertools.product(range(256), repeat=length) for length in (1, 2, 3)
    )
    lines = [
        f"{base64.b64encode(bytes(word)).decode()} {rank}\n"
        for rank, word in enumerate(itertools.islice(words, _WORDS))
    ]
    (assets / "test_tiktoken.model").write_text("".join(lines), encoding="ascii")
    text = json.dumps({"text": "the quick brown fox jumps over the lazy dog. " * 40}) + "\n"
    (assets / "c4_test" / "data.json").write_text(text * 2560, encoding="utf-8")
