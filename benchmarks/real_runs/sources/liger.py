"""One operation forward and backward, eager and in Triton: what each measurement of a benchmark
script said.

A script measures speeds, and memory: each row ten times behind a reset of torch's peaks, of which
it notes the median. What the speeds left behind is in some figures; so a script is one job, and a
row is known by its place in the order of the repository's own table. Its tree is the last before
that table's time, or the first that has the script. Where this has another configuration than the
row, the script's own function is called with the row's; and where its speeds would build a head of
128256 words some fifty times on the CPU (`DEAR`). The checkout is a clone with its history.

Torch is not stated: the newest release of the table's day is taken (`RELEASES`). It decides: some
of what torch.compile makes lives in cycles of references until Python's collector comes, and is in
the figures of later rows. Needs transformers 4.44, pandas, pytest and triton. Nothing is synthetic:
scripts draw their own tensors.
"""

import ast
import csv
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run, gpu_of
from xmem_slurm.sizing.estimate import Estimate

SOURCE = "linkedin/Liger-Kernel"
RELEASES = {
    "2024-07-24": "2.4.0",
    "2024-09-04": "2.4.1",
    "2024-10-17": "2.5.0",
    "2024-10-29": "2.5.1",
}
"""Of torch, by day (pypi.org/project/torch), from Liger's first table on."""
TABLE = "benchmark/data/all_benchmark_data.csv"
SCRIPTS = "benchmark/scripts"
CALLS = 10
"""So often is each row measured: utils._test_memory."""
DEAR = ("distill_jsd_loss", "fused_linear_cross_entropy", "fused_linear_jsd")
"""Of such operations those whose speeds leave no more behind than a workspace of cuBLAS."""
CALL = """exec python - <<'EOF'
import {module}, torch, utils
(measure,) = (function for name, function in vars({module}).items() if name.startswith("bench_memory_"))
{calls}
EOF"""


def runs(rows: Sequence[Row], checkout: Path, folder: Path) -> Iterator[Run]:
    """Yield one run for each operation on a GPU, another one for configurations that its script
    does not have.
    """
    with (checkout / TABLE).open(newline="", encoding="utf-8") as file:
        table = [line for line in csv.DictReader(file) if line["metric_name"] == "memory"]
    for (name, gpu), group in groupby(sorted(rows, key=_operation), key=_operation):
        of_operation = list(group)
        measured = [
            line for line in table if (line["kernel_name"], line["gpu_name"]) == (name, gpu)
        ]
        if not measured:  # by another version of the table
            continue
        script = _lay_out(checkout, folder / name, measured[0])
        own = () if name in DEAR else _configurations(script)
        for called in (False, True):
            lines = [
                line
                for line in measured
                if (line["extra_benchmark_config_str"] not in own) == called
            ]
            command = _calls(script.stem, lines) if called else f"exec python {script.name}"
            places = [_place(line) for line in lines]
            answered = [row for row in of_operation if _asked(row) in places]
            if answered:
                yield Run(
                    key=f"{name} on {gpu}{', function called' if called else ''}",
                    rows=answered,
                    script=f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{command}\n",
                    folder=script.parent,
                    gpu=gpu_of(of_operation[0]),
                    torch=max(
                        released
                        for day, released in RELEASES.items()
                        if day <= lines[0]["timestamp"]
                    ),
                    answer=partial(_median, places),
                    environ={"PYTHONPATH": str(folder / name / "src")},
                    seconds=1800,
                )


def _operation(row: Row) -> tuple[str, str]:
    return row.columns["model"], row.columns["gpu"]


def _place(line: Mapping[str, str]) -> tuple[str, ...]:
    """Say what a line of the repository's table measured, in the words of a row's columns."""
    how = f"provider={line['kernel_provider']} mode={line['kernel_operation_mode']}"
    return how, f"{line['x_name']}={line['x_value']}", line["extra_benchmark_config_str"]


def _asked(row: Row) -> tuple[str, ...]:
    return (
        row.columns["command_or_config"].partition(" ")[2],
        row.columns["seq_len"],
        row.columns["batch"],
    )


def _median(places: Sequence[tuple[str, ...]], row: Row, estimate: Estimate) -> int:
    """Return what the script says of a row: the median of its calls, each behind a reset."""
    peaks = [each["allocated_bytes"] for each in estimate.largest.trace.between_resets]
    last = len(peaks) - CALLS * (len(places) - places.index(_asked(row)) - 1)
    return round(median(peaks[last - CALLS : last]))


def _lay_out(checkout: Path, tree: Path, line: Mapping[str, str]) -> Path:
    """Put the tree in which a line of the table was measured into a folder; return its script."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", checkout, *arguments], check=False, stdout=subprocess.PIPE
        ).stdout

    names = f'"kernel_name": "{line["kernel_name"]}"'
    first = git("log", "--reverse", "--format=%H", f"-S{names}", "--", SCRIPTS).decode().split()[0]
    before = git("rev-list", "-1", f"--before={line['timestamp']} +0000", "HEAD").decode().strip()
    commits = filter(None, (before, first))
    found = (
        (commit, git("grep", "-lF", names, commit, "--", SCRIPTS).decode()) for commit in commits
    )
    commit, scripts = next((commit, scripts) for commit, scripts in found if scripts)
    about = tree / "src" / "liger_kernel-0.dist-info"
    about.mkdir(parents=True)
    files = (
        git("ls-tree", "-r", "--name-only", commit, "src", "benchmark", "test")
        .decode()
        .splitlines()
    )
    wanted = [file for file in files if file.endswith((".py", ".csv"))]
    subprocess.run(["tar", "-x"], check=True, cwd=tree, input=git("archive", commit, *wanted))
    (about / "METADATA").write_text(
        f"Name: liger-kernel\nVersion: {line['liger_version']}\n", encoding="utf-8"
    )
    return tree / scripts.split()[0].partition(":")[2]


class _Names(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.Constant:
        """Take a name such as torch.float32 for a word."""
        return ast.Constant(ast.unparse(node))


def _configurations(script: Path) -> list[str]:
    """Return the configurations that a script measures, as the table has them."""
    mappings = (
        node
        for node in ast.walk(ast.parse(script.read_text("utf-8")))
        if isinstance(node, ast.Dict)
    )
    pairs = [pair for each in mappings for pair in zip(each.keys, each.values, strict=True)]
    lists = [
        value for key, value in pairs if key and ast.unparse(key) == "'extra_benchmark_configs'"
    ]
    found = [ast.literal_eval(_Names().visit(each)) for each in lists]
    return [json.dumps(each) for configurations in found for each in configurations]


def _calls(module: str, lines: Sequence[Mapping[str, str]]) -> str:
    """Return a command that has a script's function measure these lines of the table."""
    calls = []
    for line in lines:
        config = json.loads(line["extra_benchmark_config_str"])
        dtype = config.pop("dtype", None)
        words = f"{config!r}" + (f" | {{'dtype': {dtype}}}" if dtype else "")
        how = line["kernel_provider"], line["kernel_operation_mode"]
        calls.append(f"measure(utils.SingleBenchmarkRunInput({line['x_value']}, *{how}, {words}))")
    return CALL.format(module=module, calls="\n".join(calls))
