"""Serves the files of well-known data sets (`offline/datasets`) where the network refuses them, and
says so.

It does so for urllib, on which torchvision, torch.hub and Lightning build, and for requests.
torchvision checks what it finds: of a file that was made here, known by its size and beginning,
every digest is right. Data that is there is used as it is, and nothing is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib
import io
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from _xmem.offline import datasets
from _xmem.process import network

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Function, Note

LOG = "stand-in-data.log"
"""Beside the traces, for all Pythons of the dry run: a line a file, what it is known by and whose
it is."""


class Downloads:
    """Serves one process; `folder` is where the traces go."""

    def __init__(self, folder: str) -> None:
        self._log = os.path.join(folder, LOG)
        self._content_of = functools.lru_cache(maxsize=2)(self._new)

    def doubt(self, note: Note) -> None:
        """Say what was made up."""
        for title in sorted(set(self._made_up().values())):
            note("stand-in-data", title)

    def _content(self, address: str) -> bytes | None:
        """Return the content for a URL, or None where it is of no data set that is known."""
        entry = datasets.find(address)
        if entry is None:
            return None
        network.forget()
        return self._content_of(address, *entry)

    def _new(self, _address: str, title: str, make: Callable[[datasets.NoteFile], bytes]) -> bytes:
        """Return what `make` gives, and note what it is known by."""

        def note(size: int, first: bytes) -> None:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write("%s\t%s\n" % (_known_by(size, first), title))

        content = make(note)
        note(len(content), content[: datasets.FIRST_BYTES])
        return content

    def _made_up(self) -> dict[str, str]:
        """Return {what a file is known by: the name of its data set} of all that was made in this
        dry run.
        """
        try:
            with open(self._log, encoding="utf-8") as log:
                return dict(line.rstrip("\n").split("\t") for line in log)
        except OSError:
            return {}

    # -- who asks (`patches`) ----------------------------------------------------------------------

    def around_urllib(self, do_open: Function, _handler: type) -> Function:
        """Around what urllib opens addresses with."""

        @functools.wraps(do_open)
        def opened(handler: Any, http_class: type, request: Any, **arguments: Any) -> Any:
            """Ask the network, which is not there; then answer with what was made, if it is of a
            known data set.
            """
            try:
                return do_open(handler, http_class, request, **arguments)
            except OSError:
                content = self._content(request.full_url)
                if content is None:
                    raise
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: "
                b"%d\r\n\r\n"
            )
            connection: Any = types.SimpleNamespace(
                makefile=lambda _mode: io.BytesIO(head % len(content) + content)
            )
            response: Any = http.client.HTTPResponse(connection, method=request.get_method())
            response.begin()
            response.url, response.msg = request.full_url, response.reason  # as do_open leaves it
            return response

        return opened

    def around_requests(self, send: Function, _adapter: type) -> Function:
        """Around what requests sends with."""
        failed = sys.modules["requests.adapters"].ConnectionError

        @functools.wraps(send)
        def sent(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return send(adapter, request, *args, **kwargs)
            except failed:
                content = self._content(request.url)
                if content is None:
                    raise
            body = io.BytesIO(b"" if request.method == "HEAD" else content)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(len(content)),
            }
            options = {"preload_content": False, "request_method": request.method}
            return adapter.build_response(
                request,
                importlib.import_module("urllib3").HTTPResponse(body, headers, 200, **options),
            )

        return sent

    def trusting_own(self, check: Function, _utils: ModuleType) -> Function:
        """Around torchvision's check of what it finds."""

        @functools.wraps(check)
        def checked(fpath: Any, md5: str, **kwargs: Any) -> bool:
            with open(fpath, "rb") as file:
                first = file.read(datasets.FIRST_BYTES)
            return _known_by(os.path.getsize(fpath), first) in self._made_up() or check(
                fpath, md5, **kwargs
            )

        return checked


def _known_by(size: int, first: bytes) -> str:
    return "%d %s" % (size, hashlib.sha256(first).hexdigest())
