"""Which modules are the job's own code, and which are Python's library, torch or another installed
package?
"""

from __future__ import annotations

import functools
import sys

_NOT_FOLLOWED = {
    "torch",
    "numpy",
    "triton",
    "_xmem",
    *getattr(sys, "stdlib_module_names", sys.builtin_module_names),
}
_PACKAGES = ("site-packages", "dist-packages")


def root(module: str | None) -> str:
    """Return the package that a module, given by its name, is of."""
    return (module or "").partition(".")[0]


def is_followed(module: str | None) -> bool:
    """Whether what a model has or calls of this module may change as the script's own does."""
    return root(module) not in _NOT_FOLLOWED


@functools.lru_cache(maxsize=8192)
def is_of_the_job(module: str | None) -> bool:
    """Whether it is a module of the job's own, and of no installed package."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return is_followed(module) and not any(folder in file for folder in _PACKAGES)
