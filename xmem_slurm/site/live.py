"""What is the cluster that Slurm's commands talk to made of?

Read from scontrol's one-line records, which every supported release prints alike; scontrol has JSON from 23.02 on only.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from xmem_slurm.slurm import client, gres
from xmem_slurm.slurm.gres import Gres

_SECONDS = 20.0
_NOTE = re.compile(r"\([^)]*\)")
"""`(S:0-1)` behind a GRES: the sockets that it is on."""


class Node(NamedTuple):
    """A node; `gres` are its configured GPUs and shares of them."""

    name: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    gres: tuple[Gres, ...]
    partitions: tuple[str, ...]


class Partition(NamedTuple):
    """A partition; `max_time` in Slurm's words."""

    name: str
    default: bool
    max_time: str


class Cluster(NamedTuple):
    """The cluster's name, nodes and partitions."""

    name: str
    nodes: Sequence[Node]
    partitions: Sequence[Partition]


def read() -> Cluster:
    """Ask the cluster.

    Raises:
        SlurmError: Slurm's commands are missing, or its controller does not answer.
    """
    return parse(
        client.run(["scontrol", "show", "config"], _SECONDS),
        client.run(["scontrol", "--oneliner", "show", "nodes"], _SECONDS),
        client.run(["scontrol", "--oneliner", "--all", "show", "partitions"], _SECONDS),
    )


def parse(config: str, nodes: str, partitions: str) -> Cluster:
    """Read what scontrol printed for `show config`, `show nodes` and `show partitions`."""
    named = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    return Cluster(
        named[1] if named else "cluster",
        [_node(line) for line in nodes.splitlines() if line.startswith("NodeName=")],
        [
            Partition(_field(line, "PartitionName"), _field(line, "Default") == "YES", _field(line, "MaxTime"))
            for line in partitions.splitlines()
            if line.startswith("PartitionName=")
        ],
    )


def host_list(names: Sequence[str]) -> str:
    """Return the host list that stands for the names.

    Raises:
        SlurmError: as `read`.
    """
    return client.run(["scontrol", "show", "hostlistsorted", ",".join(names)], _SECONDS).strip()


def _node(line: str) -> Node:
    configured = _NOTE.sub("", _field(line, "Gres"))
    return Node(
        _field(line, "NodeName"),
        int(_field(line, "CPUTot") or 0),
        int(_field(line, "RealMemory") or 0),
        _listed(_field(line, "AvailableFeatures")),
        tuple(entry for entry in gres.parse(configured or "none") if entry.is_gpu or entry.is_share),
        _listed(_field(line, "Partitions")),
    )


def _field(line: str, key: str) -> str:
    """Return a field; the first of that name, as free text (Reason, Comment) comes last. Slurm's `(null)` is ""."""
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found and found[1] != "(null)" else ""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
