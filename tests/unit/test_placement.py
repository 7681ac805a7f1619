"""Placement: the cheapest option that fits, among those on whose nodes the job could run."""

import pytest

from xmem_slurm import resources
from xmem_slurm.placement import Demand, candidates, place
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus

SITE = load_site(resources.tree("site-config") / "example.toml")
GPUS = option_gpus(SITE, load_catalogue())


def demand(gpus: int = 1, *, partitions: tuple[str, ...] = (), constraint: str | None = None) -> Demand:
    return Demand(gpus_per_node=gpus, option="h200", partitions=partitions, constraint=constraint)


def test_the_cheapest_that_fits_is_taken_and_dearer_ones_are_not_asked() -> None:
    asked = []

    def fits(name: str) -> bool:
        asked.append(name)
        return name != "l4"

    placement = place(demand(), SITE, GPUS, fits)
    assert placement.choice == "a100_40"
    assert asked == ["l4", "a100_40"]
    assert [(v.name, v.fits) for v in placement.verdicts] == [
        ("l4", False),
        ("a100_40", True),
        ("a100_80", None),
        ("h200", None),
    ]


def test_nothing_fits() -> None:
    assert place(demand(), SITE, GPUS, lambda name: False).choice is None


@pytest.mark.parametrize(
    ("asked", "open_to"),
    [
        (demand(4), ["l4", "h200"]),  # only those nodes have four
        (demand(3), ["l4", "h200"]),
        (demand(8), []),
        (demand(partitions=("cpu",)), []),
        (demand(partitions=("gpu", "cpu")), ["l4", "a100_40", "a100_80", "h200"]),
        (demand(constraint="a100"), ["a100_40", "a100_80"]),
        (demand(constraint="a100|h200"), ["a100_40", "a100_80", "h200"]),
        (demand(constraint="gpu_mem_80g&a100"), ["a100_80"]),
    ],
)
def test_only_nodes_that_the_request_allows_count(asked: Demand, open_to: list[str]) -> None:
    assert candidates(asked, SITE, GPUS) == open_to
