"""Would the limits of a share of a GPU hold this process, and those that it starts
(xmem_slurm/rewriting/sharing.py)?

They are variables. They do not hold where a process finds or sets others, sets torch's own limit,
or starts children in an environment of its own without them. XMEM_LIMITS has each variable as the
job was submitted, null for one that was not set.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import TYPE_CHECKING, Any

from _xmem.process.audit import Listener

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _xmem.annotations import Environ, Function, Note

_OF_TORCH = re.compile("PYTORCH_(CUDA_)?ALLOC_CONF")
_DROPPED = re.compile(
    r"\benv\s+(-\S+\s+)*(-i|-|--ignore-environment|-u\s*\w*ALLOC_CONF)\s|\bunset\s[^;\n]*ALLOC_CONF"
)


class ShareLimits:
    """Looks at this process before torch reads the variables, and at what it starts from then
    on.
    """

    def __init__(self, environ: Environ) -> None:
        self._expected: dict[str, str | None] = json.loads(environ.get("XMEM_LIMITS", "{}"))
        self._broken: dict[str, str] = {}  # code: by what, the first time
        if self._expected:
            audit = Listener()
            audit.take(
                ("subprocess.Popen",),
                lambda _executable, words, _folder, environ: self._child(words, environ),
            )
            audit.take(
                ("os.exec", "os.posix_spawn", "os.spawn"),
                lambda *arguments: self._child(*arguments[-2:]),
            )
            audit.take(("os.system",), lambda command: self._child(command, None))
            self._look()

    def doubt(self, note: Note) -> None:
        """Say what would keep the limits from holding, by what it does away with: torch's, or all
        variables.
        """
        self._look()
        for code, detail in self._broken.items():
            note(code, detail)

    def set_by_job(self, setter: Function, _owner: object) -> Function:
        """Around what sets torch's own limit."""

        @functools.wraps(setter)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._note("own-allocator", "the job calls %s" % setter.__name__)
            return setter(*args, **kwargs)

        return called

    def _note(self, code: str, detail: str) -> None:
        self._broken.setdefault(code, detail)

    def _look(self) -> None:
        for name in (
            n
            for n, value in self._expected.items()
            if _spelled(os.environ.get(n)) != _spelled(value)
        ):
            code = "own-allocator" if _OF_TORCH.fullmatch(name) else "own-environment"
            self._note(code, "the job sets %s itself" % name)

    def _child(self, words: Any, environ: Mapping[Any, Any] | None) -> None:
        """A child is started by these words; `environ` is None where it has this process's
        environment.
        """
        words = [
            os.fsdecode(word) for word in ([words] if isinstance(words, (str, bytes)) else words)
        ] or [""]
        child_environ = None
        if environ is not None:
            child_environ = {os.fsdecode(n): os.fsdecode(v) for n, v in environ.items()}
        kept = child_environ is None or (
            "XMEM_LIMITS" in child_environ
            and all(child_environ.get(n) == os.environ.get(n) for n in self._expected)
        )
        if not kept or _DROPPED.search(" ".join(words) + " "):
            self._note(
                "own-environment", "the job starts %s in an environment of its own" % words[0]
            )


def _spelled(value: str | None) -> str | None:
    """Return a value as it stands in a dry run, which records torch's own allocator
    (`record/recorder`).
    """
    return value and value.replace("cudaMallocAsync", "native")
