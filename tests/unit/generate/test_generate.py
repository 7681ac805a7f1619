"""Generated batch scripts: as they were read and found good, clean for shellcheck, and asking for
the GPU that fits."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from xmem_slurm import resources, trace_file
from xmem_slurm.errors import DeviceBuildError, NoEstimate, SandboxError, UsageError, XmemError
from xmem_slurm.generate import scripts, sweep, templates
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission

SITE = load_site(resources.tree("site-config") / "example.toml")
GPUS = option_gpus(SITE, load_catalogue())
TARGET = scripts.Target(SITE, GPUS, {})
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
SHIPPED = templates.folders(None)
COMMAND = ["python", "train.py", "--name", "it's mine"]
SETTINGS = {
    "apptainer": ["image=my image.sif", "bind=/data"],
    "plain": ["setup=module load cuda", "account=x"],
    "pyxis": ["image=my image.sqsh", "mounts=/data:/data:ro,/scratch:/scratch"],
}
POINTS = sweep.grid(["lr=0.1,0.01", "size=64"])
SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))


def sized(option: str) -> Sizing:
    return Sizing(
        estimate([GPT2], option, GPUS[option]),
        Placement([Verdict(option, GPUS[option], True)], option),
        1.0,
    )


def no_estimate(_: Submission) -> NoEstimate:
    return NoEstimate("the script ended\nwith code 1")


def one_by_one(size: Callable[[Submission], Sizing | XmemError]) -> scripts.Size:
    return lambda jobs: [size(job) for job in jobs]


def points_of(template: templates.Template) -> Sequence[tuple[str, Sequence[str]]]:
    if template.array:
        return named(sweep.commands([*COMMAND, "--lr", "{lr}", "--json", '{"a": {size}}'], POINTS))
    return [("", COMMAND)]


def named(commands: Sequence[Sequence[str]]) -> Sequence[tuple[str, Sequence[str]]]:
    return [(f"point {number}", command) for number, command in enumerate(commands, 1)]


def made(
    name: str,
    size: Callable[[Submission], Sizing | XmemError] = lambda _: sized("l4"),
    settings: Sequence[str] = (),
) -> scripts.Generated:
    template = templates.find(name, SHIPPED)
    values = templates.values(template, [*SETTINGS.get(name, []), *settings])
    (only,) = scripts.generate(template, values, points_of(template), TARGET, one_by_one(size))
    return only


NAMES = [template.name for template in templates.available(SHIPPED)]


def test_the_templates_are_those_that_were_promised() -> None:
    assert NAMES == [
        "apptainer",
        "checkpoint-requeue",
        "multi-node",
        "plain",
        "pyxis",
        "sweep",
        "torchrun",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_template_gives_what_it_gave(name: str, snapshot: SnapshotAssertion) -> None:
    assert re.sub(r"xmem-slurm [\d.]+:", "xmem-slurm VERSION:", made(name).script) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_clean_for_shellcheck(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(made(name).script)
    done = subprocess.run(
        [SHELLCHECK, tmp_path / "job.sh"], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_command_reaches_its_program_word_by_word(name: str, tmp_path: Path) -> None:
    """Run the script with programs that only print: what the shell makes of it is what was asked
    for."""
    told = 'printf "<%s>" "$0" "$@" | sed "s:<[^>]*/:<:"; echo\n'
    for program in ("python", "torchrun", "apptainer", "srun", "scontrol", "source"):
        (tmp_path / program).write_text(f"#!/bin/sh\n{told}")
        (tmp_path / program).chmod(0o755)
    script = made(name, settings=["setup="] if name == "plain" else ()).script
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
    }
    environ["SLURM_JOB_NODELIST"] = "n[1-2]"
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    words = "<train.py><--name><it's mine>"
    if name == "sweep":
        words += '<--lr><0.01><--json><{"a": 64}>'
    assert words in done.stdout


@pytest.mark.parametrize("name", ["plain", "sweep", "checkpoint-requeue", "apptainer"])
def test_the_gpu_that_fits_is_asked_for(name: str) -> None:
    found = made(name, lambda _: sized("a100_40"))
    assert found.option == "a100_40"
    assert "\n#SBATCH --gpus-per-node=a100_40:1\n" in found.script
    assert "GPU memory needed: 15.35 GiB" in found.lines[0]


def test_a_job_that_cannot_be_estimated_asks_for_the_largest_gpu_and_says_so() -> None:
    found = made("plain", no_estimate)
    assert found.option == "h200"
    assert "not estimated: the script ended with code 1; h200 is the largest" in found.script
    assert all(line.startswith("#") for line in found.script.splitlines() if "code 1" in line)


def test_there_is_no_script_for_what_cannot_start() -> None:
    with pytest.raises(UsageError, match="likely to fail on any GPU: no such file"):
        made("plain", lambda _: NoEstimate("no such file", fails=True))


@pytest.mark.parametrize("error", [SandboxError("no user namespaces"), DeviceBuildError("no gcc")])
def test_a_machine_that_cannot_run_dry_still_writes_a_script(error: XmemError) -> None:
    def cannot(_: Submission) -> XmemError:
        return error

    assert f"not estimated: {error}; h200 is the largest" in made("plain", cannot).script


def test_no_more_nodes_are_asked_for_than_have_the_gpu() -> None:
    assert made("multi-node", no_estimate).option == "a100_40", (
        "there is one node with an a100_80, and one with an h200"
    )
    with pytest.raises(UsageError, match="no 3 nodes of one kind with 2 GPUs"):
        made("multi-node", no_estimate, settings=["nodes=3"])


def test_points_that_need_the_same_gpu_make_one_array() -> None:
    def size(job: Submission) -> Sizing:
        assert job.script is not None
        return sized("a100_80" if b"--lr 0.1 " in job.script else "l4")

    template = templates.find("sweep", SHIPPED)
    grid = sweep.grid(["lr=0.1,0.2", "size=1,2,3"])
    points = named(sweep.commands(["python", "train.py", "--lr", "{lr}", "{size}"], grid))
    found = scripts.generate(
        template, templates.values(template, ["at_once=2"]), points, TARGET, one_by_one(size)
    )
    assert [each.option for each in found] == ["a100_80", "l4"]
    for each, rate in zip(found, ("0.1", "0.2"), strict=True):
        assert "#SBATCH --array=0-2%2\n" in each.script
        assert re.findall(r"\d\) python train.py --lr (\S+) (\d)", each.script) == [
            (rate, n) for n in "123"
        ]


def test_what_is_told_of_a_sweep_names_the_point() -> None:
    """The one that needs the most, and each of which nothing is known."""

    def size(job: Submission) -> Sizing | XmemError:
        assert job.script is not None
        return no_estimate(job) if b"--lr 0.2" in job.script else sized("h200")

    template = templates.find("sweep", SHIPPED)
    points = [
        (sweep.label({"lr": lr}), ["python", "train.py", "--lr", lr])
        for lr in ("0.1", "0.2", "0.3")
    ]
    (found,) = scripts.generate(
        template, templates.values(template, []), points, TARGET, one_by_one(size)
    )
    assert {line.partition(": ")[0] for line in found.lines} == {"lr=0.1", "lr=0.2"}


def test_a_template_for_one_command_takes_no_points() -> None:
    template = templates.find("plain", SHIPPED)
    with pytest.raises(UsageError, match="for arrays"):
        scripts.generate(
            template,
            templates.values(template, []),
            named([COMMAND, COMMAND]),
            TARGET,
            one_by_one(no_estimate),
        )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ["colour=red"],
            "apptainer has name, time, cpus, memory, gpus, partition, account, setup, image, bind",
        ),
        (["cpus=many"], "whole number"),
        (["gpus=0"], "a whole number from 1 on"),
        ([], r"needs --set image=…: the container"),
        (["image=a\nrm -rf b"], "one line"),
    ],
)
def test_a_wrong_setting_is_told_what_is_right(settings: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        templates.values(templates.find("apptainer", SHIPPED), settings)


def test_ones_own_templates_go_first_and_may_include_what_ships(tmp_path: Path) -> None:
    (tmp_path / "plain.sh.j2").write_text(
        '{#-\nabout = "Ours."\n-#}\n{% include "_head.sh.j2" %}\nmodule load cuda\n'
    )
    places = templates.folders(tmp_path)
    template = templates.find("plain", places)
    assert template.about == "Ours."
    assert templates.render(template, templates.values(template, []), [COMMAND]).endswith(
        "G\nmodule load cuda\n"
    )
    assert "torchrun" in [each.name for each in templates.available(places)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{#- about = "x" -#}\n{{ nothing }}', "'nothing' is undefined"),
        ('{#- about = "x" -#}\n{% if %}', r"mine\.sh\.j2: line 2"),
        ('{#- about = "x" -#}\n{{ command.__class__.__mro__ }}', "unsafe"),
        ('{#- about = "x" -#}\n{% include "../../etc/passwd" %}', "passwd"),
        ('{#- about = "x" -#}\n{{ gpus + command }}', "unsupported operand"),
        ("true", "first comment must be TOML"),
        ('{#- about = "x"\ncolour = 1 -#}', "colour"),
    ],
)
def test_a_template_with_a_mistake_is_told_so_and_does_no_harm(
    tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "mine.sh.j2").write_text(text)
    with pytest.raises(UsageError, match=told):
        render_mine(templates.folders(tmp_path))


def render_mine(places: Sequence[Path]) -> str:
    template = templates.find("mine", places)
    return templates.render(template, templates.values(template, []), [COMMAND])


def test_points_come_from_a_grid_or_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text('lr,size\n0.1,"1,5"\n0.2,2\n')
    assert sweep.read_csv(tmp_path / "points.csv") == [
        {"lr": "0.1", "size": "1,5"},
        {"lr": "0.2", "size": "2"},
    ]
    assert [tuple(point.values()) for point in sweep.grid(["a=1,2", "b=x,y"])] == [
        ("1", "x"),
        ("1", "y"),
        ("2", "x"),
        ("2", "y"),
    ]
    assert sweep.commands(["true"], sweep.grid([])) == [["true"]]


@pytest.mark.parametrize(
    ("text", "told"), [("lr\n", "no points"), ("a,b\n1\n", "line 2"), ("a\n1,2\n", "line 2")]
)
def test_a_wrong_csv_file_is_told_so(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "points.csv").write_text(text)
    with pytest.raises(UsageError, match=told):
        sweep.read_csv(tmp_path / "points.csv")


def test_a_key_that_changes_nothing_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="'lr' is not in the command"):
        sweep.commands(["python", "train.py"], sweep.grid(["lr=1,2"]))
    for axis in ("lr", "lr=", "1=2"):
        with pytest.raises(UsageError, match="write key=value1,value2"):
            sweep.grid([axis])
