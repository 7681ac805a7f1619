"""The Python interface: the commands' answers as values, the same errors, and a report in a
notebook."""

import dataclasses
import html
import io
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import xmem_slurm
from tests.unit.cli import test_first_hour
from tests.unit.report.test_report import SIZING
from xmem_slurm import api
from xmem_slurm.errors import SlurmError, UsageError
from xmem_slurm.report import json as json_report
from xmem_slurm.report.html import render as page_of
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers

folder = test_first_hour.folder


class Commands:
    """Stands for the commands, and notes how they were called."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.answer = (0, json.dumps(json_report.estimate_object(SIZING)), "")

    def __call__(
        self, module: str, argv: list[str], _folder: object
    ) -> subprocess.CompletedProcess[str]:
        self.argv = [module, *argv]
        return subprocess.CompletedProcess(argv, *self.answer)


@pytest.fixture
def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(api, "_run", made)
    assert folder == Path.cwd()
    return made


def test_an_estimate_is_a_value_in_bytes(commands: Commands) -> None:
    found = xmem_slurm.estimate("train.py --lr '1 2'", gpu="l4", budget=30)
    assert commands.argv == [
        "main",
        "estimate",
        "--json",
        "--gpu=l4",
        "--budget=30",
        "--",
        "train.py",
        "--lr",
        "1 2",
    ]
    assert found.required_bytes == SIZING.estimate.required_bytes
    assert sum(found.breakdown_bytes.values()) == found.peak_allocated_bytes
    assert (found.choice, found.fits("l4"), found.fits("h200"), found.confidence) == (
        "l4",
        True,
        None,
        "high",
    )
    assert [option.name for option in found.options] == ["l4", "a100_40", "a100_80", "h200"]
    assert str(found) == "15.35 GiB of GPU memory needed, confidence high; fits l4"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.required_bytes = 0  # type: ignore[misc]


def test_each_keyword_is_an_option_of_the_command(commands: Commands) -> None:
    xmem_slurm.estimate("job.sh", margin=5, policy="memory", ranks="last", array_tasks="0,7")
    options = ["--margin=5", "--policy=memory", "--ranks=last", "--array-tasks=0,7"]
    assert commands.argv == ["main", "estimate", "--json", *options, "--", "job.sh"]


def test_sizes_are_there_in_gib_and_categories_by_their_names_in_full(commands: Commands) -> None:
    found = xmem_slurm.estimate("train.py", gpu="l4")
    assert commands.argv
    assert (round(found.required_gib, 2), round(found.margin_gib, 2)) == (15.35, 0.52)
    assert (round(found.peak_reserved_gib, 2), round(found.peak_allocated_gib, 2)) == (14.21, 12.68)
    assert [
        round(size, 2) for size in (found.options[0].total_gib, found.options[0].spare_gib)
    ] == [21.95, 6.61]
    assert list(found.breakdown_gib)[:3] == ["activations", "temporary", "optimizer state"]
    assert len(found.breakdown_gib) == len(found.breakdown_bytes)
    assert sum(found.breakdown_gib.values()) == pytest.approx(found.peak_allocated_gib)


def test_a_gpu_that_is_none_of_the_options_is_an_error_with_those_that_are(
    commands: Commands,
) -> None:
    found = xmem_slurm.estimate("train.py", gpu="l4")
    assert commands.argv
    with pytest.raises(
        xmem_slurm.UsageError, match=r"^other: not one of .*: l4, a100_40, a100_80, h200$"
    ):
        found.fits("other")


def test_in_a_notebook_it_is_its_report(commands: Commands, folder: Path) -> None:
    job = Submission(("--wrap", "python3 train.py"), {}, None)
    answers.keep_estimate("any", job, {0: SIZING}, {}, rests_on=None)
    found = xmem_slurm.estimate(["train.py"])
    assert commands.argv[-1] == "train.py"
    shown = found._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown.partition(" title=")[0].removeprefix("<iframe srcdoc=").strip()[
        1:-1
    ] == html.escape(page_of(SIZING))
    found.write(folder / "page.html")
    assert "<svg" in (folder / "page.html").read_text()
    bare = dataclasses.replace(found, _sizing=None)
    assert bare == found
    assert bare._repr_html_() == "<p>15.35 GiB of GPU memory needed, confidence high; fits l4</p>"
    with pytest.raises(xmem_slurm.XmemError, match="not kept"):
        bare.write("page.html")


@pytest.mark.parametrize(
    ("code", "error"), [(1, xmem_slurm.XmemError), (2, UsageError), (3, xmem_slurm.NoEstimate)]
)
def test_errors_are_those_of_the_command(
    commands: Commands, code: int, error: type[Exception]
) -> None:
    commands.answer = (code, "", "waiting\nxmem-slurm: its script failed\n")
    with pytest.raises(error, match=r"^its script failed$"):
        xmem_slurm.estimate("train.py")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "xmem-slurm: known\ndry-running the job: 3 s\nxmem-slurm: first\n  and second\n",
            "first\n  and second",
        ),
        (
            "xmem-slurm: known\nTraceback (most recent call last):\n  File x\nOSError: no space\n",
            "OSError: no space",
        ),
        ("xmem-slurm: a long\nxmem-slurm:   message\n", "a long message"),
        ("", "xmem-slurm estimate ended with 1"),
    ],
)
def test_an_error_has_all_of_the_message_and_nothing_else(
    commands: Commands, said: str, message: str
) -> None:
    commands.answer = (1, "", said)
    with pytest.raises(xmem_slurm.XmemError) as raised:
        xmem_slurm.estimate("train.py")
    assert str(raised.value) == message


def test_all_errors_that_are_raised_can_be_named() -> None:
    assert (xmem_slurm.UsageError, xmem_slurm.SlurmError) == (UsageError, SlurmError)


TELLS = (
    "import sys, time; print('xmem-slurm: step 3', file=sys.stderr, flush=True); "
    "time.sleep(0.3); print('{}')"
)


@pytest.mark.parametrize("in_notebook", [True, False])
def test_in_a_cell_one_line_says_where_a_command_is_and_is_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_notebook: bool
) -> None:
    shell = types.SimpleNamespace(kernel=1) if in_notebook else types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(api, "_NEWS_SECONDS", 0.05)
    cell, python = io.StringIO(), tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{TELLS}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "stdout", cell)
    done = api._run("main", ["estimate"], tmp_path)
    assert (done.stdout, done.stderr) == ("{}\n", "xmem-slurm: step 3\n")
    shown = cell.getvalue()
    assert ("\rstep 3" in shown) is in_notebook
    assert shown.rpartition("step 3")[2].strip() == ""
    assert "Traceback" not in shown


def test_the_cells_of_the_notebook_have_ids() -> None:
    notebook = Path(__file__).parents[2] / "examples" / "estimate.ipynb"
    ids = [cell["id"] for cell in json.loads(notebook.read_text())["cells"]]
    assert len({*ids}) == len(ids)


def test_a_job_is_submitted_as_by_xsbatch(commands: Commands) -> None:
    commands.answer = (0, "17;east\n", "xsbatch: GPU memory needed: 1 GiB\n")
    done = xmem_slurm.submit("job.sh", "--lr", "1", options=["--time=1:00:00"])
    assert commands.argv == ["xsbatch", "--parsable", "--time=1:00:00", "job.sh", "--lr", "1"]
    assert done == xmem_slurm.Submitted(17, "east", ("xsbatch: GPU memory needed: 1 GiB",))
    commands.answer = (1, "", "sbatch: error: no such account\n")
    with pytest.raises(SlurmError, match="no such account"):
        xmem_slurm.submit("job.sh")


def test_the_commands_are_run_beside_what_the_user_has_there(folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit('the wrong one')\n")
    with pytest.raises(UsageError, match=r"none\.py: no such script or command"):
        xmem_slurm.estimate("none.py", gpu="l4", folder=folder)


def test_importing_it_waits_for_nothing() -> None:
    code = (
        "import sys, xmem_slurm; print({'pydantic', 'xmem_slurm.api'} & {*sys.modules}, "
        "xmem_slurm.estimate)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("set() <function estimate")
    with pytest.raises(AttributeError):
        getattr(xmem_slurm, "nothing")  # noqa: B009


def test_a_plan_has_the_ways_that_fit(commands: Commands, tmp_path: Path) -> None:
    fits = {
        "status": "verified",
        "option": "l4",
        "gpus": 4,
        "nodes": 1,
        "method": "fsdp2",
        "micro_batch": 2,
        "accumulation": 4,
        "checkpointing": True,
        "required_bytes": 1 << 30,
        "relative_time": 1.0,
        "relative_cost": None,
        "variables": {"FSDP_VERSION": "2"},
        "arguments": {},
        "changes": ["the format"],
    }
    commands.answer = (0, json.dumps({"candidates": [{**fits, "status": "ruled-out"}, fits]}), "")
    found = xmem_slurm.plan(
        "job.sh 1",
        gpus="1-8",
        on=["l4"],
        margin=5,
        keep_global_batch=False,
        write=tmp_path / "plan.sh",
    )
    options = ["--gpus=1-8", "--margin=5", "--on=l4", f"--write={tmp_path / 'plan.sh'}"]
    words = [*options, "--any-global-batch", "--", "job.sh", "1"]
    assert commands.argv == ["main", "plan", "--json", *words]
    assert [(way.method, way.gpus, way.changes) for way in found.ways] == [
        ("fsdp2", 4, ("the format",))
    ]
    assert found.ways[0].required_gib == 1.0
    assert len(found.document["candidates"]) == 2
