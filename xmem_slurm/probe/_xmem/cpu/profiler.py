"""Runs a few training steps on the CPU under torch.profiler, and writes what it saw (form:
profile/recording.py).

The counterpart of `record/recorder` where torch is no CUDA build, or where the job's memory depends
on values: kernels really run. It begins when the script first uses the GPU, and ends the process
after `PROFILED_STEPS` optimizer steps.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from typing import TYPE_CHECKING, Any

from _xmem import patches
from _xmem.cpu.as_gpu import GpuWays
from _xmem.cpu.cuda import SiteGpu
from _xmem.cpu.guard import LEAST_STEPS, Guard
from _xmem.cpu.redirect import Redirect
from _xmem.cpu.workspaces import Workspaces
from _xmem.engine import ProbeEngine
from _xmem.process import alive, description, ends, stand_ins
from _xmem.ranks import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from _xmem.annotations import Environ, Function, Module, Optimizer
    from _xmem.process.times import Times

SCHEMA_VERSION = 1
PROFILED_STEPS = 3
"""The first step lacks the optimizer's state, the second is the first whole one, the third frees
what it left."""

_BACKWARD = "xmem::backward"
_TAG = "xmem::tag:"
_MODULE = "nn.Module: "


class Profiler(ProbeEngine):
    """One for each process that imports torch. Where its budget is limited, it keeps to that."""

    table = patches.CPU

    def __init__(self, environ: Environ, times: Times) -> None:
        self._redirect: Redirect = None  # type: ignore[assignment] # until torch is there
        super().__init__(environ, times)

    def _begin(self) -> None:
        super()._begin()
        self._profile: Any = None
        self._started: float | None = None
        self._rounds = 0
        self._tags: list[dict[str, Any]] = []
        self._rows: list[list[Any]] = []
        self._library_doubts: list[dict[str, Any]] | None = None
        self._scopes: list[tuple[Module, Any]] = []
        self._names: dict[int, str] = {}
        memory = int(self._environ.get("XMEM_PROFILE_MEMORY_BYTES", "0")) or None
        self._guard = Guard(self._budget, memory, self.give_up)

    # -- around `import torch` ---------------------------------------------------------------------

    def before_torch(self, folder: str) -> None:
        """A CUDA build loads its CUDA libraries, which a login node need not have: the stand-ins
        will do.

        Nothing runs on them until the steps are over.
        """
        # transformers 5 loads weights onto the GPU from threads, which neither redirection nor
        # profiler follow.
        os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
        self._build = stand_ins.torch_build(folder)
        if self._build.cuda is not None:
            try:
                self._map_stand_ins(folder)
            except Exception as error:
                self.give_up(str(error))
        super().before_torch(folder)

    def _parts(self) -> dict[str, Any]:
        torch, environ = self._torch, self._environ
        self._redirect = Redirect(torch, self._start)
        major = int(environ["XMEM_DEVICE_CAPABILITY"].partition(".")[0])
        return {
            "redirect": self._redirect,
            "lstm": self._redirect,
            "gpu": SiteGpu(torch, environ),
            "ways": GpuWays(torch, major),
        }

    def _hooked(self) -> None:
        self._redirect.begin("lstm" in self._away)

    def module_entered(self, register: Function, _owner: object) -> Function:
        """Have torch tell of modules that are called."""
        register(self._enter_module)
        return register

    def module_left(self, register: Function, _owner: object) -> Function:
        """Have torch tell of modules that return."""
        register(self._leave_module, always_call=True)
        return register

    def _start(self) -> None:
        # torch.profiler wraps it in schedules, and imports the compiler
        profiler = self._torch.autograd.profiler
        self._profile = profiler.profile(use_kineto=True, profile_memory=True, record_shapes=True)
        self._profile.__enter__()
        self._started = time.monotonic()
        self._guard.begin(self._torch)

    # -- while the job runs ------------------------------------------------------------------------

    def _enter_module(self, module: Module, _inputs: object) -> None:
        if not self._scopes:
            for name, part in module.named_modules():
                self._names.setdefault(id(part), name or type(module).__name__)
            self._guard.forward()
        scope = self._torch.autograd.profiler.record_function(
            _MODULE + self._names.get(id(module), type(module).__name__)
        )
        scope.__enter__()
        self._scopes.append((module, scope))

    def _leave_module(self, module: Module, _inputs: object, _output: object) -> None:
        if self._scopes and self._scopes[-1][0] is module:
            self._scopes.pop()[1].__exit__(None, None, None)

    @contextlib.contextmanager
    def _within_backward(self) -> Iterator[None]:
        self._guard.backward()
        with self._torch.autograd.profiler.record_function(_BACKWARD):
            yield

    def _after_step(
        self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> None:
        """Tag what the optimizer holds; end where there were steps enough, or there is no time for
        one more.
        """
        if self._profile is None or self._finished:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._tag("PARAM", parameters)
        self._tag("GRAD", [p.grad for p in parameters if p.grad is not None])
        self._tag("OPT", list(optimizer.state.values()))
        if self._steps.number == 0:
            self._tag_modules()
        self._steps.stepped(optimizer, False, time.monotonic())
        self.says("step %d on the CPU" % self._steps.number)
        if self._steps.fewest() == self._rounds or not self._budget.is_limited():
            return
        self._rounds = self._steps.fewest()
        time_for_more = self._guard.stepped()
        if self._rounds >= PROFILED_STEPS:
            self.leave("steady")
        if self._rounds >= LEAST_STEPS and not time_for_more:
            self.leave("budget")

    def _tag(self, category: str, values: Iterable[Any]) -> None:
        addresses = set()
        for leaf in description.leaves(values):
            if isinstance(leaf, self._torch.Tensor):
                with contextlib.suppress(Exception):  # a tensor without storage of its own
                    addresses.add(leaf.untyped_storage().data_ptr())
        with self._torch.autograd.profiler.record_function("%s%d" % (_TAG, len(self._tags))):
            self._tags.append({"category": category, "addresses": sorted(addresses)})

    def _tag_modules(self) -> None:
        modules = alive.instances(self._torch.nn.Module)
        with contextlib.suppress(Exception):  # a module that is half built
            self._tag("PARAM", [p for m in modules for p in m._parameters.values()])
            self._tag("BUFFER", [b for m in modules for b in m._buffers.values()])

    # -- the end of a process ----------------------------------------------------------------------

    def in_child(self) -> None:
        """Forget the parent's run: a forked child has no profiler of its own."""
        self._begin()
        self._finished = True

    def finish(self, state: str, error: str | None = None) -> None:
        """Stop the profiler and write what it saw."""
        with self._lock:
            if self._is_over():
                return
            late = self._guard.late() if state == "signal" else None
            self._error = error or ends.uncaught() or self._exit or late
            self._finished = True
            self._guard.end()
            # to read it out takes longer than there is, and for nothing
            if self._profile is not None and late is None:
                for _, scope in reversed(self._scopes):
                    scope.__exit__(None, None, None)
                if self._steps.number == 0:
                    self._tag_modules()
                profile = self._torch.autograd._disable_profiler()
                # there is no time left for questions
                runtime = None if state == "signal" else self._runtime
                workspaces = Workspaces(self._torch, runtime, profile)
                self._rows = _rows(profile.experimental_event_tree(), workspaces.of)
                self._library_doubts = workspaces.doubts()
            self.write(state)

    def write(self, state: str) -> None:
        """Write what was seen under `state`."""
        settings = os.environ.get(
            "PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        )
        recording = {
            **self._described(state, settings, rank.rank_and_size()),
            "schema_version": SCHEMA_VERSION,
            "rows": self._rows,
            "tags": self._tags,
            "library_doubts": self._library_doubts,
            "made_up": self._doubts([]),
            "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "seconds": 0.0 if self._started is None else time.monotonic() - self._started,
        }
        description.write(self._file + ".profile.gz", recording)


def _rows(roots: Iterable[Any], workspaces: Callable[[Any], list[int]]) -> list[list[Any]]:
    """Flatten the profiler's tree, by time: ["o", parent, name, [input], [bytes]] and ["m", parent,
    address, bytes].

    `parent` is a row's number or -1; an input is [address, shape, type]; a free has negative bytes.
    `workspaces` says what an operator takes on a GPU beside its results.
    """
    rows = []
    stack = [
        (root, -1) for root in sorted(roots, key=lambda event: event.start_time_ns, reverse=True)
    ]
    while stack:
        event, parent = stack.pop()
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            if str(fields.device) == "cpu":
                rows.append(["m", parent, fields.ptr, fields.alloc_size])
            continue
        if hasattr(fields, "inputs"):
            inputs = filter(_is_tensor, description.leaves(fields.inputs))
            rows.append(["o", parent, event.name, list(map(_tensor, inputs)), workspaces(event)])
            parent = len(rows) - 1
        stack.extend((child, parent) for child in reversed(event.children))
    return rows


def _is_tensor(metadata: Any) -> bool:
    return hasattr(metadata, "storage_data_ptr")


def _tensor(metadata: Any) -> list[Any]:
    return [metadata.storage_data_ptr or 0, list(metadata.sizes), str(metadata.dtype)[6:]]
