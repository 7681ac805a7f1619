"""Notes which host or address this Python asked for last: a dry run has no network, and what fails
then says less.
"""

from __future__ import annotations

import os
import sys
import traceback

from _xmem.process import ends

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType
    from typing import Any

    from _xmem.process.audit import Listener

_HERE = ("localhost", "127.0.0.1", "::1", os.uname().nodename)

_OF_WHAT_IS_NOT_THERE = (OSError, EOFError, ImportError)
"""What a script raises later, too, for what an earlier line of it did not get."""

_HUB_WITHOUT_NETWORK = ("LocalEntryNotFoundError", "OfflineModeIsEnabled")
"""What huggingface_hub raises (huggingface_hub/errors.py, 1.33) for what is not in its cache."""

_last_request: list[tuple[str, tuple[CodeType, int] | None]] = []
"""None or one: host or address, and (code, line) of the script's innermost line that led there."""


def install(audit: Listener) -> None:
    """Note from here on what this listener hears."""
    audit.take(("urllib.Request",), _requested)
    audit.take(("socket.getaddrinfo",), _looked_up)


def _requested(address: object, *_rest: Any) -> None:
    _note(str(address))


def _looked_up(host: object, *_rest: Any) -> None:
    host = host.decode(errors="replace") if isinstance(host, bytes) else str(host or "")
    if host and host not in _HERE and not (_last_request and host in _last_request[0][0]):
        _note(host)


def _note(address: str) -> None:
    _last_request[:] = [(address, _line(traceback.walk_stack(sys._getframe(2))))]


def _line(frames: Iterable[tuple[FrameType, int]]) -> tuple[CodeType, int] | None:
    return next(((frame.f_code, line) for frame, line in frames if ends.is_users(frame)), None)


def forget() -> None:
    """What was asked for last could be had after all."""
    _last_request.clear()


def missing(error: BaseException | None = None) -> str:
    """Return in words what could not be reached, and what helps where that is known; or nothing."""
    repository = _not_cached(error)
    if repository:
        return "; a dry run has no network: `hf download %s` on the login node first" % repository
    if not _last_request:
        return ""
    return "; it had asked for %s, and a dry run has no network" % _last_request[0][0][:200]


def _not_cached(error: BaseException | None) -> str | None:
    """Return, as `hf download` takes it, the repository that an exception came for want of; or
    None.

    huggingface_hub asks nobody in a dry run (HF_HUB_OFFLINE), and what transformers raises does not
    name it.
    """
    for cause in _causes(error):
        if type(cause).__name__ in _HUB_WITHOUT_NETWORK and type(cause).__module__.startswith(
            "huggingface_hub"
        ):
            for frame, _line in traceback.walk_tb(cause.__traceback__):
                if isinstance(frame.f_locals.get("repo_id"), str):
                    kind = frame.f_locals.get("repo_type")
                    of_kind = "--repo-type %s " % kind if kind not in (None, "model") else ""
                    return of_kind + frame.f_locals["repo_id"][:200]
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what it was raised for."""
    for _ in range(ends.MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def may_explain(error: BaseException | None) -> bool:
    """Whether an exception may be for want of what was asked for: it, or what it was raised for,
    came of the same line.

    datasets asks for a counter of downloads at each load_dataset, of local files, too, and does
    well without it.
    """
    for cause in _causes(error):
        places: Iterator[tuple[CodeType, int] | None] = (
            (frame.f_code, line) for frame, line in traceback.walk_tb(cause.__traceback__)
        )
        if isinstance(cause, _OF_WHAT_IS_NOT_THERE) or (
            _last_request and _last_request[0][1] in places
        ):
            return True
    return error is None
