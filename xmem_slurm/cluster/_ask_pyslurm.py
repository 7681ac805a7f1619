"""Print what pyslurm says of the cluster, as JSON: what `by_pyslurm` runs, in a process of its own.

    python -I _ask_pyslurm.py 22.05.8

Nothing but `{}` where pyslurm is not installed. The names are pyslurm's own, the same from 22.5.3
to 25.11.2 (its reference: Nodes, Node, Partitions, Partition).
"""

import json
import sys
from importlib import metadata


def main() -> None:
    """Ask, unless this pyslurm was made for another release than the one that is named."""
    try:
        version = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        print("{}")  # noqa: T201
        return
    if _release(version) != _release(sys.argv[1]):
        sys.exit(f"pyslurm {version} is for another release of Slurm")
    import pyslurm  # type: ignore[import-not-found] # noqa: PLC0415 - may end the process

    nodes, partitions = pyslurm.Nodes.load().values(), pyslurm.Partitions.load().values()
    of_nodes = (
        "name",
        "total_cpus",
        "real_memory",
        "available_features",
        "configured_gres",
        "partitions",
    )
    of_partitions = ("name", "is_default", "max_time")
    account = {
        "version": version,
        "nodes": [{key: getattr(node, key) for key in of_nodes} for node in nodes],
        "partitions": [
            {key: getattr(partition, key) for key in of_partitions} for partition in partitions
        ],
    }
    print(json.dumps(account))  # noqa: T201


def _release(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


if __name__ == "__main__":
    main()
