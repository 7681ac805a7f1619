"""What a calibration job printed, as a site file's figures; and which jobs there are."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm.cluster import calibration
from xmem_slurm.errors import SlurmError
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.units import MIB

EXAMPLES = Path(__file__).parents[3] / "site-config"

PRINTED: dict[str, Any] = {
    "gpu": {"name": "NVIDIA L4"},
    "versions": {"torch": "2.11.0+cu130", "cuda": "13.0"},
    "device_before": 200 * MIB,
    "process_before": None,
    "device_after": 300 * MIB,
    "process_after": None,
    "nccl_ranks": 2,
    "nccl": 90 * MIB,
}


def test_what_a_job_printed_is_read_whatever_stands_before_it() -> None:
    found = calibration.read("a module's greeting\n" + json.dumps(PRINTED) + "\n")
    assert (found.context_bytes, found.nccl_bytes) == (300 * MIB, 90 * MIB)
    assert "NVIDIA L4" in found.source
    assert "NVML does not say; NCCL with 2 ranks; torch 2.11.0+cu130" in found.source


def test_the_larger_of_what_cuda_and_nvml_say_counts_and_is_rounded_up() -> None:
    found = calibration.read(json.dumps(PRINTED | {"process_after": 301 * MIB, "nccl": None}))
    assert (found.context_bytes, found.nccl_bytes) == (302 * MIB, None)
    assert f"NVML {301 * MIB}; NCCL not measured" in found.source


@pytest.mark.parametrize("printed", ["", "no JSON\n", "[]", json.dumps({"gpu": {}})])
def test_a_job_that_printed_no_measurement(printed: str) -> None:
    with pytest.raises(SlurmError, match="the job printed no measurement"):
        calibration.read(printed)


def test_the_fragment_is_read_with_the_site_file_it_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    measured = calibration.read(json.dumps(PRINTED | {"gpu": {"name": 'a "name" \\ with quotes'}}))
    path.write_text((EXAMPLES / "example.toml").read_text() + calibration.fragment("l4", measured))
    site = load_site(path)
    assert site.option["l4"].measured == measured
    gpu = option_gpus(site, load_catalogue())["l4"]
    assert (gpu.context_bytes, gpu.nccl_bytes, gpu.context_measured) == (300 * MIB, 90 * MIB, True)


def test_a_share_is_measured_with_its_whole_gpu(tmp_path: Path) -> None:
    example = EXAMPLES / "examples" / "mig-and-shares.toml"
    site = load_site(example)
    share, whole = next(
        (name, each.share.of) for name, each in site.option.items() if each.share is not None
    )
    jobs = [job.option for job in calibration.jobs(site, "python3", 60)]
    assert whole in jobs
    assert share not in jobs

    path = tmp_path / "site.toml"
    path.write_text(
        example.read_text() + calibration.fragment(whole, calibration.read(json.dumps(PRINTED)))
    )
    found = load_site(path)
    assert option_gpus(found, load_catalogue())[share].context_bytes == 300 * MIB
    assert whole not in [job.option for job in calibration.jobs(found, "python3", 60)]


def test_a_job_asks_for_what_the_option_is(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text((EXAMPLES / "example.toml").read_text())
    site = load_site(tmp_path / "site.toml")
    job = next(job for job in calibration.jobs(site, "/opt/python", 60) if job.option == "a100_80")
    assert {"--gres=gpu:a100_80:2", "--partition=gpu", "--immediate=60"} <= set(job.command)
    assert job.command[-3:-1] == ("/opt/python", "-c")
    assert str(job).endswith("outside_allocator.py")
    compile(job.command[-1], "job", "exec")
    assert tomllib.loads(calibration.fragment("a.b", calibration.read(json.dumps(PRINTED))))[
        "option"
    ].keys() == {"a.b"}
