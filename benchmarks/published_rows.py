"""What does one published run say: the workload, what a real GPU measured, and what four tools had
estimated?

The file is `benchmarks/data/published_runs.csv` or any other with its columns
(`benchmarks/data/README.md` says what they mean). Sizes are bytes.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.published_metrics import Judged

TOOLS = ("xmem", "dnnmem", "schedtune", "llmem")
"""The published tools, by the prefix of their columns."""

NANOSECONDS = 1e9


class RowError(Exception):
    """A row that is not one of these data; says which line and what is wrong."""


@dataclass(frozen=True)
class Row:
    """One run. `ground_bytes` is a peak only where the run did not end in OOM (`real_oom`)."""

    key: str
    gpu: str
    total_bytes: int
    kind: str
    model: str
    optimizer: str
    batch_size: int
    zero_grad_mode: str
    fp16: bool
    real_oom: bool
    ground_bytes: int
    columns: Mapping[str, str]

    def judged(self, tool: str) -> Judged | None:
        """Say what a published tool estimated for this run; None where it did not."""
        estimated = self.columns[f"{tool}_bytes"]
        if not estimated:
            return None
        nanoseconds = self.columns[f"{tool}_runtime_ns"]
        capped = self.columns.get(f"{tool}_2nd_oom", "")
        # SchedTune's predictions are numbers without a verdict; it foresees an OOM where they
        # exceed the GPU.
        foreseen = self.columns.get(f"{tool}_pred_oom")
        return Judged(
            ground_bytes=self.ground_bytes,
            total_bytes=self.total_bytes,
            real_oom=self.real_oom,
            estimated_bytes=float(estimated),
            predicted_oom=foreseen == "True" if foreseen else float(estimated) > self.total_bytes,
            capped_oom=capped == "True" if capped else None,
            seconds=float(nanoseconds) / NANOSECONDS if nanoseconds else None,
        )

    def dies_when_capped_at(self, cap: int) -> bool | None:
        """Say whether the run dies of OOM with `cap` bytes for torch's allocator, as far as the
        data tell (else None).

        With its measured peak or more it lives. The authors ran it again, capped at each tool's
        estimate: what lived on less lives on `cap`, what died on more dies.
        """
        if cap >= self.ground_bytes:
            return False
        for judged in filter(None, map(self.judged, TOOLS)):
            if judged.capped_oom is False and cap >= judged.estimated_bytes:
                return False
            if judged.capped_oom is True and cap <= judged.estimated_bytes:
                return True
        return None


def read(path: Path) -> list[Row]:
    """Read all rows of a file.

    Raises:
        RowError: a column is missing, or a number is none.
    """
    return list(_rows(path))


def _rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        for line, columns in enumerate(csv.DictReader(file), start=2):
            try:
                yield Row(
                    key=columns["path"],
                    gpu=columns["gpu"],
                    total_bytes=int(columns["total_gpu_memory"]),
                    kind=columns["kind"],
                    model=columns["model"],
                    optimizer=columns["optimizer"],
                    batch_size=int(columns["batch_size"]),
                    zero_grad_mode=columns["zero_grad_mode"] or "null",
                    fp16=columns["fp16"] == "True",
                    real_oom=columns["real_oom"] == "True",
                    ground_bytes=int(columns["ground_bytes"]),
                    columns=columns,
                )
            except (KeyError, ValueError) as error:
                raise RowError(f"{path}: line {line}: {type(error).__name__}: {error}") from error
