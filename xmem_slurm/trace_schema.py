"""What may stand in the file of a trace, or of a profile? Whatever else does makes it none.

The meaning of the names is told in `trace` and in `profile.recording`, for whom these are checked:
that numbers are numbers and in a range that memory has, and that text has nothing in it that a
terminal obeys. What `trace` declares as it is in the file has its form there; here is the rest.
"""

import functools
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, FailFast, Field, TypeAdapter, ValidationError

from xmem_slurm.checked import Address, Count, Large, Row, Seconds, Size, Text, plain
from xmem_slurm.doubts import Doubt

Counts = Annotated[list[Count], FailFast()]
Addresses = Annotated[list[Address], FailFast()]
Known = Annotated[Doubt, BeforeValidator(Doubt.of)]


class DoubtForm(BaseModel):  # noqa: D101 - as told above
    code: Known
    detail: Text
    count: Count
    share: Annotated[float, Field(ge=0, le=1e6)] | None = None


class _EventsForm(BaseModel):
    action: Annotated[list[str], FailFast()]
    address: Addresses
    size: Counts
    stream: Addresses


class _MarkForm(BaseModel):
    kind: Text
    allocations: Count


class _TagForm(BaseModel):
    category: Literal["PARAM", "BUFFER", "GRAD", "ACT", "TEMP", "OPT", "OTH"]
    allocations: Count
    addresses: Addresses
    names: list[Text] = []


class _SitesForm(BaseModel):
    found: list[tuple[Text, Count, Text, Text]] = []
    called_from: Counts = []
    of: Counts = []


class _WorkForm(BaseModel):
    launches: Count
    backwards: Count
    allocated: Count = 0
    rows: list[tuple[Text, Text, Large, Large, Large, Large, Count]] = []


class TraceFile(BaseModel):
    """Of the file of a trace, what is given its meaning by `trace_file`."""

    events: _EventsForm
    marks: list[_MarkForm]
    tags: list[_TagForm]
    doubts: list[DoubtForm]
    bounds: list[tuple[Count, Count]] = []
    work: _WorkForm | None = None
    sites: _SitesForm = _SitesForm()


_Tensor = tuple[Address, list[Count], Text]
_Memory = tuple[Literal["m"], Row, Address, Size]
_Operator = (
    tuple[Literal["o"], Row, Text, list[_Tensor]]
    | tuple[Literal["o"], Row, Text, list[_Tensor], list[Count]]
)


class _TagOfScopeForm(BaseModel):
    category: Text
    addresses: Addresses


class ProfileFile(BaseModel):
    """Of the file of a profile, what `profile.recording` gives its meaning."""

    rows: Annotated[list[_Memory | _Operator], FailFast()]
    tags: list[_TagOfScopeForm]
    seconds: Seconds
    peak_resident_bytes: Count
    library_doubts: list[DoubtForm] | None = None
    made_up: list[DoubtForm] | None = None


_Form = TypeVar("_Form")


def checked(raw: Any, form: type[_Form]) -> _Form:
    """Return what was read as a value of this form: a model, a dataclass, a type of `untrusted`.

    Raises:
        ValueError: it is none; says where, in words of ours.
    """
    try:
        return _adapter(form).validate_python(raw)  # type: ignore[no-any-return,arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(
            plain(f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg'][:100]}")
        ) from None


@functools.cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
