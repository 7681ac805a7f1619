"""What may stand in the file of a trace, or of a profile? Whatever else does makes it none.

The meaning of the names is told in `trace` and in `profile.recording`, for whom these are checked:
that numbers are numbers and in a range that memory has, and that text has nothing in it that a
terminal obeys.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, FailFast, Field, ValidationError

from xmem_slurm.doubts import Doubt
from xmem_slurm.untrusted import plain

_MOST = 1 << 50
"""A pebibyte; also more steps, lines and ranks than there are."""

Text = Annotated[
    str,
    Field(max_length=100_000),
    BeforeValidator(lambda value: plain(value) if isinstance(value, str) else value),
]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Large = Annotated[int, Field(ge=0, lt=1 << 63)]
Size = Annotated[int, Field(ge=-_MOST, le=_MOST)]
Address = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Counts = Annotated[list[Count], FailFast()]
Addresses = Annotated[list[Address], FailFast()]
Row = Annotated[int, Field(ge=-1, le=_MOST)]
Pair = tuple[Count, Count | None]
Known = Annotated[Doubt, BeforeValidator(Doubt.of)]


class DoubtForm(BaseModel):  # noqa: D101 - as told above
    code: Known
    detail: Text
    count: Count
    share: Annotated[float, Field(ge=0, le=1e6)] | None = None


class _GpuForm(BaseModel):
    name: Text
    capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d{1,2}$")]
    multiprocessors: Count
    total_bytes: Count


class _ProcessForm(BaseModel):
    state: Text
    error: Text | None
    argv: list[Text]
    python: Text = ""
    rank: Count
    world_size: Count
    component: Count = 0
    nodes: Count = 1
    torch_version: Text
    cuda_version: Text | None
    allocator_settings: Text
    gpu: _GpuForm


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


class _PhaseForm(BaseModel):
    step: Count
    what: Text


class _SeenForm(BaseModel):
    steps: Count
    end: bool
    evaluation: Pair | None
    batches: Pair | None
    epochs: Pair | None = None  # traces of earlier versions have none
    checkpoints: Count
    phases: list[_PhaseForm]
    whole_until: Count | None
    skipped: Count = 0


class _TrainingForm(BaseModel):
    by: Text = ""
    method: Text = ""
    micro_batch: Count = 0
    accumulation: Count = 0
    checkpointing: bool = False
    offloaded: bool = False
    precision: Text = ""
    shards: Count = 0
    own_batches: bool = False
    tensor: Count = 1
    has_options: bool = False
    can_checkpoint: bool = False
    has_deepspeed: bool = False
    drawn: Count = 0


class _WorkForm(BaseModel):
    launches: Count
    backwards: Count
    rows: list[tuple[Text, Text, Large, Large, Large, Large, Count]] = []


class TraceFile(_ProcessForm):
    """The file of a trace."""

    events: _EventsForm
    marks: list[_MarkForm]
    tags: list[_TagForm]
    doubts: list[DoubtForm]
    bounds: list[tuple[Count, Count]] = []
    recorded: dict[Text, Count]
    between_resets: list[dict[Text, Count]] = []
    seen: _SeenForm | None = None
    place: Text = ""
    lived: tuple[Seconds, Seconds] = (0.0, 0.0)
    peers: Counts = []
    work: _WorkForm | None = None
    changed: Text = ""
    training: _TrainingForm = _TrainingForm()
    host_bytes: Count = 0
    mallocs_before_launch: Count | None = None
    sites: _SitesForm = _SitesForm()
    arch_list: list[Text] = []


_Tensor = tuple[Address, list[Count], Text]
_Memory = tuple[Literal["m"], Row, Address, Size]
_Operator = (
    tuple[Literal["o"], Row, Text, list[_Tensor]]
    | tuple[Literal["o"], Row, Text, list[_Tensor], list[Count]]
)


class _TagOfScopeForm(BaseModel):
    category: Text
    addresses: Addresses


class ProfileFile(_ProcessForm):
    """The file of a profile."""

    rows: Annotated[list[_Memory | _Operator], FailFast()]
    tags: list[_TagOfScopeForm]
    seconds: Seconds
    peak_resident_bytes: Count
    library_doubts: list[DoubtForm] | None = None
    made_up: list[DoubtForm] | None = None


_File = TypeVar("_File", bound=BaseModel)


def checked(raw: Any, form: type[_File]) -> _File:
    """Return what was read as a file of this form.

    Raises:
        ValueError: it is none; says where, in words of ours.
    """
    try:
        return form.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(
            plain(f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg'][:100]}")
        ) from None
