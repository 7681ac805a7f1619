"""The Orchestrator (xMem, section 3.3): what would these blocks of the CPU be on a GPU?

Each rule is a function that takes the blocks and returns them changed, with its reason and source;
`RULES` applies them in turn. What needs no rule here, because the script itself ran and the
lifetimes are the real ones: where zero_grad stands (at the step's start, just before backward,
after the step, or with set_to_none=False), gradient accumulation, how long a batch or an output
stays referenced, and optimizer states of any shape (the published Orchestrator takes a block for
optimizer state only if it is as large as a parameter, which misses factored and quantized states).
What the GPU's way through torch itself would do otherwise (byte masks, foreach optimizers, CUDA's
autocast) was done so while the script ran: `probe/_xmem/cpu/redirect.py`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import fields

from xmem_slurm.doubts import Doubt
from xmem_slurm.profile import attention, ordering, reductions, workspaces
from xmem_slurm.profile.analyzer import Analysis, CpuBlock, analyze
from xmem_slurm.profile.recording import Recording, aten
from xmem_slurm.trace import Allocation, Event, Mark, Noted, Op, Process, Trace

Rule = Callable[[Analysis, Sequence[CpuBlock]], Sequence[CpuBlock]]

LARGEST_NUMBER_BYTES = 16
"""A complex128, the largest type of a single number."""

_LIBRARY_CALLS = aten(
    """
    mm addmm bmm baddbmm addmv mv dot mkldnn_convolution convolution_backward
    mkldnn_convolution_backward _slow_conv2d_forward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    """
)
"""Operators that are one call of a library on a GPU: cuBLAS, cuDNN, the fused attention kernels."""

_KERNELS = aten(
    """
    native_dropout native_dropout_backward native_batch_norm native_batch_norm_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data nll_loss_forward
    nll_loss_backward gelu gelu_backward silu silu_backward threshold_backward
    max_pool2d_with_indices max_pool2d_with_indices_backward embedding_dense_backward add add_ sub
    sub_ rsub mul mul_ div div_ pow pow_ where maximum minimum addcmul addcmul_ addcdiv addcdiv_
    lerp lerp_ eq ne lt le gt ge
    """
)
"""Operators that are one kernel on a GPU. They may copy an argument first that is not contiguous:
there as here."""


def only_device_blocks(_analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Leave out what would lie in host memory: data loaders, the batch before its copy, step
    counters, logs.
    """
    return [block for block in blocks if block.on_device]


def without_wrapped_numbers(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Leave out single numbers that an operator makes for itself: a GPU's kernels take them as
    arguments.

    Source: `wrapped_scalar_tensor` (aten/src/ATen/ScalarOps.h) makes them on the CPU, whatever the
    other operand.
    """
    return [
        block
        for block in blocks
        if block.size > LARGEST_NUMBER_BYTES
        or not _within_one_operator(analysis, block, lambda _name: True)
    ]


def without_kernel_temporaries(
    analysis: Analysis, blocks: Sequence[CpuBlock]
) -> Sequence[CpuBlock]:
    """Leave out what the CPU's implementation of one kernel allocates and frees.

    That is oneDNN's reorders, buffers for each thread, and copies in a common type (a GPU's kernels
    convert as they read; source: aten/src/ATen/TensorIterator.cpp, `compute_types`). What compound
    operators (matmul, einsum, the losses) allocate in between is the same on both.
    """

    def of_one_kernel(block: CpuBlock) -> bool:
        if _within_one_operator(analysis, block, lambda name: name in _LIBRARY_CALLS):
            return True
        copied = any(row.name == "aten::clone" for _, row in analysis.above(block.operator))
        return not copied and _within_one_operator(analysis, block, lambda name: name in _KERNELS)

    return [block for block in blocks if not of_one_kernel(block)]


def _within_one_operator(
    analysis: Analysis, block: CpuBlock, wanted: Callable[[str], bool]
) -> bool:
    """Whether an operator of a wanted name both made `block` and freed it."""
    if block.freed is None:
        return False
    return any(
        wanted(row.name) and block.freed <= row.last
        for _, row in analysis.above(block.operator)
        if row.name.startswith("aten::")
    )


RULES: Sequence[Rule] = (
    only_device_blocks,
    without_wrapped_numbers,
    without_kernel_temporaries,
    ordering.in_the_gpus_order,
    attention.output_in_the_gpus_layout,
    attention.attention_of_gpu,
    reductions.sums_over_rows,
    workspaces.matrix_products,
    workspaces.embedding_gradients,
    workspaces.convolutions,
)


def orchestrate(recording: Recording) -> Trace:
    """Turn a recording into the trace of a GPU process."""
    analysis = analyze(recording)
    blocks: Sequence[CpuBlock] = analysis.blocks
    for rule in RULES:
        blocks = rule(analysis, blocks)
    return _trace(analysis, sorted(blocks, key=lambda block: block.born))


def _trace(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Trace:
    """Number the blocks in the order of their allocation, as the allocator model wants them."""
    births = [(block.born, True, number) for number, block in enumerate(blocks)]
    ends = [
        (block.freed, False, number)
        for number, block in enumerate(blocks)
        if block.freed is not None
    ]
    events: list[Event] = []
    for _, is_birth, number in sorted(births + ends):
        if is_birth:
            events.append(Event(Op.ALLOC, number))
        else:
            events += [Event(Op.FREE_REQUESTED, number), Event(Op.FREE_COMPLETED, number)]
    return Trace(
        **{field.name: getattr(analysis.recording, field.name) for field in fields(Process)},
        allocations=[Allocation(block.size, 0, block.category) for block in blocks],
        events=events,
        marks=_marks(analysis, blocks),
        doubts=_doubts(analysis),
        recorded={},
    )


def _marks(analysis: Analysis, blocks: Sequence[CpuBlock]) -> list[Mark]:
    places = [("backward", first) for first, _ in analysis.backwards]
    places += [("backward_end", last) for _, last in analysis.backwards]
    places += [("step", last) for last in analysis.steps]
    births = [block.born for block in blocks]
    return [
        Mark(kind, bisect_left(births, place))
        for kind, place in sorted(places, key=lambda mark: mark[1])
    ]


def _doubts(analysis: Analysis) -> list[Noted]:
    """Say what no CPU run can show, and that this is one."""
    recording = analysis.recording
    why = "no CUDA build" if recording.cuda_version is None else "run on the CPU as asked"
    doubts = [
        Noted(Doubt.PROFILE_ENGINE, f"torch {recording.torch_version}: {why}"),
        *recording.made_up,
    ]
    doubts += recording.library_doubts or ()
    for doubt, detail, names in (
        _UNSEEN if recording.library_doubts is not None else (_UNASKED, *_UNSEEN)
    ):
        count = sum(1 for _ in analysis.operators(*names))
        if count:
            doubts.append(Noted(doubt, detail, count))
    return doubts


_UNASKED = (Doubt.CUDNN_PLAN, "convolution", workspaces.CONVOLUTIONS)
_UNSEEN = (
    (
        Doubt.CUDNN_RNN,
        "recurrent network",
        ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"),
    ),
    (Doubt.CUDNN_CTC, "CTC loss", ("aten::ctc_loss",)),
)
