"""What annotations call the things of torch's, of which mypy knows nothing: torch is the job's.

No job imports this: it is for those who read, and for mypy.
"""

from contextlib import AbstractContextManager
from typing import Any, Callable, Iterable, Mapping, Optional, Protocol, Set

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


class Note(Protocol):
    """Notes a doubt, as `doubts.note` does."""

    def __call__(
        self, code: str, detail: str, count: int = 1, share: Optional[float] = None
    ) -> None: ...


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


class HasValues(Protocol):
    """Has the values of tensors, as far as they are known: `values/known_values`."""

    table: Any

    @property
    def reads(self) -> int: ...

    def of(self, tensor: Tensor) -> Optional[Tensor]: ...

    def origins(self) -> AbstractContextManager[Set[int]]: ...

    def fingerprint(self, tensor: Tensor) -> Optional[object]: ...

    def forget(self, arguments: Iterable[object]) -> None: ...
