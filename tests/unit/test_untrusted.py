"""What a job may have written in place of a trace: whatever it is, it is no trace, soon, and in one
plain line."""

import copy
import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm import checked, trace_file, untrusted
from xmem_slurm.dryrun import runner
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.profile import recording
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate

DATA = Path(__file__).parents[1] / "data"
GPT2 = json.loads(gzip.decompress((DATA / "gpt2-small.json.gz").read_bytes()))
PROFILE = json.loads(gzip.decompress((DATA / "profiles" / "cnn-SGD-start.profile.gz").read_bytes()))
GPU = load_catalogue()["h200"]


def why(path: Path, **changed: object) -> str:
    path.write_bytes(gzip.compress(json.dumps(GPT2 | changed).encode(), 1))
    with pytest.raises(NoEstimate) as caught:
        trace_file.read(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "kind", ["FIFO", "link", "folder", "device", "sparse", "bomb", "nested", "lists"]
)
def test_a_file_that_is_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(untrusted, "MOST_VALUES", 1000)
    path = tmp_path / "1.json.gz"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(DATA / "gpt2-small.json.gz")
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(3 << 30)
    else:
        text = {
            "bomb": b" " * (2 << 20),
            "nested": b"[" * 900 + b"]" * 900,
            "lists": b"[" + b"[]," * 2000 + b"[]]",
        }
        path.write_bytes(gzip.compress(text[kind]))
    with pytest.raises(NoEstimate, match=r"^[^\n]*1\.json\.gz: not a trace: [^\n]*$"):
        trace_file.read(path)


def test_json_that_is_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "1.json.gz"
    path.write_bytes(gzip.compress(b"[" * 200_000 + b"]" * 200_000))
    with pytest.raises(NoEstimate, match="not a trace"):
        trace_file.read(path)


def test_all_files_together_have_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "1.json.gz"
    path.write_bytes((DATA / "gpt2-small.json.gz").read_bytes())
    allowance = untrusted.Allowance(1_000_000)
    trace_file.read(path, allowance)
    with pytest.raises(NoEstimate, match="when unpacked"):
        trace_file.read(path, allowance)


def test_what_belongs_to_another_user(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    path = tmp_path / "files.log"
    path.write_bytes(b"R 1 1 /x\0")
    os.chown(path, 65534, 65534)
    assert [each.kind for each in trace_file.read_files(path)] == ["T"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", -1),
        ("size", 1 << 60),
        ("size", 1.5),
        ("size", "many"),
        ("size", None),
        ("size", []),
        ("size", 10**400),
        ("address", 1 << 70),
        ("stream", {}),
        ("action", 1),
    ],
)
def test_a_column_with_what_is_no_number(tmp_path: Path, name: str, value: object) -> None:
    events = GPT2["events"] | {name: [value, *GPT2["events"][name][1:]]}
    assert f"events.{name}.0" in why(tmp_path / "1.json.gz", events=events)


@pytest.mark.parametrize(
    "changed",
    [
        {"events": {}},
        {"events": GPT2["events"] | {"size": []}},
        {"world_size": float("nan")},
        {"lived": [float("inf"), 1]},
        {"lived": [1]},
        {"recorded": {"allocated_bytes": -5}},
        {"rank": -1},
        {"gpu": {}},
        {"gpu": GPT2["gpu"] | {"capability": "9.0\n"}},
        {"marks": [{"kind": "step", "allocations": "\x1b[2J"}]},
        {"tags": [{"category": "FREE", "allocations": 1, "addresses": [1]}]},
        {"doubts": [{"code": "nccl", "detail": "y", "count": 1, "share": -1}]},
        {"doubts": [{"code": "x\x1b[2J", "detail": "y", "count": 1}]},
        {"doubts": [{"code": [], "detail": "y", "count": 1}]},
        {"sites": {"found": [["a", -1, "b", "c"]], "of": [0]}},
        {"error": "x" * 200_000},
        {"argv": "python"},
        {"seen": {"end": True}},
    ],
    ids=str,
)
def test_a_trace_with_what_no_trace_has(tmp_path: Path, changed: dict[str, object]) -> None:
    said = why(tmp_path / "1.json.gz", **changed)
    assert checked.plain(said) == said
    assert len(said) < 400


def test_text_has_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    hostile = "x\nSubmitted batch job 1\r\x1b]0;title\x07\x9b2J\x7f\u202e\u2066\u2028\ud800é"
    doubt = {"code": "nccl", "detail": hostile, "count": 1}
    site = [hostile, 1, hostile, hostile]
    changed = {
        "error": hostile,
        "argv": [hostile],
        "doubts": [doubt],
        "place": hostile,
        "state": hostile,
    }
    changed |= {"sites": {"found": [site], "of": [0] * GPT2["events"]["action"].count("alloc")}}
    path = tmp_path / "1.json.gz"
    path.write_bytes(gzip.compress(json.dumps(GPT2 | changed).encode()))
    found = trace_file.read(path)
    for text in (found.error, *found.argv, found.doubts[0].detail, *found.sites[0], found.state):
        assert str(text).isprintable()
        assert str(text).encode() != b""
    assert str(found.error).startswith("x Submitted batch job 1 \ufffd]0;title")


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values that are no list or object; of a list the first and the last two."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*place, name))
    elif isinstance(value, list):
        for number in dict.fromkeys([0, 1, len(value) - 2, len(value) - 1]):
            if 0 <= number < len(value):
                yield from leaves(value[number], (*place, number))
    else:
        yield place


HOSTILE = (
    -1,
    0,
    1 << 49,
    1 << 63,
    10**30,
    1e308,
    True,
    None,
    "",
    "\x1b[31m",
    [],
    {},
    [[]],
    {"a": 1},
    "9" * 5000,
)


@pytest.mark.parametrize(("name", "original"), [("1.json.gz", GPT2), ("1.profile.gz", PROFILE)])
def test_one_value_of_a_file_changed_is_still_a_trace_or_none(
    name: str, original: dict[str, Any], tmp_path: Path
) -> None:
    """Through all that is made of it: whatever it is, it is a trace or there is no estimate."""
    random.seed(16)
    places = list(leaves(original))
    said: list[str] = []
    for _ in range(40):
        changed = copy.deepcopy(original)
        place = random.choice(places)
        part = changed
        for step in place[:-1]:
            part = part[step]
        part[place[-1]] = random.choice(HOSTILE)
        (tmp_path / name).write_bytes(gzip.compress(json.dumps(changed).encode(), 1))
        try:
            for line in estimate(runner.read(tmp_path), "h200", GPU).reasons:
                assert line.isprintable()
        except (
            NoEstimate,
            UsageError,
        ) as error:  # the latter: allocator settings that torch refuses
            said.append(str(error))
    assert 5 < len(said) < 40
    assert all(map(str.isprintable, said))


def test_a_profile_whose_operators_hold_themselves(tmp_path: Path) -> None:
    path = tmp_path / "1.profile.gz"
    path.write_bytes(
        gzip.compress(json.dumps(PROFILE | {"rows": [["o", 0, "x", [], []]]}).encode())
    )
    with pytest.raises(NoEstimate, match="not a profile"):
        recording.read(path)


def test_notes_of_files_that_are_none(tmp_path: Path) -> None:
    log = tmp_path / "files.log"
    log.write_bytes(
        b"R 5 7 /a\nb\0R x y z\0\0R 1 \0Z 1 1 /x\0R 99999999999999999999 1 /x\0D 1 2 /c\0cut"
    )
    assert [each.kind for each in trace_file.read_files(log)] == ["R", "T", "T", "T", "T", "T", "D"]
