"""Which unmodified public training scripts run dry, and what does that cost? Runs them, and writes docs/coverage.md.

    python -m benchmarks.coverage run CLONES --python JOB_PYTHON [--only WORD] [--work FOLDER]
    python -m benchmarks.coverage page

CLONES holds a git repository OWNER/NAME, bare or not, for each that benchmarks/coverage.toml names; a script is tried
in a copy of its own, with the data that the list names put in place by `coverage_data`. The job's Python has what the
scripts import. Results go to benchmarks/data/coverage.json, one a script, later ones over earlier ones.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from benchmarks import dryrun_cost
from benchmarks.text_table import markdown_table
from xmem_slurm.device.builder import build

HERE = Path(__file__).parent
SCRIPTS = HERE / "coverage.toml"
RESULTS = HERE / "data" / "coverage.json"
PAGE = HERE.parent / "docs" / "coverage.md"
TEMPLATE = HERE / "coverage.md.j2"
GPU = "h200"
HEADINGS = (
    "repository", "command (folder)", "kind", "GPUs", "ran", "peak, MiB", "confidence", "s", "not seen, or why not",
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    """One script as its repository has it. `data` are RECIPE:FOLDER, the folder as seen from the script's own.

    `setup` is a line of shell run before the job, in the same folder, as its user would run it. `list` is the list that
    it is on. `packages` are what its results were had with, where the newest would fail it; `broken` says why it does
    not run on a GPU either: what packages have changed.
    """

    repository: str
    command: str
    kind: str
    folder: str = "."
    gpus: int = 1
    nodes: int = 1
    data: Sequence[str] = ()
    setup: str = ""
    list: int = 1
    packages: str = ""
    broken: str = ""

    @property
    def key(self) -> str:
        """What names it in the results."""
        return f"{self.repository}/{self.folder}: {self.command}"


@dataclass(frozen=True)
class Result:
    """What came of it; `peak_bytes` is what torch's allocator reserves in the largest rank, None where none ran.

    `seen` is what that rank saw of the script, as `xmem-slurm estimate --json` has it.
    """

    commit: str
    date: str
    seconds: float
    peak_bytes: int | None = None
    steps: int = 0
    reasons: Sequence[str] = field(default_factory=tuple)
    why_not: str = ""
    confidence: str = ""
    seen: Mapping[str, Any] = field(default_factory=dict)


def scripts() -> list[Script]:
    """Return the list, in its order."""
    return [Script(**each) for each in tomllib.loads(SCRIPTS.read_text(encoding="utf-8"))["script"]]


def results() -> dict[str, Result]:
    """Return what was found so far, by the key of the script."""
    if not RESULTS.is_file():
        return {}
    return {key: Result(**each) for key, each in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def check_out(clone: Path, folder: Path) -> str:
    """Write the files of the clone's newest commit, those whose contents it has; return the commit."""
    git = ["git", f"--git-dir={clone / '.git' if (clone / '.git').is_dir() else clone}"]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    listed = subprocess.run([*git, "ls-tree", "-rz", commit], check=True, capture_output=True, text=True).stdout
    for path, mode, content in _contents(git, listed.split("\0")[:-1]):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            file.symlink_to(os.fsdecode(content))
        else:
            file.write_bytes(content)
            file.chmod(int(mode[-3:], 8))
    return commit


def _contents(git: Sequence[str], entries: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yield (path, mode, content) of `git ls-tree`'s entries; a partial clone lacks large files."""
    environ = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    with subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for entry in entries:
            (mode, kind, name), path = entry.partition("\t")[0].split(), entry.partition("\t")[2]
            if kind != "blob":
                continue
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            head = process.stdout.readline().split()
            if head[1] != b"missing":
                content = process.stdout.read(int(head[2]) + 1)
                yield path, mode, content[:-1]
        process.stdin.close()


def try_out(script: Script, clones: Path, work: Path, python: Path, budget: float) -> Result:
    """Run `script` dry in a fresh copy of its repository under `work`, for at most `budget` seconds."""
    top = work / script.repository.replace("/", "-")
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    commit = check_out(clones / script.repository, top / "repository")
    folder = top / "repository" / script.folder
    (work / "built").mkdir(exist_ok=True)
    (top / ".cache").mkdir()
    (top / ".cache" / "xmem-slurm").symlink_to(work / "built")  # the stand-ins are built once
    environ = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(top)}
    environ.pop("XDG_CACHE_HOME", None)
    libraries = {"LD_LIBRARY_PATH": str(_stand_ins(python, work / "built" / "device"))}
    for entry in script.data:
        recipe, _, place = entry.partition(":")
        command = [python, HERE / "coverage_data.py", recipe, (folder / place).resolve()]
        subprocess.run(command, check=True, env=environ | libraries, cwd=top)
    if script.setup:
        subprocess.run(["bash", "-c", script.setup], check=True, cwd=folder, env=environ)
    job = top / "job.sh"
    gpus = f"#SBATCH --nodes={script.nodes}\n#SBATCH --gpus-per-node={script.gpus // script.nodes}\n"
    job.write_text(f"#!/bin/bash\n{gpus}{script.command}\n")
    began = time.monotonic()
    found = subprocess.run(
        [
            *(sys.executable, "-c", "from xmem_slurm.cli.main import main; main()"),
            *("estimate", "--json", "--gpu", GPU, "--budget", str(budget), job),
        ],
        capture_output=True,
        text=True,
        env=environ,
        cwd=folder,
        check=False,
    )
    result = Result(commit, datetime.now(UTC).date().isoformat(), round(time.monotonic() - began, 1))
    if found.returncode:
        why = found.stderr.strip().removeprefix("xmem-slurm: ")
        return replace(result, why_not=why.replace(str(top), "").replace(str(python.parents[1]), ""))
    said = json.loads(found.stdout)
    largest = max(said["ranks"], key=lambda rank: rank["required_bytes"])
    return replace(
        result,
        peak_bytes=largest["peak_reserved_bytes"],
        steps=largest["steps"],
        reasons=said["confidence"]["reasons"],
        confidence=said["confidence"]["level"],
        seen=largest["seen"] or {},
    )


def _stand_ins(python: Path, cache: Path) -> Path:
    """Return the folder of libraries with which the job's torch loads without CUDA: it makes some of the data."""
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    return build(Path(found), cache)


def page() -> str:
    """Return docs/coverage.md."""
    found, listed = results(), scripts()
    tried = [(script, found[script.key]) for script in listed if script.key in found]
    numbers = sorted({script.list for script, _ in tried})
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    return template.render(
        lists=[_list([each for each in tried if each[0].list == number]) for number in numbers],
        cost="\n".join(markdown_table(dryrun_cost.HEADINGS, dryrun_cost.rows())),
        dates=sorted({result.date for _, result in tried}),
        commits=sorted({f"{script.repository} {result.commit[:10]}" for script, result in tried}),
    )


def _list(tried: Sequence[tuple[Script, Result]]) -> dict[str, object]:
    """Return what the page says of one list: counts, the median of seconds, and its table."""
    ran = [result for _, result in tried if result.peak_bytes is not None]
    return {
        "tried": len(tried),
        "repositories": len({script.repository for script, _ in tried}),
        "ran": len(ran),
        "rated": sum(bool(result.confidence) for result in ran),
        "high": sum(result.confidence == "high" for result in ran),
        "ends": sum(bool(result.seen.get("end")) for result in ran if result.confidence == "high"),
        "broken": sum(bool(script.broken) for script, result in tried if result.peak_bytes is None),
        "median": sorted(result.seconds for result in ran)[len(ran) // 2],
        "table": "\n".join(markdown_table(HEADINGS, [_row(script, result) for script, result in tried])),
    }


def _row(script: Script, result: Result) -> list[str]:
    where = "" if script.folder == "." else f" ({script.folder})"
    notes = f"{where}{' [data]' if script.data else ''}{script.packages and f' with {script.packages}'}"
    command = f"`{script.command}`{notes}".replace("|", "\\|")
    ran = result.peak_bytes is not None
    peak = f"{result.peak_bytes / 2**20:.0f}" if result.peak_bytes is not None else ""
    said = "; ".join(result.reasons) if ran else f"{result.why_not}{script.broken and f' ({script.broken})'}"
    if result.confidence == "high":
        said = f"seen: {_seen(result)}"
    outcome = "yes" if ran else "nor on a GPU" if script.broken else "no"
    line = [script.repository, command, script.kind, str(script.gpus), outcome, peak]
    return [*line, result.confidence, f"{result.seconds:.0f}", said.replace("|", "\\|")]


def _seen(result: Result) -> str:
    """Say what was seen of a script."""
    return "the script's end" if result.seen.get("end") else "not the script's end"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("clones", type=Path)
    run.add_argument("--python", type=Path, required=True, help="the job's Python")
    run.add_argument("--only", default="", help="scripts whose key contains this")
    run.add_argument("--list", type=int, default=0, help="scripts of this list")
    run.add_argument("--budget", type=float, default=60, help="seconds for each; more where the machine is busy")
    run.add_argument("--work", type=Path, help="keep the copies here")
    verbs.add_parser("page")
    arguments = parser.parse_args()
    if arguments.verb == "page":
        PAGE.write_text(page(), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or Path(folder)
        for script in scripts():
            if arguments.only not in script.key or arguments.list not in (0, script.list):
                continue
            result = try_out(
                script, arguments.clones.resolve(), work.resolve(), arguments.python.absolute(), arguments.budget
            )
            RESULTS.write_text(
                json.dumps({key: asdict(each) for key, each in {**results(), script.key: result}.items()}, indent=1)
                + "\n"
            )
            said = result.why_not or f"{(result.peak_bytes or 0) / 2**20:.0f} MiB, {result.steps} steps"
            print(f"{script.key}: {said} ({result.seconds} s)", flush=True)


if __name__ == "__main__":
    main()
