"""Which unmodified public training scripts run dry, and what does that cost? Runs them, and writes
docs/coverage.md.

    python -m benchmarks.coverage run CLONES --python JOB_PYTHON [--only WORD] [--work FOLDER]
    python -m benchmarks.coverage page

CLONES holds a git repository OWNER/NAME, bare or not, for each that benchmarks/coverage.toml names;
a script is tried in a copy of its own, with the data that the list names put in place by
`coverage_data`. The job's Python has what the scripts import. Results go to
benchmarks/data/coverage.json, one a script, later ones over earlier ones.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import jinja2

from benchmarks import coverage_on_gpu, dryrun_cost
from benchmarks.text_table import markdown_table
from xmem_slurm.device.builder import build
from xmem_slurm.doubts import Doubt

HERE = Path(__file__).parent
SCRIPTS = HERE / "coverage.toml"
RESULTS = HERE / "data" / "coverage.json"
PAGE = HERE.parent / "docs" / "coverage.md"
TEMPLATE = HERE / "coverage.md.j2"
GPU = "h200"
HEADINGS = (
    "repository", "command (folder)", "kind", "GPUs", "ran", "to its end", "peak, MiB",
    "confidence", "s",
    "may be wrong as, or why not",
)  # fmt: skip
REASONS = ("why an estimate says that it may be wrong", "scripts")
FORMER = {
    Doubt.CUDNN_PLAN: "cuDNN chooses its plans and their workspace on the GPU",
    Doubt.CUDNN_BATCHNORM: "cuDNN's batch norm keeps reserve space of a size it does not publish",
    Doubt.CUDNN_RNN: "cuDNN's RNN workspace is not known",
    Doubt.CUDNN_CTC: "cuDNN's CTC workspace is not known",
    Doubt.CUSOLVER: "cuSOLVER's workspace is not known",
    Doubt.CUSPARSE: "cuSPARSE's workspace is not known",
    Doubt.CUSPARSELT: "cuSPARSELt's workspace is not known",
    Doubt.PROFILE_ENGINE: "real steps on this machine's CPU stand for the GPU's",
    Doubt.MANAGED: "managed memory may lie on the GPU or not",
    Doubt.CUFFT: "cuFFT's workspace is not known",
    Doubt.NCCL: "NCCL's buffers are not known",
    Doubt.FORWARD_READ: "the model reads values in its forward pass ({detail}), zeros here",
    Doubt.NEVER_STEPPED: "{detail}: the script is taken for one that makes none",
    Doubt.OPTIMIZER_READ: "{detail} decides by values, zeros here, how far it goes",
    Doubt.NOT_REACHED: "{detail} was not reached: what it needs was not seen",
    Doubt.LARGEST_DRAWN: "batches differ in size, and the largest of {detail} was trained on",
    Doubt.DDP_BUCKETS: (
        "torch's NCCL thread looks every 100 ms: {detail} may live on while it makes the next "
        "(measured: 9 %)"
    ),
    Doubt.RANKS: "{detail} may need more than those that were run",
    Doubt.AUTOTUNED: "max-autotune measures on the GPU which kernels it takes and what it fuses "
    "into them",
    Doubt.GARBAGE: "Python's garbage collector freed {detail}, at a moment that may be another on "
    "a GPU",
    Doubt.ASSUMED_VALUES: "{detail}: what the job does next may hang on it",
    Doubt.VALUES_UNKNOWN: "{detail}: what is decided by values on the GPU is not known",
    Doubt.HOOK_MISSING: "{detail}: what is seen by it was not",
    Doubt.SKIPPED: "{detail}, where calls like earlier ones are taken for those",
    Doubt.STOPPED: "the script stopped with {detail}; what would follow was not seen",
    Doubt.GROWING: "the run ended before the peak was seen to repeat",
}
"""The words that results of before have for them, with "(no measurements yet)" behind many."""
BUDGET_OF_300 = {
    each: re.sub("a larger (--xmem-budget)", r"\1=300", each.sentence)
    for each in (Doubt.CUDNN_TIME, Doubt.NOT_REACHED, Doubt.GROWING)
}
"""Up to 2026-11-29 these proposed one budget, whatever was spent."""
WITHOUT_A_REASON = {
    Doubt.CUDNN_PLAN: (
        "the workspace of cuDNN's plans was not seen: only a GPU shows that, and the margin is "
        "wider for it"
    ),
}
"""Up to 2026-11-29 these did not say why."""
_WORDS = [
    *((each, each.sentence) for each in Doubt if each.sentence != "{detail}"),
    *FORMER.items(),
    *BUDGET_OF_300.items(),
    *WITHOUT_A_REASON.items(),
]
SENTENCES = {
    re.compile(re.escape(words).replace(r"\{detail\}", ".*") + r"( \(no measurements yet\))?"): (
        each.sentence.replace("{detail}", "…")
    )
    for each, words in _WORDS
}
NOT_REACHED = Doubt.NOT_REACHED.sentence.replace("{detail}", "…")


@dataclass(frozen=True)
class Script:
    """One script as its repository has it. `data` are RECIPE:FOLDER, the folder as seen from the
    script's own.

    `setup` is a line of shell run before the job, in the same folder, as its user would run it.
    `list` is the list that it is on. `packages` are what its results were had with, where the
    newest would fail it; `broken` says why it does not run on a GPU either: what packages have
    changed.
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
    """What came of it; `peak_bytes` is what torch's allocator reserves in the largest rank, None
    where none ran.

    `allocated_bytes` is what it has given to tensors at the most, None in results of before.

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
    allocated_bytes: int | None = None

    @property
    def ran(self) -> bool:
        """Whether there is an estimate."""
        return self.peak_bytes is not None

    @property
    def kinds_of_reasons(self) -> set[str]:
        """The reasons without what is the script's own in them."""
        return {_kind_of(reason) for reason in self.reasons}

    @property
    def reached_end(self) -> bool:
        """Whether the script came to its own end, without a loop cut short."""
        epochs = self.seen.get("epochs") or {"done": 0, "of": 0}
        was_cut = NOT_REACHED in self.kinds_of_reasons or epochs["done"] != epochs["of"]
        return bool(self.seen.get("end")) and not was_cut


def _kind_of(reason: str) -> str:
    """Return the sentence of the register that says most of a reason, or its words without their
    numbers.
    """
    sentences = [sentence for words, sentence in SENTENCES.items() if words.fullmatch(reason)]
    return max(sentences, key=len) if sentences else re.sub(r"\d[\d,.]*", "…", reason)


def scripts() -> list[Script]:
    """Return the list, in its order."""
    return [Script(**each) for each in tomllib.loads(SCRIPTS.read_text(encoding="utf-8"))["script"]]


def results() -> dict[str, Result]:
    """Return what was found so far, by the key of the script."""
    if not RESULTS.is_file():
        return {}
    return {
        key: Result(**each) for key, each in json.loads(RESULTS.read_text(encoding="utf-8")).items()
    }


def check_out(clone: Path, folder: Path) -> str:
    """Write the files of the clone's newest commit, those whose contents it has; return the
    commit.
    """
    git = ["git", f"--git-dir={clone / '.git' if (clone / '.git').is_dir() else clone}"]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    listed = subprocess.run(
        [*git, "ls-tree", "-rz", commit], check=True, capture_output=True, text=True
    ).stdout
    for path, mode, content in _contents(git, listed.split("\0")[:-1]):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            file.symlink_to(os.fsdecode(content))
        else:
            file.write_bytes(content)
            file.chmod(int(mode[-3:], 8))
    return commit


def _as_cloned(folder: Path) -> None:
    """Make a git repository of a folder: some scripts note which commit they are of."""
    git = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "core.safecrlf=false",
    ]
    for words in (
        ["init", "-q"],
        ["add", "-A", "-f"],
        ["commit", "-q", "--no-verify", "-m", "as it is"],
    ):
        subprocess.run([*git, *words], check=True)


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
    """Run `script` dry in a fresh copy of its repository under `work`, for at most `budget`
    seconds.
    """
    top = work / script.repository.replace("/", "-")
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    commit = check_out(clones / script.repository, top / "repository")
    _as_cloned(top / "repository")
    folder = top / "repository" / script.folder
    (work / "built").mkdir(exist_ok=True)
    (top / ".cache").mkdir()
    (top / ".cache" / "xmem-slurm").symlink_to(work / "built")  # the stand-ins are built once
    environ = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(top)}
    environ.pop("XDG_CACHE_HOME", None)
    stand_ins = _stand_ins(python, work / "built" / "device")
    runtime = next(stand_ins.glob("libcudart.so*"))  # the others need it in place before them
    libraries = {"LD_LIBRARY_PATH": str(stand_ins), "LD_PRELOAD": str(runtime)}
    for entry in script.data:
        recipe, _, place = entry.partition(":")
        command: list[str | Path] = [
            python,
            HERE / "coverage_data.py",
            recipe,
            (folder / place).resolve(),
        ]
        subprocess.run(command, check=True, env=environ | libraries, cwd=top)
    if script.setup:
        subprocess.run(["bash", "-c", script.setup], check=True, cwd=folder, env=environ)
    job = top / "job.sh"
    gpus = (
        f"#SBATCH --nodes={script.nodes}\n#SBATCH --gpus-per-node={script.gpus // script.nodes}\n"
    )
    job.write_text(f"#!/bin/bash\n{gpus}{script.command}\n")
    began = time.monotonic()
    found = subprocess.run(
        [
            *(sys.executable, "-c", "from xmem_slurm.cli.main import main; main()"),
            *("estimate", "--json", "--fresh", "--gpu", GPU, "--budget", str(budget), job),
        ],
        capture_output=True,
        text=True,
        env=environ,
        cwd=folder,
        check=False,
    )
    result = Result(
        commit, datetime.now(UTC).date().isoformat(), round(time.monotonic() - began, 1)
    )
    if found.returncode:
        # it may have had to wait
        why = re.split(r"^xmem-slurm: ", found.stderr.strip(), flags=re.MULTILINE)[-1]
        return replace(
            result, why_not=why.replace(str(top), "").replace(str(python.parents[1]), "")
        )
    said = json.loads(found.stdout)
    largest = max(said["ranks"], key=lambda rank: rank["required_bytes"])
    return replace(
        result,
        peak_bytes=largest["peak_reserved_bytes"],
        steps=largest["steps"],
        reasons=said["confidence"]["reasons"],
        confidence=said["confidence"]["level"],
        seen=largest["seen"] or {},
        allocated_bytes=largest["peak_allocated_bytes"],
    )


def _stand_ins(python: Path, cache: Path) -> Path:
    """Return the folder of libraries with which the job's torch loads without CUDA: it makes some
    of the data.
    """
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run(
        [python, "-c", find], check=True, capture_output=True, text=True
    ).stdout.strip()
    return build(Path(found), cache)


def page() -> str:
    """Return docs/coverage.md."""
    found, listed = results(), scripts()
    tried = [(script, found[script.key]) for script in listed if script.key in found]
    numbers = sorted({script.list for script, _ in tried})
    newest = max(result.date for _, result in tried)
    since = (date.fromisoformat(newest) - timedelta(days=1)).isoformat()  # all of it takes a night
    template = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        lists=[
            _list([each for each in tried if each[0].list == number], since) for number in numbers
        ],
        newest=newest,
        reasons="\n".join(
            markdown_table(
                REASONS, _reasons([result for _, result in tried if result.date >= since])
            )
        ),
        on_gpu=coverage_on_gpu.agreement(found),
        on_gpu_table="\n".join(
            markdown_table(coverage_on_gpu.HEADINGS, coverage_on_gpu.table(found))
        ),
        cost="\n".join(markdown_table(dryrun_cost.HEADINGS, dryrun_cost.rows())),
        commits=sorted({f"{script.repository} {result.commit[:10]}" for script, result in tried}),
    )


def _list(tried: Sequence[tuple[Script, Result]], since: str) -> dict[str, object]:
    """Return what the page says of one list: counts, the median of seconds, and its table.

    What `can` run is counted of those that were tried `since` that date; what was tried earlier is
    in the table.
    """
    can = [
        result
        for script, result in tried
        if result.date >= since and not (script.broken and not result.ran)
    ]
    ran = [result for result in can if result.ran]
    return {
        "tried": len(tried),
        "repositories": len({script.repository for script, _ in tried}),
        "broken": sum(bool(script.broken) and not result.ran for script, result in tried),
        "can": len(can),
        "ran": len(ran),
        "ends": sum(result.reached_end for result in ran),
        "high": sum(result.confidence == "high" for result in ran),
        "median": sorted(result.seconds for result in ran)[len(ran) // 2] if ran else 0,
        "table": "\n".join(
            markdown_table(HEADINGS, [_row(script, result, since) for script, result in tried])
        ),
    }


def _reasons(measured: Sequence[Result]) -> list[list[str]]:
    """Return how many scripts have each kind of reason, the most frequent first."""
    counts = Counter(
        kind for result in measured if result.ran for kind in sorted(result.kinds_of_reasons)
    )
    return [[kind.replace("|", "\\|"), str(count)] for kind, count in counts.most_common()]


def _row(script: Script, result: Result, since: str) -> list[str]:
    where = "" if script.folder == "." else f" ({script.folder})"
    notes = (
        f"{where}{' [data]' if script.data else ''}{script.packages and f' with {script.packages}'}"
    )
    command = f"`{script.command}`{notes}".replace("|", "\\|")
    peak = f"{result.peak_bytes / 2**20:.0f}" if result.peak_bytes is not None else ""
    said = (
        "; ".join(result.reasons)
        if result.ran
        else f"{result.why_not}{script.broken and f' ({script.broken})'}"
    )
    if result.date < since:
        said = f"{result.date}: {said}"
    outcome = "yes" if result.ran else "nor on a GPU" if script.broken else "no"
    ended = ("yes" if result.reached_end else "no") if result.ran else ""
    line = [script.repository, command, script.kind, str(script.gpus), outcome, ended, peak]
    return [*line, result.confidence, f"{result.seconds:.0f}", said.replace("|", "\\|")]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("clones", type=Path)
    run.add_argument("--python", type=Path, required=True, help="the job's Python")
    run.add_argument("--only", default="", help="scripts whose key contains this")
    run.add_argument("--list", type=int, default=0, help="scripts of this list")
    run.add_argument(
        "--budget", type=float, default=60, help="seconds for each; more where the machine is busy"
    )
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
                script,
                arguments.clones.resolve(),
                work.resolve(),
                arguments.python.absolute(),
                arguments.budget,
            )
            RESULTS.write_text(
                json.dumps(
                    {key: asdict(each) for key, each in {**results(), script.key: result}.items()},
                    indent=1,
                )
                + "\n"
            )
            said = (
                result.why_not
                or f"{(result.peak_bytes or 0) / 2**20:.0f} MiB, {result.steps} steps"
            )
            print(f"{script.key}: {said} ({result.seconds} s)", flush=True)


if __name__ == "__main__":
    main()
