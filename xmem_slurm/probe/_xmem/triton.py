"""Triton's kernels, those that torch.compile writes and a job's own, are neither compiled nor
launched.

All before that is real: tracing, inductor's plan of its buffers, the code around the kernels that
allocates them, and benchmarks of kernels against each other. Triton translates a kernel to its own
first representation, where mistakes show; that is where its stand-in ends, with an empty binary.
Real compilation takes minutes on a login node, and what it adds decides over little memory
(docs/limits.md).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ctypes import CDLL
    from types import ModuleType

    from _xmem.annotations import Function, HasValues, Note

_METADATA = {
    "name": "kernel",
    "shared": 0,
    "tmem_size": 0,
    "global_scratch_size": 0,
    "global_scratch_align": 1,
    "profile_scratch_size": 0,
    "profile_scratch_align": 1,
}
"""What compiling would say of a kernel (triton/backends/nvidia/compiler.py, 3.0 to 3.7); the rest
are its options."""
_REGISTERS, _SPILLED, _THREADS = 32, 0, 1024
"""What loading would: as the stand-in libraries say of every kernel."""
_NO_ARGUMENTS = (None,) * 11  # of cuLaunchKernel: the stand-in asks for the stream alone
_ATTRIBUTES = {
    "max_shared_mem": 97,
    "max_num_regs": 12,
    "multiprocessor_count": 16,
    "warpSize": 10,
    "sm_clock_rate": 13,
    "mem_clock_rate": 36,
    "mem_bus_width": 37,
}
"""What Triton asks of a device, and CUDA's CUdevice_attribute for it
(triton/backends/nvidia/driver.c, cuda.h)."""


class Triton:
    """Stands in for Triton in one process, where `values` has the values of tensors that kernels
    are given.
    """

    def __init__(self, torch: ModuleType, values: HasValues) -> None:
        self._torch, self._known_values = torch, values
        self._eager = 0  # graphs that torch.compile did not compile, as there is no Triton
        # there is nothing to do for processes that compile
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

    def backends(self, backends: dict[str, Any], _module: object) -> dict[str, Any]:
        """Take the place of Triton's compiler and driver for NVIDIA's GPUs."""
        theirs = backends.get("nvidia")
        if theirs is not None:
            stand_in = type(theirs)(
                compiler=_compiler(theirs.compiler),
                driver=_driver(theirs.driver, self._known_values),
            )
            backends["nvidia"] = stand_in
        return backends

    def eager(self, compile_graph: Function, _wrapper: object) -> Function:
        """Run what torch.compile would give to Triton as it is where there is none, and raises
        without.
        """
        torch = self._torch
        if "triton.backends" in sys.modules or importlib.util.find_spec("triton"):
            return compile_graph

        def run_as_it_is(wrapper: Any, graph: Any, inputs: Iterable[Any]) -> Any:
            tensors = [
                *graph.parameters(),
                *(value for value in inputs if isinstance(value, torch.Tensor)),
            ]
            if not any(tensor.is_cuda for tensor in tensors):
                return compile_graph(wrapper, graph, inputs)
            self._eager += 1
            return graph.forward

        return run_as_it_is

    def untuned(self, autotune: Function, _tuner: type) -> Function:
        """Around coordinate descent: here all kernels take equally long, so the first configuration
        stays the best.

        It is measured, on copies of what the kernel writes to, but none of its neighbours is
        compiled.
        """

        @functools.wraps(autotune)
        def first(tuner: Any, function: Function, config: Any, timing: float | None = None) -> Any:
            if timing is None:
                tuner.call_func(function, config)
            return config

        return first

    def padded(self, _skips: object, _module: object) -> bool:
        """Have odd multiplications padded, whatever the times are, as in torch's own tests: here
        both take no time.

        A GPU does so where it is faster by a tenth. It is the larger need: GPT-2 with its 50,257
        words takes 7984 MiB padded, as on an H200 (benchmarks/data/ground-truth,
        gpt2_8x1024_bf16_AdamW_compiled), and 7144 if not.
        """
        return True

    def doubt(self, note: Note) -> None:
        """Say what was not compiled, and what was chosen by measuring nothing."""
        if self._eager:
            note("no-triton", "graphs that torch.compile could not compile", self._eager)
        utils = sys.modules.get("torch._dynamo.utils")
        counters = getattr(utils, "counters", None)  # none while another thread is importing it
        chosen = counters["inductor"]["select_algorithm_autotune"] if counters else 0
        if chosen:
            note("autotuned", "choices between kernels (max-autotune)", chosen)


def _compiler(theirs: Any) -> type:
    class StandInCompiler(theirs):
        def add_stages(self, stages: dict[str, Function], *args: Any) -> None:
            super().add_stages(stages, *args)
            for name in list(stages)[1:]:
                del stages[name]
            stages["cubin"] = _no_code

    return StandInCompiler


def _no_code(_module: object, metadata: dict[str, Any]) -> bytes:
    metadata.update(_METADATA)
    return b"no code"


def _driver(theirs: Any, values: HasValues) -> type:
    class StandInDriver(theirs):
        def __init__(self) -> None:
            super(theirs, self).__init__()  # not theirs, which compiles C against libcuda
            self.utils = _Utils()
            self.launcher_cls = functools.partial(_Launcher, values)

    return StandInDriver


class _Utils:
    """What Triton's driver does through libcuda; what is not here has no result that matters."""

    def __getattr__(self, _name: str) -> Function:
        return lambda *_args, **_kwargs: None

    def get_device_properties(self, device: int) -> dict[str, int]:
        libcuda, value = _libcuda(), ctypes.c_int()
        properties = {}
        for name, attribute in _ATTRIBUTES.items():
            libcuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            properties[name] = value.value
        return properties

    def load_binary(self, *_args: Any) -> tuple[int, ...]:
        from triton.compiler.compiler import CompiledKernel

        loaded = (1, 1, _REGISTERS, _SPILLED)  # module, function
        # since 3.4
        with_threads = "n_max_threads" in CompiledKernel._init_handles.__code__.co_names
        return (*loaded, _THREADS) if with_threads else loaded


class _Launcher:
    """Launches a kernel of the stand-in driver, where launching does nothing but make memory's
    contents unknown.

    Which of its tensors a kernel only reads is not asked: all may have been written to.
    """

    def __init__(self, values: HasValues, _source: object, _metadata: object) -> None:
        self._known_values = values
        self._launch = _libcuda().cuLaunchKernel

    def __call__(self, *args: Any, **_kwargs: Any) -> None:
        self._known_values.forget(args)
        self._launch(*_NO_ARGUMENTS)


def _libcuda() -> CDLL:
    return ctypes.CDLL("libcuda.so.1")  # mapped, or beside what is: by its name it is the stand-in
