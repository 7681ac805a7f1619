"""What `xsbatch --xmem-dry-run ARGS` prints is, given to plain sbatch, the job that `sbatch ARGS`
makes.

The jobs are compared field by field; Command is the path of the script, and differs by nature.
Options that no script can carry stand in the line to type, which is typed here."""

import re
import shlex
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import EXAMPLE_SITE, Cluster
from tests.contract.odd_jobs import CASES, LINES, TYPED, VARIABLES, Case, H, T, spelled
from tests.contract.test_drop_in import ENDS_SBATCH, FORCED, XSBATCH, Outcome, Place
from tests.harness.told import messages
from xmem_slurm.rewriting.folding import FILE
from xmem_slurm.slurm.options import SBATCH, Option

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow(covers=["xmem_slurm/rewriting/*", "xmem_slurm/slurm/*"]),
]

FOLDED = "folded-script"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Place:
    folder = tmp_path_factory.mktemp("place")
    (folder / "nodes").write_text("somewhere\n")
    return Place(folder, cluster)


def folded(
    place: Place,
    argv: Sequence[str],
    stdin: bytes,
    environ: Mapping[str, str],
    program: Sequence[str] = (XSBATCH,),
) -> tuple[Outcome, list[str]]:
    """Submit what the dry run prints, by the line that it says; return what came of it, and the
    line."""
    shown = place.run([*program, "--xmem-dry-run", *argv], stdin, environ)
    said = messages(shown.stderr.decode(errors="surrogateescape"))
    found = re.search(r"this is submitted by: (.*?)(?: \(.*\))?$", said, re.MULTILINE)
    if found is None:
        return Outcome(shown.returncode, "", said, []), []
    words = shlex.split(found[1])
    (place.folder / FOLDED).write_bytes(shown.stdout)
    return place.submit(
        [FOLDED if word == FILE else word for word in words], environ=environ
    ), words


def without_command(jobs: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in job.items() if name != "Command"} for job in jobs]


def assert_same(
    place: Place, argv: Sequence[str], stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> list[str]:
    theirs = place.submit(["sbatch", *argv], stdin, environ)
    ours, words = folded(place, argv, stdin, environ or {})
    assert (ours.code == 0) == (theirs.code == 0), (theirs, ours)
    assert without_command(ours.jobs) == without_command(theirs.jobs)
    return words


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_an_odd_script(case: Case, place: Place) -> None:
    script = case.script if isinstance(case.script, bytes) else case.script.encode()
    (place.folder / "odd.sh").write_bytes(script)
    assert_same(
        place, ["-H", *case.argv, *(() if case.stdin else ("odd.sh",))], script, case.environ
    )


@pytest.mark.parametrize("where", ["command line", "environment"])
@pytest.mark.parametrize(
    "option", [o for o in SBATCH.options if o.name not in ENDS_SBATCH], ids=lambda o: o.name
)
def test_an_option(option: Option, where: str, place: Place) -> None:
    (place.folder / "every.sh").write_text(H + T)
    argv, environ = ["-H", "every.sh"], dict[str, str]()
    if where == "command line":
        argv.insert(0, spelled(option))
    elif not option.variables:
        pytest.skip("no variable sets it")
    else:
        environ = dict.fromkeys(option.variables, spelled(option).partition("=")[2] or "1")
    assert_same(place, argv, environ=environ)


@pytest.mark.parametrize(
    ("argv", "lines", "environ", "words"),
    [
        (["-t9", "job.sh"], "#SBATCH --time=5 # mine\n", {}, "sbatch SCRIPT"),
        (["-t9", "--wrap", "echo 'a b'"], "", {}, "sbatch SCRIPT"),
        (["--wrap", "#SBATCH --mem=7\ntrue"], "", {}, "sbatch SCRIPT"),
        (["--mem=1G", ":", "-N1", "job.sh"], "", {}, "sbatch SCRIPT"),
        (
            ["-Jx", ":", "-Jy", ":", "-Jz", "job.sh"],
            "#SBATCH -Ja\n#SBATCH hetjob\n#SBATCH -Jb\n",
            {},
            "sbatch SCRIPT",
        ),
        (["--mail-type=END", "job.sh"], "#SBATCH --mail-type=BEGIN\n", {}, "sbatch SCRIPT"),
        (["--exclusive=user", "job.sh"], "#SBATCH --exclusive --requeue\n", {}, "sbatch SCRIPT"),
        (["job.sh"], "#SBATCH --requeue -O\n", {"SBATCH_OVERCOMMIT": "no"}, "sbatch SCRIPT"),
        (["--parsable", "job.sh"], "", {}, "sbatch --parsable SCRIPT"),
        (["job.sh", "a", "b c"], "", {}, "sbatch SCRIPT a 'b c'"),
        (["-t9", "job.sh"], "", {"SBATCH_TIMELIMIT": "3"}, "env -u SBATCH_TIMELIMIT sbatch SCRIPT"),
        (["job.sh"], "", {"SBATCH_TIMELIMIT": "3", "SBATCH_JOB_NAME": "n"}, "sbatch SCRIPT"),
        (["-t9", "job.sh"], "#PBS -N pbs\n", {}, "sbatch -H -t9 SCRIPT"),
        (["-D/tmp", "--comment=#x \"y\" 'z'", "job.sh"], "", {}, "sbatch SCRIPT"),
    ],
)
def test_what_is_typed(
    argv: list[str], lines: str, environ: dict[str, str], words: str, place: Place
) -> None:
    (place.folder / "job.sh").write_text(H + lines + T)
    assert shlex.join(assert_same(place, ["-H", *argv], environ=environ)) == words


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lines=LINES, typed=TYPED, environ=VARIABLES)
def test_generated_jobs(
    lines: list[str], typed: list[str], environ: dict[str, str], place: Place
) -> None:
    (place.folder / "odd.sh").write_text(H + "\n".join(lines) + "\n")
    assert_same(place, ["-H", *typed, "odd.sh"], environ=environ)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["job.sh"], {}),
        (["--gres=gpu:a100_80:1", "job.sh"], {}),
        (["job.sh"], {"SBATCH_GRES": "gpu:a100_80:1"}),
        (["-Gh200:1", "--wrap=srun -G1 true"], {}),
        (["-t9"], {}),
    ],
)
def test_a_changed_request(argv: list[str], environ: dict[str, str], place: Place) -> None:
    """It is the job that xsbatch itself submits, and the diff on stderr shows what is changed."""
    place.environ["XMEM_SITE"] = str(EXAMPLE_SITE)
    script = (H + "#SBATCH --gres=gpu:h200:1\n" + T).encode()
    (place.folder / "job.sh").write_bytes(script)
    submitted = place.submit([*FORCED, "-H", *argv], script, environ)
    ours, _ = folded(place, ["-H", *argv], script, environ, FORCED)
    assert without_command(ours.jobs) == without_command(submitted.jobs)
    shown = place.run([*FORCED, "--xmem-dry-run", "-H", *argv], script, environ)
    said = shown.stderr.decode()
    changed = (
        r"^---gpus=h200:1\n\+--gpus=l4:1$"
        if "-Gh200:1" in argv
        else r"^---gres=gpu:\w+:1\n\+--gres=gpu:l4:1$"
    )
    assert re.search(changed, said, re.MULTILINE), said
    line = (
        "+srun -Gl4:1 true\n"
        if "-Gh200:1" in argv
        else "-#SBATCH --gres=gpu:h200:1\n+#SBATCH --gres=gpu:l4:1\n"
    )
    assert line in said


def test_without_a_script_there_is_nothing_to_show(place: Place) -> None:
    for argv in (["missing.sh"], ["--mem=1", "--mem-per-cpu=1", "--wrap=true"]):
        shown = place.run([XSBATCH, "--xmem-dry-run", *argv])
        assert (shown.returncode, shown.stdout) == (1, b"")
        assert shown.stderr.startswith(b"xsbatch: sbatch would refuse this job: ")


def test_nothing_is_said_to_be_submitted(place: Place) -> None:
    (place.folder / "job.sh").write_text(H + "#SBATCH --gres=gpu:1\n" + T)
    said = place.run([XSBATCH, "--xmem-dry-run", "job.sh"]).stderr.decode()
    assert messages(said).startswith("xsbatch: would be submitted as written: ")
    assert "\nxsbatch: nothing was submitted; " in said
    quiet = place.run([XSBATCH, "--xmem-dry-run", "-Q", "--wrap=true"])
    assert (quiet.stderr, quiet.stdout[:10]) == (b"", b"#!/bin/sh\n")
