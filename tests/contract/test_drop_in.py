"""xsbatch is sbatch: the same job in the queue, the same stdout, stderr and exit code, for every
odd job there is.

Each job is submitted held, by sbatch and by xsbatch: turned off, and with estimation on where there
is nothing to estimate (no GPU asked for) or nothing to estimate with (no site file). Then `scontrol
show job` must agree field by field. What may differ is named here: OF_THE_MOMENT, and the one line
on stderr that says why a job was submitted as written."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks import drop_in
from tests.conftest import EXAMPLE_SITE, Cluster, as_of_22_05
from tests.contract.odd_jobs import CASES, LINES, TYPED, VARIABLES, Case, H, T, spelled
from tests.harness.told import messages
from xmem_slurm import lab
from xmem_slurm.site.loading import load_site
from xmem_slurm.slurm.options import SBATCH, Option

pytestmark = pytest.mark.slurm

OF_SUBMISSION = pytest.mark.slow(
    covers=["xmem_slurm/slurm/*", "xmem_slurm/*submit*", "xmem_slurm/*answer*", "xmem_slurm/*handover*",
            "xmem_slurm/cli/xsbatch*", "launchers/*", "tests/contract/odd_jobs.py"],
)  # fmt: skip

XSBATCH = str(Path(sys.executable).parent / "xsbatch")

OF_THE_MOMENT = {
    "JobId", "HetJobId", "HetJobIdSet", "ArrayJobId", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime",
    "EndTime", "Deadline", "LastSchedEval", "Priority", "SubmitLine",
}  # fmt: skip
"""Fields that differ between two runs of sbatch. A priority counts down with each job that is not
held. The line that was submitted, shown since 26.05, is another where the request is."""

ENDS_SBATCH = ("autocomplete", "help", "usage", "version", "wait")
"""Options that do not submit a job, or wait for its end: those have tests of their own."""


class Outcome(NamedTuple):
    """What a submission said, and the job that came of it, component by component; its number is
    written JOB."""

    code: int
    out: str
    err: str
    jobs: list[dict[str, str]]


class Place:
    """A folder to submit from, with a cluster to submit to."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        kept = {
            k: v
            for k, v in cluster.environ.items()
            if not k.startswith(("SBATCH_", "SLURM_", "XMEM_"))
        }
        self.environ = kept | {
            "SLURM_CONF": cluster.environ["SLURM_CONF"],
            "XMEM_SITE": str(folder / "no-site.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def run(
        self, command: Sequence[str], stdin: bytes = b"", environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            check=False,
            timeout=60,
        )

    def submit(
        self, command: Sequence[str], stdin: bytes = b"", environ: Mapping[str, str] | None = None
    ) -> Outcome:
        done = self.run(command, stdin, environ)
        out, err = (text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))
        err = messages(err)
        found = re.search(r"(?:^|Submitted batch job )(\d+)(?:$|;| on )", out, re.MULTILINE)
        if found is None:
            moment = re.sub(r"Job \d+ to start at \S+", "Job JOB to start at TIME", err)
            return Outcome(done.returncode, out, moment, [])
        jobs = self._shown(found[1])
        return Outcome(
            done.returncode, out.replace(found[1], "JOB"), err.replace(found[1], "JOB"), jobs
        )

    def _shown(self, job: str) -> list[dict[str, str]]:
        text = subprocess.run(
            ["scontrol", "-o", "show", "job", job],
            env=self.environ,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.decode(errors="surrogateescape")
        subprocess.run(["scancel", job], env=self.environ, check=True, timeout=60)
        fields = re.compile(r"(?s)(?:^| )([A-Za-z][\w/:]*)=(.*?)(?= [A-Za-z][\w/:]*=|$)")
        shown = re.sub(r"/slurm-\d+", "/slurm-JOB", as_of_22_05(text))
        return [
            {k: v.strip() for k, v in fields.findall(component) if k not in OF_THE_MOMENT}
            for component in re.split(r"(?m)^(?=JobId=\d+ )", shown)[1:]
        ]


@pytest.fixture
def place(tmp_path: Path, cluster: Cluster) -> Place:
    (tmp_path / "nodes").write_text("somewhere\n")
    return Place(tmp_path, cluster)


def assert_same(
    place: Place, argv: Sequence[str], stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> None:
    """Submit by sbatch, by xsbatch that is off, and by xsbatch that has no site file; all that
    comes of it is the same.

    It is turned off by option and by variable in turn: by the number of words, which is as good as
    any other."""
    theirs = place.submit(["sbatch", *argv], stdin, environ)
    if len(argv) % 2:
        assert place.submit([XSBATCH, *argv], stdin, {**(environ or {}), "XMEM_OFF": "1"}) == theirs
    else:
        assert place.submit([XSBATCH, "--xmem-off", *argv], stdin, environ) == theirs
    ours = place.submit([XSBATCH, *argv], stdin, environ)
    own_line = re.compile(r"^xsbatch: submitted as written: .*\n", re.MULTILINE)
    assert ours._replace(err=own_line.sub("", ours.err, count=1)) == theirs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_an_odd_script(case: Case, place: Place) -> None:
    script = case.script if isinstance(case.script, bytes) else case.script.encode()
    (place.folder / "odd.sh").write_bytes(script)
    argv = ["-H", *case.argv, *(() if case.stdin else ("odd.sh",))]
    assert_same(place, argv, script if case.stdin else b"", case.environ)


@OF_SUBMISSION
@pytest.mark.parametrize("where", ["script", "command line", "environment"])
@pytest.mark.parametrize(
    "option", [o for o in SBATCH.options if o.name not in ENDS_SBATCH], ids=lambda o: o.name
)
def test_an_option(option: Option, where: str, place: Place) -> None:
    """Those of newer releases, too: an option that this sbatch does not know is refused in its own
    words."""
    if where == "environment" and not option.variables:
        pytest.skip("no variable sets it")
    text, argv, environ = H + T, ["-H", "every.sh"], {}
    if where == "script":
        text = f"{H}#SBATCH {spelled(option)}\n{T}"
    elif where == "command line":
        argv.insert(0, spelled(option))
    else:
        environ = dict.fromkeys(option.variables, spelled(option).partition("=")[2] or "1")
    (place.folder / "every.sh").write_text(text)
    assert_same(place, argv, environ=environ)


@OF_SUBMISSION
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lines=LINES, typed=TYPED, environ=VARIABLES)
def test_generated_jobs(
    lines: list[str], typed: list[str], environ: dict[str, str], place: Place
) -> None:
    (place.folder / "odd.sh").write_text(H + "\n".join(lines) + "\n")
    assert_same(place, ["-H", *typed, "odd.sh"], environ=environ)


def test_some_of_the_cases_of_the_benchmark(cluster: Cluster, tmp_path: Path) -> None:
    """`python -m benchmarks.drop_in` has all of them."""
    of_pipes = [case for case in drop_in.cases() if case.family == "asked, script"]
    chosen = [*list(drop_in.cases())[::17], of_pipes[0]]
    assert {case.how for case in chosen} == {"file", "fifo", "symlink", "stdin", "chain"}
    found, changed = drop_in.compare(chosen, tmp_path, cluster.environ)
    assert found == []
    assert changed > 2


# With an estimate, only the GPU fields differ

FORCED = [sys.executable, str(Path(__file__).with_name("forced_xsbatch.py")), "l4"]

SPELLINGS = [
    ("--gres=gpu:1", "TresPerNode", "gres:gpu:l4:1"),
    ("--gres=gpu", "TresPerNode", "gres:gpu:l4"),
    ("--gres gpu:h200:1", "TresPerNode", "gres:gpu:l4:1"),
    ("--gres=gpu:h200", "TresPerNode", "gres:gpu:l4"),
    ('--gres="gpu:h200:1"', "TresPerNode", "gres:gpu:l4:1"),
    ("--gpus=1", "TresPerJob", "gres:gpu:l4:1"),
    ("-G1", "TresPerJob", "gres:gpu:l4:1"),
    ("-G h200:1", "TresPerJob", "gres:gpu:l4:1"),
    ("--gpus=h200", "TresPerJob", "gres:gpu:l4"),
    ("--gpus-per-node=1", "TresPerNode", "gres:gpu:l4:1"),
    ("--gpus-per-node=h200:1 --gpus=h200:1", "TresPerNode", "gres:gpu:l4:1"),
    ("--gpus-per-task=1 -n1", "TresPerTask", "gres:gpu:l4:1"),
    ("--gpus-per-task=h200:1 --ntasks=1", "TresPerTask", "gres:gpu:l4:1"),
]
VARIABLE = {"gres": "SBATCH_GRES", "gpus": "SBATCH_GPUS", "gpus-per-node": "SBATCH_GPUS_PER_NODE"}
AROUND = "--comment='a b' -J odd --mem=1G -t5"
"""Options beside the GPU's, which must stay."""


@pytest.mark.parametrize("where", ["script", "command line", "environment", "stdin"])
@pytest.mark.parametrize(("spelling", "field", "expected"), SPELLINGS)
def test_a_forced_estimate_changes_the_gpu_and_nothing_else(
    spelling: str, field: str, expected: str, where: str, place: Place
) -> None:
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    argv, environ, script = ["-H"], {}, f"{H}#SBATCH {AROUND}\n{T}"
    if where in ("script", "stdin"):
        script = f"{H}#SBATCH {AROUND}\n#SBATCH {spelling}\n{T}"
    elif where == "command line":
        argv += shlex.split(spelling)
    else:
        name, _, value = spelling.removeprefix("--").replace('"', "").partition("=")
        if name not in VARIABLE or " " in value:
            pytest.skip("no variable has this spelling")
        environ[VARIABLE[name]] = value
    (place.folder / "odd.sh").write_text(script)
    argv += [] if where == "stdin" else ["odd.sh"]
    stdin = script.encode() if where == "stdin" else b""
    theirs = place.submit(["sbatch", *argv], stdin, environ)
    ours = place.submit([*FORCED, *argv], stdin, environ)
    assert (ours.code, ours.out) == (theirs.code, theirs.out) == (0, theirs.out), ours.err
    (before,), (after,) = theirs.jobs, ours.jobs
    assert after[field] == expected
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    gpu_fields = {"TresPerNode", "TresPerJob", "TresPerTask"}
    assert changed - gpu_fields == ({"Command"} if where == "script" else set())
    if where == "script":
        assert Path(after["Command"]).name == "odd.sh"


LOOKS = {
    "scontrol": "cd $(dirname $(scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print "
    "$2}'))\n",
    "squeue": "HERE=$(dirname $(squeue -h -j $SLURM_JOB_ID -o %o))\n",
    "by another script": ". ./where.sh\n",
}


@pytest.mark.parametrize("how", LOOKS)
def test_a_job_that_looks_up_its_own_script_finds_its_users(how: str, place: Place) -> None:
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    (place.folder / "where.sh").write_text(f"#!/bin/sh\n{LOOKS['scontrol']}")
    (place.folder / "odd.sh").write_text(
        f"{H}#SBATCH {AROUND}\n#SBATCH --gres=gpu:h200:1\n{LOOKS[how]}"
    )
    (before,) = place.submit(["sbatch", "-H", "odd.sh"]).jobs
    ours = place.submit([*FORCED, "-H", "odd.sh"])
    (after,) = ours.jobs
    assert {name for name in before if before[name] != after.get(name)} == {"TresPerNode"}
    assert after["TresPerNode"] == "gres:gpu:l4:1"
    assert "(--gres on the command line)" in ours.err


def test_a_job_that_looks_up_its_own_script_is_told_where_that_is_a_copy(place: Place) -> None:
    """Its own steps are changed with it, and that can be done in the script only."""
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    text = f"{H}#SBATCH --gres=gpu:h200:1\n{LOOKS['squeue']}srun --gres=gpu:h200:1 true\n"
    (place.folder / "odd.sh").write_text(text)
    ours = place.submit([*FORCED, "-H", "odd.sh"])
    assert "xsbatch: the job asks Slurm for its script's path, and finds a copy" in ours.err
    assert ours.jobs[0]["Command"] != str(place.folder / "odd.sh")


HET = {
    "script": (
        ["-H", "odd.sh"],
        (
            "#SBATCH --gres=gpu:h200:1 -t5\n#SBATCH hetjob\n#SBATCH -p cpu -n2\n#SBATCH "
            "hetjob\n#SBATCH -G h200:1 -Jb\n"
        ),
    ),
    "command line": (
        ["-H", "--gres=gpu:h200:1", "-t5", ":", "-pcpu", "-n2", ":", "-Gh200:1", "-Jb", "odd.sh"],
        "",
    ),
    "both": (
        ["-H", "--gres=gpu:1", ":", "-n2", "-pcpu", ":", "-Jb", "odd.sh"],
        "#SBATCH -t5\n#SBATCH packjob\n#SBATCH -n1\n#SBATCH packjob\n#SBATCH --gpus=1 --mem=1G\n",
    ),
    "stdin": (
        ["-H"],
        (
            "#SBATCH --gres=gpu:1\n#SBATCH hetjob\n#SBATCH -pcpu\n#SBATCH hetjob\n#SBATCH "
            "--gpus=h200:1\n"
        ),
    ),
}
"""A GPU, none, and another GPU."""


@pytest.mark.parametrize("where", HET)
def test_a_forced_estimate_changes_each_component_by_itself(where: str, place: Place) -> None:
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    argv, lines = HET[where]
    (place.folder / "odd.sh").write_text(H + lines + T)
    stdin = (H + lines + T).encode() if where == "stdin" else b""
    theirs = place.submit(["sbatch", *argv], stdin)
    ours = place.submit([*FORCED[:-1], "l4,h200,a100_40", *argv], stdin)
    assert (ours.code, ours.out) == (theirs.code, theirs.out) == (0, theirs.out), ours.err
    changed = [
        {name: new[name] for name in new if old.get(name) != new[name] and name != "Command"}
        for old, new in zip(theirs.jobs, ours.jobs, strict=True)
    ]
    assert changed == [{"TresPerNode": "gres:gpu:l4:1"}, {}, {"TresPerJob": "gres:gpu:a100_40:1"}]
    assert set(re.findall("^xsbatch: (.{11})", ours.err, re.MULTILINE)) == {
        "component 0",
        "component 2",
    }


@pytest.mark.parametrize("choices", ["l4", "l4,a100_40"])
def test_what_one_place_sets_for_all_components_is_changed_for_all_or_not_at_all(
    choices: str, place: Place
) -> None:
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    (place.folder / "odd.sh").write_text(f"{H}#SBATCH -t5\n#SBATCH hetjob\n#SBATCH -Jb\n{T}")
    for argv, environ in ((["--gres=gpu:h200:1"], {}), ([], {"SBATCH_GRES": "gpu:h200:1"})):
        ours = place.submit([*FORCED[:-1], choices, "-H", *argv, "odd.sh"], environ=environ)
        wanted = "gres:gpu:l4:1" if choices == "l4" else "gres:gpu:h200:1"
        assert [job["TresPerNode"] for job in ours.jobs] == [wanted, wanted], ours.err
        kept = [line for line in ours.err.splitlines() if "stays as written" in line]
        assert len(kept) == (0 if choices == "l4" else 2)
        assert all("without changing another component" in line for line in kept)


REFUSED = {
    "an unknown type": (["--gres=gpu:nosuch:1"], {}, ""),
    "more than there are": (["-Gh200:5"], {}, ""),
    "with and without a type, by the environment": (
        ["--gres=gpu:h200:1"],
        {"SBATCH_GPUS": "1"},
        "",
    ),
    "with and without a type, in the script": (
        [],
        {"SBATCH_GRES": "gpu:1"},
        "#SBATCH --gpus=h200:1\n",
    ),
    "a partition that is none": (["--gres=gpu:h200:1", "-pnowhere"], {}, ""),
    "only asked": (["--gres=gpu:nosuch:1", "--test-only"], {}, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_sbatch_refuses_is_refused_in_its_words_alone(case: str, place: Place) -> None:
    """Before a dry run is spent on it."""
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    argv, environ, lines = REFUSED[case]
    (place.folder / "odd.sh").write_text(f"{H}{lines}{T}")
    ours = place.submit([*FORCED, *argv, "odd.sh"], environ=environ)
    assert ours == place.submit(["sbatch", *argv, "odd.sh"], environ=environ)
    assert ours.jobs == []


@pytest.mark.parametrize(
    ("argv", "lines"),
    [(["--test-only"], ""), ([], "#SBATCH --test-only\n")],
    ids=["typed", "script"],
)
def test_who_only_asks_is_told_what_would_be_submitted(
    argv: list[str], lines: str, place: Place
) -> None:
    """The start that Slurm expects is that of the changed request; there is no job of it."""
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    (place.folder / "odd.sh").write_text(f"{H}#SBATCH --gres=gpu:h200:1\n{lines}{T}")
    ours = place.submit([*FORCED, *argv, "odd.sh"])
    asked = place.submit(["sbatch", *argv, "--gres=gpu:l4:1", "odd.sh"])
    assert (ours.code, ours.out, ours.jobs) == (0, "", []) == (asked.code, asked.out, asked.jobs)
    told = "--gres=gpu:h200:1 -> --gres=gpu:l4:1"
    assert told in ours.err
    assert ours.err.splitlines()[-1] == asked.err.strip()


def test_an_array_of_a_het_job_is_refused_by_sbatch_itself(place: Place) -> None:
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    (place.folder / "odd.sh").write_text(
        f"{H}#SBATCH -G1 --array=0-1\n#SBATCH hetjob\n#SBATCH -n1\n{T}"
    )
    ours = place.submit([*FORCED, "odd.sh"])
    assert ours == place.submit(["sbatch", "odd.sh"])
    assert (ours.code, ours.out) == (1, "")


def test_a_forced_estimate_keeps_the_record_close(place: Place) -> None:
    """#XMEM lines and --xmem options do not get to Slurm; every other byte of the script does."""
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    script = f"{H}#XMEM nothing-we-know\n# \N{SNOWMAN}\n#SBATCH --gres=gpu:h200:1 # mine\n\n{T}"
    (place.folder / "odd.sh").write_text(script)
    command = [*FORCED, "-H", "--xmem-budget=30", "--parsable", "odd.sh", "--xmem-not-ours", "a b"]
    job = subprocess.run(
        command, env=place.environ, cwd=place.folder, capture_output=True, text=True, check=True
    )
    kept = subprocess.run(
        ["scontrol", "write", "batch_script", job.stdout.strip(), "-"],
        env=place.environ,
        capture_output=True,
        check=True,
    ).stdout.decode()
    (shown,) = place._shown(job.stdout.strip())
    record = next(
        line for line in kept.splitlines(keepends=True) if line.startswith("# xmem-slurm")
    )
    expected = script.replace("#XMEM nothing-we-know\n", "").replace("h200", "l4")
    assert kept.replace(record, "") == expected
    # newer releases show no words
    (theirs,) = place.submit(["sbatch", "-H", "odd.sh", "--xmem-not-ours", "a b"]).jobs
    assert shown["Command"].partition(" ")[2] == theirs["Command"].partition(" ")[2]
    assert shown["JobName"] == "odd.sh"
    assert shown["WorkDir"] == str(place.folder)
    assert "Comment" not in shown


def test_the_submit_line_is_sbatchs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Accounting keeps the command as typed, without our options."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent, "lab")
        lab.up(load_site(EXAMPLE_SITE), folder, accounting=True)
        try:
            environ = {**os.environ, **lab.environment(folder), "XMEM_SITE": "/nowhere"}
            work = tmp_path_factory.mktemp("lines")
            (work / "odd.sh").write_text(H + T)
            lines = []
            for program in (["sbatch"], [XSBATCH, "--xmem-budget", "9"]):
                command = [*program, "-H", "--parsable", "-J", "a b", "odd.sh", "x"]
                job = subprocess.run(
                    command, cwd=work, env=environ, capture_output=True, text=True, check=True
                ).stdout
                asked = ["sacct", "-nPX", "-j", job.strip(), "-o", "SubmitLine"]
                found = ""
                while not found:
                    found = subprocess.run(
                        asked, env=environ, capture_output=True, text=True, check=True
                    ).stdout
                lines.append(found)
        finally:
            lab.down(folder)
    assert lines[0] == lines[1] == "sbatch -H --parsable -J a b odd.sh x\n"
