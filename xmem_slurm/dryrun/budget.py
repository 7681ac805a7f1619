"""What may a dry run cost, and what is left of it for the next?"""

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from xmem_slurm.sandbox import sandbox
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.units import GIB, MIB

WALL_FACTOR = 10.0
"""So many times its budget may a dry run take on the wall: seen on a login node at load 15 were 6
times (13 s of CPU took 72 s)..."""
LEAST_WALL_SECONDS = 300.0
"""...and a small budget is one of CPU time, not of patience."""


class Spent(NamedTuple):
    """What dry runs took: seconds of a budget, and of the clock on the wall beside it."""

    seconds: float = 0.0
    wall: float = 0.0

    def plus(self, spent: "Spent") -> "Spent":
        """Return both together."""
        return Spent(self.seconds + spent.seconds, self.wall + spent.wall)

    def part(self, share: float) -> "Spent":
        """Return so much of it."""
        return Spent(self.seconds * share, self.wall * share)

    def since(self, earlier: "Spent") -> "Spent":
        """Return what was spent after that."""
        return Spent(self.seconds - earlier.seconds, self.wall - earlier.wall)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a dry run may cost: seconds, and bytes of host memory, its thrown-away files included.

    `seconds` are of its own doing: CPU seconds of all its processes, and those in which all of it
    waits (`progress`). What a busy machine adds to these is bounded by `wall_seconds`; None is a
    multiple of `seconds`.
    """

    seconds: float = 60.0
    wall_seconds: float | None = None
    memory_bytes: int = 16 * GIB
    scratch_bytes: int = 4 * GIB
    processes: int = 512
    cpus: int = 2

    @property
    def longest(self) -> float:
        """How long it may take on the wall, in seconds."""
        usual = max(LEAST_WALL_SECONDS, WALL_FACTOR * self.seconds)
        return usual if self.wall_seconds is None else self.wall_seconds

    def less(self, spent: "Spent") -> "Budget":
        """What is left of it once so much is spent."""
        seconds, wall = self.seconds - spent.seconds, self.longest - spent.wall
        return replace(self, seconds=max(1.0, seconds), wall_seconds=max(1.0, wall))

    def has_room_for(self, run: "Spent") -> bool:
        """Whether it is enough for a dry run that takes so much."""
        return run.seconds <= self.seconds and run.wall <= self.longest

    def within(self, allowed: DryRuns) -> "Budget":
        """Return it where it is less than a site allows, else as much as that."""
        memory = allowed.memory_mib * MIB if allowed.memory_mib is not None else self.memory_bytes
        walls = [wall for wall in (self.wall_seconds, allowed.wall_seconds) if wall is not None]
        return replace(
            self,
            seconds=min(self.seconds, allowed.seconds or self.seconds),
            wall_seconds=min(walls, default=None),
            memory_bytes=min(self.memory_bytes, memory),
            cpus=min(self.cpus, allowed.cpus or self.cpus),
        )

    def limits(self) -> sandbox.Limits:
        """The same, in the sandbox's words."""
        return sandbox.Limits(**asdict(replace(self, wall_seconds=self.longest)))
