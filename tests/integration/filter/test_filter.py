"""The site-wide filter on a real cluster: plain sbatch gets the right GPU, and nothing that breaks
costs a job."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.conftest import (
    TRAIN,
    UNSANDBOXED,
    WARM_XSBATCH,
    Cluster,
    as_of_22_05,
    own_cache,
    running_lab,
    wait_until,
    write_job,
)
from tests.harness.hung_mount import hung
from tests.harness.told import messages
from xmem_slurm import resources
from xmem_slurm.errors import UsageError
from xmem_slurm.filter import hooks
from xmem_slurm.filter.caller import caller_of
from xmem_slurm.site.loading import load_site

pytestmark = pytest.mark.slurm

SITE_FILE = resources.tree("site-config") / "examples" / "mig-and-shares.toml"
# busy machines
SITE = SITE_FILE.read_text(encoding="utf-8").replace("[filter]", "[filter]\nseconds = 200")
H200 = "gres:gpu:h200:1"


class Filtered:
    """A lab whose hooks a test can change: Slurm reads cli_filter.lua anew for each sbatch."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.site_file = cluster.folder.with_name("site.toml")
        self.program: list[str] | None = None
        self.inside: list[str] = []

    def install(
        self, site: str, change: Callable[[str], str] = str, program: list[str] | None = None
    ) -> None:
        valid = self.site_file.with_name("valid.toml")
        valid.write_text(
            SITE.replace('mode = "advise"', ALL if ALL in site else 'mode = "rewrite"'),
            encoding="utf-8",
        )
        if not self.site_file.exists() or self.site_file.read_text(encoding="utf-8") != site:
            self.site_file.write_text(site, encoding="utf-8")
        text = hooks.render(self.site_file, load_site(valid), program or self.program)[
            "cli_filter.lua"
        ]
        (self.cluster.folder / "cli_filter.lua").write_text(change(text), encoding="utf-8")

    def sbatch(
        self, *argv: str, cwd: Path | None = None, stdin: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            *self.inside, "sbatch", "--hold", *argv, cwd=cwd, stdin=stdin, **environ
        )

    def gres(self, done: subprocess.CompletedProcess[str]) -> str:
        return self.field(done, "TresPerNode")

    def field(self, done: subprocess.CompletedProcess[str], name: str) -> str:
        found = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert found, done.stderr
        return re.search(rf"(?<!\S){name}=(.*)", self.cluster.show(found[1]))[1]  # type: ignore[index]


@pytest.fixture(scope="module")
def filtered() -> Iterator[Filtered]:
    with running_lab(SITE_FILE, hooks.render(SITE_FILE, load_site(SITE_FILE))) as running:
        yield Filtered(running)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_job(tmp_path, os.environ.get("XMEM_TEST_PYTHON", "python3"), "--gres=gpu:h200:1")


@pytest.fixture
def python(filtered: Filtered, folder: Path, warm_python: Path) -> Iterator[Path]:
    """Have dry runs be processes of a warm Python, as what is made of an answer is not of the
    sandbox; return it."""
    script = folder / "job.sh"
    script.write_text(script.read_text().replace(os.environ["XMEM_TEST_PYTHON"], str(warm_python)))
    filtered.program = [*UNSANDBOXED, "xmem_slurm.filter.start"]
    yield warm_python
    filtered.program = None


def rewriting(site: str = SITE) -> str:
    assert 'mode = "advise"' in site
    return site.replace('mode = "advise"', 'mode = "rewrite"')


@pytest.mark.torch
@pytest.mark.parametrize(
    ("argv", "expected", "allocated"),
    [
        (["job.sh"], r"gres:shard:[12]", r"Nodes=h1 .*GRES=shard:[12]\("),
        (
            ["-p", "quiet", "job.sh"],
            r"gres:gpu:1g\.18gb:1",
            r"Nodes=m1 .*GRES=gpu:1g\.18gb:1\(IDX:\d\)",
        ),
    ],
)
def test_plain_sbatch_gets_what_the_job_needs_and_the_job_runs_there(
    filtered: Filtered, folder: Path, argv: list[str], expected: str, allocated: str
) -> None:
    filtered.install(rewriting())
    done = filtered.sbatch(*argv, cwd=folder)
    assert re.fullmatch(expected, filtered.gres(done)), done.stderr
    assert "GPU memory needed" in done.stderr

    job = done.stdout.split()[-1]
    filtered.cluster.slurm("scontrol", "release", job)
    shown = filtered.cluster.ended(job)
    assert "JobState=COMPLETED" in shown
    assert re.search(allocated, shown), shown


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_host_memory_is_filled_in_by_the_sites_rule(filtered: Filtered, folder: Path) -> None:
    rule = '[dialect]\nhost_memory_option = "mem"\nhost_memory_mib = 9000\n\n[filter]'
    filtered.install(rewriting().replace("[filter]", rule))
    done = filtered.sbatch("--partition=quiet", "job.sh", cwd=folder)
    assert filtered.gres(done) == "gres:gpu:1g.18gb:1", done.stderr
    assert filtered.field(done, "MinMemoryNode").split()[0] == "9000M"
    assert "no --mem -> --mem=9000M" in done.stderr
    done = filtered.sbatch("--partition=quiet", "--mem=7G", "job.sh", cwd=folder)
    assert filtered.field(done, "MinMemoryNode").split()[0] == "7G"


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_a_request_for_shares_becomes_as_many_as_needed(filtered: Filtered, folder: Path) -> None:
    script = folder / "job.sh"
    script.write_text(script.read_text().replace("gpu:h200:1", "shard:20"))
    filtered.install(rewriting())
    done = filtered.sbatch("job.sh", cwd=folder)
    assert filtered.gres(done) == "gres:shard:2", done.stderr


@pytest.mark.torch
def test_a_wrapped_command_is_looked_at_and_advice_changes_nothing(
    filtered: Filtered, folder: Path, python: Path
) -> None:
    filtered.install(SITE)
    done = filtered.sbatch("--gres=gpu:h200:1", f"--wrap={python} train.py", cwd=folder)
    assert filtered.gres(done) == H200
    assert "the cheapest on which it fits" in done.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_what_is_known_of_a_job_is_answered_again_until_the_site_file_changes(
    filtered: Filtered, folder: Path
) -> None:
    known = "nothing that the dry run read has changed"
    for site, again in ((rewriting(), False), (rewriting(), True), (SITE, False)):
        filtered.install(site)
        done = filtered.sbatch("-p", "quiet", "job.sh", cwd=folder)
        assert filtered.gres(done) == (H200 if site == SITE else "gres:gpu:1g.18gb:1"), done.stderr
        assert (known in done.stderr) is again
    filtered.install(rewriting().replace('mode = "rewrite"', 'mode = "off"'))
    done = filtered.sbatch("-p", "quiet", "job.sh", cwd=folder)
    as_written(filtered, done)
    assert done.stderr == ""


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_what_xsbatch_submits_is_not_looked_at_twice(filtered: Filtered, folder: Path) -> None:
    filtered.install(rewriting())
    ours = {"XMEM_SITE": str(filtered.site_file), "XDG_STATE_HOME": str(folder)}
    done = filtered.cluster.run(
        *WARM_XSBATCH, "--hold", "--xmem-keep-type", "job.sh", cwd=folder, **ours
    )
    as_written(filtered, done)
    assert "xsbatch: GPU memory needed" in done.stderr
    assert "xmem-slurm: " not in done.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_one_dry_run_is_enough_for_all_who_ask(filtered: Filtered, folder: Path) -> None:
    """An estimate, a submission by xsbatch, one by sbatch through the filter, and a plan; where
    another dry run would find something else, it is made."""
    script, runs = folder / "job.sh", folder / "runs"
    script.write_text(script.read_text().replace("\n", "\n#SBATCH -J one\n", 1))
    script.write_text(f"{script.read_text()}echo >>runs\n")
    filtered.install(rewriting())
    own = own_cache(folder) | {
        "XMEM_SITE": str(filtered.site_file),
        "XDG_STATE_HOME": str(folder / "state"),
        "PWD": str(folder),
    }

    def made(*command: str) -> int:
        done = filtered.cluster.run(*command, cwd=folder, **own)
        assert done.returncode == 0, done.stderr
        assert "submitted as written" not in done.stderr
        return len(runs.read_text())

    xmem_slurm = (*UNSANDBOXED, "xmem_slurm.cli.main")
    way = ("--gpus=1", "--on=h200", "--allow=single", "--top=1")
    assert made(*xmem_slurm, "estimate", "job.sh") == 1
    assert made(*WARM_XSBATCH, "--hold", "job.sh") == 1
    assert made("sbatch", "--hold", "job.sh") == 1
    assert made(*xmem_slurm, "plan", *way, "job.sh") == 1
    script.write_text(script.read_text().replace("-J one", "--job-name=two"))
    assert made(*xmem_slurm, "estimate", "job.sh") == 1
    assert made(*WARM_XSBATCH, "--hold", "job.sh") == 1
    done = filtered.sbatch("job.sh", cwd=folder, **own)
    assert len(runs.read_text()) == 1
    assert filtered.field(done, "JobName") == "two"
    assert filtered.gres(done) != H200
    (folder / "train.py").write_text(TRAIN.replace("4096", "2048"))
    assert made("sbatch", "--hold", "job.sh") == 2


def as_written(filtered: Filtered, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert filtered.gres(done) == H200


@pytest.mark.parametrize(
    ("name", "changed", "environ"),
    [
        ("the mode is off", {'mode = "advise"': 'mode = "off"'}, {}),
        ("the job has not opted in", {'mode = "advise"': 'mode = "rewrite"\nopt_in = true'}, {}),
        (
            "another user's jobs only",
            {'mode = "advise"': 'mode = "rewrite"\nusers = ["nobody-here"]'},
            {},
        ),
        (
            "not in this partition",
            {'mode = "advise"': 'mode = "rewrite"\nnot_partitions = ["gpu"]'},
            {},
        ),
        ("the job opted out", {'mode = "advise"': 'mode = "rewrite"'}, {"XMEM_OFF": "1"}),
    ],
)
def test_whose_jobs_are_left_alone(
    filtered: Filtered,
    folder: Path,
    name: str,
    changed: Mapping[str, str],
    environ: Mapping[str, str],
) -> None:
    site = SITE
    for old, new in changed.items():
        site = site.replace(old, new)
    filtered.install(site)
    done = filtered.sbatch("job.sh", cwd=folder, **environ)
    as_written(filtered, done)
    assert done.stderr == "", name


def test_a_comment_opts_out_and_in(filtered: Filtered, folder: Path) -> None:
    filtered.install(rewriting())
    done = filtered.sbatch("--comment=for a paper xmem:off", "job.sh", cwd=folder)
    as_written(filtered, done)
    assert done.stderr == ""
    filtered.install(rewriting().replace("[filter]", "[filter]\nopt_in = true"))
    done = filtered.sbatch(
        "--comment=xmem:on", "--gres=shard:1", "--ntasks=9", "job.sh", cwd=folder
    )
    assert (
        "submitted as written: a request for shard is changed for one process only" in done.stderr
    )


def test_a_job_without_a_gpu_starts_nothing(filtered: Filtered, folder: Path) -> None:
    filtered.install(rewriting(), program=["touch", str(folder / "called")])
    done = filtered.sbatch("--wrap=true", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "called").exists()


def shell(code: str) -> list[str]:
    return ["sh", "-c", code, "answer"]


FAULTS: Mapping[str, list[str]] = {
    "it is killed": shell("kill -9 $$"),
    "it fails": shell("exit 3"),
    "it answers nothing": ["true"],
    "it answers garbage": shell("head -c 100000 /dev/urandom"),
    "it answers without end": ["yes", "gres=gpu:l4:1"],
    "it is cut off": shell("echo gres=gpu:1g.18gb:1"),
    "it sets what is not its to set": shell("echo account=root; echo end"),
    "it answers with a shell's characters": shell("echo 'gres=$(touch pwned)'; echo end"),
    "it refuses where the site does not": shell("echo refuse"),
    "it answers with an impossible value": shell("echo gres=gpu:1g.18gb:1; echo mem=x; echo end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_answers_the_job_goes_as_written(
    filtered: Filtered, folder: Path, fault: str
) -> None:
    filtered.install(rewriting(), program=FAULTS[fault])
    as_written(filtered, filtered.sbatch("job.sh", cwd=folder))
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("python", ["/nowhere/python", "/usr/bin/python3"])
def test_of_a_python_that_is_gone_no_user_hears(
    filtered: Filtered, folder: Path, python: str
) -> None:
    """`site check` tells the administrator (tests/integration/site/test_site.py). The other one has no
    package of ours."""
    filtered.install(rewriting(), change=lambda text: text.replace(sys.executable, python))
    done = filtered.sbatch("job.sh", cwd=folder)
    as_written(filtered, done)
    assert done.stderr == ""


def test_a_dry_run_ends_with_the_sbatch_that_waits_for_it(filtered: Filtered, folder: Path) -> None:
    """Ctrl-C ends sbatch alone: `timeout` has the rest in a group of its own."""
    filtered.install(rewriting())
    (folder / "train.py").rename(folder / "train_for_long.py").write_text(
        "import time\ntime.sleep(600)"
    )
    script = (folder / "job.sh").read_text().replace("train.py", "train_for_long.py")
    (folder / "job.sh").write_text(script)

    def runs() -> bool:
        return any(
            "train_for_long.py" in (each.info["cmdline"] or ())
            for each in psutil.process_iter(["cmdline"])
        )

    with subprocess.Popen(
        ["sbatch", "--hold", "job.sh"], cwd=folder, env=filtered.cluster.environ
    ) as sbatch:
        wait_until(runs)
        sbatch.send_signal(signal.SIGINT)
    wait_until(lambda: not runs())


def submitted(filtered: Filtered, name: str) -> list[str]:
    return filtered.cluster.slurm("squeue", "-h", "-o", "%i", f"--name={name}").split()


@pytest.mark.parametrize("moment", ["while it starts", "in the dry run"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_before_the_answer_leaves_nothing(
    filtered: Filtered, folder: Path, number: signal.Signals, moment: str
) -> None:
    """No job, no process and no folder; and no job twice where it is submitted again."""
    name, temporary, audit = folder.name, folder / "temporary", folder / "audit"
    temporary.mkdir()
    audit.mkdir()
    wait_until(lambda: not filters(filtered))
    record = f'[audit]\nfolder = "{audit}"\n\n[filter]'
    filtered.install(rewriting().replace("[filter]", record))
    sleep = f"sleep 600.{os.getpid()}"
    (folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:h200:1\nexec {sleep}\n")

    def dry_runs() -> list[psutil.Process]:
        every = psutil.process_iter(["cmdline"])
        return [each for each in every if each.info["cmdline"] == sleep.split()]

    words = ["sbatch", "--hold", "--job-name", name, "job.sh"]
    environ = filtered.cluster.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(words, cwd=folder, env=environ) as sbatch:
        wait_until(lambda: filters(filtered) if moment == "while it starts" else dry_runs())
        sbatch.send_signal(number)
        assert sbatch.wait() == -number
    wait_until(lambda: not filters(filtered) and not dry_runs() and not list(temporary.iterdir()))
    assert submitted(filtered, name) == []
    assert lines_of(folder) == []
    filtered.install(rewriting().replace('mode = "rewrite"', 'mode = "off"'))
    as_written(filtered, filtered.sbatch("--job-name", name, "job.sh", cwd=folder))
    assert len(submitted(filtered, name)) == 1


def test_a_slow_answer_is_cut_off(filtered: Filtered, folder: Path) -> None:
    slow = shell("sleep 600; echo gres=gpu:1g.18gb:1; echo end")
    filtered.install(
        rewriting(),
        change=lambda text: text.replace("timeout 200 sed", "timeout 1 sed"),
        program=slow,
    )
    done = filtered.sbatch("job.sh", cwd=folder)
    as_written(filtered, done)
    assert "no answer; it has 200 s for one" in done.stderr


def test_a_word_for_the_user_is_there_before_the_answer(filtered: Filtered, folder: Path) -> None:
    told = shell(
        f"echo 'xmem-slurm: wait' >&2; while [ ! -e {folder}/seen ]; do sleep 0.1; done; echo end; "
        "sleep 600"
    )
    filtered.install(rewriting(), program=told)
    words = ["sbatch", "--hold", "job.sh"]
    with subprocess.Popen(
        words, cwd=folder, env=filtered.cluster.environ, stderr=subprocess.PIPE, text=True
    ) as sbatch:
        assert sbatch.stderr is not None
        assert sbatch.stderr.readline() == "xmem-slurm: wait\n"
        (folder / "seen").touch()
        assert sbatch.wait(60) == 0, "who has answered is not waited for"


def test_what_else_is_said_is_no_part_of_the_answer(filtered: Filtered, folder: Path) -> None:
    said = (
        "echo Exception ignored in: x >&2; echo gres=gpu:1g.18gb:1; echo '  File \"y\", line 1' "
        ">&2; echo end"
    )
    filtered.install(rewriting(), program=shell(said))
    done = filtered.sbatch("job.sh", cwd=folder)
    assert (filtered.gres(done), done.stderr) == ("gres:gpu:1g.18gb:1", "")


BROKEN = {
    "does not parse": ("changes.py", "def main(:\n", "SyntaxError: "),
    "is from another release": ("detached.py", "", "ImportError: cannot import name"),
    "is half there": (
        "caller.py",
        None,
        "ModuleNotFoundError: No module named 'xmem_slurm.filter.caller'",
    ),
    "fails": ("start.py", "def main(): raise RuntimeError('a\\nb')\n", "RuntimeError: a\n"),
    "starts with an error": ("__init__.py", "1 / 0\n", "ZeroDivisionError: division by zero"),
    "is gone": (None, None, ""),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_package_of_ours_that_is_broken_is_one_line(
    filtered: Filtered, folder: Path, fault: str
) -> None:
    """As in the middle of an upgrade, or after half a one."""
    name, content, said = BROKEN[fault]
    tree = folder / "packages" / "xmem_slurm"
    shutil.copytree(
        Path(hooks.__file__).parents[1], tree, ignore=shutil.ignore_patterns("__pycache__")
    )
    if name is None:
        shutil.rmtree(tree)
    elif content is None:
        (tree / "filter" / name).unlink()
    else:
        (tree / "filter" / name).write_text(content)
    bare = "/usr/bin/python3"  # has no package of ours
    start = (
        hooks.START
        if name is None
        else f"import sys; sys.path.append({str(tree.parent)!r}); {hooks.START}"
    )
    filtered.install(rewriting(), program=[bare, "-I", "-c", start])
    done = filtered.sbatch("job.sh", cwd=folder)
    as_written(filtered, done)
    assert done.stderr.count("\n") == bool(said), done.stderr
    assert messages(done.stderr).startswith("xmem-slurm: submitted as written: " if said else "")
    assert said in done.stderr


@pytest.fixture
def silent(filtered: Filtered, folder: Path) -> Iterator[Path]:
    if os.getuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("mounts a file system that does not answer")
    (folder / "silent").mkdir()
    with hung(folder / "silent") as inside:
        filtered.inside = inside
        yield folder / "silent"
    filtered.inside = []


@pytest.mark.parametrize(
    "place",
    ["our Python", "our package", "the site file", "the cache", "HOME", "a file that was read"],
)
def test_what_does_not_answer_costs_the_time_that_the_hook_waits_and_no_more(
    filtered: Filtered, folder: Path, silent: Path, place: str
) -> None:
    site = rewriting().replace("seconds = 200", "seconds = 3")
    change = str
    program = None
    environ = {}
    if place == "our Python":
        program = [str(silent / "bin" / "python3"), "-I", "-c", hooks.START]
    elif place == "our package":
        program = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(silent)!r}); {hooks.START}",
        ]
    elif place == "the site file":

        def change(text: str) -> str:
            return text.replace(str(filtered.site_file), str(silent / "site.toml"))
    elif place == "the cache":
        environ = {"XDG_CACHE_HOME": str(silent)}
    elif place == "HOME":
        environ = {"HOME": str(silent), "XDG_CACHE_HOME": "", "XDG_STATE_HOME": ""}
        environ["XDG_CONFIG_HOME"] = ""
    else:
        (folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH --gres=gpu:h200:1\n. {silent}/environment.sh\n"
        )
    filtered.install(site, lambda text: change(text.replace("200", "3")), program)
    began = time.monotonic()
    done = filtered.sbatch("job.sh", cwd=folder, **environ)
    took = time.monotonic() - began
    as_written(filtered, done)
    assert took < 60, "3 s, on a busy machine; without a deadline it would never end"
    assert done.stderr.count("submitted as written: ") == 1


def test_the_answer_does_not_wait_for_the_sites_record_of_it(
    filtered: Filtered, folder: Path, silent: Path
) -> None:
    refused = ["--gres=shard:1", "--ntasks=9", "job.sh"]  # an answer that takes no dry run
    told = "submitted as written: a request for shard is changed for one process only"
    site = rewriting().replace("[filter]", f'[audit]\nfolder = "{silent}"\n\n[filter]')
    filtered.install(site)
    done = filtered.sbatch(*refused, cwd=folder)
    assert told in done.stderr, "and not cut off"
    assert done.returncode == 0


def test_an_answer_is_recorded_once_it_is_given(filtered: Filtered, folder: Path) -> None:
    (folder / "audit").mkdir()
    filtered.install(
        rewriting().replace("[filter]", f'[audit]\nfolder = "{folder}/audit"\n\n[filter]')
    )
    for environ in ({}, {"XMEM_FRESH": "1"}):
        done = filtered.sbatch("--gres=shard:1", "--ntasks=9", "job.sh", cwd=folder, **environ)
        assert done.returncode == 0
    wait_until(lambda: lines_of(folder) == ["as written"] * 2)


def lines_of(folder: Path) -> list[str]:
    """Return the outcomes in the record of whoever runs this."""
    record = folder / "audit" / f"{os.getuid()}.jsonl"
    return (
        [json.loads(line)["outcome"] for line in record.read_text().splitlines()]
        if record.exists()
        else []
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ending", "expected", "told", "cut"),
    [
        ("", "gres:gpu:1g.18gb:1", "GPU memory needed", "by itself"),
        ("raise OSError('no such data')", H200, "no such data", "by itself"),
        ("", "gres:gpu:1g.18gb:1", "GPU memory needed", "by an older hook"),
    ],
)
def test_what_comes_too_late_is_there_for_the_next_and_leaves_nothing_behind(
    filtered: Filtered, folder: Path, ending: str, expected: str, told: str, cut: str
) -> None:
    """An estimate, or the reason why there is none: a job is run dry once. The hook may be older
    than the site file."""
    wait_until(lambda: not filters(filtered))  # what others have left goes before in the queue
    temporary = folder / "temporary"
    temporary.mkdir()
    (folder / "train.py").write_text(f"import time\ntime.sleep(5)\n{ending}\n{TRAIN}")
    if cut == "by itself":
        filtered.install(rewriting().replace("seconds = 200", "seconds = 3"))
    else:
        filtered.install(rewriting(), lambda text: text.replace("200", "2"))
    words = [
        "sh",
        "-c",
        'exec 7>"$0"; exec sbatch --hold "$@"',
        str(folder / "open"),
        "-p",
        "quiet",
        "job.sh",
    ]
    late = filtered.cluster.run(*words, cwd=folder, TMPDIR=str(temporary))
    as_written(filtered, late)
    assert "the next submission of this job will have its answer" in late.stderr
    wait_until(lambda: any(temporary.iterdir()))
    for each in filters(filtered):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert each.nice() > psutil.Process().nice(), (
                "not in the way of what sbatch itself does next"
            )
            opened = {file.path for file in each.open_files()}
            assert str(folder / "open") not in opened, "whoever reads to its end would wait"
    wait_until(lambda: not list(temporary.iterdir()) and not filters(filtered))
    done = filtered.sbatch("-p", "quiet", "job.sh", cwd=folder, TMPDIR=str(temporary))
    assert filtered.gres(done) == expected
    assert told in done.stderr
    assert "known since" in done.stderr


def filters(filtered: Filtered) -> list[psutil.Process]:
    """Return what runs of this cluster's filter."""
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if str(filtered.site_file) in (each.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(
    "site", ["not TOML [", rewriting().replace("schema_version = 1", "schema_version = 9")]
)
def test_a_broken_site_file(filtered: Filtered, folder: Path, site: str) -> None:
    filtered.install(site)
    done = filtered.sbatch("job.sh", cwd=folder)
    as_written(filtered, done)
    assert "site.toml" in done.stderr


def test_an_error_in_lua(filtered: Filtered, folder: Path) -> None:
    wrong = "local changes = nonsense(nil .. 1)"
    filtered.install(rewriting(), change=lambda text: text.replace("local changes = ask()", wrong))
    assert wrong in (filtered.cluster.folder / "cli_filter.lua").read_text()
    done = filtered.sbatch("job.sh", cwd=folder)
    as_written(filtered, done)
    assert "submitted as written" in done.stderr


HOSTILE = [
    "'; touch pwned; '",
    "$(touch pwned)",
    "`touch pwned`",
    "%s%n%1",
    '"]] os.execute("touch pwned") --[[',
    "a\nb\ngres=gpu:l4:1\nend",
]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("hostile", "dry_run"), [(HOSTILE[0], "sandboxed"), *((each, "seen") for each in HOSTILE)]
)
def test_nothing_that_a_user_types_is_executed_by_what_sizes_the_job(
    filtered: Filtered, folder: Path, hostile: str, dry_run: str, request: pytest.FixtureRequest
) -> None:
    """What a dry run writes is there where that has no sandbox to throw it away."""
    if dry_run == "seen":
        request.getfixturevalue("python")
    filtered.install(rewriting())
    script = folder / hostile.replace("/", "_")
    shutil.copy(folder / "job.sh", script)
    words = ["-p", "quiet", f"--comment={hostile}", f"--job-name={hostile}", str(script), hostile]
    done = filtered.sbatch(*words, cwd=folder, HOSTILE=hostile, XMEM_POLICY=hostile)
    assert filtered.gres(done) == "gres:gpu:1g.18gb:1", done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["job.sh", "train.py", script.name]
    )


def test_options_of_a_megabyte(filtered: Filtered, folder: Path) -> None:
    """Linux takes 128 KiB for one word, and 2 MiB for all with the environment; the last option of
    a name counts."""
    long = [
        f"--{name}={'x' * 100_000}"
        for name in ("job-name", "comment", "reservation", "wckey", "mail-user") * 2
    ]
    short = [
        "--job-name=a",
        "--comment=b",
        "--reservation=",
        "--wckey=",
        "--mail-user=c",
        "--ntasks=9",
    ]
    short += ["--gres=shard:1"]
    filtered.install(rewriting())
    done = filtered.sbatch(
        *long, *short, "job.sh", cwd=folder, **{f"X{n}": "y" * 100_000 for n in range(5)}
    )
    assert done.returncode == 0
    assert (
        "submitted as written: a request for shard is changed for one process only" in done.stderr
    )


@pytest.mark.torch
def test_a_library_of_the_users_own_changes_nothing(filtered: Filtered, folder: Path) -> None:
    """LD_PRELOAD is the job's: the dry run's Python has it beside ours. What it does in sbatch is
    the user's affair."""
    source, library = folder / "own.c", folder / "own.so"
    source.write_text("int own(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-o", library, source], check=True)
    filtered.install(rewriting())
    done = filtered.sbatch("-p", "quiet", "job.sh", cwd=folder, LD_PRELOAD=str(library))
    assert filtered.gres(done) == "gres:gpu:1g.18gb:1", done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("of", ["everybody's", "another user's"])
def test_a_cache_that_others_can_write_to_is_not_used(
    filtered: Filtered, folder: Path, of: str
) -> None:
    cache = folder / "cache" / "xmem-slurm" / "device"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    if of == "another user's":
        os.chown(cache, 65534, 65534)
        cache.chmod(0o755)
    filtered.install(rewriting())
    done = filtered.sbatch("job.sh", cwd=folder, XDG_CACHE_HOME=str(folder / "cache"))
    as_written(filtered, done)
    assert "others can write there" in done.stderr
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_a_user_types_is_executed(
    filtered: Filtered, folder: Path, hostile: str
) -> None:
    filtered.install(rewriting())
    script = folder / hostile.replace("/", "_")
    shutil.copy(folder / "job.sh", script)
    done = filtered.sbatch(
        f"--job-name={hostile}", f"--comment={hostile}", "--test-only", str(script), cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "pwned").exists()
    done = filtered.sbatch(f"--job-name={hostile}", str(script), cwd=folder, XMEM_OFF="1")
    as_written(filtered, done)
    assert not (folder / "pwned").exists()


def test_a_users_own_python_settings_do_not_reach_the_filter(
    filtered: Filtered, folder: Path
) -> None:
    (folder / "typing.py").write_text("open('pwned', 'w')\n")
    filtered.install(SITE.replace('mode = "advise"', 'mode = "off"'))
    done = filtered.sbatch("job.sh", cwd=folder, PYTHONPATH=str(folder), PYTHONHOME="/nowhere")
    as_written(filtered, done)
    assert done.stderr == ""
    assert not (folder / "pwned").exists()


def test_nothing_is_looked_for_on_the_users_path(filtered: Filtered, folder: Path) -> None:
    programs = folder / "programs"
    programs.mkdir()
    for name in ("sh", "timeout", "python3", "env", "xmem-slurm", "sbatch.real"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {folder}/pwned\n")
        (programs / name).chmod(0o755)
    filtered.install(SITE.replace('mode = "advise"', 'mode = "off"'))
    done = filtered.sbatch("job.sh", cwd=folder, PATH=f"{programs}:{os.environ['PATH']}")
    as_written(filtered, done)
    assert not (folder / "pwned").exists()


def test_a_long_command_line_is_no_trouble(filtered: Filtered, folder: Path) -> None:
    words = ["x" * 100_000] * 8  # Linux takes 128 KiB for one word
    filtered.install(SITE.replace('mode = "advise"', 'mode = "off"'))
    done = filtered.sbatch("job.sh", *words, cwd=folder)
    as_written(filtered, done)
    assert done.stderr == ""


def test_a_program_of_another_name_is_none_of_our_business() -> None:
    assert caller_of(os.getpid(), {}) is None
    with pytest.raises(UsageError, match="No such file"):
        caller_of(2**22 + 1, {})


@pytest.mark.torch
@pytest.mark.usefixtures("python")
def test_what_slurm_would_refuse_is_not_asked_for(filtered: Filtered, folder: Path) -> None:
    """The job names a node that has no GPU of the cheaper kind; and it is another user's."""
    filtered.install(rewriting())
    done = filtered.sbatch("-p", "quiet", "-w", "h1", "job.sh", cwd=folder)
    as_written(filtered, done)
    assert "the request stays as it is: h200 has 139.71 GiB" in done.stderr
    assert "the only option" in done.stderr
    done = filtered.sbatch("--uid=nobody", "job.sh", cwd=folder)
    as_written(filtered, done)
    assert done.stderr == ""


def test_stdin_and_het_jobs_are_left_alone(filtered: Filtered, folder: Path) -> None:
    filtered.install(rewriting())
    as_written(
        filtered, filtered.sbatch("--gres=gpu:h200:1", cwd=folder, stdin="#!/bin/sh\ntrue\n")
    )
    done = filtered.sbatch("--gres=gpu:h200:1", ":", "--gres=gpu:h200:1", "job.sh", cwd=folder)
    assert filtered.gres(done) == H200


def reload(filtered: Filtered, text: str) -> None:
    """Have slurmctld read its hook again: it looks at the file's time, in whole seconds."""
    file = filtered.cluster.folder / "job_submit.lua"
    then = file.stat().st_mtime + 2
    file.write_text(text, encoding="utf-8")
    os.utime(file, (then, then))


INTERACTIVE = [["srun"], ["salloc", "--quiet"]]
ALL = 'mode = "rewrite"\ncommands = ["sbatch", "srun", "salloc"]'


@pytest.mark.torch
@pytest.mark.parametrize("command", INTERACTIVE)
def test_a_command_of_srun_and_salloc_is_looked_at_where_the_site_wants_it(
    filtered: Filtered, folder: Path, command: list[str], python: Path
) -> None:
    """It then asks for what it needs; the test's own command, which needs no torch, runs in that
    allocation."""
    filtered.install(rewriting().replace('mode = "rewrite"', ALL))
    show = "scontrol show job $SLURM_JOB_ID"
    code = (
        "import os, subprocess\nif 'XMEM_SHIMS' not in os.environ: raise "
        f"SystemExit(os.system('{show}'))\n{TRAIN}"
    )
    (folder / "train.py").write_text(code)
    words = [*command, "--partition=quiet", "--gres=gpu:h200:1", str(python), "train.py"]
    done = filtered.cluster.run(*words, cwd=folder)
    assert "GPU memory needed" in done.stderr
    assert "TresPerNode=gres:gpu:1g.18gb:1\n" in as_of_22_05(done.stdout), done.stderr


@pytest.mark.parametrize("command", INTERACTIVE)
def test_what_srun_and_salloc_have_no_command_for_starts_nothing(
    filtered: Filtered, folder: Path, command: list[str]
) -> None:
    filtered.install(rewriting().replace('mode = "rewrite"', ALL))
    done = filtered.cluster.run(*command, "--gres=gpu:h200:1", "bash", stdin="echo ran")
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_a_step_of_a_running_job_starts_nothing(filtered: Filtered, folder: Path) -> None:
    filtered.install(
        rewriting().replace('mode = "rewrite"', 'mode = "rewrite"\ncommands = ["srun"]'),
        change=lambda text: text.replace(
            "LOOKS_AT = { sbatch = true, }", "LOOKS_AT = { srun = true }"
        ),
        program=["touch", str(folder / "called")],
    )
    words = ["salloc", "--quiet", "--gres=gpu:h200:1", "srun", "--gres=gpu:h200:1", "echo", "ran"]
    assert filtered.cluster.slurm(*words) == "ran\n"
    assert not (folder / "called").exists()


@pytest.mark.parametrize("command", INTERACTIVE)
def test_srun_and_salloc_are_left_alone_by_default(
    filtered: Filtered, folder: Path, command: list[str]
) -> None:
    filtered.install(rewriting(), program=["touch", str(folder / "called")])
    assert filtered.cluster.slurm(*command, "--gres=gpu:h200:1", "echo", "ran") == "ran\n"
    assert not (folder / "called").exists()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("policy", "gres", "train", "told"),
    [
        ("unasked", (), TRAIN, "not submitted: this job asks for no GPU, and would use one"),
        (
            "unused",
            ("--gres=gpu:h200:1",),
            "import torch\n",
            "not submitted: this job asks for a GPU, and its dry run used",
        ),
    ],
)
def test_a_site_may_refuse_jobs_that_use_no_gpu_or_ask_for_none(
    filtered: Filtered,
    folder: Path,
    policy: str,
    gres: tuple[str, ...],
    train: str,
    told: str,
    python: Path,
) -> None:
    (folder / "train.py").write_text(train)
    wrap = f"--wrap={python} train.py"
    tables = f"[policy]\n{policy} = 'refuse'\n\n[audit]\nfolder = \"{folder}/audit\"\n\n[filter]"
    (folder / "audit").mkdir()
    site = rewriting().replace("[filter]", tables)
    filtered.install(site, change=lambda text: text.replace("= false --", "= true --"))
    refused = filtered.sbatch(*gres, wrap, cwd=folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert told in refused.stderr
    wait_until(lambda: lines_of(folder) == ["refused"])
    assert filtered.sbatch(*gres, wrap, cwd=folder, XMEM_OFF="1").returncode == 0
    assert filtered.sbatch("--wrap=true", cwd=folder).returncode == 0


def test_a_user_may_want_a_job_refused_that_cannot_run(
    filtered: Filtered, folder: Path, python: Path
) -> None:
    (folder / "audit").mkdir()
    record = f'[audit]\nfolder = "{folder}/audit"\n\n[filter]'
    filtered.install(rewriting().replace("[filter]", record))
    (folder / "broken.py").write_text("import torch\ndef (")
    job = ("--gres=gpu:h200:1", f"--wrap={python} broken.py")
    refused = filtered.sbatch(*job, cwd=folder, XMEM_STRICT="1")
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    assert "not submitted" in refused.stderr
    assert "submitted as written" not in refused.stderr
    as_written(filtered, filtered.sbatch(*job, cwd=folder))
    wait_until(lambda: lines_of(folder) == ["refused", "as written"])


def test_an_array_keeps_its_indexes(filtered: Filtered, folder: Path) -> None:
    filtered.install(rewriting(), program=shell("echo gres=gpu:1g.18gb:1; echo end"))
    done = filtered.sbatch("--array=2-5%2", "job.sh", cwd=folder)
    assert filtered.gres(done) == "gres:gpu:1g.18gb:1"
    assert filtered.field(done, "ArrayTaskId").startswith("2-5%2")


def test_slurmctld_asks_for_a_reason_and_keeps_the_record(filtered: Filtered, folder: Path) -> None:
    site_file = folder / "strict.toml"
    site_file.write_text(
        SITE.replace("[job_submit]", '[job_submit]\nmode = "refuse"\nreason_for = ["h200"]')
    )
    filtered.install(SITE.replace('mode = "advise"', 'mode = "off"'))
    strict = hooks.render(site_file, load_site(site_file))["job_submit.lua"]
    reload(filtered, strict)
    refused = filtered.sbatch("job.sh", cwd=folder)
    assert refused.returncode == 1
    assert "GPUs of type h200 are scarce here" in refused.stderr
    assert filtered.sbatch("--gres=gpu:1g.18gb:1", "job.sh", cwd=folder).returncode == 0
    as_written(filtered, filtered.sbatch("--comment=it must be this one", "job.sh", cwd=folder))

    script = (
        (folder / "job.sh")
        .read_text()
        .replace("h200:1\n", "h200:1\n# xmem-slurm 0.1.0: 90 GiB needed\n")
    )
    (folder / "sized.sh").write_text(script)
    done = filtered.sbatch("sized.sh", cwd=folder)
    assert filtered.field(done, "AdminComment").strip() == "xmem-slurm 0.1.0: 90 GiB needed"

    lying = f"h200:1\n# xmem-slurm %s$(touch pwned)'\"]] {'x' * 9999}\n"
    (folder / "lying.sh").write_text((folder / "job.sh").read_text().replace("h200:1\n", lying))
    done = filtered.sbatch("lying.sh", cwd=folder)
    assert 900 < len(filtered.field(done, "AdminComment")) < 1100, (
        "what a user wrote is text, and is cut"
    )
    assert not (folder / "pwned").exists()

    reload(filtered, strict.replace("local wanted = ", "local wanted = nonsense() or "))
    as_written(filtered, filtered.sbatch("job.sh", cwd=folder))
