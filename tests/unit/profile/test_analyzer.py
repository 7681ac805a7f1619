"""The Analyzer pairs, places and attributes blocks, whatever the profiler left out."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm.errors import NoEstimate
from xmem_slurm.profile.analyzer import Analysis, CpuBlock, StepPhase, analyze
from xmem_slurm.profile.recording import Recording, read
from xmem_slurm.trace import Category

GPU = {
    "name": "NVIDIA RTX 3060",
    "capability": "8.6",
    "multiprocessors": 28,
    "total_bytes": 12 << 30,
}
HEADER: dict[str, Any] = {
    "schema_version": 1,
    "state": "steady",
    "error": None,
    "argv": ["python"],
    "rank": 0,
    "world_size": 1,
    "torch_version": "2.13.0+cpu",
    "cuda_version": None,
    "allocator_settings": "",
    "gpu": GPU,
    "rows": [],
    "tags": [],
    "seconds": 1.0,
    "peak_resident_bytes": 0,
}


def recording(folder: Path, *rows: list[Any], **header: Any) -> Recording:
    file = folder / "1.profile.gz"
    file.write_bytes(gzip.compress(json.dumps({**HEADER, "rows": rows, **header}).encode()))
    return read(file)


def analysis(folder: Path, *rows: list[Any], **header: Any) -> Analysis:
    return analyze(recording(folder, *rows, **header))


def scope(name: str, parent: int = -1, *inputs: list[Any]) -> list[Any]:
    return ["o", parent, name, list(inputs)]


def memory(address: int, size: int, parent: int = -1) -> list[Any]:
    return ["m", parent, address, size]


def tensor(address: int, *shape: int) -> list[Any]:
    return [address, list(shape), "float32"]


def lives(found: Analysis) -> list[tuple[int, float, float | None]]:
    return [(block.size, block.born, block.freed) for block in found.blocks]


def test_pairs_an_allocation_with_its_free(tmp_path: Path) -> None:
    assert lives(analysis(tmp_path, memory(16, 100), memory(32, 200), memory(16, -100))) == [
        (100, 0, 2),
        (200, 1, None),
    ]


def test_an_address_is_used_again(tmp_path: Path) -> None:
    found = analysis(tmp_path, memory(16, 100), memory(16, -100), memory(16, 50), memory(16, -50))
    assert lives(found) == [(100, 0, 1), (50, 2, 3)]


def test_a_free_that_was_not_reported_is_the_next_allocation_of_the_address(tmp_path: Path) -> None:
    assert lives(analysis(tmp_path, memory(16, 100), memory(16, 60))) == [
        (100, 0, 1),
        (60, 1, None),
    ]


def test_a_block_from_before_the_recording_leaves_no_trace(tmp_path: Path) -> None:
    assert lives(analysis(tmp_path, memory(16, -100), memory(32, 8))) == [(8, 1, None)]


def only(found: Analysis) -> CpuBlock:
    (block,) = found.blocks
    return block


@pytest.mark.parametrize(
    ("name", "on_device"),
    [("xmem::to_device", True), ("xmem::on_device", True), ("xmem::to_host", False)],
)
def test_the_redirections_scopes_say_where_a_tensor_lies(
    tmp_path: Path, name: str, on_device: bool
) -> None:
    found = analysis(tmp_path, scope(name), scope("aten::empty", 0), memory(16, 100, 1))
    assert only(found).on_device is on_device


def test_what_an_operator_makes_lies_where_its_inputs_lie(tmp_path: Path) -> None:
    found = analysis(
        tmp_path,
        scope("xmem::to_device"),
        memory(16, 400, 0),
        memory(32, 400),
        scope("aten::relu", -1, tensor(16, 100)),
        memory(48, 400, 3),
        scope("aten::relu", -1, tensor(32, 100)),
        memory(64, 400, 5),
        scope("xmem::to_host"),
        scope("aten::to", 7, tensor(16, 100)),
        memory(80, 400, 8),
    )
    assert [block.on_device for block in found.blocks] == [True, False, True, False, False]


def test_what_was_made_of_nothing_lies_where_it_is_used(tmp_path: Path) -> None:
    """A mask from torch.arange inside a compiled function: only its use beside a GPU's tensor
    tells."""
    rows = [
        scope("xmem::to_device"),
        memory(16, 400, 0),
        scope("aten::arange"),
        memory(32, 400, 2),
        scope("aten::neg", -1, tensor(32, 100)),
        memory(48, 400, 4),
    ]
    used = scope("aten::add", -1, tensor(16, 100), tensor(32, 100))
    assert [block.on_device for block in analysis(tmp_path, *rows).blocks] == [True, False, False]
    assert [block.on_device for block in analysis(tmp_path, *rows, used).blocks] == [
        True,
        True,
        True,
    ]
    copied = scope("aten::copy_", -1, tensor(16, 100), tensor(32, 100))
    assert [block.on_device for block in analysis(tmp_path, *rows, copied).blocks] == [
        True,
        False,
        False,
    ]
    number = scope("aten::add", -1, tensor(16, 100), tensor(32))
    assert [block.on_device for block in analysis(tmp_path, *rows, number).blocks] == [
        True,
        False,
        False,
    ]


def test_phases_and_modules(tmp_path: Path) -> None:
    found = analysis(
        tmp_path,
        memory(16, 1),
        scope("nn.Module: GPT"),
        scope("nn.Module: h.0.mlp", 1),
        memory(32, 2, 2),
        scope("xmem::backward"),
        scope("MulBackward0", 4),
        memory(48, 3, 5),
        scope("Optimizer.step#AdamW.step"),
        memory(64, 4, 7),
    )
    assert [(block.phase, block.module) for block in found.blocks] == [
        (StepPhase.SCRIPT, ""),
        (StepPhase.FORWARD, "h.0.mlp"),
        (StepPhase.BACKWARD, ""),
        (StepPhase.OPTIMIZER, ""),
    ]
    assert found.backwards == [(4, 6)]
    assert found.steps == [8]


def test_categories_come_from_tags_and_else_from_lives(tmp_path: Path) -> None:
    found = analysis(
        tmp_path,
        memory(16, 1),
        memory(32, 2),
        memory(48, 3),
        memory(48, -3),
        scope("xmem::backward"),
        memory(64, 4, 4),
        memory(32, -2),
        scope("xmem::tag:0"),
        scope("xmem::tag:1"),
        memory(80, 5),
        tags=[
            {"category": "PARAM", "addresses": [16, 48, 80]},
            {"category": "GRAD", "addresses": [16, 64]},
        ],
    )
    assert [block.category for block in found.blocks] == [
        Category.PARAM,
        Category.ACT,
        Category.TEMP,
        Category.GRAD,
        Category.OTH,
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        json.dumps({**HEADER, "schema_version": 2}).encode(),
        b'{"schema_version": 1, "rows": 3}',
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "1.profile.gz"
    file.write_bytes(gzip.compress(content))
    with pytest.raises(NoEstimate, match=r"1\.profile\.gz"):
        read(file)
