"""Settings: the user's file, an #XMEM line, the environment, an option; the later counts, and what
is wrong is told."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.cli import test_first_hour
from xmem_slurm.cli.xsbatch import parse
from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.exchange import Orders
from xmem_slurm.errors import NoEstimate
from xmem_slurm.outcomes import learned
from xmem_slurm.planning import on_site
from xmem_slurm.planning.on_site import PlanWanted
from xmem_slurm.site.loading import load_site
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.margins import Experience, LearnedMargin, Margin
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes

folder = test_first_hour.folder
command = test_first_hour.command
GPU = "#!/bin/sh\n#SBATCH --gres=gpu:1\n"


def say_in_file(text: str) -> None:
    settings.user_file().parent.mkdir(parents=True, exist_ok=True)
    settings.user_file().write_text(text)


def settled(script: str, *options: str, **environ: str) -> tuple[Wishes, list[str]]:
    argv, wishes, complaints = parse([*options, "job.sh"], environ)
    wishes, more = settings.settled(wishes, Submission(argv, environ, script.encode()))
    return wishes, complaints + more


@pytest.mark.usefixtures("folder")
def test_each_place_goes_before_the_one_before_it() -> None:
    say_in_file('budget = 100\nverbose = true\npolicy = "memory"\nmargin = 10\n')
    script = GPU + "#XMEM budget=300 hold\n"
    assert settled(GPU)[0].budget == 100
    assert settled(script)[0].budget == 300
    assert settled(script, XMEM_BUDGET="30")[0].budget == 30
    assert settled(script, "--xmem-budget=7", XMEM_BUDGET="30")[0].budget == 7
    wishes, complaints = settled(script, "--xmem-verbose=no", XMEM_MARGIN="5")
    assert (wishes.policy, wishes.margin, wishes.verbose, wishes.hold, complaints) == (
        "memory",
        5.0,
        False,
        True,
        [],
    )


@pytest.mark.usefixtures("folder")
def test_what_makes_no_sense_is_told_and_costs_nothing() -> None:
    say_in_file('budget = "soon"\ncolour = 1\n')
    wishes, complaints = settled(GPU + "#XMEM margin=200\n")
    assert (wishes.budget, wishes.margin) == (None, 0.0)
    assert [line.partition(": ")[2] for line in complaints] == [
        f"colour: no such setting; there are {', '.join(settings.ANYWHERE)}",
        "budget=soon: not a number of seconds from 1 to 3600; it is ignored",
        "margin=200: not a number of percent from 0 to 90; it is ignored",
    ]
    say_in_file("budget = [")
    assert "cannot be read" in settled(GPU)[1][0]


@pytest.mark.usefixtures("folder")
def test_a_job_without_a_gpu_waits_for_no_file() -> None:
    say_in_file("budget = [")
    assert settled("#!/bin/sh\ntrue\n") == (parse(["job.sh"], {})[1], [])


def test_config_says_what_holds_and_from_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_in_file("verbose = true\n")
    (folder / "job.sh").write_text(GPU + "#XMEM budget=300\n")
    monkeypatch.setenv("XMEM_POLICY", "start")
    lines = [line.split(maxsplit=2) for line in command("config", "job.sh").stdout.splitlines()]
    assert ["policy", "start", "XMEM_POLICY"] in lines
    assert ["budget", "300", "line 3 of the script"] in lines
    assert ["verbose", "on", str(settings.user_file())] in lines
    assert ["margin", "0", "default"] in lines
    assert ["budget", "60", "default"] in [
        line.split() for line in command("config").stdout.splitlines()
    ]
    assert (
        str(command("config", "no.sh").exception)
        == "no.sh: cannot be read: No such file or directory"
    )


@pytest.mark.usefixtures("folder")
def test_estimate_has_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMEM_VERBOSE", "1")
    assert "at the peak: " in command("estimate", "job.sh").stdout
    assert "--budget 0.5: not a number" in str(
        command("estimate", "--budget", "0.5", "job.sh").exception
    )
    monkeypatch.setenv("XMEM_BUDGET", "soon")
    assert command("estimate", "--fresh", "job.sh").stderr.startswith(
        "xmem-slurm: XMEM_BUDGET=soon: not a number"
    )


def test_so_has_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[tuple[PlanWanted, Premises]]()

    def plan(_job: Submission, wanted: PlanWanted, premises: Premises, *_: object) -> None:
        found.append((wanted, premises))
        raise NoEstimate("that is enough")

    monkeypatch.setattr(on_site, "plan", plan)
    (folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:h200:1\n#XMEM keep-type\ntrue\n")
    monkeypatch.setenv("XMEM_MARGIN", "20")
    for options in ((), ("--margin", "5", "--budget", "60", "--on", "l4"), ("--budget", "7200")):
        command("plan", "--site", str(EXAMPLE_SITE), *options, "job.sh")
    asked = [(each.site.policy.spare, plan.seconds, [*plan.on]) for plan, each in found]
    assert asked == [(0.2, 180, ["h200"]), (0.05, 60, ["l4"]), (0.2, 7200, ["h200"])]


def test_so_has_generate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was learned from earlier jobs counts there, too."""
    found = list[Premises]()

    def size(_job: Submission, premises: Premises) -> Orders[Sizing]:
        found.append(premises)
        raise NoEstimate("that is enough")
        yield

    learned_margin = LearnedMargin("stand-ins", frozenset(), frozenset(), Margin(0.1))
    monkeypatch.setattr(sizing, "size", size)
    monkeypatch.setattr(learned, "margins", lambda *_: (learned_margin,))
    monkeypatch.setenv("XMEM_MARGIN", "20")
    monkeypatch.setenv("XMEM_ENGINE", "profile")
    say_in_file("budget = 30\npolicy = 'memory'\n")
    monkeypatch.setattr(dispatch, "together", lambda runs, _: [next(each) for each in runs])
    command("generate", "--site", str(EXAMPLE_SITE), "--", "true")
    (premises,) = found
    policy = premises.site.policy
    assert (policy.spare, policy.order, premises.budget.seconds) == (0.2, "memory", 30)
    assert premises.run_options.engine == "profile"
    assert premises.experience == Experience((learned_margin,))


def held(folder: Path, *options: str) -> tuple[str, str]:
    """Submit a job that cannot be sized, as its Python is none; return what sbatch was given, and
    what was said."""
    sbatch = folder / "sbatch"
    sbatch.write_text('#!/bin/sh\ncase "$*" in *--test-only*) ;; *) echo "$@" ;; esac\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        [sys.executable, "-m", "xmem_slurm.cli.xsbatch_start", *options, "job.sh"],
        env={**os.environ, "XMEM_SBATCH": str(sbatch), "XMEM_SITE": str(folder / "none.toml")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_what_could_not_be_sized_is_submitted_held_if_that_is_wanted(folder: Path) -> None:
    assert held(folder)[0] == "job.sh\n"
    given, told = held(folder, "--xmem-hold")
    assert given == "--hold job.sh\n"
    assert told.splitlines()[-1].startswith("xsbatch: it is held; `scontrol release JOB_ID`")
    assert held(folder, "--xmem-hold", "-H")[0] == "-H job.sh\n"


@pytest.mark.usefixtures("folder")
def test_what_could_be_sized_is_not_held(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert test_first_hour.shown(["--xmem-dry-run", "--xmem-hold", "job.sh"], monkeypatch) == 0
    assert "hold" not in capfd.readouterr().out

    def fails(*_: object, **__: object) -> dict[int, NoEstimate]:
        return {0: NoEstimate("its script failed")}

    monkeypatch.setattr(dispatch, "one", fails)
    assert test_first_hour.shown(["--xmem-dry-run", "--xmem-hold", "job.sh"], monkeypatch) == 0
    assert "#SBATCH --hold" in capfd.readouterr().out


def test_a_margin_of_the_users_leaves_so_much_of_each_gpu() -> None:
    site = load_site(EXAMPLE_SITE)
    assert site.sparing(10).policy.spare == 0.1
    assert site.sparing(10).sparing(5).policy.spare == 0.1


def test_each_option_is_a_wish_and_counts_where_its_row_says() -> None:
    names = {option.name.removeprefix("xmem-") for option in settings.OWN_OPTIONS}
    assert {name.replace("-", "_") for name in names} <= {*Wishes._fields}
    assert {*settings.BEHIND_SBATCH} < {*settings.ANYWHERE} < names
    assert settings.is_setting("strict")
    assert not settings.is_setting("dry-run")
