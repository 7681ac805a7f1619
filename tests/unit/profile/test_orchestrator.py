"""Each rule of the Orchestrator, and the peaks of small recorded jobs, which the device engine gave
for the same jobs.

The recordings are those of torch 2.13.0+cpu; the peaks are the device engine's with torch
2.11.0+cu128 and the same GPU (compute capability 8.6, 28 multiprocessors)."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.profile.test_analyzer import analysis, memory, recording, scope, tensor
from xmem_slurm.allocator.replay import replay
from xmem_slurm.profile import attention, orchestrator, ordering, reductions, workspaces
from xmem_slurm.profile.analyzer import Analysis, analyze
from xmem_slurm.profile.orchestrator import orchestrate
from xmem_slurm.profile.recording import Tensor, read
from xmem_slurm.trace import Category, Op, ShownGpu

PROFILES = Path(__file__).parents[2] / "data" / "profiles"
RTX_3060 = ShownGpu("NVIDIA RTX 3060", "8.6", 28, 12 << 30)
H100 = ShownGpu("NVIDIA H100", "9.0", 132, 80 << 30)


@pytest.mark.parametrize(
    ("name", "allocated", "reserved"),
    [
        ("mlp-Adam-start", 56_226_816, 71_303_168),
        ("mlp-SGD-backward", 39_133_696, 50_331_648),
        ("mlp-AdamW-end", 58_229_760, 71_303_168),
        ("attention-AdamW-start", 41_721_344, 60_817_408),
        ("attention-Adafactor-backward", 37_580_288, 56_623_104),
        ("cnn-SGD-start", 26_927_616, 48_234_496),
    ],
)
def test_the_peak_is_the_device_engines(name: str, allocated: int, reserved: int) -> None:
    replayed = replay(orchestrate(read(PROFILES / f"{name}.profile.gz")))
    assert sum(replayed.at_peak_allocated.allocated_bytes.values()) == allocated
    assert replayed.peak_reserved_bytes == reserved


def test_the_trace_of_a_recording() -> None:
    trace = orchestrate(read(PROFILES / "cnn-SGD-start.profile.gz"))
    assert (trace.state, trace.steps, trace.error) == ("steady", 3, None)
    assert [mark.kind for mark in trace.marks] == ["backward", "backward_end", "step"] * 3
    assert [doubt.code for doubt in trace.doubts] == ["profile-engine", "cudnn-plan"]
    kept = [a.size for a in trace.allocations if a.category is Category.PARAM]
    assert sum(kept) == 4 * (3 * 32 * 9 + 32 + 64 + 32 * 64 * 9 + 64 + 64 * 13 * 13 * 10 + 10)
    allocated = [event.allocation for event in trace.events if event.op == Op.ALLOC]
    assert allocated == list(range(len(trace.allocations)))
    freed = [event.allocation for event in trace.events if event.op == Op.FREE_COMPLETED]
    assert len(set(freed)) == len(freed)


def test_optimizer_state_is_there_from_the_first_step_and_stays() -> None:
    trace = orchestrate(read(PROFILES / "mlp-Adam-start.profile.gz"))
    parameters = sum(a.size for a in trace.allocations if a.category is Category.PARAM)
    states = {number for number, a in enumerate(trace.allocations) if a.category is Category.OPT}
    assert sum(trace.allocations[number].size for number in states) == 2 * parameters
    first_step = next(mark.allocations for mark in trace.marks if mark.kind == "step")
    assert max(states) < first_step
    assert not states & {
        event.allocation for event in trace.events if event.op == Op.FREE_REQUESTED
    }


def test_factored_state_is_state_though_no_parameter_is_as_small() -> None:
    trace = orchestrate(read(PROFILES / "attention-Adafactor-backward.profile.gz"))
    sizes = {a.size for a in trace.allocations if a.category is Category.OPT}
    assert {4 * 500, 4 * 256} <= sizes
    assert 4 * 500 * 256 not in sizes


@pytest.mark.parametrize(("name", "kept"), [("mlp-Adam-start", False), ("mlp-AdamW-end", True)])
def test_gradients_live_as_the_script_has_them(name: str, kept: bool) -> None:
    """Set to None at the start of a step, they are made anew; set to zeros, they are the same for
    ever."""
    trace = orchestrate(read(PROFILES / f"{name}.profile.gz"))
    freed = {event.allocation for event in trace.events if event.op == Op.FREE_REQUESTED}
    first = next(n for n, a in enumerate(trace.allocations) if a.category is Category.GRAD)
    assert (first not in freed) is kept


def after(rule: orchestrator.Rule, found: Analysis) -> list[int]:
    return sorted(block.size for block in rule(found, found.blocks))


def test_host_blocks_are_left_out(tmp_path: Path) -> None:
    found = analysis(tmp_path, scope("xmem::to_device"), memory(16, 100, 0), memory(32, 300))
    assert after(orchestrator.only_device_blocks, found) == [100]


def test_numbers_that_an_operator_wraps_are_left_out(tmp_path: Path) -> None:
    found = analysis(
        tmp_path,
        scope("aten::div_", -1),
        memory(16, 8, 0),
        memory(16, -8, 0),
        scope("aten::sum", -1),
        memory(16, 4, 3),
        memory(16, -4),
    )
    assert after(orchestrator.without_wrapped_numbers, found) == [4]


def test_buffers_of_one_kernel_are_left_out_but_not_results_nor_copies_for_layout(
    tmp_path: Path,
) -> None:
    found = analysis(
        tmp_path,
        scope("aten::native_layer_norm"),
        memory(16, 1000, 0),
        scope("aten::clone", 0),
        memory(32, 2000, 2),
        memory(48, 3000, 0),
        memory(48, -3000, 0),
        memory(32, -2000, 0),
        scope("aten::matmul"),
        memory(48, 4000, 7),
        memory(48, -4000, 7),
        scope("aten::mm"),
        scope("aten::clone", 10),
        memory(48, 5000, 11),
        memory(48, -5000, 10),
        memory(16, -1000),
    )
    assert after(orchestrator.without_kernel_temporaries, found) == [1000, 2000, 4000]


def ordered(found: Analysis) -> list[int]:
    blocks = ordering.in_the_gpus_order(found, found.blocks)
    return [block.size for block in sorted(blocks, key=lambda block: block.born)]


def test_batch_norm_makes_the_inputs_gradient_first(tmp_path: Path) -> None:
    rows = [
        scope("aten::native_batch_norm_backward"),
        memory(16, 30, 0),
        memory(32, 31, 0),
        memory(48, 4000, 0),
    ]
    assert ordered(analysis(tmp_path, *rows)) == [4000, 30, 31]


@pytest.mark.parametrize(
    ("channels", "groups_of", "dtype", "expected"),
    [
        (8, 1, "float32", [288, 4000]),
        (8, 8, "float32", [4000, 288]),
        (1, 1, "float32", [4000, 288]),
        (8, 1, "float16", [4000, 288]),
    ],
)
def test_depthwise_convolutions_make_the_weights_gradient_first(
    tmp_path: Path, channels: int, groups_of: int, dtype: str, expected: list[int]
) -> None:
    images, weights = [16, [2, channels, 9, 9], dtype], [32, [channels, groups_of, 3, 3], dtype]
    rows = [
        scope("aten::convolution_backward", -1, images, images, weights),
        memory(48, 4000, 0),
        memory(64, 288, 0),
    ]
    assert ordered(analysis(tmp_path, *rows)) == expected


def test_a_copy_of_attentions_output_for_its_strides_is_the_output(tmp_path: Path) -> None:
    found = analysis(
        tmp_path,
        scope(attention.FORWARD),
        memory(16, 4000, 0),
        memory(32, 100, 0),
        scope(attention.LAYOUT),
        scope("aten::clone", 3),
        memory(48, 4000, 4),
        memory(16, -4000),
        memory(48, -4000),
    )
    blocks = attention.output_in_the_gpus_layout(found, found.blocks)
    assert [(block.size, block.born, block.freed) for block in blocks] == [
        (4000, 1, 7),
        (100, 2, None),
    ]


def product(tmp_path: Path, version: str, capability: str = "8.6") -> Analysis:
    """A product with a bias in the forward pass, then two plain ones in the backward pass."""
    rows = [
        scope("xmem::to_device"),
        memory(16, 400, 0),
        scope("aten::addmm", -1, tensor(16, 10), tensor(16, 10, 10), tensor(16, 10, 10)),
        memory(32, 400, 2),
        scope("xmem::backward"),
        scope("aten::mm", 4, tensor(32, 10, 10), tensor(16, 10, 10)),
        memory(48, 400, 5),
        scope("aten::mm", 4, tensor(32, 10, 10), tensor(16, 10, 10)),
        memory(64, 400, 7),
    ]
    seen = recording(tmp_path, *rows, torch_version=version)
    return analyze(replace(seen, gpu=replace(seen.gpu, capability=capability)))


@pytest.mark.parametrize(
    ("version", "capability", "kept", "passing"),
    [
        ("2.4.0", "8.6", [8_519_680] * 2, [1 << 20]),
        ("2.8.0+cu126", "9.0", [33_554_432] * 2, [1 << 20]),
        ("2.13.0+cpu", "8.6", [1 << 20, 8_519_680, 8_519_680], []),
        ("2.13.0+cpu", "12.0", [1 << 20, 8_519_680, 8_519_680], []),
        ("2.15.0", "12.0", [], [1 << 20, 33_554_432, 33_554_432]),
        ("2.15.0", "8.0", [], [1 << 20, 8_519_680, 8_519_680]),
    ],
)
def test_workspaces_of_cublas(
    tmp_path: Path, version: str, capability: str, kept: list[int], passing: list[int]
) -> None:
    """One for each thread; which are kept depends on torch's release. Each size was seen on the
    device engine."""
    found = product(tmp_path, version, capability)
    added = [
        block
        for block in workspaces.matrix_products(found, found.blocks)
        if block not in found.blocks
    ]
    assert sorted(block.size for block in added if block.freed is None) == kept
    assert sorted(block.size for block in added if block.freed is not None) == passing


def test_convolutions_take_what_the_stand_ins_said_while_they_compute_each_result(
    tmp_path: Path,
) -> None:
    """The copy that the CPU makes first is among it: what a GPU copies was counted there."""
    found = analysis(
        tmp_path,
        scope("xmem::to_device"),
        memory(16, 400, 0),
        [*scope("aten::convolution", -1, tensor(16, 10)), [700]],
        memory(32, 50, 2),
        memory(48, 400, 2),
        memory(32, -50, 2),
        [
            *scope(
                "aten::convolution_backward",
                -1,
                tensor(48, 1, 8),
                tensor(16, 1, 8),
                tensor(96, 8, 1),
            ),
            [0, 900],
        ],
        memory(64, 410, 6),
        memory(80, 420, 6),
        library_doubts=[
            {"code": "cudnn-time", "detail": "the time for asking cuDNN ran out", "count": 2}
        ],
    )
    blocks = sorted(workspaces.convolutions(found, found.blocks), key=lambda block: block.born)
    assert [block.size for block in blocks] == [400, 400, 700, 410, 420, 900]
    assert [block.freed is None for block in blocks] == [True, True, False, True, True, False]
    doubts = [(doubt.code, doubt.detail) for doubt in orchestrate(found.recording).doubts]
    assert doubts[1:] == [("cudnn-time", "the time for asking cuDNN ran out")]


@pytest.mark.parametrize(("tokens", "added"), [(3072, 0), (4096, 2)])
def test_many_indices_of_an_embedding_are_sorted(tmp_path: Path, tokens: int, added: int) -> None:
    indices = tensor(16, tokens)
    found = analysis(
        tmp_path,
        scope("aten::embedding_dense_backward", -1, tensor(32, tokens, 8), indices),
        memory(48, 400, 0),
    )
    blocks = workspaces.embedding_gradients(found, found.blocks)
    assert [block.size for block in blocks if block not in found.blocks] == [8 * tokens] * added


def query(heads: int, head: int, dtype: str, queries: int = 200) -> Tensor:
    return Tensor(16, (2, heads, queries, head), dtype)


@pytest.mark.parametrize(
    ("gpu", "release", "dropout", "dtype", "masked", "kernel"),
    [
        (RTX_3060, (2, 11), False, "float32", False, attention.Kernel.EFFICIENT),
        (RTX_3060, (2, 11), True, "bfloat16", False, attention.Kernel.FLASH),
        (RTX_3060, (2, 11), False, "bfloat16", True, attention.Kernel.EFFICIENT),
        (H100, (2, 8), False, "bfloat16", False, attention.Kernel.FLASH),
        (H100, (2, 11), True, "bfloat16", False, attention.Kernel.CUDNN),
        (H100, (2, 15), True, "float16", False, attention.Kernel.FLASH),
        (H100, (2, 15), False, "float16", False, attention.Kernel.CUDNN),
        (
            replace(H100, capability="7.5"),
            (2, 11),
            False,
            "float16",
            False,
            attention.Kernel.EFFICIENT,
        ),
    ],
)
def test_the_kernel_of_attention(
    gpu: ShownGpu,
    release: tuple[int, int],
    dropout: bool,
    dtype: str,
    masked: bool,
    kernel: attention.Kernel,
) -> None:
    inputs = [query(3, 64, dtype)] * 3 + [Tensor(32, (1, 1, 200, 200), dtype)] * masked
    assert (
        attention.kernel_for(inputs, attention.Machine(gpu, release, dropout), masks_from=3)
        is kernel
    )


@pytest.mark.parametrize(
    ("capability", "head", "dtype", "sums", "buffers"),
    [
        ("8.6", 64, "float32", 5376, [307_200, 4800, 4800, 393_600]),
        ("8.6", 128, "float32", 5376, [614_400, 4800, 4800, 787_200]),
        ("8.0", 96, "float32", 5376, [460_800, 4800, 4800, 786_816]),
        ("8.6", 96, "bfloat16", 4800, [6144, 589_824]),
        ("9.0", 128, "bfloat16", 4800, [619_200]),
    ],
)
def test_what_attention_works_in(
    tmp_path: Path, capability: str, head: int, dtype: str, sums: int, buffers: list[int]
) -> None:
    """Sizes as torch's own host code asked for them: 2 x 3 x 200 queries, on the device engine with
    torch 2.11."""
    given = [16, [2, 3, 200, head], dtype]
    rows = [
        scope("xmem::to_device"),
        memory(16, 400, 0),
        scope(attention.FORWARD, -1, given, given, given),
        memory(32, 10_000, 2),
        memory(48, 4800, 2),
        scope(attention.BACKWARD, -1, given, given, given, given, given),
        memory(64, 10_000, 5),
    ]
    seen = recording(tmp_path, *rows, torch_version="2.11.0")
    found = analyze(replace(seen, gpu=replace(seen.gpu, capability=capability)))
    changed = attention.attention_of_gpu(found, found.blocks)
    assert changed[2].size == sums
    assert [block.size for block in changed[len(found.blocks) :]] == buffers


@pytest.mark.parametrize(
    ("shape", "columns", "gpu", "expected"),
    [
        ((1024, 500), 500, RTX_3060, (4_096_000, 16)),
        ((1024, 768), 768, RTX_3060, (6_291_456, 24)),
        ((2048, 2048), 2048, RTX_3060, (22_020_096, 64)),
        ((2048, 784), 784, RTX_3060, (12_845_056, 28)),
        ((512, 768), 768, RTX_3060, (0, 0)),
        ((1024, 768), 1024, RTX_3060, (0, 0)),
        ((1024,), 1, RTX_3060, (0, 0)),
    ],
)
def test_staging_of_sums_over_rows(
    shape: tuple[int, ...], columns: int, gpu: ShownGpu, expected: tuple[int, int]
) -> None:
    """Sizes as torch's own host code asked for them, on the device engine with torch 2.11."""
    assert reductions.staging_bytes(Tensor(16, shape, "float32"), 4 * columns, gpu) == expected
