"""Lets torch take the way that it takes on a GPU, where the CPU's way allocates other memory; part
of `cpu/redirect`.

What cannot be had by calling torch otherwise is left to the Orchestrator
(`xmem_slurm/profile/orchestrator.py`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Function, Tensor

ATTENTION_DROPOUT = "xmem::attention_dropout"
ATTENTION_LAYOUT = "xmem::attention_layout"

AUTOCAST_FLOAT32 = """
    cosh exp expm1 log log10 log2 log1p reciprocal rsqrt pow softplus layer_norm native_layer_norm
    group_norm cosine_similarity cosine_embedding_loss nll_loss cross_entropy kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
    binary_cross_entropy_with_logits dist cdist logsumexp prod softmax log_softmax cumprod cumsum
    sum norm
"""
"""Operators that CUDA's autocast runs in float32 and the CPU's does not: names in torch and
torch.nn.functional.

Source: AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, aten/src/ATen/autocast_mode.h, torch 2.4 to
2.15."""


class GpuWays:
    """Lets torch take the way that it takes on a GPU of this compute capability, by its `major`
    number.
    """

    def __init__(self, torch: ModuleType, major: int) -> None:
        self._torch, self._major = torch, major
        self._functional = torch.nn.functional

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def without_cudnn(self, _ask: Function, _owner: object) -> Callable[[Tensor], bool]:
        """A CUDA build would have it lay out recurrent weights."""
        return lambda _tensor: False

    def dropout(self, plain: Function, _owner: object) -> Function:
        """Dropout keeps a mask of one byte an element on a GPU, and noise of the input's own type
        on the CPU.

        Source: `is_fused_kernel_acceptable` in aten/src/ATen/native/Dropout.cpp.
        """
        torch = self._torch

        def dropout(
            input: Tensor,  # noqa: A002 - torch's own name
            p: float = 0.5,
            training: bool = True,
            inplace: bool = False,
        ) -> Tensor:
            if training and not inplace and 0 < p < 1 and input.numel():
                return torch.native_dropout(input, p, True)[0]
            return plain(input, p, training, inplace)

        return dropout

    def attention(self, attend: Function, _owner: object) -> Function:
        """Attention with dropout is one kernel on a GPU; the CPU has such a kernel for attention
        without dropout only.

        Source: `use_flash_attention_cpp` in aten/src/ATen/native/transformers/sdp_utils_cpp.cpp.
        """
        torch = self._torch
        major = self._major
        in_layout = _layout_of_efficient_attention(self._torch)

        def scaled_dot_product_attention(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Tensor | None = None,
            dropout_p: float = 0.0,
            *args: Any,
            **kwargs: Any,
        ) -> Tensor:
            named: Any = contextlib.nullcontext()
            if dropout_p:
                named = torch.autograd.profiler.record_function(ATTENTION_DROPOUT)
            with named:
                output = attend(query, key, value, attn_mask, 0.0, *args, **kwargs)
            half = output.dtype in (torch.float16, torch.bfloat16) and major >= 8
            return (
                output if output.dim() != 4 or (half and attn_mask is None) else in_layout(output)
            )

        return scaled_dot_product_attention

    def cross_entropy(self, plain: Function, _owner: object) -> Function:
        """CUDA's autocast lets a cross entropy of half precision keep its log_softmax so, and sums
        in float32.

        The CPU's casts the scores first. Source: `cross_entropy_loss` in
        aten/src/ATen/native/LossNLL.cpp asks log_softmax for the type of the scores, and nll_loss
        is in AT_FORALL_FP32, aten/src/ATen/autocast_mode.h, torch 2.4 to 2.15.
        """
        torch = self._torch
        functional = self._functional
        half = (self._torch.float16, self._torch.bfloat16)

        def cross_entropy(
            input: Tensor,  # noqa: A002 - torch's own name
            target: Tensor,
            weight: Tensor | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Tensor:
            of_classes = (
                not target.is_floating_point() and not args and not kwargs.get("label_smoothing")
            )
            if not of_classes or input.dtype not in half or not torch.is_autocast_enabled("cpu"):
                return plain(input, target, weight, *args, **kwargs)
            kwargs.pop("label_smoothing", None)
            with torch.autocast("cpu", enabled=False):
                scores = functional.log_softmax(input, 1 if input.dim() > 1 else 0)
                return functional.nll_loss(scores.float(), target, weight, **kwargs)

        return cross_entropy

    def foreach(self, _devices: Function, _owner: object) -> Callable[[], list[str]]:
        """Optimizers and gradient clipping take all tensors at once on a GPU, and one after the
        other on the CPU.

        Source: `_get_foreach_kernels_supported_devices` in torch/utils/_foreach_utils.py.
        """
        return lambda: ["cuda", "cpu"]


def _layout_of_efficient_attention(torch: ModuleType) -> Callable[[Tensor], Tensor]:
    """Return what gives attention's output the strides that the memory-efficient kernel gives it:
    queries before heads.

    The CPU's output has the strides of the query; who reshapes it copies it on the one and not on
    the other. Source: `_scaled_dot_product_efficient_attention_cuda` and its backward in
    aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu, torch 2.4 to
    2.15.
    """

    def by_queries(tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)

    base: Any = torch.autograd.Function

    class Layout(base):
        @staticmethod
        def forward(_context: Any, output: Tensor) -> Tensor:
            with torch.autograd.profiler.record_function(ATTENTION_LAYOUT):
                return by_queries(output).view_as(output)

        @staticmethod
        def backward(_context: Any, gradient: Tensor) -> Tensor:
            return by_queries(gradient)

    return Layout.apply
