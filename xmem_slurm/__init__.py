"""xmem-slurm: right-size the GPU request of a Slurm job before it is queued; `api` is what other
programs use.

Nothing is imported here: it is on the way of every submission, before a signal ends one silently
(`cli.xsbatch_start`).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xmem_slurm.api import (
        Estimate,
        GpuFit,
        NoEstimate,
        Submitted,
        TrainingPlan,
        Way,
        XmemError,
        estimate,
        plan,
        submit,
    )
    from xmem_slurm.errors import SlurmError, UsageError

__version__ = "0.2.0"
__all__ = [
    "Estimate",
    "GpuFit",
    "NoEstimate",
    "SlurmError",
    "Submitted",
    "TrainingPlan",
    "UsageError",
    "Way",
    "XmemError",
    "__version__",
    "estimate",
    "plan",
    "submit",
]


def __getattr__(name: str) -> object:
    """Import the interface when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xmem_slurm import api  # noqa: PLC0415

    return getattr(api, name)


def __dir__() -> list[str]:
    """Name the interface before it is imported, too: shells and notebooks complete by this."""
    return sorted({*globals(), *__all__})
