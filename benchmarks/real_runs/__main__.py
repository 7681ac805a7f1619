"""How far are estimates from what real GPUs showed in public repositories?

    python -m benchmarks.real_runs --data CSV --repositories DIR [--only SOURCE] [--out DIR]
    [--python P]... [--jobs 1]

Every row of the CSV (`rows`) of a source that is known here (`sources/`) is answered by a job that
runs the unmodified command on synthetic data, sized by the product for the GPU of the row, in that
of the Pythons whose torch is nearest to the row's. Nothing is fetched: DIR/owner+name is a checkout
that has the commits of the rows, and the Pythons have what the scripts import. Each row has a line
on stderr, its error or the reason why it has no estimate; tables end it. Results are appended to
--out, one file a source; run it again to go on. `page` makes docs/real-runs.md.
"""

import argparse
import os
import subprocess
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from benchmarks.error_plot import error_plot
from benchmarks.real_runs import answers, rows, runs, scores, sources
from benchmarks.real_runs.page import CAUSES
from benchmarks.text_table import text_table

OUT = Path("build/real-runs")


def known() -> dict[str, ModuleType]:
    """Return the modules of `sources`, by the repository that each knows to run."""
    modules = [
        import_module(f"{sources.__name__}.{each.name}") for each in iter_modules(sources.__path__)
    ]
    return {module.SOURCE: module for module in modules}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare estimates with figures of real GPUs for public code"
    )
    parser.add_argument("--data", type=Path, required=True, help="a CSV as `rows` has it")
    parser.add_argument(
        "--repositories", type=Path, required=True, help="has a checkout of each in owner+name"
    )
    parser.add_argument("--only", metavar="SOURCE", help="rows of this repository, owner/name")
    parser.add_argument("--out", type=Path, default=OUT, help="where results and the plot go")
    parser.add_argument(
        "--python", action="append", help="a job's Python; several for several releases of torch"
    )
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    pythons = arguments.python or list(filter(None, [os.environ.get("XMEM_TEST_PYTHON")]))
    if not pythons:
        parser.error("--python or XMEM_TEST_PYTHON must name a Python that has torch")
    try:
        wanted, refused = rows.read(arguments.data)
        releases = runs.by_release(pythons)
    except (rows.RowError, OSError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    print(*refused, sep="\n", end="\n" if refused else "", file=sys.stderr)
    wanted = [row for row in wanted if arguments.only in (None, row.source)]
    modules, found = known(), []
    means = answers.Means(arguments.repositories, releases, arguments.out, arguments.jobs)
    for source, group in groupby(
        sorted(wanted, key=lambda row: row.source), key=lambda row: row.source
    ):
        for result in answers.of_source(list(group), modules.get(source), means):
            said = (
                result.reason
                or f"{result.error:+.2%} (torch {result.torch}, {result.seconds:.0f} s)"
            )
            print(f"{result.key}: {said}", file=sys.stderr)
            found.append(result)
    print("\n".join(scores.lines(found, scores.read_causes(CAUSES), text_table)))
    print(f"{len(found)} rows; {len(refused)} lines of {arguments.data} are none")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "real-runs.svg").write_text(error_plot(scores.points(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
