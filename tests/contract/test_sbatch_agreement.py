"""What we read is what the installed sbatch reads: its option table, its getopt, its #SBATCH lines,
its precedence.

sbatch is asked three ways: `--help` and its error messages need no cluster; `sbatch -v --test-only`
lists every option that it has set, component by component; `scontrol show job` shows what became of
a held job. The cluster is the one of XMEM_TEST_SLURM_CONF (a path to a slurm.conf), else a lab of
the example site that these tests start themselves."""

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings

from tests.contract.odd_jobs import (
    CASES,
    LATER_VARIABLES,
    LINES,
    NOT_SET,
    TYPED,
    VARIABLES,
    Case,
    H,
    T,
    is_in,
    spelled,
)
from xmem_slurm import lab, resources
from xmem_slurm.site.schema import Site
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.edit import Edit, apply, type_edits
from xmem_slurm.slurm.options import NONE, REQUIRED, SBATCH, Option, Table
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission

pytestmark = pytest.mark.slurm

ARITY_CHANGED = ("get-user-env", "requeue")
"""Options that take a value in some releases and none in others; the table has what reads both."""


class Sbatch(NamedTuple):
    """The installed sbatch, in a folder where scripts can be written, with an environment that has
    no option in it."""

    folder: Path
    environ: dict[str, str]

    def __call__(
        self, *argv: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        done = subprocess.run(
            ["sbatch", *argv],
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            check=False,
            timeout=60,
        )
        return done.returncode, (done.stdout + done.stderr).decode(errors="surrogateescape")


def sbatch_at(conf: Path, folder: Path) -> Sbatch:
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_", "XMEM_"))
    }
    return Sbatch(folder, environ | {"SLURM_CONF": str(conf)})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Sbatch:
    """sbatch without a cluster: it only wants a slurm.conf."""
    folder = tmp_path_factory.mktemp("alone")
    conf = folder / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n"
    )
    return sbatch_at(conf, folder)


@pytest.fixture(scope="module")
def sbatch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sbatch]:
    """sbatch with a cluster that has GPUs a100_40 and h200 with the features gpu_mem_40g and
    h200."""
    folder = tmp_path_factory.mktemp("jobs")
    conf = os.environ.get("XMEM_TEST_SLURM_CONF")
    if conf is not None:
        yield sbatch_at(Path(conf), folder)
        return
    site = Site.model_validate(
        tomllib.loads((resources.tree("site-config") / "example.toml").read_text())
    )
    # sockets need a short path
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        running = lab.up(site, Path(parent, "lab"))
        try:
            yield sbatch_at(Path(lab.environment(running.folder)["SLURM_CONF"]), folder)
        finally:
            lab.down(running.folder)


@pytest.fixture(scope="module")
def release(alone: Sbatch) -> tuple[int, ...]:
    """The release of the installed sbatch: (22, 5)."""
    found = re.search(r"(\d+)\.(\d+)", alone("--version")[1])
    assert found
    return tuple(map(int, found.groups()))


# The table


def test_the_table_has_every_option_that_sbatch_tells_of(alone: Sbatch) -> None:
    for word in ("--help", "--usage"):
        told = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", alone(word)[1]))
        assert told
        assert told <= SBATCH.by_name.keys() | {"help"}
    letters = dict(re.findall(r"^  -(\w),? +--([a-z-]+)", alone("--help")[1], re.MULTILINE))
    assert len(letters) > 20
    assert {letter: SBATCH.by_letter[letter].name for letter in letters} == letters


@pytest.mark.parametrize("option", SBATCH.options, ids=lambda option: option.name)
def test_arity_and_release_of_every_option(
    option: Option, alone: Sbatch, release: tuple[int, ...]
) -> None:
    _, bare = alone(f"--{option.name}")
    _, given_one = alone(f"--{option.name}=1")
    if not is_in(option, release):
        older = [other.name for other in SBATCH.options if is_in(other, release)]
        is_abbreviation = any(name.startswith(option.name) for name in older)
        assert is_abbreviation or "unrecognized" in bare
        return
    assert not re.search("ambiguous|unrecognized", bare)
    assert ("requires an argument" in bare) == (option.arity == REQUIRED)
    if option.name not in ARITY_CHANGED:
        assert ("doesn't allow an argument" in given_one) == (option.arity == NONE)
    if option.short:
        assert "invalid option" not in alone(f"-{option.short}")[1]
        assert ("requires an argument" in alone(f"-{option.short}")[1]) == (
            option.arity == REQUIRED
        )


def test_abbreviations_are_those_of_getopt(alone: Sbatch, release: tuple[int, ...]) -> None:
    table = Table(
        option._replace(since="", until="") for option in SBATCH.options if is_in(option, release)
    )
    beginnings = sorted(
        {option.name[:length] for option in table.options for length in (1, 3, 5, 9)}
    )
    for beginning in beginnings:
        _, said = alone(f"--{beginning}")
        is_one = not re.search("ambiguous|unrecognized", said)
        assert (table.long(beginning) is not None) == is_one, said


# The list that sbatch itself prints of the options that are set


def listed(said: str) -> list[dict[str, str]]:
    """Return what `sbatch -v` lists, for each component; names as in the table."""
    parts = re.findall(r"defined options\n.*?-----\n(.*?)sbatch: -----", said, re.DOTALL)
    found = []
    for part in parts:
        pairs = dict(re.findall(r"^sbatch: ([a-z][a-z-]*) *: (.*)$", part, re.MULTILINE))
        found.append(
            {
                resolved(name): value
                for name, value in pairs.items()
                if not SBATCH.by_name[name].early
            }
        )
    return found


def resolved(name: str) -> str:
    return SBATCH.by_name[name].alias_of or name


COMPARED = (
    "account",
    "comment",
    "constraint",
    "job-name",
    "partition",
    "qos",
    "reservation",
    "nodelist",
)


def assert_lists_agree(components: Sequence[Request], lists: list[dict[str, str]]) -> None:
    for component, said in zip(components, lists, strict=True):
        assert component.settings.keys() - {"test-only"} == said.keys() - {"test-only"}
        for name in COMPARED:
            assert component.value(name) == said.get(name)
        for name in ("gres", "gpus", "gpus-per-node"):
            if component.value(name) not in {None, "", "none"}:
                assert same_gres(name, component.value(name) or "", said[name])


def same_gres(name: str, ours: str, slurms: str) -> bool:
    """Whether two lists are one: Slurm prints `gres:gpu:1` or `gres/gpu:1` for `gpu:1`."""
    prefixed = {
        ",".join(prefix + part for part in ours.split(",")) for prefix in ("", "gres:", "gres/")
    }
    return slurms in prefixed or plain("gres", slurms) == plain(name, ours)


def plain(name: str, text: str) -> list[tuple[str, str | None, int]]:
    return [(entry.name, entry.type, entry.amount) for entry in gres.parse_option(name, text)]


@pytest.mark.parametrize("place", ["script", "command line", "environment"])
def test_every_option_is_read_in_every_place(
    place: str, sbatch: Sbatch, release: tuple[int, ...]
) -> None:
    (sbatch.folder / "nodes").write_text("somewhere\n")
    script = sbatch.folder / "every.sh"
    for option in SBATCH.options:
        if option.name in NOT_SET or not is_in(option, release):
            continue
        text, argv, environ = H + T, ["every.sh"], {}
        if place == "script":
            text = H + f"#SBATCH {spelled(option)}\n" + T
        elif place == "command line":
            argv.insert(0, spelled(option))
        elif option.variables and LATER_VARIABLES.get(option.variables[-1], release) <= release:
            environ[option.variables[-1]] = spelled(option).partition("=")[2]
        if option.name == "resv-ports":  # is refused without
            argv.insert(0, "--stepmgr")
        script.write_text(text)
        _, said = sbatch("-v", "--test-only", *argv, environ=environ)
        lists = listed(said)
        assert lists, said
        assert_lists_agree(
            Submission(("--test-only", *argv), environ, text.encode()).request.components, lists
        )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=LINES, typed=TYPED, environ=VARIABLES)
def test_odd_jobs_are_read_alike(
    lines: list[str], typed: list[str], environ: dict[str, str], sbatch: Sbatch
) -> None:
    script = (H + "\n".join(lines) + "\n").encode()
    (sbatch.folder / "odd.sh").write_bytes(script)
    argv = ("--test-only", *typed, "odd.sh")
    code, said = sbatch("-v", *argv, environ=environ)
    line = split_command_line(argv)
    if line.script != "odd.sh":
        return  # the option before it took the script's name as its value
    if refusal(Submission(argv, environ, script)) is not None:
        assert code != 0, said
        return
    lists = listed(said)
    request = Submission(argv, environ, script).request
    # sbatch stops at a component whose values do not go together
    if len(lists) < len(request.components):
        assert re.search(
            "[Ii]nvalid|invalid|must be|realistic|mutually exclusive",
            said.rpartition("defined options")[2],
        ), said
    assert_lists_agree(request.components[: len(lists)], lists)


# What becomes of a job


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_an_odd_script_becomes_the_job_that_we_read(case: Case, sbatch: Sbatch) -> None:
    script = case.script if isinstance(case.script, bytes) else case.script.encode()
    (sbatch.folder / "odd.sh").write_bytes(script)
    argv = ("-H", *case.argv, *(() if case.stdin else ("odd.sh",)))
    job = Submission(argv, case.environ, script)
    code, said = sbatch(*argv, stdin=script if case.stdin else b"", environ=case.environ)
    assert (code == 0) == (refusal(job) is None), said
    if code == 0:
        assert_job_is(job.request, shown(sbatch, said))


@pytest.mark.parametrize("option", ["--gre=gpu:1", "--g=gpu:1", "--nosuch=1"])
def test_what_we_do_not_know_sbatch_does_not_know(option: str, sbatch: Sbatch) -> None:
    script = f"{H}#SBATCH {option}\n".encode()
    (directive,) = Submission(("x",), {}, script).request.settings.values() or (None,)
    assert directive is None
    assert sbatch("-H", stdin=script)[0] == 255


@pytest.mark.parametrize(
    ("argv", "environ", "lines"),
    [
        ((), {}, "#SBATCH --gres=gpu:1 # one\n#SBATCH -Cgpu_mem_40g\n"),
        (("--gpus=1",), {"SBATCH_GRES": "gpu:1"}, ""),
        (("-G", "1", "-N1"), {}, "#SBATCH --gpus-per-node=1\n"),
        (
            ("--gres=gpu:h200:1", ":", "--gres", "gpu:1"),
            {},
            "#SBATCH -Jx\n#SBATCH hetjob\n#SBATCH -Jy\n",
        ),
    ],
)
def test_an_edited_job_is_the_job_that_was_wanted(
    argv: tuple[str, ...], environ: dict[str, str], lines: str, sbatch: Sbatch
) -> None:
    before = Submission(("-H", *argv, "edited.sh"), environ, (H + lines + T).encode())
    edits = [*type_edits(before.request, "a100_40"), Edit("constraint", "a100&gpu_mem_40g")]
    after = apply(edits, before)
    assert after.script is not None
    (sbatch.folder / "edited.sh").write_bytes(after.script)
    code, said = sbatch(*after.argv, environ=dict(after.environ))
    assert code == 0, said
    jobs = shown(sbatch, said)
    assert_job_is(after.request, jobs)
    assert jobs[0]["Features"] == "a100&gpu_mem_40g"
    assert all(
        "gpu:a100_40:1" in job.get("TresPerNode", "") + job.get("TresPerJob", "") for job in jobs
    )


def shown(sbatch: Sbatch, said: str) -> list[dict[str, str]]:
    """Return what scontrol shows of the job just submitted, component by component, and cancel
    it."""
    found = re.search(r"Submitted batch job (\d+)", said)
    assert found, said
    text = subprocess.run(
        ["scontrol", "-o", "show", "job", found[1]],
        env=sbatch.environ,
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout.decode(errors="surrogateescape")
    subprocess.run(["scancel", found[1]], env=sbatch.environ, check=True, timeout=60)
    fields = re.compile(r"(?s)(?:^| )([A-Za-z][\w/:]*)=(.*?)(?= [A-Za-z][\w/:]*=|$)")
    return [  # a line that was submitted (SubmitLine, since 26.05) may have several lines
        {name: value.strip() for name, value in fields.findall(component)}
        for component in re.split(r"(?m)^(?=JobId=\d+ )", text)[1:]
    ]


def assert_job_is(request: Request, jobs: list[dict[str, str]]) -> None:
    assert len(jobs) == len(request.components)
    for component, job in zip(request.components, jobs, strict=True):
        assert job["Features"] == (component.constraint or "(null)")
        assert_gres_is(
            "gres", component.value("gres"), job.get("TresPerNode", job.get("TresPerJob", ""))
        )
        memory = {
            setting.name: gres.parse_memory(setting.value or "") for setting in component.memory
        }
        for name, field in (("mem", "MinMemoryNode"), ("mem-per-cpu", "MinMemoryCPU")):
            if name in memory:
                assert gres.parse_memory(job[field]) == memory[name]
        if component.chdir is not None:
            assert job["WorkDir"] == component.chdir
        if component.foreign is not None:
            continue
        assert job["JobName"] == (component.job_name or "sbatch")
        assert job.get("Comment") == component.value("comment")
        if component.value("time") is not None:
            assert job["TimeLimit"] == f"00:0{component.value('time')}:00"


def assert_gres_is(name: str, ours: str | None, slurms: str) -> None:
    if ours is None or ours == "none":
        assert "gpu" not in slurms or name != "gres" or ours is None
    else:
        assert same_gres(name, ours, slurms)
