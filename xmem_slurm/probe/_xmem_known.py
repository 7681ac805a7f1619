"""Values that are known although no kernel runs, so that what a script decides by them comes out as on a GPU.

Note [Known values]: device memory has no contents. A small tensor that was copied from the host, filled, or computed
from such, has all the same: they are kept here, one host storage for each device storage, and small operations on them
are computed on the host beside the launch that does nothing. They hold as long as the version counter of the tensor is
the one that they were noted at: whatever else writes to it in torch raises that. So lengths, masks, labels, splits and
graphs have their real values when a script reads them or takes a shape from them.

Note [Plausible values]: what is not known follows from how it was made. Everything is finite and no NaN; what an
argument check asks of `all` holds; of a mask, everything is selected, because less would be quietly too small: `least`
(XMEM_SHAPES) selects nothing, which is the other end of the bracket. The places that sort and topk find are all
different, so that experts are used evenly. Other numbers are zeros, as in the stand-ins' memory.
"""

import importlib
import warnings

import _xmem_known_rules
import _xmem_known_values

_doubts = {}
_tables = []
"""The one table of known values, once there is one."""


def install(torch, environ):
    """Keep values from now on; where this torch lacks what that needs, nothing is known, as before."""
    _print_without_doubt(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel is replaced, which is what it warns of
        try:
            values, most = _xmem_known_values.Values(torch), environ.get("XMEM_SHAPES", "most") == "most"
            _xmem_known_rules.Rules(torch, values, most, _doubt).register()
            _tables.append(values)
        except (AttributeError, TypeError, RuntimeError):
            _doubt("values-unknown", "this torch does not let kernels be wrapped")


def of(tensor):
    """Return the values of a tensor as one on the host; None where they are not known."""
    if not tensor.is_cuda:
        return tensor
    return _tables[0].of(tensor) if _tables else None


def doubts():
    """Return what was assumed of values, in the form of a trace's doubts."""
    return [{"code": code, "detail": detail, "count": count} for (code, detail), count in _doubts.items()]


def _print_without_doubt(torch):
    """What a tensor looks like in print hangs on its values, and nothing on what it looks like."""
    strings = importlib.import_module("torch._tensor_str")
    text = strings._str

    def _str(*args, **kwargs):
        kept = dict(_doubts)
        try:
            return text(*args, **kwargs)
        finally:
            _doubts.clear()
            _doubts.update(kept)

    strings._str = _str


def _doubt(code, detail):
    _doubts[code, detail] = _doubts.get((code, detail), 0) + 1
