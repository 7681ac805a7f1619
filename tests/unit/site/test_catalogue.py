"""The GPU catalogue: it follows the schema, and its figures can be true of real GPUs."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from xmem_slurm.site.schema import Catalogue, Gpu, Site
from xmem_slurm.units import GIB, MIB

ROOT = Path(__file__).parents[3]
DATA = tomllib.loads((ROOT / "site-config" / "gpus.toml").read_text(encoding="utf-8"))
GPUS = Catalogue.model_validate(DATA).gpu
WHOLE = {name: gpu for name, gpu in GPUS.items() if gpu.mig_of is None}
INSTANCES = {name: gpu for name, gpu in GPUS.items() if gpu.mig_of is not None}

# Compute capability and multiprocessors, from NVIDIA's data sheets and the CUDA GPUs page, kept
# apart from the file.
SHAPES = {
    "v100-sxm2-16gb": ("7.0", 80),
    "v100-sxm2-32gb": ("7.0", 80),
    "v100-pcie-16gb": ("7.0", 80),
    "t4": ("7.5", 40),
    "rtx-2080-ti": ("7.5", 68),
    "rtx-3060": ("8.6", 28),
    "rtx-3090": ("8.6", 82),
    "rtx-4060": ("8.9", 24),
    "rtx-4090": ("8.9", 128),
    "rtx-a6000": ("8.6", 84),
    "rtx-6000-ada": ("8.9", 142),
    "a10": ("8.6", 72),
    "a10g": ("8.6", 80),
    "a30": ("8.0", 56),
    "a40": ("8.6", 84),
    "l4": ("8.9", 58),
    "l40": ("8.9", 142),
    "l40s": ("8.9", 142),
    "a100-sxm4-40gb": ("8.0", 108),
    "a100-pcie-40gb": ("8.0", 108),
    "a100-sxm4-80gb": ("8.0", 108),
    "a100-pcie-80gb": ("8.0", 108),
    "h100-pcie-80gb": ("9.0", 114),
    "h100-sxm5-80gb": ("9.0", 132),
    "h100-nvl": ("9.0", 132),
    "gh200-96gb": ("9.0", 132),
    "h200": ("9.0", 132),
    "b200": ("10.0", 148),
    "rtx-pro-6000-blackwell": ("12.0", 188),
}


@pytest.mark.parametrize(("name", "shape"), SHAPES.items(), ids=SHAPES)
def test_capability_and_multiprocessors_are_the_models(name: str, shape: tuple[str, int]) -> None:
    assert (GPUS[name].capability, GPUS[name].multiprocessors) == shape


def test_figures_known_exactly() -> None:
    assert GPUS["rtx-3060"].total_bytes == 12_622_168_064
    assert GPUS["rtx-4060"].total_bytes == 8_318_222_336
    assert GPUS["a40"].total_bytes == 47_608_692_736
    assert GPUS["a100-sxm4-80gb"].total_bytes == 84_987_740_160
    assert GPUS["a100-sxm4-80gb.1g.10gb"].total_bytes == 9728 * MIB


@pytest.mark.parametrize("name", WHOLE)
def test_cuda_shows_less_than_the_box_says_but_not_much_less(name: str) -> None:
    gpu = WHOLE[name]
    found = re.search(r"(\d+) GB", gpu.description)
    assert found, "the description gives the size on the box"
    box = int(found[1]) * GIB
    assert 0.86 * box < gpu.total_bytes < box


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_has_its_source(name: str) -> None:
    gpu = GPUS[name]
    assert len(gpu.total_source) >= 15
    assert len(gpu.context_source) >= 15
    # A prior is never passed off as a measurement, nor the other way round.
    assert gpu.context_measured != gpu.context_source.startswith("prior:")


@pytest.mark.parametrize("name", GPUS)
def test_context_leaves_room_and_is_no_trifle(name: str) -> None:
    gpu = GPUS[name]
    assert 100 * MIB <= gpu.context_bytes <= 1 * GIB
    assert gpu.context_bytes < gpu.total_bytes / 4


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_is_a_part_of_its_gpu(name: str) -> None:
    instance = INSTANCES[name]
    assert instance.mig_of is not None
    assert instance.mig_profile is not None
    parent = WHOLE[instance.mig_of]
    assert name == f"{instance.mig_of}.{instance.mig_profile}"
    assert instance.capability == parent.capability
    assert instance.total_bytes < parent.total_bytes
    assert instance.multiprocessors <= parent.multiprocessors
    assert instance.context_bytes <= parent.context_bytes


@pytest.mark.parametrize("parent", sorted({str(gpu.mig_of) for gpu in INSTANCES.values()}))
def test_profiles_add_up(parent: str) -> None:
    profiles = {str(gpu.mig_profile): gpu for gpu in INSTANCES.values() if gpu.mig_of == parent}
    by_slices = sorted(profiles.values(), key=_slices_and_memory)
    smallest, largest = by_slices[0], by_slices[-1]
    whole = WHOLE[parent]
    # As many of the smallest as the largest has slices fit on one GPU side by side.
    count = _slices_and_memory(largest)[0]
    assert smallest.multiprocessors * count <= whole.multiprocessors
    assert smallest.total_bytes * count <= whole.total_bytes
    # The largest is (nearly) the whole GPU.
    assert largest.multiprocessors >= 0.9 * whole.multiprocessors
    assert largest.total_bytes >= 0.97 * whole.total_bytes
    # More slices never mean fewer multiprocessors, nor a larger name less memory.
    assert [gpu.multiprocessors for gpu in by_slices] == sorted(
        gpu.multiprocessors for gpu in by_slices
    )
    by_memory = sorted(profiles.values(), key=lambda gpu: _slices_and_memory(gpu)[1])
    assert [gpu.total_bytes for gpu in by_memory] == sorted(gpu.total_bytes for gpu in by_memory)
    # Two halves of the seven-slice GPUs: 3g and 4g share one GPU.
    halves = [
        gpu
        for gpu in profiles.values()
        if _slices_and_memory(gpu)[0] in (3, 4) and gpu is not largest
    ]
    if halves:
        assert sum(gpu.multiprocessors for gpu in halves) <= whole.multiprocessors
        assert sum(gpu.total_bytes for gpu in halves) <= whole.total_bytes


def test_the_profiles_of_the_data_centre_gpus_are_there() -> None:
    seven = {"1g", "2g", "3g", "4g", "7g"}
    for parent, slices in {
        "a30": {"1g", "2g", "4g"},
        "a100-sxm4-40gb": seven,
        "a100-sxm4-80gb": seven,
        "h100-sxm5-80gb": seven,
        "h200": seven,
    }.items():
        assert {
            str(g.mig_profile).split(".")[0] for g in INSTANCES.values() if g.mig_of == parent
        } == slices


def test_the_example_site_names_known_gpus() -> None:
    text = (ROOT / "site-config" / "example.toml").read_text(encoding="utf-8")
    site = Site.model_validate(tomllib.loads(text))
    assert {option.gpu for option in site.option.values()} <= GPUS.keys()


def test_a_misspelt_key_is_refused() -> None:
    broken = {**DATA, "gpu": {"t4": {**DATA["gpu"]["t4"], "total_byte": 1}}}
    with pytest.raises(ValidationError, match="total_byte"):
        Catalogue.model_validate(broken)


def test_a_profile_of_an_unknown_gpu_is_refused() -> None:
    orphan = {"schema_version": 1, "gpu": {"h200.1g.18gb": DATA["gpu"]["h200.1g.18gb"]}}
    with pytest.raises(ValidationError, match="not in the catalogue"):
        Catalogue.model_validate(orphan)


def _slices_and_memory(gpu: Gpu) -> tuple[int, int]:
    """`2g.20gb` is (2, 20): compute slices and the memory in its name."""
    found = re.fullmatch(r"(\d)g\.(\d+)gb", str(gpu.mig_profile))
    assert found, gpu.mig_profile
    return int(found[1]), int(found[2])


def test_a_gpu_has_the_name_that_cuda_gives_it() -> None:
    assert GPUS["h100-sxm5-80gb"].cuda_name == "NVIDIA H100 80GB HBM3"
    assert GPUS["a100-pcie-80gb.3g.40gb"].cuda_name == "NVIDIA A100 80GB PCIe MIG 3g.40gb"
    names = [gpu.cuda_name for gpu in GPUS.values()]
    assert len(set(names)) == len(names), "a card is told from all others by its name"
