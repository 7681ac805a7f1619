"""Records are kept whole or not at all, and make room for newer ones."""

import os
from pathlib import Path

import pytest

from xmem_slurm.state.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Store("records", most_bytes=40_000, most=5)


def names(store: Store) -> list[str]:
    return [record.path.name for record in store.newest()]


def test_a_record_comes_back_with_its_parts(store: Store) -> None:
    store.write("a", {"word": "\udcff"}, [b"first" * 1000, b"", b"third"])
    record = store.read("a")
    assert record is not None
    assert record.head == {"word": "\udcff"}
    assert [record.part(number) for number in range(3)] == [b"first" * 1000, b"", b"third"]
    assert store.read("b") is None


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-1], lambda whole: whole * 2, lambda _: b"", lambda _: b"1\n"]
)
def test_what_is_not_whole_is_none(store: Store, damage: "type[bytes]") -> None:
    store.write("a", {}, [b"part"])
    path = store.folder / "a"
    path.write_bytes(damage(path.read_bytes()))
    assert store.read("a") is None
    assert names(store) == []


def test_a_damaged_part_is_an_error_of_its_own(store: Store) -> None:
    store.write("a", {"word": 1}, [b"part", b"other"])
    path = store.folder / "a"
    path.write_bytes(path.read_bytes()[:-3] + b"xxx")
    record = store.read("a")
    assert record is not None
    assert record.part(0) == b"part"
    with pytest.raises(ValueError, match="damaged"):
        record.part(1)


def test_what_was_given_longest_ago_makes_room(store: Store) -> None:
    for age, name in enumerate("abcde"):
        store.write(name, {})
        os.utime(store.folder / name, (1000 + age, 1000 + age))
    record = store.read("a")
    assert record is not None
    record.use()
    store.write("f", {})
    assert names(store) == ["f", "a", "e", "d", "c"]
    for number in range(9):
        store.write(f"large{number}", {}, [os.urandom(9_000)])
    assert sum(path.stat().st_size for path in store.folder.iterdir()) <= store.most_bytes
    assert names(store)[0] == "large8"


def test_one_that_takes_a_quarter_of_the_room_is_not_kept(store: Store) -> None:
    store.write("a", {})
    store.write("huge", {}, [os.urandom(10_001)])
    assert names(store) == ["a"]
