"""Run a job's script here, harmlessly: `runner` prepares its world, `sandbox` throws away what it
does to ours.
"""

from typing import Literal, get_args

Engine = Literal["auto", "device", "profile"]
"""How a job can be run dry (`engines`)."""
ENGINES: tuple[str, ...] = get_args(Engine)
