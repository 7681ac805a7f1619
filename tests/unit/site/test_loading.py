"""Site files: what is wrong is named by file and key."""

from pathlib import Path

import pytest

from xmem_slurm import resources
from xmem_slurm.errors import SilentPlace, SiteError
from xmem_slurm.site import loading, places
from xmem_slurm.state import silent

EXAMPLE = (resources.tree("site-config") / "example.toml").read_text(encoding="utf-8")


def test_all_that_is_wrong_is_said_at_once_of_the_schema_and_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    text = EXAMPLE.replace("cost = 1.0", "cost = 'dear'", 1).replace(
        "gpus = { l4 = 4 }", "gpus = { l40 = 4 }"
    )
    text = (
        text.replace("cpus = 32\n", "", 1)
        .replace("[option.h200]", '[option."h:200"]')
        .replace("[policy]", "[polcy]")
    )
    file.write_text(text)
    site, problems = loading.examine(file)
    assert site is None
    told = "\n".join(problems)
    for each in (
        "option.l4.cost: Input should be a valid number",
        "nodes.1.cpus: Field required",
        "polcy: no such key; there are schema_version, name",
        "option.h:200.[key]: String should match",
        "nodes l[1-2]: gpus names 'l40', which is not an option; there are l4, ",
        "option.l4: no nodes have it",
    ):
        assert each in told
    assert len(problems) == 7, told  # and that a node names the option whose name cannot be one


def test_the_example_is_valid() -> None:
    site = loading.load_site(resources.tree("site-config") / "example.toml")
    assert set(loading.option_gpus(site, loading.load_catalogue())) == {
        "l4",
        "a100_40",
        "a100_80",
        "h200",
    }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        (
            "keep_type = false",
            "keep_typ = false",
            "policy.keep_typ: no such key; there are rewrite, keep_type, raise_mem",
        ),
        ("cost = 1.0", "cost = 0", "option.l4.cost"),
        ("gpus = { l4 = 4 }", "gpus = { l40 = 4 }", "gpus names 'l40', which is not an option"),
        ('partitions = ["cpu"]', "", "partition"),
        ("[partition.cpu]", "[partition.cpu]\ndefault = true", "more than one partition"),
        (
            'type = "l4"\nconstraint = "gpu_mem_24g"\n',
            "",
            "needs a GRES type, a constraint, or a gres",
        ),
        ("[policy]", "[policy", "not TOML"),
        (
            'type = "a100_80"',
            'type = "a100_40"',
            "option.a100_40 and option.a100_80 have one type and different GPUs",
        ),
        ('type = "l4"\n', "both = true\n", "both = true needs a type and a constraint"),
        (
            "cost = 1.0",
            "cots = 1.0",
            "option.l4.cots: no such key; there are gpu, type, constraint, both, gres, cost",
        ),
        (
            "memory_mib = 128000",
            "mem = 128000",
            "nodes.0.mem: no such key; there are names, cpus, memory_mib",
        ),
        (
            "[policy]",
            "[filter]\nmode = 'on'\n[policy]",
            "filter.mode: Input should be 'off', 'advise' or 'rewrite'",
        ),
        ('names = "c1"', 'names = "l2"', "nodes l2: names: l2 is in nodes l[1-2], too"),
        ('names = "c1"', 'names = "c[1-"', "nodes c[1-: names: 'c[1-' is no host list"),
        ('max_time = "7-00:00:00"', 'max_time = "a week"', "partition.cpu.max_time"),
        (
            'features = ["gpu_mem_24g", "l4"]\ngpus = { l4 = 4 }',
            "",
            "option.l4: no nodes have it, so no partition offers",
        ),
        (
            'constraint = "gpu_mem_24g"',
            'constraint = "mem24"',
            "option.l4.constraint = 'mem24': no nodes have this feature",
        ),
        (
            'type = "l4"\nconstraint = "gpu_mem_24g"',
            'constraint = "a100"',
            "nodes l[1-2]: gpus has 'l4', but features lacks its constraint 'a100'",
        ),
        ("[policy]", "[dialect]\noptions = []\n[policy]", "dialect.options"),
        (
            "[policy]",
            "[dialect]\noptions = ['gres', 'gpu']\n[policy]",
            "dialect.options.1: Input should be 'gres', 'gpus'",
        ),
        (
            "[policy]",
            "[dialect]\noptions = ['gpus-per-socket']\n[policy]",
            "dialect.options: the first one is written",
        ),
        (
            "[policy]",
            "[dialect]\nhost_memory_mib = 99999\n[policy]",
            "nodes l[1-2]: host_memory_mib of all its GPUs is",
        ),
        ("[policy]", "templates = 'nowhere'\n[policy]", "nowhere is no folder"),
        (
            "[policy]",
            "[filter]\npartitions = ['gqu']\n[policy]",
            "filter.partitions: 'gqu' is not a partition; there are",
        ),
        (
            "[policy]",
            "[policy]\nmost_bytes = 1\nleast_bytes = 2",
            "policy.most_bytes is less than policy.least_bytes",
        ),
        (
            "[policy]",
            "[policy]\norder = 'price'",
            "policy.order: Input should be 'cost', 'memory' or 'start'",
        ),
        (
            "cost = 1.0",
            "cost = 1.0\nshare = {kind='shard', of='h200', per_gpu=4}",
            "share.of = 'h200': not an option",
        ),
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


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    text = EXAMPLE.replace('names = "b1"', 'names = "a1"').replace('names = "c1"', 'names = "["')
    file.write_text(
        text.replace("{ h200 = 4 }", "{ h20 = 4 }").replace('["cpu"]', '["cqu"]'), encoding="utf-8"
    )
    site, problems = loading.examine(file)
    assert site is not None
    assert [line.split(":")[0] for line in problems] == [
        "nodes h1",
        "nodes [",
        "nodes [",
        "nodes a1",
        "option.h200",
    ]
    with pytest.raises(SiteError, match="2 more: `xmem-slurm site check` lists them"):
        loading.load_site(file)


def test_an_unknown_gpu_is_named_with_its_neighbours() -> None:
    site = loading.load_site(resources.tree("site-config") / "example.toml")
    option = site.option["h200"].model_copy(update={"gpu": "h200-nvl"})
    odd = site.model_copy(update={"option": {**site.option, "h200": option}})
    with pytest.raises(SiteError, match=r"option\.h200\.gpu = 'h200-nvl' .* near it: h200"):
        loading.option_gpus(odd, loading.load_catalogue())


def test_the_named_file_wins_then_the_variable(tmp_path: Path) -> None:
    assert places.site_file("a.toml", {"XMEM_SITE": "b.toml"}) == Path("a.toml")
    assert places.site_file(None, {"XMEM_SITE": "b.toml"}) == Path("b.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"nowhere\.toml: cannot be read"):
        loading.load_site(tmp_path / "nowhere.toml")


def test_templates_that_do_not_answer_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked whether there is such a folder would hang."""
    file, hung = tmp_path / "site.toml", tmp_path / "hung"
    file.write_text(f'templates = "hung"\n{EXAMPLE}')
    monkeypatch.setattr(
        silent, "mount_on_the_way", lambda places: hung if hung in list(places) else None
    )
    with pytest.raises(SilentPlace, match="hung does not answer"):
        loading.load_site(file)
