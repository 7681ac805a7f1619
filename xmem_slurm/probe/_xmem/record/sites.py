"""Which line of the script asked for an allocation of torch's caching allocator, in which module?

torch tells of allocations through its GPU trace (torch/cuda/_gpu_trace.py, made for CUDA's
sanitizer), in the thread that allocates. The line is the innermost one outside of torch and of
Python's own library, and has those that called it behind it; the module is the innermost one that
is being called. Autograd's threads run no Python: there the backward node at hand gives the
sequence number of its operator in the forward pass, and what was noted for that operator holds.

This is for reports only (XMEM_SITES). torch's hook also tells of each tensor that is freed, by a
call of Python in which an exception is lost that is just on its way: `try: (a * 2)[5]` then ends in
a SystemError, or in a crash. A run that stops is made again (`engines`) with the Python frames that
torch's memory history can note of each allocation: those have no such fault, and know neither
modules nor what autograd's threads are at.

Known limitations: an operator that allocates nothing in the forward pass has no line, only the
module that its neighbours have in common. Of models that run in several threads at once
(nn.DataParallel) backward nodes are unknown.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import os
import sys
import sysconfig
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType, ModuleType

    from _xmem.annotations import Module
    from _xmem.repeat.journal import Journal

NOWHERE = 0
"""The number of the site of which nothing is known."""

MOST_NOTED = 200_000
"""Allocations with a site: each takes some 10 us, and of a run that makes more the later ones are
from nowhere."""
LATE_LOOKS, LATE_SECONDS = 20, 0.005
"""torch notes an allocation before its hook is called, which waits for the GIL: who reads the notes
in another thread meanwhile waits for it, so many times so long."""
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""What DDP, torch.compile and FSDP call the one module that they are around."""
_NOT_THE_SCRIPT = {"torch", "triton", "sitecustomize"}
_PROBE = os.path.dirname(os.path.dirname(__file__))
_LIBRARY = sysconfig.get_paths()["stdlib"]


class FoundSite(NamedTuple):
    """A site; in place of a function it may have a backward node."""

    file: str
    line: int
    function: str
    module: str


class _NamedModule(NamedTuple):
    """A module, and its name within the outermost one that was called."""

    reference: Callable[[], Module | None]
    name: str


class Sites:
    """The sites of one process, and which allocation came from which."""

    _library: dict[int, CodeType]
    _script: dict[int, CodeType]

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.found_sites: list[FoundSite] = [FoundSite("", 0, "", "")]
        """By its number."""
        self.called_from = [NOWHERE]
        """For each site the number of the one that called it; of a backward node, its
        operator's."""
        self._lock = threading.Lock()
        self._numbers: dict[Any, int] = {}  # what a site is known by: its number
        # id of a code: the code, kept so that nothing else has that id
        self._library, self._script = {}, {}
        # by the id of a module
        self._modules: dict[int, _NamedModule] = {}
        self._noted = 0
        # of torch's frames: whether a file is the script's, or that of a package that it uses
        self._files: dict[str, bool] = {}
        # address: numbers of the sites that it was given to, in order
        self._numbers_by_address: dict[int, list[int]] = {}
        # thread: ([sequence number], [number of the site]), in order
        self._forward: dict[int, tuple[list[int], list[int]]] = {}
        self._caller = threading.get_ident()
        self._callers = {self._caller}
        self._call: CodeType | None = None
        self._node: Any = None
        self._sequence: Any = None

    def watch(self, torch: ModuleType) -> None:
        """Begin. Of a torch that cannot tell every allocation is from nowhere."""
        with contextlib.suppress(ImportError, AttributeError):
            trace = importlib.import_module("torch.cuda._gpu_trace")
            self._call = torch.nn.Module._wrapped_call_impl.__code__
            self._node = torch._C._current_autograd_node
            self._sequence = torch._C._autograd._get_sequence_nr
            trace.register_callback_for_memory_allocation(self._allocated)
            torch._C._activate_gpu_trace()

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Within this, backward nodes are those of operators that this thread ran."""
        before, self._caller = self._caller, threading.get_ident()
        self._callers.add(self._caller)
        try:
            yield
        finally:
            self._caller = before

    def forget(self) -> None:
        """What was allocated so far is not asked for any more."""
        self._numbers_by_address.clear()

    def of(self, history: list[dict[str, Any]]) -> list[int]:
        """Return the number of the site of each allocation in one device's history since
        `forget`.
        """
        allocations = [event for event in history if event["action"] == "alloc"]
        if self._call is None:
            return [self._of_frames(event.get("frames", ())) for event in allocations]
        numbers = self._told(allocations)
        for _ in range(LATE_LOOKS):
            if None not in numbers or self._noted >= MOST_NOTED:
                break
            time.sleep(LATE_SECONDS)  # lets go of the GIL
            numbers = self._told(allocations)
        return [NOWHERE if number is None else number for number in numbers]

    def _told(self, allocations: list[dict[str, Any]]) -> list[int | None]:
        """Return the number of the site of each that torch's hook told of."""
        numbers_by_address = {
            address: iter(numbers) for address, numbers in list(self._numbers_by_address.items())
        }
        nothing: Iterator[int] = iter(())
        return [next(numbers_by_address.get(event["addr"], nothing), None) for event in allocations]

    def _of_frames(self, frames: Sequence[dict[str, Any]]) -> int:
        """Return the number of the site of an allocation by torch's own notes of its stack,
        innermost first.
        """
        caller = NOWHERE
        for frame in reversed(frames):
            file = frame["filename"]
            is_own = self._files.get(file)
            if is_own is None:
                is_own = self._files[file] = bool(file) and not (
                    _of_python(file) or file.startswith(_folders())
                )
            if is_own:
                site = file, frame["line"], frame["name"], ""
                caller = self._numbers.get((caller, *site)) or self._new(
                    (caller, *site), site, caller
                )
        return caller

    def columns(self, of: list[int]) -> dict[str, Any]:
        """Return `sites` of a trace, for allocations with these numbers of sites."""
        with self._lock:
            return {
                "found": list(self.found_sites),
                "called_from": list(self.called_from),
                "of": of,
            }

    def names(self) -> dict[int, str]:
        """Return the names of the parameters and buffers of modules that were called so far, by the
        tensors' ids.
        """
        names_by_id: dict[int, str] = {}
        for reference, name in self._modules.values():
            module = reference()
            for key, tensor in (
                () if module is None else (*module._parameters.items(), *module._buffers.items())
            ):
                names_by_id.setdefault(id(tensor), "%s.%s" % (name, key))
        return names_by_id

    def _allocated(self, address: int) -> None:
        if self._noted < MOST_NOTED:
            number = NOWHERE  # of what stands for a skipped call, whose events have their own sites
            if not self._journal.gives:
                self._noted += 1
                number = self._site(sys._getframe(1))
            self._numbers_by_address.setdefault(address, []).append(number)

    def _site(self, frame: FrameType | None) -> int:
        """Return the number of the site that `frame` was called from. This runs for every
        allocation: it is quick.
        """
        call = self._call
        library = self._library
        script = self._script
        module = None
        stack = []
        places = []
        while frame is not None:
            code = frame.f_code
            if id(code) not in library:
                if code is call:
                    module = frame.f_locals["self"] if module is None else module
                elif id(code) in script or self._is_the_scripts(frame):
                    stack.append(frame)
                    places.append((id(code), frame.f_lasti))
            frame = frame.f_back
        if not stack:
            return self._of_backward_node()
        name = "" if module is None else self._name(module, stack[0])
        key = (*places, name)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new_stack(stack, places, name)
        sequence = self._sequence()
        if sequence:
            sequences, numbers = self._forward.setdefault(threading.get_ident(), ([], []))
            # what follows a node without having one is not its own
            if not sequences or sequences[-1] != sequence:
                numbers.append(number)
                sequences.append(sequence)
        return number

    def _new_stack(self, stack: list[FrameType], places: list[tuple[int, int]], module: str) -> int:
        """Return the number of the innermost of these frames; `module` is called there."""
        caller = NOWHERE
        for depth in range(len(stack) - 1, -1, -1):
            code, name = stack[depth].f_code, "" if depth else module
            site = code.co_filename, stack[depth].f_lineno, code.co_name, name
            caller = self._new((caller, *places[depth], name), site, caller)
        return caller

    def _of_backward_node(self) -> int:
        """Return the number of the site of the backward node at hand: that of its operator in the
        forward pass.
        """
        node = self._node()
        if node is None:
            return NOWHERE
        operator, module = NOWHERE, ""
        sequences, numbers = self._forward.get(self._caller, ((), ()))
        sequence = node._sequence_nr() + 1  # a node takes its number before its operator allocates
        at = bisect.bisect_left(sequences, sequence)
        if at < len(sequences) and not self._forward.keys() - self._callers - {
            threading.get_ident()
        }:
            if sequences[at] == sequence:
                operator = numbers[at]
            elif at > 0:
                module = _common(
                    self.found_sites[numbers[at - 1]].module, self.found_sites[numbers[at]].module
                )
        key = node.name(), operator, module
        number = self._numbers.get(key)
        if number is None:
            file, line, _, name = self.found_sites[operator]
            number = self._new(key, (file, line, node.name(), name or module), operator)
        return number

    def _new(self, key: tuple[Any, ...], site: tuple[str, int, str, str], caller: int) -> int:
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.found_sites)
                self.found_sites.append(FoundSite(*site))
                self.called_from.append(caller)
        return number

    def _name(self, module: Module, frame: FrameType | None) -> str:
        """Return a module's name within the outermost one that is being called, whose own name is
        its class.
        """
        entry = self._modules.get(id(module))
        if entry is None or entry.reference() is not module:
            entry = self._modules[id(module)] = _NamedModule(
                weakref.ref(module), type(module).__name__
            )
            outermost = module
            while frame is not None:
                if frame.f_code is self._call:
                    outermost = frame.f_locals["self"]
                frame = frame.f_back
            with contextlib.suppress(Exception):  # a module that is half built
                for path, inner in outermost.named_modules():
                    kept = [part for part in path.split(".") if part not in _WRAPPERS]
                    self._modules[id(inner)] = _NamedModule(
                        weakref.ref(inner), ".".join(kept) or type(inner).__name__
                    )
            entry = self._modules[id(module)]
        return entry.name

    def _is_the_scripts(self, frame: FrameType) -> bool:
        """Whether a code that was not met before is the script's, or that of a package that it
        uses.
        """
        code = frame.f_code
        package, file = str(frame.f_globals.get("__name__")).partition(".")[0], code.co_filename
        # what `python -c` runs is the script
        generated = file.startswith("<") and package != "__main__"
        is_own = not (
            generated
            or _of_python(file)
            or package in _NOT_THE_SCRIPT
            or package.startswith("_xmem")
        )
        (self._script if is_own else self._library)[id(code)] = code
        return is_own


def _folders() -> tuple[str, ...]:
    """Return where the code is that is not the script's."""
    files = [
        sys.modules[name].__file__ for name in sorted({"torch", "triton"} & sys.modules.keys())
    ]
    return (_PROBE, *(os.path.dirname(file) for file in files if file))


def _of_python(file: str) -> bool:
    return file.startswith(_LIBRARY) and "-packages" not in file


def _common(one: str, another: str) -> str:
    """Return the name of the innermost module that holds both."""
    parts, other_parts = one.split("."), another.split(".")
    while other_parts[: len(parts)] != parts:
        parts.pop()
    return ".".join(parts)
