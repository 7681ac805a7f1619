"""xsbatch on a real cluster: the request is made right, and whatever breaks, the job is submitted
as written.

Where a test is not of the sandbox, dry runs are processes of a warm Python.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import TRAIN, WARM_XSBATCH, XSBATCH, Cluster, as_of_22_05, own_cache
from tests.harness.told import messages

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:h200:1   # to be safe
#SBATCH --output=/dev/null
{python} train.py
"""
START = WARM_XSBATCH


class Submission:
    """What xsbatch said, and what Slurm has of the job."""

    def __init__(self, done: subprocess.CompletedProcess[str], environ: dict[str, str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, messages(done.stderr)
        self._environ = environ

    @property
    def job(self) -> str:
        found = re.fullmatch(r"Submitted batch job (\d+)\n", self.out)
        assert found, (self.out, self.err)
        return found[1]

    def field(self, name: str) -> str | None:
        shown = self._slurm("scontrol", "show", "job", self.job)
        found = re.search(rf"(?<!\S){name}=(\S*)", shown)
        return found[1] if found else None

    def script(self) -> str:
        return self._slurm("scontrol", "write", "batch_script", self.job, "-")

    def _slurm(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, check=True
        )
        return as_of_22_05(done.stdout)


@pytest.fixture
def folder(tmp_path: Path, warm_python: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(SCRIPT.format(python=warm_python))
    return tmp_path


@pytest.fixture
def sandboxed(folder: Path, job_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "job.sh").write_text(SCRIPT.format(python=job_python))
    monkeypatch.setitem(globals(), "START", (XSBATCH,))


def xsbatch(
    cluster: Cluster,
    folder: Path,
    *argv: str,
    stdin: str | None = None,
    prefix: tuple[str, ...] = (),
    **environ: str,
) -> Submission:
    environment = cluster.environ | {"XDG_STATE_HOME": str(folder / "state")} | environ
    done = subprocess.run(
        [*prefix, *START, "--hold", *argv],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return Submission(done, cluster.environ)


@pytest.mark.usefixtures("sandboxed")
def test_the_largest_gpu_is_changed_to_the_cheapest_that_fits(
    cluster: Cluster, folder: Path
) -> None:
    done = xsbatch(cluster, folder, "job.sh")
    assert done.field("TresPerNode") == "gres:gpu:l4:1"
    assert done.field("JobName") == "job.sh"
    assert done.field("WorkDir") == str(folder)
    assert "--gres=gpu:h200:1 -> --gres=gpu:l4:1 (line 2 of the script)" in done.err
    assert "GPU memory needed" in done.err
    assert len(done.err.splitlines()) <= 8
    original = (folder / "job.sh").read_text()
    kept = [line for line in done.script().splitlines() if not line.startswith("# xmem-slurm")]
    assert kept == original.replace("h200", "l4").splitlines()
    assert "h200" in original, "the user's own file is never touched"


def test_the_command_line_is_changed_where_it_decides(cluster: Cluster, folder: Path) -> None:
    done = xsbatch(cluster, folder, "--gres=gpu:a100_80:1", "job.sh")
    assert done.field("TresPerNode") == "gres:gpu:l4:1"
    assert done.script() == (folder / "job.sh").read_text()


def test_a_script_on_stdin_and_a_wrapped_command(
    cluster: Cluster, folder: Path, job_python: Path
) -> None:
    assert (
        xsbatch(cluster, folder, stdin=(folder / "job.sh").read_text()).field("TresPerNode")
        == "gres:gpu:l4:1"
    )
    wrapped = xsbatch(cluster, folder, "--gpus=h200:1", "--wrap", f"{job_python} train.py")
    assert wrapped.field("TresPerJob") == "gres:gpu:l4:1"


@pytest.mark.parametrize("argv", [("--xmem-keep-type",), ("--xmem-off",)])
def test_the_user_can_keep_what_was_typed(
    cluster: Cluster, folder: Path, argv: tuple[str, ...]
) -> None:
    assert xsbatch(cluster, folder, *argv, "job.sh").field("TresPerNode") == "gres:gpu:h200:1"


@pytest.mark.parametrize("word", ["keep-type", "off"])
def test_the_script_can_say_so_too(cluster: Cluster, folder: Path, word: str) -> None:
    script = (
        (folder / "job.sh")
        .read_text()
        .replace("#SBATCH --output", f"#XMEM {word}\n#SBATCH --output")
    )
    (folder / "job.sh").write_text(script)
    assert xsbatch(cluster, folder, "job.sh").field("TresPerNode") == "gres:gpu:h200:1"


def test_a_dry_run_prints_the_script_and_submits_nothing(cluster: Cluster, folder: Path) -> None:
    done = xsbatch(cluster, folder, "--xmem-dry-run", "job.sh")
    assert done.code == 0
    assert "#SBATCH --gres=gpu:l4:1" in done.out
    assert "Submitted" not in done.out + done.err


@pytest.mark.usefixtures("sandboxed")
def test_a_job_without_a_gpu_is_none_of_our_business(cluster: Cluster, folder: Path) -> None:
    (folder / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    done = xsbatch(cluster, folder, "plain.sh", XMEM_SITE="/nowhere")
    assert done.field("JobName") == "plain.sh"
    assert done.err == ""


@pytest.mark.usefixtures("sandboxed")
def test_sbatch_says_what_is_wrong_in_its_own_words(cluster: Cluster, folder: Path) -> None:
    for argv in (
        ["missing.sh"],
        ["--nonsense", "job.sh"],
        ["--constraint=nonsense", "--wrap", "true"],
    ):
        ours = xsbatch(cluster, folder, "--xmem-off", *argv)
        real = subprocess.run(
            ["sbatch", "--hold", *argv],
            cwd=folder,
            env=cluster.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ours.code, ours.out, ours.err) == (real.returncode, real.stdout, real.stderr)
        assert ours.code != 0


def submitted_as_written(done: Submission, folder: Path, why: str) -> None:
    """The job is there as the user wrote it, and one line says why."""
    assert done.code == 0, done.err
    assert done.field("TresPerNode") == "gres:gpu:h200:1"
    assert done.script() == (folder / "job.sh").read_text()
    assert len(done.err.splitlines()) == 1, done.err
    assert messages(done.err).startswith("xsbatch: submitted as written: ")
    assert re.search(why, done.err), done.err


def fake_torch(folder: Path, version: str, body: str) -> dict[str, str]:
    """A folder named torch that stands for an installation which is not what it should be."""
    package = folder / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text(version)
    (package / "__init__.py").write_text(body)
    return {"PYTHONPATH": str(folder / "fake")}


@pytest.mark.usefixtures("sandboxed")
def test_fault_a_script_that_fails(cluster: Cluster, folder: Path) -> None:
    (folder / "train.py").write_text("raise FileNotFoundError('corpus.bin')")
    submitted_as_written(xsbatch(cluster, folder, "job.sh"), folder, "corpus.bin")


def test_fault_a_script_that_fails_after_it_used_the_gpu(cluster: Cluster, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\ntorch.ones(9, device='cuda')\nraise FileNotFoundError('corpus.bin')"
    )
    submitted_as_written(
        xsbatch(cluster, folder, "job.sh"),
        folder,
        "0 optimizer steps with FileNotFoundError: corpus.bin",
    )


@pytest.mark.usefixtures("sandboxed")
def test_nobody_waits_twice_for_no_estimate(cluster: Cluster, folder: Path) -> None:
    (folder / "train.py").write_text("raise FileNotFoundError('corpus.bin')")
    environ = {"XDG_CACHE_HOME": str(folder / "cache")}
    first = xsbatch(cluster, folder, "job.sh", **environ)
    assert "known since" not in first.err
    second = xsbatch(cluster, folder, "job.sh", **environ)
    assert second.field("TresPerNode") == "gres:gpu:h200:1"
    told = (
        "xsbatch: submitted as written: .*corpus.bin.* \\[--xmem-fresh tries again\\]\nxsbatch: "
        "known since .*\n"
    )
    assert re.fullmatch(told, second.err), second.err
    (folder / "train.py").write_text("raise FileNotFoundError('other.bin')")
    mended = xsbatch(cluster, folder, "job.sh", **environ)
    assert re.search("other.bin", mended.err), mended.err


def test_a_report_that_cannot_be_written_costs_only_the_report(
    cluster: Cluster, folder: Path
) -> None:
    done = xsbatch(cluster, folder, "job.sh", XMEM_REPORT="/nowhere/report.html")
    assert done.field("TresPerNode") == "gres:gpu:l4:1"
    assert "xsbatch: no report: " in done.err
    assert "/nowhere" in done.err


@pytest.mark.usefixtures("sandboxed")
def test_fault_a_torch_without_cuda(cluster: Cluster, folder: Path) -> None:
    environ = fake_torch(folder, "__version__ = '2.13.0+cpu'\ncuda = None\n", "") | {
        "XMEM_ENGINE": "device"
    }
    submitted_as_written(
        xsbatch(cluster, folder, "job.sh", **environ),
        folder,
        r"2\.13\.0\+cpu in .* is not a CUDA build",
    )


@pytest.mark.usefixtures("sandboxed")
def test_fault_a_broken_torch(cluster: Cluster, folder: Path) -> None:
    environ = fake_torch(
        folder, "__version__ = '9'\ncuda = '13.0'\n", "raise ImportError('libtorch.so is damaged')"
    )
    submitted_as_written(xsbatch(cluster, folder, "job.sh", **environ), folder, "torch")


@pytest.mark.usefixtures("sandboxed")
def test_fault_no_compiler(cluster: Cluster, folder: Path) -> None:
    tools = folder / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "sbatch", "env"):
        (tools / name).symlink_to(shutil.which(name) or name)
    done = xsbatch(cluster, folder, "job.sh", PATH=str(tools), XDG_CACHE_HOME=str(folder / "cache"))
    submitted_as_written(done, folder, "gcc")


def test_fault_a_wrong_site_file(cluster: Cluster, folder: Path) -> None:
    (folder / "site.toml").write_text("schema_version = 1\n")
    submitted_as_written(
        xsbatch(cluster, folder, "--xmem-site=site.toml", "job.sh"),
        folder,
        r"site\.toml: name: Field required",
    )


def test_fault_no_site_file(cluster: Cluster, folder: Path) -> None:
    done = xsbatch(cluster, folder, "job.sh", XMEM_SITE="/nowhere/site.toml")
    submitted_as_written(done, folder, "/nowhere/site.toml: cannot be read")


@pytest.mark.skipif(os.getuid() != 0, reason="takes a right away that only root has")
@pytest.mark.usefixtures("sandboxed")
def test_fault_no_way_to_throw_writes_away(cluster: Cluster, folder: Path) -> None:
    none = (
        'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin "$@"'
    )
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", none, "sh")
    submitted_as_written(
        xsbatch(cluster, folder, "job.sh", prefix=prefix), folder, "user.max_user_namespaces"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
@pytest.mark.usefixtures("sandboxed")
def test_fault_a_full_cache(cluster: Cluster, folder: Path) -> None:
    cache = folder / "cache"
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", cache], check=True)
    try:
        done = xsbatch(cluster, folder, "job.sh", XDG_CACHE_HOME=str(cache))
    finally:
        subprocess.run(["umount", cache], check=True)
    submitted_as_written(done, folder, "No space left")


def test_fault_nowhere_to_keep_the_changed_script(cluster: Cluster, folder: Path) -> None:
    (folder / "state").write_text("a file where a folder should be")
    submitted_as_written(xsbatch(cluster, folder, "job.sh"), folder, "state")


@pytest.mark.usefixtures("sandboxed")
def test_fault_a_job_that_waits_for_ever_before_it_trains(cluster: Cluster, folder: Path) -> None:
    (folder / "train.py").write_text("import time\ntime.sleep(3600)")
    submitted_as_written(
        xsbatch(cluster, folder, "--xmem-budget=4", "job.sh"), folder, "time limit"
    )


DDP = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096, device="cuda"))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("gpus", "launch", "ranks", "became"),
    [
        (
            "--gres=gpu:h200:2",
            "torchrun --nproc-per-node=2 train.py",
            2,
            ("TresPerNode", "gres:gpu:l4:2"),
        ),
        (
            "--nodes=2 --gpus-per-node=h200:4",
            "srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu train.py",
            8,
            ("TresPerNode", "gres:gpu:l4:4"),
        ),
    ],
)
@pytest.mark.usefixtures("sandboxed")
def test_rank_0_of_many_stands_for_all_and_the_number_of_gpus_stays(
    cluster: Cluster,
    folder: Path,
    job_python: Path,
    gpus: str,
    launch: str,
    ranks: int,
    became: tuple[str, str],
) -> None:
    (folder / "train.py").write_text(DDP)
    (folder / "ddp.sh").write_text(
        f"#!/bin/bash\n#SBATCH {gpus}\nexport PATH={job_python.parent}:$PATH\n{launch}\n"
    )
    done = xsbatch(cluster, folder, "--xmem-verbose", "ddp.sh")
    assert done.field(became[0]) == became[1], done.err
    assert f"only rank 0 of {ranks} was run and stands for all" in done.err


def test_tasks_that_share_a_gpu_add_up(cluster: Cluster, folder: Path, warm_python: Path) -> None:
    """Two of 16 GiB each do not fit the 24 GB on which one would."""
    large = (
        "import torch\ntorch.zeros(4, 1 << 30, device='cuda')\n" + (folder / "train.py").read_text()
    )
    (folder / "large.py").write_text(large + "\nimport time\ntime.sleep(5)\n")
    (folder / "two.sh").write_text(
        f"#!/bin/bash\n#SBATCH --gres=gpu:h200:1 -n2\nexport PATH={warm_python.parent}:$PATH\nsrun "
        "python large.py\n"
    )
    done = xsbatch(cluster, folder, "--xmem-verbose", "two.sh")
    assert done.field("TresPerNode") == "gres:gpu:a100_40:1", done.err
    assert "processes that ran at once on one GPU are added up" in done.err


def test_tasks_that_are_never_started_change_nothing(cluster: Cluster, folder: Path) -> None:
    assert xsbatch(cluster, folder, "--ntasks=4", "job.sh").field("TresPerNode") == "gres:gpu:l4:1"


@pytest.mark.parametrize(
    "argv", [("--nodelist=h1",), ("--exclude=l[1-2]",), ("--cpus-per-task=24",), ("--mem=200G",)]
)
def test_a_request_that_the_cheaper_nodes_cannot_serve_is_never_made_refused(
    cluster: Cluster, folder: Path, argv: tuple[str, ...]
) -> None:
    done = xsbatch(cluster, folder, *argv, "job.sh")
    assert done.code == 0
    assert done.field("TresPerNode") != "gres:gpu:l4:1"


KNOWN = "nothing that the dry run read has changed"


def test_an_edited_model_is_never_answered_from_the_cache(cluster: Cluster, folder: Path) -> None:
    """The same submission is, and what it changes is the same to the byte; another one is not."""
    (folder / "train.py").write_text(
        TRAIN.replace("4096, 4096", "WIDTH, WIDTH").replace("64, 4096", "64, WIDTH")
    )
    (folder / "width.py").write_text("WIDTH = 4096\n")
    (folder / "train.py").write_text(
        "from width import WIDTH\n" + (folder / "train.py").read_text()
    )
    cache = own_cache(folder)
    first = xsbatch(cluster, folder, "job.sh", **cache)
    assert KNOWN not in first.err
    again = xsbatch(cluster, folder, "job.sh", **cache)
    assert KNOWN in again.err
    assert again.err.splitlines()[:-1] == first.err.splitlines()
    assert again.field("TresPerNode") == "gres:gpu:l4:1"
    assert again.script() == first.script()
    (folder / "train.py").touch()
    under_another_name = xsbatch(
        cluster, folder, "-J", "other", "--comment=again", "job.sh", **cache
    )
    assert KNOWN in under_another_name.err
    assert under_another_name.field("JobName") == "other"
    assert under_another_name.field("TresPerNode") == "gres:gpu:l4:1"
    script = folder / "job.sh"
    renamed = script.read_text().replace("--output=/dev/null", "-J third -o %x.out")
    script.write_text(renamed)
    edited = xsbatch(cluster, folder, "job.sh", **cache)
    assert KNOWN in edited.err
    assert (edited.field("JobName"), edited.field("StdOut")) == ("third", f"{folder}/third.out")
    assert edited.field("TresPerNode") == "gres:gpu:l4:1"
    kept = [line for line in edited.script().splitlines() if not line.startswith("# xmem-slurm")]
    assert kept == renamed.replace("h200", "l4").splitlines()
    assert KNOWN not in xsbatch(cluster, folder, "--xmem-fresh", "job.sh", **cache).err
    assert KNOWN not in xsbatch(cluster, folder, "job.sh", "an argument", **cache).err
    (folder / "width.py").write_text("WIDTH = 2048\n")
    edited = xsbatch(cluster, folder, "job.sh", **cache)
    assert KNOWN not in edited.err
    assert edited.err.splitlines()[0] != first.err.splitlines()[0]
