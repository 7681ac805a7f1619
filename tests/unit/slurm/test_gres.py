"""GRES lists, the --gpus family and memory sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem_slurm.slurm import gres
from xmem_slurm.slurm.gres import GresError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", [("gpu", None, 1)]),
        ("gpu:2", [("gpu", None, 2)]),
        ("gpu:a100", [("gpu", "a100", 1)]),
        ("gpu:a100:2", [("gpu", "a100", 2)]),
        ("gpu:1g.10gb:7", [("gpu", "1g.10gb", 7)]),
        (
            "gpu:a100:2,gpu:h200:1,shard:4",
            [("gpu", "a100", 2), ("gpu", "h200", 1), ("shard", None, 4)],
        ),
        ("mps:50", [("mps", None, 50)]),
        ("craynetwork:2K", [("craynetwork", None, 2048)]),
        ("gpu:1(S:0)", [("gpu", None, 1)]),
        ("gpu:a100:1(S:0-1)", [("gpu", "a100", 1)]),
        ("gres:gpu:h200:1", [("gpu", "h200", 1)]),
        ("gres/gpu:a100=2", [("gpu", "a100", 2)]),
        ("cpu=4,gres/gpu:2", [("gpu", None, 2)]),
        ("license/matlab:1,gres/gpu=1", [("gpu", None, 1)]),
        ("none", []),
        ("NONE", []),
    ],
)
def test_reads_a_list(text: str, expected: list[tuple[str, str | None, int]]) -> None:
    entries = gres.parse(text)
    assert [(e.name, e.type, e.amount) for e in entries] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", [(None, 2)]), ("a100", [("a100", 1)]), ("a100:2,h200:1", [("a100", 2), ("h200", 1)])],
)
def test_reads_the_gpus_family(text: str, expected: list[tuple[str | None, int]]) -> None:
    assert [(e.type, e.amount) for e in gres.parse_option("gpus", text)] == expected


@pytest.mark.parametrize("text", ["", "gpu:", "gpu::2", ",gpu", "gpu:a:b:c", "gpu:a100:x", ":1"])
def test_what_slurm_would_not_read_is_an_error(text: str) -> None:
    with pytest.raises(GresError):
        gres.parse(text)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("gres", "gpu:1", "gpu:h200:1"),
        ("gres", "gpu", "gpu:h200"),
        ("gres", "gpu:a100", "gpu:h200"),
        ("gres", "gpu:a100:2,craynetwork:1", "gpu:h200:2,craynetwork:1"),
        ("gres", "gres:gpu:a100:2", "gres:gpu:h200:2"),
        ("gpus", "2", "h200:2"),
        ("gpus-per-node", "a100", "h200"),
        ("gpus-per-task", "a100:4", "h200:4"),
        ("tres-per-task", "cpu=4,gres/gpu:1", "cpu=4,gres/gpu:h200:1"),
        ("tres-per-task", "gres/gpu=2", "gres/gpu:h200=2"),
    ],
)
def test_the_type_is_changed_in_the_same_spelling(option: str, value: str, expected: str) -> None:
    assert gres.with_type(option, value, "h200") == expected


def test_a_type_that_begins_with_a_digit_gets_a_count() -> None:
    assert gres.with_type("gres", "gpu", "1g.10gb") == "gpu:1g.10gb:1"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("gres", "gpu:a100:2", "gpu:2"), ("gres", "gpu:a100", "gpu:1"), ("gpus", "a100", "1")],
)
def test_the_type_is_taken_away(option: str, value: str, expected: str) -> None:
    assert gres.with_type(option, value, None) == expected


def test_several_types_are_not_changed() -> None:
    with pytest.raises(GresError, match="more than one"):
        gres.with_type("gres", "gpu:a100:1,gpu:h200:1", "v100")


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [("16G", 16384), ("16384", 16384), ("0", 0), ("1025K", 2), ("2t", 2 << 20), ("8GB", 8192)],
)
def test_memory_sizes(text: str, mebibytes: int) -> None:
    assert gres.parse_memory(text) == mebibytes << 20


@pytest.mark.parametrize("text", ["", "G", "1.5G", "-1", "16X", "b"])
def test_no_memory_size(text: str) -> None:
    with pytest.raises(GresError, match="memory size"):
        gres.parse_memory(text)


name = st.sampled_from(["gpu", "shard", "mps", "craynetwork"])
entry = st.builds(
    lambda prefix, name, kind, count, note: prefix + name + kind + count + note,
    st.sampled_from(["", "gres:", "gres/"]),
    name,
    st.sampled_from(["", ":a100", ":1g.10gb"]),
    st.sampled_from([":1", ":20", "=3", ":2K"]),
    st.sampled_from(["", "(S:0)"]),
)


@given(st.lists(entry, min_size=1))
def test_what_is_read_is_written_back_as_it_was(entries: list[str]) -> None:
    text = ",".join(entries)
    assert ",".join(map(str, gres.parse(text))) == text


@given(st.text(alphabet="gpu:,=/(ab1kK \u00b2none"))
def test_any_text_gives_entries_or_our_own_error(text: str) -> None:
    for option in ("gres", "gpus", "tres-per-task"):
        try:
            entries = gres.parse_option(option, text)
        except GresError:
            continue
        assert all(e.amount >= 0 for e in entries)
