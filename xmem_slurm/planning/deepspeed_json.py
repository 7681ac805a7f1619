"""DeepSpeed's own JSON: which file has a job train as it does, and what does a copy say that has it
train another way?

The user's file is read, and never written to. A copy has the same but for what the way is (names of
DeepSpeed's documentation, "DeepSpeed Configuration JSON"; "auto" is filled in by transformers from
its arguments).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.planning.methods import Method
from xmem_slurm.planning.words import last_value
from xmem_slurm.trace import Trace

OPTIONS = ("--deepspeed_config", "--deepspeed")
"""DeepSpeed's own and that of transformers' Trainer; DeepSpeed has a flag of the second name, which
has no value."""
MOST_BYTES = 1 << 20

_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_ACCUMULATION = "gradient_accumulation_steps"
_BATCH = "train_batch_size"


class DeepSpeedJson(NamedTuple):
    """The option that names the file, what is in the file, and the folder that copies go to."""

    option: str
    config: Mapping[str, Any]
    folder: Path

    def changed(
        self, method: Method, micro_batch: int, accumulation: int, gpus: int
    ) -> dict[str, Any]:
        """Return what the file says of a way of training; what is "auto", or left to DeepSpeed,
        stays so.
        """
        batches = {
            _MICRO_BATCH: micro_batch,
            _ACCUMULATION: accumulation,
            _BATCH: micro_batch * accumulation * gpus,
        }
        config = dict(self.config) | {
            name: batches[name] for name in batches if type(self.config.get(name)) is int
        }
        if type(self.config.get(_BATCH)) is not int:
            config |= {
                name: batches[name] for name in (_MICRO_BATCH, _ACCUMULATION) if name not in config
            }
        config["zero_optimization"] = self._zero(method)
        return config

    def _zero(self, method: Method) -> dict[str, Any]:
        """Return the part that says what is sharded and what is offloaded."""
        configured = self.config.get("zero_optimization", {})
        zero = {
            name: value for name, value in configured.items() if not name.startswith("offload_")
        }
        if method.offloaded:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        return {**zero, "stage": int(method.base.removeprefix("zero"))}

    def in_bf16(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return it with bf16 in place of what it computes in; "auto" is for transformers to fill
        in.
        """
        if "auto" in (config.get(name, {}).get("enabled") for name in ("bf16", "fp16")):
            return dict(config)
        kept = {name: value for name, value in config.items() if name not in ("fp16", "amp")}
        return {**kept, "bf16": {"enabled": True}}

    def copy(self, config: Mapping[str, Any]) -> tuple[Path, bytes]:
        """Return a copy that says so: its place, which is another one for each content, and its
        content.
        """
        content = (json.dumps(config, indent=2) + "\n").encode()
        return self.folder / f"{hashlib.sha256(content).hexdigest()[:12]}.json", content

    def differences(self, config: Mapping[str, Any]) -> list[str]:
        """Say what a copy has otherwise than the user's file."""
        before, after = dict(_flat(self.config)), dict(_flat(config))
        changed = [f"{name} {after[name]}" for name in after if after[name] != before.get(name)]
        return changed + [f"no {name}" for name in before if name not in after]


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def find(trace: Trace, started_in: Path, copies: Path) -> DeepSpeedJson | None:
    """Return the file that the program was told of, as its process was seen to be started; None
    where there is none.

    It is the one of this name that the job was seen to read; where none was, that in the folder
    where it starts. Where several were, which differ, it is not known which of them DeepSpeed's is.
    """
    for option in OPTIONS:
        named = last_value(trace.argv, option)
        if named is None:
            continue
        read = [
            Path(file.path)
            for file in trace.files
            if file.kind == "R" and _is_named(Path(file.path), named)
        ]
        config, *other_configs = [_loaded(path) for path in read or [started_in / named]]
        if config is not None and all(other_config == config for other_config in other_configs):
            return DeepSpeedJson(option, config, copies)
    return None


def _is_named(path: Path, named: str) -> bool:
    """Whether a path may be what a name of some folder's file stands for."""
    last = [part for part in Path(named).parts if part not in ("..", "/")]
    return list(path.parts[-len(last) :]) == last


def _loaded(path: Path) -> Mapping[str, Any] | None:
    """Return the object in a file; None where that is none that could be changed."""
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError):
        return None
    is_config = isinstance(config, dict) and isinstance(config.get("zero_optimization", {}), dict)
    return config if is_config else None
