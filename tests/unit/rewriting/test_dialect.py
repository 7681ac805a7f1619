"""Dialects: the user's spelling stays where the site takes it, and becomes the site's own where it
does not."""

import pytest

from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.schema import Dialect, GpuOption, Share
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.request import Request, merge

TYPED = GpuOption(gpu="a100-pcie-40gb", type="a100", constraint="mem40", cost=1)
BY_MEMORY = GpuOption(gpu="a100-pcie-40gb", gres="VramPerGpu:40G", cost=1)
SHARD = GpuOption(gpu="h200", cost=1, share=Share(kind="shard", of="h200", per_gpu=139, least=2))


def request(*argv: str) -> Request:
    return merge(split_command_line([*argv, "--wrap=x"]), {}, None)


def said(
    asked: Request, option: GpuOption, site: Dialect, share: str | None = None
) -> dict[str, str | None]:
    return {edit.name: edit.value for edit in dialect.edits(asked, option, site, share)}


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (("--gres=gpu:1",), {"gres": "gpu:a100:1"}),
        (("-G", "h200:2", "-N2"), {"gpus": "a100:2"}),
        (("--gpus-per-node=h200:2",), {"gpus-per-node": "a100:2"}),
        (("--ntasks=2", "--gpus-per-task=1"), {"gpus-per-task": "a100:1"}),
    ],
)
def test_without_a_rule_the_users_spelling_stays(
    argv: tuple[str, ...], changed: dict[str, str]
) -> None:
    assert said(request(*argv), TYPED, Dialect()) == changed


GRES, PER_NODE, JOB, TASK = (
    Dialect(options=(name,)) for name in ("gres", "gpus-per-node", "gpus", "gpus-per-task")
)


@pytest.mark.parametrize(
    ("argv", "site", "changed"),
    [
        (("--gpus=1",), GRES, {"gpus": None, "gres": "gpu:a100:1"}),
        (("--gpus=h200:4", "--nodes=2"), GRES, {"gpus": None, "gres": "gpu:a100:2"}),
        (("--gpus=1", "--gres=lic:3"), GRES, {"gpus": None, "gres": "lic:3,gpu:a100:1"}),
        (("--gpus-per-node=4",), GRES, {"gpus-per-node": None, "gres": "gpu:a100:4"}),
        (
            ("--ntasks=4", "--nodes=2", "--gpus-per-task=1"),
            GRES,
            {"gpus-per-task": None, "gres": "gpu:a100:2"},
        ),
        (("--gres=gpu:h200:2,lic:1",), PER_NODE, {"gres": "lic:1", "gpus-per-node": "a100:2"}),
        (("--gres=gpu:2", "--nodes=3"), JOB, {"gres": None, "gpus": "a100:6"}),
        (("--gres=gpu:2",), JOB, {"gres": None, "gpus": "a100:2"}),
        (
            ("--gres=gpu:2", "--ntasks=2", "--nodes=1"),
            TASK,
            {"gres": None, "gpus-per-task": "a100:1"},
        ),
    ],
)
def test_what_the_site_does_not_take_becomes_its_own_with_as_many_gpus(
    argv: tuple[str, ...], site: Dialect, changed: dict[str, str]
) -> None:
    assert said(request(*argv), TYPED, site) == changed


@pytest.mark.parametrize(
    ("argv", "site"),
    [
        (("--gpus=4",), GRES),  # on how many nodes?
        (("--gpus=3", "--nodes=2"), GRES),
        (("--gres=gpu:2", "--ntasks=8"), JOB),  # on one node, or on more?
        (("--gres=gpu:2",), TASK),  # for how many tasks?
        (("--gres=gpu:2", "--ntasks=2"), TASK),
        (("--gpus=4", "--gpus-per-node=2"), GRES),
    ],
)
def test_where_the_number_would_be_a_guess_nothing_is_changed(
    argv: tuple[str, ...], site: Dialect
) -> None:
    with pytest.raises(UsageError, match=r"left open|cannot be said"):
        dialect.edits(request(*argv), TYPED, site)


def test_a_site_can_want_features_and_no_types() -> None:
    site = Dialect(select="constraint")
    assert said(request("--gres=gpu:h200:1", "-Cib"), TYPED, site) == {
        "gres": "gpu:1",
        "constraint": "ib&mem40",
    }


def test_a_resource_beside_the_gpu_takes_the_place_of_the_users() -> None:
    asked = request("--gres=gpu:1,VramPerGpu:80G,lic:1")
    assert said(asked, BY_MEMORY, GRES) == {"gres": "gpu:1,VramPerGpu:40G,lic:1"}
    assert said(request("--gpus=1"), BY_MEMORY, Dialect()) == {"gres": "VramPerGpu:40G"}


@pytest.mark.parametrize(
    ("argv", "option", "memory"),
    [
        (("--gres=gpu:2",), "mem-per-gpu", {"mem-per-gpu": "1000M"}),
        (("--gres=gpu:2",), "mem", {"mem": "2000M"}),
        (("--gres=gpu:2", "--cpus-per-task=3"), "mem-per-cpu", {"mem-per-cpu": "667M"}),
        (("--gres=gpu:2", "--cpus-per-gpu=4"), "mem-per-cpu", {"mem-per-cpu": "250M"}),
        (("--gpus=4",), "mem", {}),  # on how many nodes?
        (("--gres=gpu:2", "--mem=1M"), "mem", {}),
        (("--gres=gpu:2", "--mem-per-cpu=1M"), "mem", {}),
        (("--gres=gpu:2", "--mem=0"), "mem-per-gpu", {}),
    ],
)
def test_host_memory_is_asked_for_where_the_user_did_not(
    argv: tuple[str, ...], option: str, memory: dict[str, str]
) -> None:
    site = Dialect.model_validate({"host_memory_option": option, "host_memory_mib": 1000})
    found = said(request(*argv), TYPED, site)
    assert {name: value for name, value in found.items() if name.startswith("mem")} == memory


def test_an_options_own_host_memory_goes_before_the_sites() -> None:
    site = Dialect(host_memory_mib=1000)
    option = TYPED.model_copy(update={"host_memory_mib": 5000})
    assert said(request("--gres=gpu:1"), option, site)["mem-per-gpu"] == "5000M"


def test_a_share_gets_a_whole_gpus_host_memory_in_an_option_that_slurm_takes() -> None:
    site = Dialect(host_memory_mib=1000)
    assert said(request("--gpus=1"), SHARD, site, "shard:9") == {
        "gpus": None,
        "gres": "shard:9",
        "mem": "1000M",
    }


def test_a_users_own_share_keeps_its_type() -> None:
    assert said(request("--gres=lic:1,shard:h200:20"), SHARD, Dialect(), "shard:9") == {
        "gres": "lic:1,shard:h200:9"
    }


def test_what_is_tried_on_the_cluster_is_in_the_sites_words() -> None:
    assert dialect.words(TYPED, JOB) == ("--gpus=a100:1", "--ntasks=1")
    assert dialect.words(BY_MEMORY, GRES) == ("--ntasks=1", "--gres=gpu:1,VramPerGpu:40G")
    assert dialect.words(SHARD, Dialect()) == ("--ntasks=1", "--gres=shard:2")
