"""host_memory.py CASE: a small training script that holds host memory in one way; `CASES` has them.

With XMEM_PLAIN it trains nothing and has the meta device for a GPU: what goes there leaves the
host, as on a GPU node, but for what CUDA takes. Then it prints the most bytes that it and its
workers held, looked at each 20 ms: resident memory of no file, shared pages of a fork once. Of
several ranks each prints its own.
"""

import contextlib
import mmap
import os
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

PLAIN = "XMEM_PLAIN" in os.environ
GPU = "meta" if PLAIN else "cuda"
STEPS = 60
PROC = Path("/proc")


def held() -> int:
    resident, of_files = map(int, (PROC / "self" / "statm").read_text().split()[1:3])
    private = 0
    for process in (PROC / "self" / "task" / str(os.getpid()) / "children").read_text().split():
        rows = (PROC / process / "smaps_rollup").read_text()
        private += int(re.findall(r"Private_Dirty: +(\d+)", rows)[0]) << 10
    return (resident - of_files) * mmap.PAGESIZE + private


class Watch(threading.Thread):
    """The most of it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.start()

    def run(self) -> None:
        """Look again and again."""
        while True:
            with contextlib.suppress(OSError):  # a worker has just ended
                self.most = max(self.most, held())
            time.sleep(0.02)


class Samples(torch.utils.data.Dataset):
    """Pictures of no content; `corpus` is what the script keeps, `own` what each worker makes."""

    def __init__(self, corpus: object = (), own: int = 0) -> None:
        self.corpus, self.own, self.made = corpus, own, None

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.own and self.made is None:
            self.made = np.ones(self.own, dtype=np.uint8)
        return torch.zeros(3, 64, 64)


def layers(number: int = 24) -> torch.nn.Module:
    """64 MiB each."""
    return torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(number)))


def train(data: object, *kept: object) -> None:
    model = torch.nn.Linear(3 * 64 * 64, 10).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in data:
        if not PLAIN:
            model(batch.to(GPU).flatten(1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def small(**of_loader: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Samples(), 16, **of_loader)


def checkpoint(number: int = 16) -> str:
    torch.save(layers(number).state_dict(), "checkpoint.pt")
    return "checkpoint.pt"


def offloaded() -> None:
    """Adam on the host, as offloading does it: its states stay there."""
    weights = [torch.nn.Parameter(torch.randn(4096, 4096)) for _ in range(6)]
    optimizer = torch.optim.Adam(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    train(small(), weights, optimizer)


def frame() -> object:
    """512 MiB of numbers, and as many names; sorted, which copies it."""
    import pandas as pd  # noqa: PLC0415 - the others need none

    columns = {f"x{number}": np.arange(1 << 22, dtype=float) for number in range(16)}
    rows = pd.DataFrame(columns).assign(name=np.char.add("name ", np.arange(1 << 22).astype(str)))
    return rows.sort_values("name")


def corpus(processes: int) -> object:
    """A dataset on disk, of which each row is mapped to its words' lengths."""
    os.environ["HF_HOME"] = str(Path("hf").absolute())
    import datasets  # noqa: PLC0415 - as pandas

    rows = datasets.Dataset.from_dict(
        {"text": [f"row {number} " * 60 for number in range(100_000)]}
    )
    rows.save_to_disk("rows")
    rows = datasets.load_from_disk("rows")
    return rows.map(
        lambda batch: {"lengths": [[len(word) for word in text.split()] for text in batch["text"]]},
        batched=True,
        num_proc=processes,
    )


def on_ranks(number: int) -> None:
    """Each loads a checkpoint of 512 MiB."""
    if "RANK" not in os.environ:
        checkpoint(8)
        launch = ["-m", "torch.distributed.run", f"--nproc-per-node={number}", *sys.argv]
        os.execv(sys.executable, [sys.executable, *launch])
    torch.distributed.init_process_group("gloo" if PLAIN else "nccl")
    train(small(), torch.load("checkpoint.pt"))


def leaking() -> None:
    kept = []
    train((kept.append(np.ones(1 << 22, np.uint8)), batch)[1] for batch in small())


CASES = {
    "a small model": lambda: train(small()),
    "24 layers of 64 MiB made on the host": lambda: train(small(), layers().to(GPU)),
    "two models, one after the other": lambda: train(small(), layers(8).to(GPU), layers().to(GPU)),
    "a model and its copy": lambda: train(small(), [(m, m.to(GPU)) for m in (layers(8), layers())]),
    "an array of 1 GiB": lambda: train(small(), np.ones(1 << 30, np.uint8)),
    "an arena of 2 GiB that nobody writes to": lambda: train(small(), np.empty(1 << 31, np.uint8)),
    "5,000,000 short strings": lambda: train(small(), [str(n) for n in range(5_000_000)]),
    "a memory map of 1 GiB": lambda: train(
        small(), bytes(np.memmap("mapped", np.uint8, "w+", shape=1 << 30)[:: 1 << 12])
    ),
    "a checkpoint of 1 GiB that is read": lambda: train(small(), torch.load(checkpoint())),
    "the same, mapped": lambda: train(small(), torch.load(checkpoint(), mmap=True)),
    "the same, read to the GPU": lambda: train(small(), torch.load(checkpoint(), GPU)),
    "Adam on the host": offloaded,
    "pinned batches": lambda: train(small(pin_memory=not PLAIN)),
    "2 workers": lambda: train(small(num_workers=2)),
    "16 workers": lambda: train(small(num_workers=16)),
    "6 workers with 100 MiB of their own": lambda: train(
        torch.utils.data.DataLoader(Samples(own=100 << 20), 16, num_workers=6)
    ),
    "6 workers that share an array of 1 GiB": lambda: train(
        torch.utils.data.DataLoader(Samples(np.ones(1 << 30, np.uint8)), 16, num_workers=6)
    ),
    "6 workers, spawned, with a copy of 64 MiB each": lambda: train(
        torch.utils.data.DataLoader(
            Samples(np.ones(1 << 26, np.uint8)),
            16,
            num_workers=6,
            multiprocessing_context="spawn",
        )
    ),
    "a data frame that is sorted": lambda: train(small(), frame()),
    "a dataset of rows that are mapped": lambda: train(small(), corpus(1)),
    "the same, mapped by 4 processes": lambda: train(small(), corpus(4)),
    "a checkpoint of 512 MiB that each of 4 ranks reads": lambda: on_ranks(4),
    "a loop that keeps 4 MiB of each batch": leaking,
    "a tensor that comes and goes before training": lambda: train(
        small(), torch.ones(1 << 28).sum()
    ),
}


if __name__ == "__main__":
    watch = Watch()
    CASES[sys.argv[1]]()
    if PLAIN:
        print(watch.most)
