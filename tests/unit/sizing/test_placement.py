"""Placement: the cheapest option that fits, among those on whose nodes the job could run."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from xmem_slurm import resources
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing import placement as placements
from xmem_slurm.sizing.placement import NEVER, Demand, Placement, Taken, candidates

SITE = load_site(resources.tree("site-config") / "example.toml")
GPUS = option_gpus(SITE, load_catalogue())


def demand(
    gpus: int = 1,
    *,
    partitions: tuple[str, ...] = (),
    constraint: str | None = None,
    nodes: int = 1,
) -> Demand:
    return Demand(
        gpus_per_node=gpus, option="h200", partitions=partitions, constraint=constraint, nodes=nodes
    )


def place(
    asked: Demand,
    site: Site,
    gpus: Mapping[str, Gpu],
    units: Callable[[str], int],
    *starts: Mapping[str, float],
) -> Placement:
    """Answer what is asked about each option."""
    placing = placements.place(asked, site, gpus, *starts)
    try:
        name = next(placing)
        while True:
            name = placing.send(units(name))
    except StopIteration as end:
        placement: Placement = end.value
        return placement


def test_the_cheapest_that_fits_is_taken_and_dearer_ones_are_not_asked() -> None:
    asked = []

    def units(name: str) -> int:
        asked.append(name)
        return 0 if name == "l4" else 1

    placement = place(demand(), SITE, GPUS, units)
    assert placement.choice == "a100_40"
    assert asked == ["l4", "a100_40"]
    assert [(v.name, v.fits) for v in placement.verdicts] == [
        ("l4", False),
        ("a100_40", True),
        ("a100_80", None),
        ("h200", None),
    ]


def test_what_never_starts_is_no_option() -> None:
    starts = {"l4": NEVER, "a100_40": 9.0}
    asked: list[str] = []
    placement = place(demand(), SITE, GPUS, lambda name: asked.append(name) or 1, starts)
    assert (placement.choice, asked) == ("a100_40", ["a100_40"])
    assert not placement.starts, "the order is that of cost"


@pytest.mark.parametrize(
    ("asked", "taken", "open_to"),
    [
        (demand(), [(demand(2), "a100_80")], ["l4", "a100_40", "h200"]),  # all two of the only node
        (demand(2), [(demand(), "a100_80")], ["l4", "a100_40", "h200"]),
        (demand(), [(demand(), "a100_80")], ["l4", "a100_40", "a100_80", "h200"]),
        (demand(2, nodes=2), [(demand(), "a100_40")], ["l4"]),
        (
            demand(2),
            [(demand(), "a100_40"), (demand(), "a100_40")],
            ["l4", "a100_40", "a100_80", "h200"],
        ),  # on one node
        (demand(4), [(demand(4), "l4"), (demand(), "h200")], ["l4"]),
        (demand(4), [(demand(4, nodes=2), "l4")], ["h200"]),
    ],
)
def test_what_another_component_has_is_no_option(
    asked: Demand, taken: list[tuple[Demand, str]], open_to: list[str]
) -> None:
    assert candidates(asked, SITE, GPUS, [Taken(*each) for each in taken]) == open_to


def test_nothing_fits() -> None:
    assert place(demand(), SITE, GPUS, lambda name: 0).choice is None


@pytest.mark.parametrize(
    ("asked", "open_to"),
    [
        (demand(4), ["l4", "h200"]),  # only those nodes have four
        (demand(3), ["l4", "h200"]),
        (replace(demand(3), whole_nodes=True), []),  # it would get four
        (replace(demand(4), whole_nodes=True), ["l4", "h200"]),
        (demand(8), []),
        (
            demand(2, nodes=2),
            ["l4", "a100_40"],
        ),  # there are two nodes of these, and one of the others
        (demand(nodes=3), []),
        (
            replace(demand(), gpus_total=4),
            ["l4", "a100_40", "h200"],
        ),  # --gpus=4, on however many nodes
        (replace(demand(), gpus_total=8), ["l4"]),
        (replace(demand(), gpus_total=9), []),
        (demand(partitions=("cpu",)), []),
        (demand(partitions=("gpu", "cpu")), ["l4", "a100_40", "a100_80", "h200"]),
        (demand(constraint="a100"), ["a100_40", "a100_80"]),
        (demand(constraint="a100|h200"), ["a100_40", "a100_80", "h200"]),
        (demand(constraint="gpu_mem_80g&a100"), ["a100_80"]),
    ],
)
def test_only_nodes_that_the_request_allows_count(asked: Demand, open_to: list[str]) -> None:
    assert candidates(asked, SITE, GPUS) == open_to


GIB = 1 << 30
MIXED = Site.model_validate(
    {
        "schema_version": 1,
        "name": "mixed",
        "option": {
            "slice": {"gpu": "h200.1g.18gb", "type": "1g.18gb", "cost": 1.2},
            "h200": {"gpu": "h200", "type": "h200", "cost": 9},
            "shard": {
                "gpu": "h200",
                "cost": 0.1,
                "share": {"kind": "shard", "of": "h200", "per_gpu": 139},
            },
        },
        "nodes": [
            {
                "names": "m1",
                "cpus": 8,
                "memory_mib": 64000,
                "gpus": {"slice": 7},
                "partitions": ["gpu", "quiet"],
            },
            {
                "names": "h1",
                "cpus": 8,
                "memory_mib": 64000,
                "gpus": {"h200": 4, "shard": 2},
                "partitions": ["gpu", "quiet"],
            },
        ],
        "partition": {"gpu": {"default": True, "sharing": True}, "quiet": {}},
    }
)
MIXED_GPUS = option_gpus(MIXED, load_catalogue())


def needing(gib: int, site: Site = MIXED):
    """Say how many units a job of so much GPU memory needs of each option, a shard of the H200
    being about 1 GiB."""

    def units(name: str) -> int:
        share = site.option[name].share
        return gib if share is not None else int(MIXED_GPUS[name].total_bytes >= gib * GIB)

    return units


@pytest.mark.parametrize(
    ("gib", "choice", "units"), [(3, "shard", 3), (15, "slice", 1), (30, "shard", 30)]
)
def test_a_share_costs_by_its_units_and_a_mig_instance_may_be_cheaper(
    gib: int, choice: str, units: int
) -> None:
    placement = place(demand(), MIXED, MIXED_GPUS, needing(gib))
    assert (placement.choice, placement.units) == (choice, units)


def test_a_whole_gpu_is_cheaper_than_most_of_its_shares() -> None:
    placement = place(demand(), MIXED, MIXED_GPUS, needing(100))
    assert (placement.choice, placement.units) == ("h200", 1)


def test_shares_are_for_one_gpu_in_partitions_that_allow_sharing() -> None:
    assert "shard" in candidates(demand(), MIXED, MIXED_GPUS)
    assert candidates(demand(2), MIXED, MIXED_GPUS) == ["h200"], (
        "nor do two MIG instances make one GPU"
    )
    for spread in (
        Demand(1, None, (), None, gpus_total=4),
        Demand(1, None, (), None, nodes=1, gpus_total=2),
    ):
        assert candidates(spread, MIXED, MIXED_GPUS) == ["h200"], "how many a node has is left open"
    assert candidates(demand(partitions=("quiet",)), MIXED, MIXED_GPUS) == ["slice", "h200"]
    assert candidates(demand(partitions=("gpu", "quiet")), MIXED, MIXED_GPUS) == ["slice", "h200"]
    assert candidates(replace(demand(), alone=True), MIXED, MIXED_GPUS) == ["slice", "h200"]


def test_the_least_memory_can_go_before_the_least_cost() -> None:
    policy = MIXED.policy.model_copy(update={"order": "memory"})
    site = MIXED.model_copy(update={"policy": policy})
    assert candidates(demand(), site, MIXED_GPUS) == ["shard", "slice", "h200"]
    placement = place(demand(partitions=("quiet",)), site, MIXED_GPUS, needing(15))
    assert placement.choice == "slice"


STARTS = {"l4": 9000.0, "a100_40": 4010.0, "a100_80": 4055.0, "h200": 4000.0}


def test_the_first_to_start_can_go_before_the_cheapest() -> None:
    site = SITE.ordered_by("start")
    placement = place(demand(), site, GPUS, lambda name: 1, STARTS)
    assert (placement.choice, placement.order) == ("a100_40", "start"), (
        "starts within a minute are alike: cost decides"
    )
    assert place(demand(), site, GPUS, lambda name: int(name == "l4"), STARTS).choice == "l4"


def test_without_an_answer_from_slurm_the_cheapest_is_taken() -> None:
    site = SITE.ordered_by("start")
    assert place(demand(), site, GPUS, lambda name: 1).choice == "l4"
    assert place(demand(), site, GPUS, lambda name: 1, {"a100_80": 5.0}).choice == "a100_80"


def test_what_would_have_been_no_worse_is_known() -> None:
    option = {name: each.model_copy(update={"cost": 2}) for name, each in SITE.option.items()}
    placement = place(
        demand(), SITE.model_copy(update={"option": option}), GPUS, lambda name: int(name != "l4")
    )
    assert (placement.choice, placement.tied) == ("a100_40", ["a100_80", "h200"])


def test_a_request_for_shares_stays_with_its_kind_and_its_gpu() -> None:
    asked = Demand(gpus_per_node=1, option=None, partitions=(), constraint=None, share="shard")
    assert candidates(asked, MIXED, MIXED_GPUS) == ["shard"]
    assert candidates(replace(asked, share="mps"), MIXED, MIXED_GPUS) == []
    assert candidates(replace(asked, partitions=("quiet",)), MIXED, MIXED_GPUS) == [], (
        "no sharing there"
    )


def test_no_job_goes_above_the_ceiling_unless_it_asks_for_that() -> None:
    policy = SITE.policy.model_copy(update={"most_bytes": 50 * GIB})
    site = SITE.model_copy(update={"policy": policy})
    assert candidates(demand(), site, GPUS) == ["l4", "a100_40", "h200"]
    assert candidates(replace(demand(), option=None), site, GPUS) == ["l4", "a100_40"]


def test_no_job_goes_below_the_floor() -> None:
    policy = MIXED.policy.model_copy(update={"least_bytes": 20 * GIB})
    assert "slice" not in candidates(
        demand(), MIXED.model_copy(update={"policy": policy}), MIXED_GPUS
    )
