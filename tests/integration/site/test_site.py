"""Site files and the live cluster: discovered, compared, and each option tried."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, XMEM_SLURM, Cluster
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Site

pytestmark = pytest.mark.slurm


def site(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(XMEM_SLURM, "site", *words)


def test_a_discovered_site_is_the_one_that_the_cluster_was_made_from(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = site(cluster, "discover")
    assert done.returncode == 0, done.stderr
    found, example = Site.model_validate(tomllib.loads(done.stdout)), load_site(EXAMPLE_SITE)
    fields = ("names", "cpus", "memory_mib", "features", "gpus", "partitions")

    def groups(of: Site) -> list[dict[str, object]]:
        return sorted(
            (group.model_dump(include=set(fields)) for group in of.nodes),
            key=lambda each: each["names"],
        )

    assert groups(found) == groups(example)
    assert found.partition == example.partition
    kinds = {
        name: (option.type, option.gpu.replace("pcie", "sxm4"))
        for name, option in found.option.items()
    }
    assert kinds == {name: (option.type, option.gpu) for name, option in example.option.items()}

    (tmp_path / "site.toml").write_text(done.stdout)
    assert site(cluster, "check", "--site", str(tmp_path / "site.toml")).returncode == 0


def test_a_file_that_is_not_as_the_cluster_is(cluster: Cluster, tmp_path: Path) -> None:
    text = EXAMPLE_SITE.read_text().replace('type = "h200"', 'type = "h100"').replace("c1", "c9")
    (tmp_path / "site.toml").write_text(f'{text}\n[audit]\nfolder = "/nowhere/record"\n')
    done = site(cluster, "check", "--site", str(tmp_path / "site.toml"))
    assert done.returncode == 2
    assert "node h1: has 0 of gpu:h100, the file says 4" in done.stdout
    assert "node c9: the cluster has none of this name" in done.stdout
    assert "[audit] folder /nowhere/record: No such file or directory" in done.stdout
    refused = [line for line in done.stdout.splitlines() if line.startswith("option ")]
    assert len(refused) == 1
    assert "option h200: sbatch --partition=gpu --time=1 --ntasks=1 --gres=gpu:h100:1" in refused[0]


def test_all_that_is_wrong_is_told_at_once(cluster: Cluster, tmp_path: Path) -> None:
    changes = {
        'names = "b1"': 'names = "a2"',  # twice, and b1 is missing
        '"gpu_mem_141g", "h200"]': '"gpu_mem_141g"]',
        'max_time = "7-00:00:00"': 'max_time = "5-00:00:00"',
        'gpu = "h200"': 'gpu = "h200-nvl"',
        'max_time = "2-00:00:00"': 'max_time = "48:00:00"',  # the same, said otherwise
        'constraint = "gpu_mem_24g"': 'constraint = "mem24"',
        'type = "a100_80"\nconstraint = "gpu_mem_80g"\n': "",
    }
    text = EXAMPLE_SITE.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "site.toml").write_text(text)
    done = site(cluster, "check", "--site", str(tmp_path / "site.toml"))
    assert done.returncode == 2
    told = done.stdout.splitlines()
    for line in (
        "nodes a2: names: a2 is in nodes a[1-2], too",
        "option.l4.constraint = 'mem24': no nodes have this feature",
        "option.h200.gpu = 'h200-nvl' is not in the GPU catalogue; near it: ",
        "node b1: not in the file, and has gpu:a100_80:2",
        "partition cpu: max_time is 7-00:00:00 on the cluster",
        "option.a100_80: an option needs a GRES type, a constraint, or a gres",
        (
            "option a100_80: sbatch --partition=gpu --time=1: the chosen GPU has no feature to ask for "
            "it by"
        ),
    ):
        assert any(each.startswith(line) for each in told), told
    assert not any("2-00:00:00" in line for line in told)
    assert f"problems found: {len(told)}" in done.stderr


def test_without_a_cluster_the_file_alone_can_be_checked(cluster: Cluster) -> None:
    nowhere = Cluster(cluster.folder, cluster.environ | {"PATH": "/nowhere"})
    checked = site(nowhere, "check", "--offline")
    assert checked.returncode == 0
    assert checked.stdout.count("dry runs here are held to their limits by ") == 1
    alone = site(nowhere, "check")
    assert alone.returncode == 1
    assert "scontrol" in alone.stderr


def test_the_hooks_are_installed_with_a_backup_and_can_be_looked_at_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "cli_filter.lua").write_text("-- the site's own\n")
    printed = site(cluster, "install", "--print", "--folder", str(tmp_path))
    assert "slurm_cli_pre_submit" in printed.stdout
    assert "slurm_job_submit" in printed.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["cli_filter.lua"]

    done = site(cluster, "install", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    backup = next(tmp_path.glob("cli_filter.lua.*"))
    assert backup.read_text() == "-- the site's own\n"
    assert str(backup) in done.stdout
    assert site(cluster, "install", "--folder", str(tmp_path)).stdout == "", (
        "what is there already is left alone"
    )
    assert len(list(tmp_path.iterdir())) == 3
    refused = site(cluster, "install", "--folder", "/nowhere/slurm")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_python_that_does_not_start_the_filter_is_told_to_the_administrator(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    closed = tmp_path / "private" / "python"
    closed.symlink_to(sys.executable)
    assert "/usr/bin/python3: ModuleNotFoundError: No module named 'xmem_slurm'" in (
        hooks.unusable("/usr/bin/python3") or ""
    )
    if os.geteuid() == 0:
        assert f"{closed}: Permission denied; the filter" in (hooks.unusable(str(closed)) or "")
    site(cluster, "install", "--folder", str(tmp_path))
    hook = tmp_path / "cli_filter.lua"
    hook.write_text(hook.read_text().replace(sys.executable, "/nowhere/python"))
    told = site(cluster, "check", "--folder", str(tmp_path))
    assert told.returncode == 2
    assert told.stdout.startswith("/nowhere/python: No such file or directory; the filter")
    # whether others can reach where these tests are is not asked here
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert hooks.unusable(sys.executable) is None


@pytest.mark.torch
def test_each_kind_of_gpu_is_measured_once_and_kept_in_the_site_file(
    cluster: Cluster, tmp_path: Path, job_python: Path
) -> None:
    """The lab's GPUs are stand-ins, which hold of each GPU what the catalogue says."""
    path = tmp_path / "site.toml"
    path.write_text(EXAMPLE_SITE.read_text())
    catalogue = load_catalogue()

    shown = site(cluster, "calibrate", "--site", str(path), "--print")
    assert [line.split("--gres=")[1].split()[0] for line in shown.stdout.splitlines()] == [
        "gpu:l4:2",
        "gpu:a100_40:2",
        "gpu:a100_80:2",
        "gpu:h200:2",
    ]
    assert path.read_text() == EXAMPLE_SITE.read_text(), "--print changes nothing"

    broken = site(cluster, "calibrate", "--site", str(path), "--python", "/nowhere/python")
    assert broken.returncode == 2
    assert [line.split(":")[0] for line in broken.stderr.splitlines()[:4]] == [
        f"option {name}" for name in ("l4", "a100_40", "a100_80", "h200")
    ]
    assert path.read_text() == EXAMPLE_SITE.read_text()

    path.write_text(
        path.read_text() + '\n[option.l4.measured]\ncontext_bytes = 7\nsource = "another day"\n'
    )
    done = site(
        cluster, "calibrate", "--site", str(path), "--python", str(job_python), "--seconds", "120"
    )
    assert done.returncode == 0, done.stderr
    found = load_site(path)
    for name in ("a100_40", "a100_80", "h200"):
        measured = found.option[name].measured
        assert measured is not None
        assert measured.context_bytes == catalogue[found.option[name].gpu].context_bytes
        assert measured.nccl_bytes is None, "the stand-ins know nothing of NCCL's buffers"
        assert "NVML does not say" in measured.source
    assert found.option["l4"].measured is not None
    assert found.option["l4"].measured.source == "another day", (
        "what is measured already is not measured again"
    )
    assert site(cluster, "calibrate", "--site", str(path), "--print").stdout.strip() == ""
    assert option_gpus(found, catalogue)["l4"].context_bytes == 7
