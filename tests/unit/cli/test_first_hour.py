"""What somebody meets who has never run this before: commands as they are guessed, and no answer
that is lost."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.conftest import EXAMPLE_SITE
from tests.harness.told import messages
from tests.unit.report.test_report import SIZING
from xmem_slurm.cli import xsbatch
from xmem_slurm.cli.main import app
from xmem_slurm.cluster import guess
from xmem_slurm.dryrun import dispatch
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.estimating import asked, by_dry_run
from xmem_slurm.report import html
from xmem_slurm.site import places
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.submission import handover

CATALOGUE = load_catalogue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder with a script and a job, where every dry run needs what GPT-2 small
    needs."""

    def sized(*_: object, **__: object) -> Mapping[int, Sizing]:
        return {0: SIZING}

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/bin/true")
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:h200:1\npython train.py\n")
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XMEM_SITE", str(EXAMPLE_SITE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dispatch, "one", sized)
    monkeypatch.setattr(handover, "die_of_broken_pipe", lambda: None)
    return tmp_path


def command(*argv: str) -> Result:
    return CliRunner().invoke(app, argv)


def shown(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["xsbatch", *argv])
    with pytest.raises(SystemExit) as ended:
        xsbatch.main()
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_a_python_file_is_run_with_the_python_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    job = asked.job_of(["train.py", "--lr", "1 2"], os.environ)
    assert job.command_line.wrap == "python3 train.py --lr '1 2'"
    assert command("estimate", "--gpu", "L4", "train.py").stdout.startswith("GPU memory needed: ")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no python on PATH; activate"):
        asked.job_of(["train.py"], os.environ)


def test_a_script_that_sbatch_would_refuse_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_bytes(b"#!/bin/bash\r\npython train.py\r\n")
    with pytest.raises(
        UsageError, match=r"sbatch would refuse it: the script has DOS line breaks .* dos2unix"
    ):
        asked.job_of([str(script)], os.environ)


@pytest.mark.usefixtures("folder")
def test_a_report_that_fails_costs_a_line_and_not_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise IndexError("list index out of range")

    monkeypatch.setattr(html, "render", fails)
    done = command("estimate", "--html", "page.html", "--report", "same.json", "job.sh")
    assert done.stdout.startswith("GPU memory needed: ")
    assert done.stderr == "xmem-slurm: no report: page.html: IndexError: list index out of range\n"
    assert done.exit_code == 1
    assert Path("same.json").is_file()


@pytest.mark.parametrize("option", ["--html", "--report", "--snapshot", "--perfetto"])
def test_where_no_report_can_be_written_nothing_is_run(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "one", None)
    done = command("estimate", option, "nowhere/a.html", "job.sh")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "nowhere/a.html: there is no folder nowhere"
    assert (
        str(command("estimate", option, str(folder), "job.sh").exception)
        == f"{folder}: is a folder"
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "sbatch: not found on PATH"),
        ("sbatch: fatal: Could not establish a configuration source",) * 2,
    ],
)
def test_without_a_cluster_the_estimate_is_shown_all_the_same(
    path: str,
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if path:
        (folder / "bin" / "sbatch").write_text(f"#!/bin/sh\necho '{words}' >&2; exit 1\n")
        (folder / "bin" / "sbatch").chmod(0o755)
    assert shown(["--xmem-dry-run", "--xmem-report=a.html", "job.sh"], monkeypatch) == 0
    out, err = capfd.readouterr()
    assert "#SBATCH --gres=gpu:l4:1\n" in out
    lines = err.splitlines()
    assert lines[0].startswith("xsbatch: GPU memory needed: ")
    assert f"xsbatch: there is no cluster here ({words})" in lines
    assert "xsbatch: report: a.html" in lines


def test_what_slurm_would_refuse_is_estimated_and_shown_as_it_would_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: no such account' >&2; exit 1\n"
    )
    (folder / "bin" / "sbatch").chmod(0o755)
    assert shown(["--xmem-dry-run", "job.sh"], monkeypatch) == 0
    out, err = capfd.readouterr()
    assert "#SBATCH --gres=gpu:h200:1\n" in out
    assert "xsbatch: GPU memory needed: " in err
    told = (
        "xsbatch: Slurm would refuse the changed request, and it would be submitted as written "
        "(sbatch: error: no such"
    )
    assert told in messages(err)


@pytest.mark.parametrize("options", [[], ["--xmem-retry=1", "--xmem-record", "--xmem-hold"]])
@pytest.mark.parametrize("sized", [True, False])
def test_who_only_asks_is_told_what_would_be_submitted(
    options: list[str],
    sized: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing is queued, so nothing is held, recorded or tried again: there is no job of it."""
    became: list[list[str]] = []

    def become(_: Path, argv: list[str], environ: Mapping[str, str]) -> None:
        assert "XMEM_RECORD_TO" not in environ
        became.append([*argv, Path(argv[-1]).read_text(encoding="utf-8")])
        raise SystemExit(0)

    def fails(*_: object, **__: object) -> None:
        raise NoEstimate("the script ended")

    if not sized:
        monkeypatch.setattr(dispatch, "one", fails)
    calls = folder / "calls"
    (folder / "bin" / "sbatch").write_text(f'#!/bin/sh\necho "$*" >> {calls}\n')
    (folder / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setattr(handover, "become", become)
    assert shown([*options, "--test-only", "job.sh"], monkeypatch) == 0
    (out, err), ((asked, _, script),) = capfd.readouterr(), became
    assert (out, asked) == ("", "--test-only")
    assert f"--gres=gpu:{'l4' if sized else 'h200'}:1\n" in script
    told = "GPU memory needed: " if sized else "would be submitted as written: the script ended"
    assert err.startswith(f"xsbatch: {told}")
    assert "held" not in err
    assert all("--test-only" in call for call in calls.read_text().splitlines())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("RTX4090", "rtx-4090"),
        ("h200", "h200"),
        ("gh200", "gh200-96gb"),
        ("L40S", "l40s"),
        ("4090", "rtx-4090"),
        ("a100 pcie 40", "a100-pcie-40gb"),
        ("h200.1g.18gb", "h200.1g.18gb"),
        ("a30 1g.6gb", "a30.1g.6gb"),
    ],
)
def test_a_gpu_is_found_by_what_people_call_it(name: str, meant: str) -> None:
    assert guess.named(name, CATALOGUE) == meant


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a100-40", "--gpu a100-40: 2 are meant by that; name one: a100-sxm4-40gb, a100-pcie-40gb"),
        (
            "a100-sxm",
            "--gpu a100-sxm: 2 are meant by that; name one: a100-sxm4-40gb, a100-sxm4-80gb",
        ),
        ("a1000", "--gpu a1000: not in the GPU catalogue; near it: "),
        (
            "l400",
            (
                "--gpu l400: not in the GPU catalogue; near it: l40, l40s, l4; `xmem-slurm gpus` lists "
                "it"
            ),
        ),
    ],
)
def test_of_several_gpus_only_those_are_listed(name: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        guess.named(name, CATALOGUE)
    assert str(error.value).startswith(told)
    assert len(str(error.value)) < 150


@pytest.mark.usefixtures("folder")
def test_an_option_of_ours_behind_the_script_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = ["estimate", "--gpu", "l4", "train.py", "--html", "a.html"]
    done = command(*argv)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(
        "--html comes after train.py, so it would be passed to that: "
    )
    monkeypatch.setattr("sys.argv", ["xmem-slurm", *argv[:3], "--", *argv[3:]])
    assert command(*argv[:3], "--", *argv[3:]).exit_code == 0
    monkeypatch.setattr("sys.argv", ["xmem-slurm", *argv])
    Path("train.py").write_text("parser.add_argument('--html')\n")
    assert command(*argv).exit_code == 0


@pytest.mark.usefixtures("folder")
def test_a_mistyped_option_is_no_command() -> None:
    told = str(command("estimate", "--reprot", "a.html", "train.py").exception)
    assert told == "--reprot: no such option; did you mean --report?"


@pytest.mark.usefixtures("folder")
def test_the_first_command_needs_no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XMEM_SITE")
    monkeypatch.setattr(places, "site_places", lambda: (Path("/no/such/site.toml"),))
    done = command("estimate", "train.py")
    assert done.exit_code == 0
    assert done.stderr.startswith(
        "xmem-slurm: no site file here, so this is for one a100-sxm4-80gb; --gpu NAME takes another"
    )
    assert command("estimate", "train.py").exit_code == 0
    assert "cannot be read" in str(command("estimate", "--site", "/no/such", "train.py").exception)


IMPORTED_BY = {
    ("--help",): {"cli", "errors", "state"},
    ("config", "job.sh"): {
        "cli",
        "errors",
        "state",
        "submission",
        "slurm",
        "dryrun",
        "cluster",
        "decision",
        "report",
    },
    ("gpus",): {"cli", "errors", "state", "site", "resources", "slurm", "units"},
}
KNOWN_ANSWER = IMPORTED_BY[("config", "job.sh")] | {"estimating", "outcomes"}
"""Without the rooms that run a job dry, size it, and choose for it."""
EXPLAINED_JOB = KNOWN_ANSWER | {
    *("allocator", "checked", "doubts", "resources", "rewriting", "site", "sizing", "trace"),
    *("units", "work"),
}
"""Of sizing the margins alone, which know how finely a capacity is searched: nothing is run dry."""


@pytest.mark.usefixtures("folder")
def test_a_verb_imports_what_it_needs_and_none_of_what_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_dry_run, "_lasting", lambda *_: [])
    assert command("estimate", "train.py").exit_code == 0
    known = dict.fromkeys(
        (("estimate", "train.py"), ("explain",), ("explain", "--json")), KNOWN_ANSWER
    )
    code = (
        "import sys; from xmem_slurm.cli import main; sys.argv[0] = 'xmem-slurm'\n"
        "try: main.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    for argv, rooms in {**IMPORTED_BY, **known, ("explain", "4711"): EXPLAINED_JOB}.items():
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False
        )
        assert done.returncode == (2 if argv[-1] == "4711" else 0), "no such job is known"
        *told, names = done.stderr.splitlines()
        imported = names.split()
        assert {
            name.split(".")[1] for name in imported if name.startswith("xmem_slurm.")
        } <= rooms, argv
        assert not {"torch", "jinja2", "psutil", "tree_sitter"} & {*imported}
        assert argv[0] != "estimate" or "known since" in told[-1]
