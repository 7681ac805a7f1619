"""Site files: what is wrong is named by file and key."""

from pathlib import Path

import pytest

from xmem_slurm import resources
from xmem_slurm.errors import SiteError
from xmem_slurm.site import loading

EXAMPLE = (resources.tree("site-config") / "example.toml").read_text(encoding="utf-8")


def test_the_example_is_valid() -> None:
    site = loading.load_site(resources.tree("site-config") / "example.toml")
    assert set(loading.option_gpus(site, loading.load_catalogue())) == {"l4", "a100_40", "a100_80", "h200"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        ("keep_type = false", "keep_typ = false", "policy.keep_typ: no such key; there are rewrite, keep_type, order"),
        ("cost = 1.0", "cost = 0", "option.l4.cost"),
        ("gpus = { l4 = 4 }", "gpus = { l40 = 4 }", "gpus names 'l40', which is not an option"),
        ('partitions = ["cpu"]', "", "partition"),
        ("[partition.cpu]", "[partition.cpu]\ndefault = true", "more than one partition"),
        ('type = "l4"\nconstraint = "gpu_mem_24g"\n', "", "needs a GRES type, a constraint, or a gres"),
        ("[policy]", "[policy", "not TOML"),
        ('type = "a100_80"', 'type = "a100_40"', "option.a100_40 and option.a100_80 have one type and different GPUs"),
        ('type = "l4"\n', "both = true\n", "both = true needs a type and a constraint"),
        ("cost = 1.0", "cots = 1.0", "option.l4.cots: no such key; there are gpu, type, constraint, both, gres, cost"),
        ("memory_mib = 128000", "mem = 128000", "nodes.0.mem: no such key; there are names, cpus, memory_mib"),
        ("[policy]", "[filter]\nmode = 'on'\n[policy]", "filter.mode: Input should be 'off', 'advise' or 'rewrite'"),
        ("cost = 1.0", "cost = 1.0\nshare = {kind='shard', of='h200', per_gpu=4}", "share.of = 'h200': not an option"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in EXAMPLE
    file = tmp_path / "site.toml"
    file.write_text(EXAMPLE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SiteError) as caught:
        loading.load_site(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_unknown_gpu_is_named_with_its_neighbours() -> None:
    site = loading.load_site(resources.tree("site-config") / "example.toml")
    option = site.option["h200"].model_copy(update={"gpu": "h200-nvl"})
    odd = site.model_copy(update={"option": {**site.option, "h200": option}})
    with pytest.raises(SiteError, match=r"option\.h200\.gpu = 'h200-nvl' .* near it: h200"):
        loading.option_gpus(odd, loading.load_catalogue())


def test_the_named_file_wins_then_the_variable(tmp_path: Path) -> None:
    assert loading.site_file("a.toml", {"XMEM_SITE": "b.toml"}) == Path("a.toml")
    assert loading.site_file(None, {"XMEM_SITE": "b.toml"}) == Path("b.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"nowhere\.toml: cannot be read"):
        loading.load_site(tmp_path / "nowhere.toml")
