"""What annotations call the things of torch's, of which mypy knows nothing: torch is the job's.

No job imports this: it is for those who read, and for mypy.
"""

from contextlib import AbstractContextManager
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Protocol, Set, Tuple

Tensor = Any
"""A torch.Tensor, or what stands for one (a subclass, a DTensor)."""
Storage = Any
"""A torch.UntypedStorage."""
Module = Any
"""A torch.nn.Module."""
Optimizer = Any
"""A torch.optim.Optimizer."""
ProcessGroup = Any
"""A torch.distributed.ProcessGroup."""
Dtype = Any
"""A torch.dtype."""
Device = Any
"""A torch.device."""
Size = Any
"""A torch.Size."""

Function = Callable[..., Any]
"""What is called with whatever its caller gives: torch's and the job's own functions, and what
takes their place."""
Environ = Mapping[str, str]
"""Variables of the environment, by name."""

Reference = Callable[[], Any]
"""A weak reference: None where what it was to is gone."""
LoopKind = Tuple[int, Optional[int]]
"""A kind of loop over data: id of the data set, and how many batches there are, where known."""
HistoryEntry = Tuple[str, int, int, int]
"""(action, address, size, stream) of an event, as a trace has it."""
ServedNote = Tuple[str, int, int, int, int]
"""The same of an allocation, with the number of its site, or of a free that is asked for, with how
many of both follow before it is completed: 0 unless it waits for another stream."""
AllocatedBlocks = Dict[int, Tuple[int, int, bool]]
"""By address: (size, stream, whether it waits for other streams to be freed)."""
DevicePeaks = Dict[int, Dict[str, int]]
"""By device: bytes of each peak that torch's statistics have."""


class Note(Protocol):
    """Notes a doubt, as `doubts.note` does."""

    def __call__(
        self, code: str, detail: str, count: int = 1, share: Optional[float] = None
    ) -> None: ...


class HostWatcher(Protocol):
    """What is told of host memory, as those below see it: a `HostMemory`."""

    def look(self) -> None: ...

    def leaves_out(self, begin: int, size: int, in_file: bool = False) -> None: ...


class Doubting(Protocol):
    """Says, when it is asked, what is doubted by then."""

    def doubt(self, note: Note) -> None: ...


class Watcher(Protocol):
    """What watches a process, as the ways in and out of that know it: a `ProbeEngine`."""

    @property
    def says(self) -> Callable[[str], None]: ...

    def knows_torch(self) -> bool: ...

    def before_torch(self, folder: str) -> None: ...

    def torch_failed(self, error: BaseException) -> None: ...

    def after_torch(self, torch: Any) -> None: ...

    def asked_to_exit(self, error: Optional[str]) -> None: ...

    def finish(self, state: str, error: Optional[str] = None) -> None: ...

    def in_child(self) -> None: ...


class CourseWatcher(Protocol):
    """What the course of a script tells of batches and of what is to be added: a `Recorder`."""

    @property
    def says(self) -> Callable[[str], None]: ...

    def mark(self, kind: str) -> None: ...

    def measures(self, *, shown: bool = True) -> None: ...

    def fetching(self) -> bool: ...

    def drawn_by(self, workers: List[int], number: int, batch_bytes: int) -> None: ...

    def allocated(self) -> int: ...

    def peak(self) -> int: ...

    def add(self, size: int) -> Tuple[int, int, int]: ...

    def drop(self, added: Tuple[int, int, int]) -> None: ...


class CallsWatcher(Protocol):
    """What those who skip calls ask of the process, and tell it: a `Recorder`."""

    loops: int

    @property
    def interval(self) -> int: ...

    def level(self) -> int: ...

    def reads_unexplained(self) -> int: ...

    def steps_made(self) -> int: ...

    def counts(self, kind: object) -> bool: ...

    def again(self, last: Optional[int], evaluates: bool, *, waits: bool = False) -> int: ...

    def measures(self, *, shown: bool = True) -> None: ...


class HasValues(Protocol):
    """Has the values of tensors, as far as they are known: `values/known_values`."""

    table: Any

    @property
    def reads(self) -> int: ...

    def of(self, tensor: Tensor) -> Optional[Tensor]: ...

    def origins(self) -> AbstractContextManager[Set[int]]: ...

    def fingerprint(self, tensor: Tensor) -> Optional[object]: ...

    def forget(self, arguments: Iterable[object]) -> None: ...
