"""Does Python's garbage collector give GPU memory back, at a moment of its own?

Tensors in a cycle of references live until it comes. When that is hangs on how many objects the process has made:
others in a dry run, where kernels are not compiled, and in another release of Python or of a package.
"""

import functools
import gc

LEAST = 0.01
"""Of the peak: less is none."""


class Garbage:
    """What was given back at once, at the most. The youngest generation is left out: what is in it was just made."""

    def __init__(self):
        self._allocated, self._asked = None, 0
        self._before = self._most = 0

    def watch(self, allocated):
        """Look at each collection from now on; `allocated` says how many bytes are."""
        self._allocated = allocated
        gc.callbacks.append(self._collecting)

    def asked_for(self, collect, _owner):
        """Around gc.collect: what a script asks for comes on a GPU where it comes here."""

        @functools.wraps(collect)
        def asked(*args, **kwargs):
            self._asked += 1
            try:
                return collect(*args, **kwargs)
            finally:
                self._asked -= 1

        return asked

    def _collecting(self, phase, about):
        if about["generation"] and not self._asked:
            if phase == "start":
                self._before = self._allocated()
            else:
                self._most = max(self._most, self._before - self._allocated())

    def doubt(self, note, peak):
        """Say how much it was; the peak may have it once more."""
        if self._most > LEAST * peak:
            note("garbage", "%d MiB" % (self._most >> 20), share=self._most / peak)
