"""xsbatch before it is sbatch: its own options and variables, and signals while it starts."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.told import messages
from tests.unit.report.test_report import SIZING
from xmem_slurm.cli.xsbatch import OWN_OPTIONS, parse
from xmem_slurm.decision import Decision, Kind, Retry
from xmem_slurm.report import decided, terminal
from xmem_slurm.rewriting.rewrite import Change, rewrite
from xmem_slurm.site.schema import GpuOption
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import submit
from xmem_slurm.submission.submit import Wishes

XSBATCH = Path(sys.executable).parent / "xsbatch"
START = [sys.executable, "-m", "xmem_slurm.cli.xsbatch_start"]


def run(*argv: str, stdin: str = "", **environ: str) -> tuple[int, str, str]:
    """Run xsbatch with `echo` as sbatch: what it prints is what sbatch would be given."""
    done = subprocess.run(
        [*START, *argv],
        input=stdin,
        env={"PATH": os.environ["PATH"], "XMEM_SBATCH": "/bin/echo", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_options_variables_and_what_is_left_for_sbatch() -> None:
    argv, wishes, complaints = parse(
        ["-N1", "--xmem-budget", "9", "--xmem-off", "--xmem-dry-run=no", "job.sh", "--xmem-nope"],
        {
            "XMEM_DRY_RUN": "1",
            "XMEM_BUDGET": "30",
            "XMEM_SITE": "s",
            "XMEM_REPORT": "",
            "XMEM_FRESH": "0",
        },
    )
    assert argv == ("-N1", "job.sh", "--xmem-nope")
    assert wishes.given == ("budget", "dry-run", "fresh", "off", "site")
    assert wishes._replace(given=()) == Wishes(off=True, budget=9.0, site="s")
    assert complaints == []


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("XMEM_BUDGET", "abc"),
        ("XMEM_BUDGET", "0"),
        ("XMEM_BUDGET", "3601"),
        ("XMEM_BUDGET", "nan"),
        ("XMEM_BUDGET", "-1"),
        *((option.variable, "nonsense") for option in OWN_OPTIONS if option.takes or option.form),
    ],
)
def test_a_wrong_variable_never_costs_a_submission(variable: str, wrong: str) -> None:
    code, out, err = run("--wrap=true", **{variable: wrong})
    assert (code, out) == (0, "--wrap=true\n")
    assert err.startswith(f"xsbatch: {variable}={wrong}: not ")
    assert err.endswith("; it is ignored\n")
    assert err.count("\n") == 1
    _, wishes, _ = parse([], {variable: wrong})
    assert wishes._replace(engine=None) == Wishes()
    assert run("--wrap=true", "-Q", **{variable: wrong}) == (0, "--wrap=true -Q\n", "")
    assert run("--wrap=true", XMEM_OFF="1", **{variable: wrong}) == (0, "--wrap=true\n", "")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--xmem-budget=abc"], "--xmem-budget=abc: not a number of seconds from 1 to 3600"),
        (["--xmem-budget", "1e9"], "--xmem-budget=1e9: not a number of seconds from 1 to 3600"),
        (["--xmem-ranks=first"], "--xmem-ranks=first: not of the form all|last|[0-9]+(,[0-9]+)*"),
        (["--xmem-policy=dear"], "--xmem-policy=dear: not one of cost, memory, start"),
        (["--xmem-site"], "--xmem-site: a value is missing"),
        (["--xmem-nope"], "--xmem-nope: no such option; there are --xmem-dry-run, "),
        (["--xmem-buget=3"], "--xmem-buget: no such option; did you mean --xmem-budget?"),
        (
            ["--xmem-site=/no/such"],
            "--xmem-site=/no/such: there is no such file, or it is not yours to read",
        ),
        (
            ["--xmem-html=/no/such/a.html"],
            "--xmem-html=/no/such/a.html: there is no folder /no/such",
        ),
        (["--xmem-report", "/tmp"], "--xmem-report=/tmp: is a folder"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_submitted(argv: list[str], told: str) -> None:
    code, out, err = run("--wrap=true", *argv)
    assert (code, out) == (2, "")
    assert err.startswith(f"xsbatch: {told}")
    assert messages(err).count("\n") == 1


def test_a_wrong_word_in_the_script_is_told() -> None:
    script = "#!/bin/sh\n#XMEM keep_type off\n#SBATCH --gres=gpu:1\ntrue\n"
    assert run("-n1", stdin=script) == (
        0,
        "-n1\n",
        "xsbatch: line 2 of the script: #XMEM keep_type: no such word; did you mean keep-type?\n",
    )


def test_what_sbatch_translates_goes_as_written() -> None:
    """#PBS -l nodes=2 after #SBATCH -N1 makes two nodes of it, to sbatch."""
    script = "#!/bin/sh\n#SBATCH --gres=gpu:1 -N1\n#PBS -l nodes=2\n"
    code, out, err = run("-n1", stdin=script)
    assert (code, out) == (0, "-n1\n")
    assert err.startswith(
        "xsbatch: submitted as written: its #PBS lines are translated by sbatch alone"
    )
    assert run("-n1", "--ignore-pbs", stdin=script)[2].count("#PBS") == 0


def test_help_and_version_show_both() -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(f"--{option.name}" in out for option in OWN_OPTIONS)
    assert "\nUsage: sbatch " in out
    code, out, err = run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("xsbatch ")
    assert "(GNU coreutils)" in out


@pytest.mark.parametrize("word", ["--help", "--usage", "--version"])
def test_without_a_cluster_our_own_help_is_there_and_clean(word: str, tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text(
        "#!/bin/sh\necho fatal: Could not establish a configuration source >&2; exit 1\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    for sbatch in (tmp_path / "sbatch", None):
        environ = {} if sbatch is None else {"XMEM_SBATCH": str(sbatch)}
        done = subprocess.run(
            [*START, word],
            env={"PATH": "/no/such"} | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("xsbatch")


OUR_CODE = re.compile(
    r'File "[^"]*(/xmem-slurm-python", line \d+, in _|/xmem_slurm/(?!(cli/)?(__init__|xsbatch_start)\.py))'
)
"""In a traceback: code that runs once a signal ends the process."""


@pytest.mark.parametrize("command", [[str(XSBATCH)], START], ids=["console script", "python -m"])
def test_a_signal_while_it_starts_ends_it_silently(command: list[str], tmp_path: Path) -> None:
    """Where Python itself is only starting, nobody's code of ours is reached yet: that may show
    Python's own words."""
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\nsleep 9\n")
    environ = {
        **os.environ,
        "XMEM_SBATCH": "/bin/true",
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    dice = random.Random(0)
    for _ in range(50):
        number = dice.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        process = subprocess.Popen(
            [*command, "job.sh"],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(dice.uniform(0, 0.2))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        if OUR_CODE.search(said) or "Traceback" not in said:
            assert "Traceback" not in said
            assert process.returncode in (0, -number), said
        else:
            assert number == signal.SIGINT


def test_a_job_without_a_gpu_waits_for_no_import_that_it_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("#!/bin/sh\nsrun true\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *START[1:], str(tmp_path / "plain.sh")],
        env={"XMEM_SBATCH": "/bin/true", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "xmem_slurm.submission.submit" in imported
    heavy = {
        "torch",
        "pydantic",
        "rich",
        "jinja2",
        "typer",
        "tree_sitter",
        "tree_sitter_bash",
        "difflib",
        "subprocess",
    }
    assert not imported & heavy


def test_a_signal_in_a_destructor_ends_it_silently() -> None:
    """Python reports what is raised there, and goes on."""
    code = """
import os, signal
from xmem_slurm.state import signals
class Resource:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
with signals.clearing_up():
    Resource()
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_signal_between_two_handlers_ends_it_silently() -> None:
    code = """
import os, signal
from xmem_slurm.state import signals
of_python = signal.signal
def handle(number, handler):
    before = of_python(number, handler)
    os.kill(os.getpid(), signal.SIGINT)
    return before
signal.signal = handle
with signals.clearing_up():
    print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_what_helps_is_told_by_the_options_of_who_was_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Plain sbatch, behind the site's hook, has the variables alone; both get the same answers."""
    job = Submission(("--gres=gpu:h200:1", "job.sh"), {}, b"#!/bin/sh\n")
    change = Change("gres", "gpu:h200:1", "gpu:l4:1", "the command line")
    changed = terminal.outcome([change], SIZING, typed=True)
    for decision, option, variable in (
        (
            Decision(Kind.REWRITTEN, job, job, brief=[changed]),
            "[--xmem-keep-type keeps the type you wrote]",
            "[XMEM_KEEP_TYPE=1 keeps the type you wrote]",
        ),
        (
            Decision(Kind.NOT_ESTIMATED, job, job, why="XMEM_OFF=1 is lacking", known_since=0.0),
            "submitted as written: XMEM_OFF=1 is lacking [--xmem-fresh tries again]",
            "[XMEM_FRESH=1 tries again]",
        ),
        (
            Decision(Kind.REFUSED, job, job, why=decided.refusal("it is likely to fail")),
            "not submitted: it is likely to fail; --xmem-off submits it anyway",
            "; XMEM_OFF=1 submits it anyway",
        ),
    ):
        assert variable in "\n".join(decided.lines(decision))
        submit._tell_of(decision, Wishes(), is_queued=True)
        told = capsys.readouterr().err
        assert option in told
        assert variable not in told


OWN_LINE = "#XMEM keep-type\n"


@pytest.mark.parametrize(("gpu", "kept"), [("l4", ""), ("h200", OWN_LINE)])
def test_slurm_gets_no_line_of_ours_in_a_script_that_was_changed(
    gpu: str, kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither do the jobs that are there in case it runs out; what is not changed is the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(submit.client, "check_accepted", lambda *_, **__: None)
    text = "#!/bin/sh\n{}#SBATCH --gres=gpu:{}:1\ntrue\n"
    path = tmp_path / "job.sh"
    path.write_text(text.format(OWN_LINE, "h200"))
    written = Submission((str(path),), {}, path.read_bytes())
    ready = written.but(script=text.format(OWN_LINE, gpu).encode())
    decision = submit._accepted(
        Decision(Kind.REWRITTEN, written, ready, retries=[Retry(ready)]), Path("sbatch")
    )
    assert Path(decision.ready.argv[0]).read_text() == text.format(kept, gpu)
    assert [retry.ready.script for retry in decision.retries] == [text.format(kept, gpu).encode()]


def test_what_a_dry_run_prints_keeps_them_for_who_submits_it(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # so would the tests that follow
    monkeypatch.setattr(submit.handover, "die_of_broken_pipe", lambda: None)
    script = f"#!/bin/sh\n{OWN_LINE}#SBATCH --gres=gpu:h200:1\ntrue\n".encode()
    job = Submission(("job.sh",), {}, script)
    edited, _ = rewrite(job, GpuOption(gpu="l4", type="l4", cost=1), "because")
    with pytest.raises(SystemExit):
        submit._show(Decision(Kind.REWRITTEN, job, edited))
    printed = capfdbinary.readouterr().out
    assert OWN_LINE.encode() in printed
    assert b"--gres=gpu:l4:1" in printed


def test_help_that_nobody_reads_to_its_end_ends_as_sbatch_s_does() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*START, "--help"],
        env={"PATH": os.environ["PATH"], "XMEM_SBATCH": "/bin/echo"},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
