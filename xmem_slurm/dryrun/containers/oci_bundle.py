"""How does a batch script run in the OCI bundle of `#SBATCH --container`? By Charliecloud, in the
bundle's root folder.

Slurm has the site's OCI runtime start it, with a copy of the bundle's config.json that has the
job's command, folder and variables in it (src/slurmd/slurmstepd/container.c, 22.05). What is
mounted there by a bind is bound here.
"""

import json
from collections.abc import Sequence
from pathlib import Path


def started(bundle: Path, folder: Path, command: Sequence[str]) -> list[str]:
    """Return the `ch-run` for a command in this folder; the bundle's own where it has no
    config.json to read.
    """
    try:
        config = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
        root = bundle / str(config["root"]["path"])
        mounts = [
            mount
            for mount in config.get("mounts", ())
            if {"bind", "rbind"} & {*mount.get("options", ())}
        ]
        binds = [f"--bind={mount['source']}:{mount['destination']}" for mount in mounts]
        settings = [
            f"--set-env={variable}" for variable in config.get("process", {}).get("env", ())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        root, binds, settings = bundle / "rootfs", [], []
    return ["ch-run", *binds, *settings, f"--cd={folder}", str(root), "--", *command]
