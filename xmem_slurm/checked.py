"""What may a value be that a job may have written: a number in a range that memory has, and text
with nothing in it that a terminal obeys.
"""

from typing import Annotated, Any


def plain(text: str) -> str:
    """Return the text without what a terminal would obey, or show in another order: one line of it.

    Not only control characters: also marks of direction, other line ends, and halves of characters.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "\ufffd"


class Checked:
    """What pydantic holds a value of a file to, in the words of pydantic_core's schemas.

    pydantic is not imported here: who reads no file has no use for it.
    """

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **self.limits}


def _shown_plainly(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


class _PlainText:
    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - as for `Checked`

        return core_schema.no_info_before_validator_function(_shown_plainly, handler(source))


_MOST = 1 << 50
"""A pebibyte; also more steps, lines and ranks than there are."""

Text = Annotated[str, Checked(max_length=100_000), _PlainText()]
"""Words, without what a terminal would obey."""
Count = Annotated[int, Checked(ge=0, le=_MOST)]
Size = Annotated[int, Checked(ge=-_MOST, le=_MOST)]
Row = Annotated[int, Checked(ge=-1, le=_MOST)]
Large = Annotated[int, Checked(ge=0, lt=1 << 63)]
Address = Annotated[int, Checked(ge=-(1 << 63), lt=1 << 64)]
Seconds = Annotated[float, Checked(allow_inf_nan=False)]
