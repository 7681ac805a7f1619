"""A site whose job_submit refuses every spelling but its own: jobs that nobody could submit there
before are taken."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import WARM_XSBATCH, XMEM_SLURM, Cluster, running_lab, write_job
from xmem_slurm import resources
from xmem_slurm.site.loading import load_site

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

SITE_FILE = resources.tree("site-config") / "examples" / "dialect-of-its-own.toml"
PICKY = """
function slurm_job_submit(job, partitions, user)
  local asked = job.tres_per_node or ""
  if job.tres_per_job or job.tres_per_task or job.tres_per_socket or asked:find("gpu:%a") then
    slurm.log_user("here GPUs are asked for as --gres=gpu:N,VramPerGpu:SIZE")
    return slurm.ERROR
  end
  if asked:find("gpu") and (not asked:find("VramPerGpu") or job.pn_min_memory == slurm.NO_VAL64) then
    slurm.log_user("say VramPerGpu and --mem, too")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def picky() -> Iterator[Cluster]:
    with running_lab(SITE_FILE, {"job_submit.lua": PICKY}) as running:
        ours = running.folder.with_name("ours")
        ours.mkdir()
        (ours / "batch.sh.j2").write_text(
            "{{ head }}# {{ record }}\nmodule load gpu\n{{ body -}}\n"
        )
        site_file = ours.with_name("site.toml")
        site_file.write_text(
            SITE_FILE.read_text().replace("[dialect]", 'templates = "ours"\n\n[dialect]', 1)
        )
        yield Cluster(running.folder, running.environ | {"XMEM_SITE": str(site_file)})


@pytest.fixture
def folder(tmp_path: Path, warm_python: Path) -> Path:
    return write_job(tmp_path, warm_python, "--output=/dev/null")


def submit(
    program: Sequence[str], folder: Path, picky: Cluster, *argv: str
) -> subprocess.CompletedProcess[str]:
    return picky.run(*program, "--hold", *argv, cwd=folder, XDG_STATE_HOME=str(folder / "state"))


@pytest.mark.parametrize(
    ("argv", "memory"),
    [
        (("--gpus=1",), "32000M"),
        (("--gpus-per-node=1", "--mem=8G"), "8G"),
        (("--ntasks=1", "--gpus-per-task=1"), "32000M"),
        (("--gres=gpu:1,VramPerGpu:80G",), "32000M"),
    ],
)
def test_every_spelling_becomes_the_sites_own(
    picky: Cluster, folder: Path, argv: tuple[str, ...], memory: str
) -> None:
    plain = submit(["sbatch"], folder, picky, *argv, "job.sh")
    assert plain.returncode == 1, "the site would not have taken it"

    done = submit(WARM_XSBATCH, folder, picky, *argv, "job.sh")
    assert done.returncode == 0, done.stderr
    job = re.search(r"\d+", done.stdout)
    assert job
    shown = picky.show(job[0])
    assert re.search(r"TresPerNode=(\S*)", shown)[1] == "gres:gpu:1,gres:VramPerGpu:24G"  # type: ignore[index]
    assert re.search(r"MinMemoryNode=(\S*)", shown)[1] == memory  # type: ignore[index]
    assert "TresPerJob" not in shown
    assert "VramPerGpu:24G" in done.stderr


def test_the_dialect_is_found_on_the_cluster(picky: Cluster, tmp_path: Path) -> None:
    found = tmp_path / "site.toml"
    done = picky.run(XMEM_SLURM, "site", "discover")
    found.write_text(done.stdout)
    said = load_site(found)
    assert said.dialect.options == ("gres", "gpus-per-node"), done.stdout
    assert said.dialect.host_memory_option == "mem"
    assert sorted(filter(None, (option.gres for option in said.option.values()))) == [
        "VramPerGpu:24G",
        "VramPerGpu:40G",
        "VramPerGpu:80G",
    ]
    assert "# --gpus was refused: " in done.stdout
    assert "here GPUs are asked for as --gres=gpu:N,VramPerGpu:SIZE" in done.stdout
    checked = picky.run(XMEM_SLURM, "site", "check", "--site", str(found))
    assert "option " not in checked.stdout, "Slurm takes each option as it was found"


def test_the_sites_own_template_is_what_slurm_gets(picky: Cluster, folder: Path) -> None:
    (folder / "job.sh").write_text(
        (folder / "job.sh").read_text().replace("#SBATCH", "#SBATCH --gpus=1\n#SBATCH", 1)
    )
    done = submit(WARM_XSBATCH, folder, picky, "job.sh")
    assert done.returncode == 0, done.stderr
    written = picky.slurm("scontrol", "write", "batch_script", done.stdout.split()[-1], "-")
    assert "#SBATCH --gpus" not in written
    assert "\nmodule load gpu\n" in written
