"""Values that are known although no kernel runs, so that what a script decides by them comes out as on a GPU.

Note [Known values]: device memory has no contents. A small tensor that was copied from the host, filled, or computed
from such, has all the same: they are kept here, one host storage for each device storage, and small operations on them
are computed on the host beside the launch that does nothing. They hold as long as the version counter of the tensor is
the one that they were noted at: whatever else writes to it in torch raises that. `x.data` has a counter of its own, so
what is written through it is forgotten by the operators that write (the common ones: `_xmem_known_rules`); a kernel of
Triton's forgets all that it is given. So lengths, masks, labels, splits and graphs have their real values when a script
reads them or takes a shape from them. What the host cannot compute is not known: it raises nothing.

Note [Plausible values]: what is not known follows from how it was made. Everything is finite and no NaN; what an
argument check asks of `all` holds; of a mask, everything is selected, because less would be quietly too small: `least`
(XMEM_SHAPES) selects nothing, which is the other end of the bracket. The places that sort and topk find are all
different, so that experts are used evenly. Other numbers are zeros, as in the stand-ins' memory.

Note [Inference mode]: its tensors have neither version counters nor the dispatch key that our kernels stand at. So it
acts as `torch.no_grad` here, which keeps the same memory.
"""

import functools
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
    _infer_without_gradients(torch)
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


def forget(arguments):
    """Whichever of these are tensors have been written to: what they hold is not known any more."""
    for table in _tables:
        for each in arguments:
            if getattr(each, "is_cuda", False):
                table.forget(each)


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


def _infer_without_gradients(torch):
    """Let torch.inference_mode act as torch.no_grad; switched off (mode=False), it is what it was."""
    inference_mode = torch.inference_mode
    enter = inference_mode.__enter__

    @functools.wraps(enter)
    def entered(self):
        if not self.mode:
            return enter(self)
        self._inference_mode_context = torch.no_grad()
        return self._inference_mode_context.__enter__()

    inference_mode.__enter__ = entered


def _doubt(code, detail):
    _doubts[code, detail] = _doubts.get((code, detail), 0) + 1
