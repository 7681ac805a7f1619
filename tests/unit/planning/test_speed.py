"""The speed model that only ranks: its physics, each by one example, and what it reads of a trace
and of a site."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.test_trace import read
from xmem_slurm.planning import speed
from xmem_slurm.planning.speed import Collective, Hardware, Product, Work
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu, Site

CATALOGUE = load_catalogue()
H100 = CATALOGUE["h100-sxm5-80gb"]
NODE = speed.hardware("h100", H100)
assert NODE is not None
NODE = replace(NODE, network_bytes_per_second=400e9, gpus_per_node=8)
NOTHING = Work((), {}, 0.0, 0, ())


def seconds(node: Hardware = NODE, **changes: object) -> float:
    return speed.step_seconds(replace(NOTHING, **changes), node)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, gpu in CATALOGUE.items() if gpu.mig_of is None])
def test_every_gpu_has_its_speed_with_a_source(name: str) -> None:
    found = CATALOGUE[name].speed
    assert found is not None
    assert len(found.source) >= 15
    peaks = [found.tflops[each] for each in ("fp8", "fp16", "tf32", "fp32") if each in found.tflops]
    assert all(a >= b for a, b in pairwise(peaks)), "the fewer bits the faster"
    assert found.tflops.get("bf16", found.tflops.get("fp16")) == found.tflops.get("fp16")
    assert (found.tflops.get("bf16") is None) == (float(CATALOGUE[name].capability) < 8)


def test_an_instance_has_its_part_of_the_gpu_and_no_nvlink() -> None:
    part, whole = CATALOGUE["h100-sxm5-80gb.1g.10gb"].speed, H100.speed
    assert part is not None
    assert whole is not None
    assert part.tflops["bf16"] == pytest.approx(whole.tflops["bf16"] * 16 / 132)
    assert part.memory_gb_per_second == pytest.approx(whole.memory_gb_per_second / 8, rel=0.1)
    assert part.nvlink_gb_per_second == 0


def test_a_large_product_is_bound_by_flops_and_a_thin_one_by_its_operands() -> None:
    large = Product(8192, 8192, 8192)
    assert speed.product_seconds(large, NODE) == pytest.approx(
        large.flops / (0.8 * 989e12), rel=0.1
    )
    thin = Product(8, 8192, 8192)
    assert speed.product_seconds(thin, NODE) == pytest.approx(
        2 * 8192 * 8192 / (0.9 * 3350e9), rel=0.01
    )


def test_one_tile_more_than_a_wave_takes_another() -> None:
    wave, over = Product(66 * 128, 2 * 256, 65536), Product(67 * 128, 2 * 256, 65536)
    assert speed.product_seconds(over, NODE) == pytest.approx(2 * speed.product_seconds(wave, NODE))


def test_what_a_gpu_lacks_it_computes_in_fp32() -> None:
    v100 = speed.hardware("v100", CATALOGUE["v100-sxm2-16gb"])
    assert v100 is not None
    in_bf16, in_fp32 = (
        speed.product_seconds(Product(4096, 4096, 4096, precision=each), v100)
        for each in ("bf16", "fp32")
    )
    assert in_bf16 == in_fp32


def test_a_small_collective_takes_its_hops_and_a_large_one_its_bytes() -> None:
    small, large = (
        speed.collective_seconds(Collective("all_reduce", size, 8), NODE)
        for size in (1024, 1 << 34)
    )
    assert small == pytest.approx(8.4e-6 + 14 * 3.4e-6, rel=0.01)
    assert large == pytest.approx(2 * 7 / 8 * (1 << 34) / (0.8 * 450e9), rel=0.01)


def test_groups_of_one_gpu_a_node_share_its_network() -> None:
    whole = speed.collective_seconds(Collective("all_gather", 1 << 34, 16, 2), NODE)
    shared = speed.collective_seconds(Collective("all_gather", 1 << 34, 2, 2), NODE)
    assert whole == pytest.approx(15 / 16 * (1 << 34) / (0.8 * 400e9), rel=0.01)
    assert shared == pytest.approx(1 / 2 * (1 << 34) / (0.8 * 50e9), rel=0.01)


def test_a_group_of_one_rank_sends_nothing() -> None:
    assert speed.collective_seconds(Collective("all_reduce", 1 << 30, 1), NODE) == 0


def test_what_runs_beside_the_computation_is_hidden_as_far_as_that_lasts() -> None:
    computed = (Product(8192, 8192, 8192, count=100),)
    alone = seconds(products=computed)
    short, long = (Collective("all_reduce", size, 8, beside=0.5) for size in (1 << 30, 1 << 36))
    assert seconds(products=computed, collectives=(short,)) == alone
    waited = speed.collective_seconds(long, NODE) - 0.5 * alone
    assert seconds(products=computed, collectives=(long,)) == pytest.approx(alone + waited)
    exposed = replace(short, beside=0.0)
    assert seconds(products=computed, collectives=(exposed,)) > alone


def test_many_small_kernels_wait_for_the_host() -> None:
    assert seconds(launches=1000, bytes=1e6) == pytest.approx(1000 * speed.LAUNCH_SECONDS)


def test_what_is_offloaded_goes_over_pcie() -> None:
    assert seconds(offloaded_bytes=64e9) == pytest.approx(1 / speed.LINK_SHARE)


@pytest.mark.parametrize(
    ("a", "b", "same"), [(1.0, 1.09, True), (1.09, 1.0, True), (1.0, 1.11, False)]
)
def test_differences_below_a_tenth_are_ties(a: float, b: float, *, same: bool) -> None:
    assert speed.same_class(a, b) is same


def test_pipelines_and_many_nodes_are_not_ranked() -> None:
    assert speed.cannot_rank(8, pipelines=False) == ""
    assert speed.cannot_rank(9, pipelines=False) == "more than 8 nodes are not ranked by speed"
    assert speed.cannot_rank(1, pipelines=True) == "pipelines are not ranked by speed"


def site(**links: float) -> Site:
    nodes = {"cpus": 64, "memory_mib": 1 << 20, "partitions": ["gpu"]}
    return Site.model_validate(
        {
            "schema_version": 1,
            "name": "here",
            "option": {"h100": {"gpu": "h100-sxm5-80gb", "type": "h100", "cost": 4}},
            "partition": {"gpu": {"default": True}},
            "nodes": [
                {**nodes, "names": "a[1-4]", "gpus": {"h100": 8}, "links": links},
                {
                    **nodes,
                    "names": "b1",
                    "gpus": {"h100": 4},
                    "links": {"network_gb_per_second": 400},
                },
            ],
        }
    )


def test_a_site_says_what_its_nodes_are_joined_by_and_the_slowest_counts() -> None:
    found = speed.hardware("h100", H100, site(network_gb_per_second=100, nvlink_gb_per_second=0))
    assert found is not None
    assert (found.network_bytes_per_second, found.nvlink_bytes_per_second) == (100e9, 0)
    assert found.pcie_bytes_per_second == 64e9, "the catalogue's"
    assert found.gpus_per_node == 4
    unsaid = speed.hardware("h100", H100, site())
    assert unsaid is not None
    assert unsaid.network_bytes_per_second == 1e9 * speed.NETWORK_GB_PER_SECOND


def test_a_gpu_that_nobody_looked_up_has_no_hardware() -> None:
    assert speed.hardware("x", Gpu.model_validate(H100.model_dump() | {"speed": None})) is None


HISTORY = [
    ("alloc", 1, 100, 0),
    ("alloc", 2, 10, 0),
    ("alloc", 3, 7, 0),
    ("free_completed", 3, 7, 0),
]
MARKS = [{"kind": "step", "allocations": 2}, {"kind": "step", "allocations": 3}]
ROWS = [
    ["product", "bf16", 4, 5, 6, 1, 2],
    ["attention", "bf16", 1000, 0, 0, 0, 3],
    ["all_reduce", "beside", 64, 16, 0, 0, 2],
    ["all_gather", "beside", 64, 16, 0, 0, 1],
    ["reduce_scatter", "waited", 32, 4, 0, 0, 5],
    ["broadcast", "waited", 32, 1, 0, 0, 5],
    ["copied", "", 50, 0, 0, 0, 2],
]


def test_what_was_counted_is_read_of_a_trace(tmp_path: object) -> None:
    counted = {"launches": 9, "backwards": 2, "allocated": 7, "rows": ROWS}
    tags = [
        {"category": "PARAM", "allocations": 2, "addresses": [1]},
        {"category": "OPT", "allocations": 2, "addresses": [2]},
    ]
    found = read(tmp_path, HISTORY, work=counted, marks=MARKS, tags=tags, world_size=16, nodes=2)  # type: ignore[arg-type]
    work = speed.work_of(found)
    assert work is not None
    assert work.products == (Product(4, 5, 6, 1, "bf16", 2),)
    assert work.total_flops == 2 * 2 * 4 * 5 * 6 + 3000
    assert work.launches == 9
    assert work.offloaded_bytes == 100
    assert work.bytes == 2 * 7 + 2 * 100 + 2 * 10, (
        "what the step made, and what the optimizer goes through"
    )
    assert work.collectives == (
        Collective("all_reduce", 64, 16, 2, 2, speed.BACKWARD / 2),
        Collective("all_gather", 64, 16, 2, 1, 1.0),
        Collective("reduce_scatter", 32, 4, 1, 5, 0.0),
    ), "ranks that wait for each other are neighbours; alone nothing is sent"


def test_activations_are_read_once_more_by_the_backward_pass_of_each_micro_batch(
    tmp_path: object,
) -> None:
    """The trace has two passes of three, one with a checkpoint's within it, and neither's step."""
    history = [
        *(("alloc", 1, 40, 0), ("alloc", 2, 8, 0), ("free_requested", 2, 8, 0)),
        *(("alloc", 3, 5, 0), ("free_requested", 3, 5, 0), ("free_requested", 1, 40, 0)),
        *(("alloc", 4, 60, 0), ("alloc", 5, 9, 0), ("free_requested", 4, 60, 0)),
    ]
    places = [("backward", 1), ("backward", 2), ("backward_end", 3), ("backward_end", 3)]
    places += [("backward", 4), ("backward_end", 5)]
    marks = [{"kind": kind, "allocations": number} for kind, number in places]
    counted = {"launches": 9, "backwards": 3, "allocated": 1000, "rows": ROWS}
    work = speed.work_of(read(tmp_path, history, work=counted, marks=marks))  # type: ignore[arg-type]
    assert work is not None
    assert work.bytes == 2 * 1000 + 3 * (40 + 60) / 2


GRAPH = {"launches": 1, "backwards": 1, "allocated": 1, "rows": [["graph", "", 0, 0, 0, 0, 1]]}


@pytest.mark.parametrize(
    ("counted", "marks", "why"),
    [
        (None, [], "no two steps of it were seen"),
        ({"launches": 0, "backwards": 0}, MARKS[:1], "no two steps of it were seen"),
        ({"launches": 0, "backwards": 0}, MARKS, "what a step does was not counted"),
        (GRAPH, MARKS, "it runs CUDA graphs, whose kernels a dry run does not see"),
    ],
)
def test_nothing_is_known_without_two_steps_nor_of_graphs(
    counted: object, marks: object, why: str, tmp_path: object
) -> None:
    found = read(tmp_path, HISTORY, work=counted, marks=marks)  # type: ignore[arg-type]
    assert speed.work_of(found) is None
    assert speed.why_no_time(found, "h100", NODE) == why
    assert speed.why_no_time(found, "xy", None) == "no speed of xy is known"
