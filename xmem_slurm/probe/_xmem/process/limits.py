"""Would the limits of a share of a GPU hold this process, and those that it starts (xmem_slurm/rewriting/sharing.py)?

They are variables. They do not hold where a process finds or sets others, sets torch's own limit, or starts children in
an environment of its own without them. XMEM_LIMITS has each variable as the job was submitted, null for one that was
not set.
"""

import functools
import json
import os
import re
import sys

_OF_TORCH = re.compile("PYTORCH_(CUDA_)?ALLOC_CONF")
_DROPPED = re.compile(r"\benv\s+(-\S+\s+)*(-i|-|--ignore-environment|-u\s*\w*ALLOC_CONF)\s|\bunset\s[^;\n]*ALLOC_CONF")
_SETTERS = ("set_per_process_memory_fraction", "_set_allocator_settings")
_expected = {}
_found = {}


def watch(environ):
    """Look at this process before torch reads the variables, and at what it starts from now on."""
    if "XMEM_LIMITS" in environ and not _expected:
        _expected.update(json.loads(environ["XMEM_LIMITS"]))
        sys.addaudithook(_hook)
        _look()


def watch_torch(torch):
    """Notice calls that set torch's own limit."""
    for module in (torch.cuda.memory, torch.cuda):
        for name in _SETTERS:
            if hasattr(module, name):
                setattr(module, name, _noticed(getattr(module, name), name))


def doubts():
    """Return what would keep the limits from holding, by what it does away with: torch's, or all that are variables."""
    _look()
    return [{"code": code, "detail": detail, "count": 1} for code, detail in _found.items()]


def _look():
    for name in (n for n, value in _expected.items() if _spelled(os.environ.get(n)) != _spelled(value)):
        code = "own-allocator" if _OF_TORCH.fullmatch(name) else "own-environment"
        _found.setdefault(code, "the job sets %s itself" % name)


def _noticed(setter, name):
    @functools.wraps(setter)
    def called(*args, **kwargs):
        _found.setdefault("own-allocator", "the job calls %s" % name)
        return setter(*args, **kwargs)

    return called


def _hook(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"):
        _child(args[1] if event == "subprocess.Popen" else args[-2], args[-1])
    elif event == "os.system":
        _child(args[0], None)


def _child(words, environ):
    words = [os.fsdecode(word) for word in ([words] if isinstance(words, (str, bytes)) else words)] or [""]
    own = None if environ is None else {os.fsdecode(n): os.fsdecode(v) for n, v in environ.items()}
    kept = own is None or ("XMEM_LIMITS" in own and all(own.get(n) == os.environ.get(n) for n in _expected))
    if not kept or _DROPPED.search(" ".join(words) + " "):
        _found.setdefault("own-environment", "the job starts %s in an environment of its own" % words[0])


def _spelled(value):
    """Return a value as it stands in a dry run, which records torch's own allocator (`record/recorder`)."""
    return value and value.replace("cudaMallocAsync", "native")
