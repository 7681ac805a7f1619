"""What a user asks of a dry run is read once, what the probe is told is written once; an order
arrives as it was."""

from pathlib import Path

import pytest

from xmem_slurm.dryrun import exchange
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import Asked, DryRunOrder, RunRanks
from xmem_slurm.site.loading import load_catalogue

H200 = load_catalogue()["h200"]
NOTHING = Asked()


def order(asked: Asked = NOTHING, **environ: str) -> DryRunOrder:
    return DryRunOrder.of(Job(b"#!/bin/sh\n", (), Path("/"), environ), H200, Budget(), asked)


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        (NOTHING, {}, ("auto", (), ())),
        (
            NOTHING,
            {"XMEM_ENGINE": "profile", "XMEM_RANKS": "last", "XMEM_ARRAY_TASKS": "1,5"},
            ("profile", "last", (1, 5)),
        ),
        (Asked("device", "all", "7"), {}, ("device", "all", (7,))),
        (
            Asked("auto", "0,3"),
            {"XMEM_ENGINE": "profile", "XMEM_RANKS": "all"},
            ("auto", (0, 3), ()),
        ),
        (Asked(None, ""), {"XMEM_ENGINE": "device", "XMEM_RANKS": "2"}, ("device", (2,), ())),
        (
            NOTHING,
            {"XMEM_ENGINE": "nonsense", "XMEM_RANKS": "none", "XMEM_ARRAY_TASKS": ","},
            ("auto", (), ()),
        ),
    ],
)
def test_options_go_before_variables_and_nonsense_is_as_if_not_said(
    asked: Asked, environ: dict[str, str], expected: tuple[object, ...]
) -> None:
    found = order(asked, **environ)
    assert (found.engine, found.wanted_ranks, found.array_tasks) == expected


def test_the_probe_is_told_by_the_order_alone() -> None:
    told = order(
        XMEM_RANKS="all",
        XMEM_RUN_RANKS="0,1/2",
        XMEM_SITES="hook",
        XMEM_ADVICE="bf16",
        XMEM_BRIEF="1",
        XMEM_MOST="1",
        XMEM_STARTS="1",
        OTHER="x",
    ).environ
    assert told == {"XMEM_RANKS": "all", "OTHER": "x", "XMEM_ENGINE": "auto", "XMEM_SHAPES": "most"}
    job = Job(b"", (), Path("/"), {})
    one = DryRunOrder(
        job,
        H200,
        Budget(),
        "device",
        run_ranks=RunRanks((0, 3), 4),
        shapes="least",
        numbers="turns",
        end_seen=True,
        origins="hook",
        assertions=False,
        change="bf16",
        brief=True,
        most_bytes=7,
        starts=True,
    )
    assert one.environ == {
        "XMEM_ENGINE": "device",
        "XMEM_RUN_RANKS": "0,3/4",
        "XMEM_SHAPES": "least",
        "XMEM_NUMBERS": "turns",
        "XMEM_END_SEEN": "1",
        "XMEM_SITES": "hook",
        "XMEM_ADVICE": "bf16",
        "XMEM_BRIEF": "1",
        "XMEM_MOST": "7",
        "XMEM_STARTS": "1",
        "PYTHONOPTIMIZE": "1",
    }


@pytest.mark.parametrize("wanted", ["all", (0, 3)])
def test_an_order_arrives_at_a_node_as_it_was(wanted: str | tuple[int, ...]) -> None:
    """Bytes that are no text among it: in the script, in arguments, names and values."""
    job = Job(
        b"#!/bin/sh\n\xff\0",
        ["\udc80"],
        Path("/x\udc81"),
        {"a\udc82": "b\udc83"},
        [1, 2],
        outputs=["out"],
        array=[1],
    )
    sent = DryRunOrder(
        job,
        H200,
        Budget(wall_seconds=7.0),
        "profile",
        wanted,
        RunRanks((0, 3), 4),
        (1, 5),
        origins="hook",
    )
    found = exchange.order_from_json(exchange.order_to_json(sent))
    assert exchange.order_to_json(found) == exchange.order_to_json(sent)
    assert (found.job, found.gpu, found.budget) == (job, H200, sent.budget)
    assert (str(found.run_ranks), list(found.wanted_ranks)) == ("0,3/4", list(wanted))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"job": {"script": "x"}}'])
def test_what_is_no_order_is_none(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        exchange.order_from_json(text)
