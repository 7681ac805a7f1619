"""What is the cluster that Slurm's commands talk to made of?

pyslurm says it, where there is one for this release of Slurm (`by_pyslurm`); else it is read from
scontrol's one-line records, which every supported release prints alike; scontrol has JSON from
23.02 on only.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from xmem_slurm.cluster import by_pyslurm, client
from xmem_slurm.errors import SlurmError
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.gres import Gres

_SECONDS = 20.0
_NOTE = re.compile(r"\([^)]*\)")
"""`(S:0-1)` behind a GRES: the sockets that it is on."""


class Node(NamedTuple):
    """A node; `gres` are its configured GPUs and shares of them, `sizes` other resources counted in
    K, M, G, T or P.
    """

    name: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    gres: tuple[Gres, ...]
    partitions: tuple[str, ...]
    sizes: tuple[Gres, ...] = ()


class LivePartition(NamedTuple):
    """A partition; `max_time` in Slurm's words."""

    name: str
    default: bool
    max_time: str


class Cluster(NamedTuple):
    """The cluster's name, nodes and partitions, and who said so."""

    name: str
    nodes: Sequence[Node]
    partitions: Sequence[LivePartition]
    source: str = "scontrol"
    job_submit: str = ""
    """The plugins through which slurmctld has every job go."""


def read() -> Cluster:
    """Ask the cluster.

    Raises:
        SlurmError: Slurm's commands are missing, or its controller does not answer.
    """
    config = client.run(["scontrol", "show", "config"], _SECONDS)
    source = "scontrol"
    try:
        account = by_pyslurm.read(setting(config, "SLURM_VERSION"))
        if account is not None:
            return from_pyslurm(config, account)
    except SlurmError as error:
        source = f"scontrol ({error})"
    cluster = parse(
        config,
        client.run(["scontrol", "--oneliner", "show", "nodes"], _SECONDS),
        client.run(["scontrol", "--oneliner", "--all", "show", "partitions"], _SECONDS),
    )
    return cluster._replace(source=source)


def parse(config: str, nodes: str, partitions: str) -> Cluster:
    """Read what scontrol printed for `show config`, `show nodes` and `show partitions`."""
    return Cluster(
        setting(config, "ClusterName", "cluster"),
        [_node(line) for line in nodes.splitlines() if line.startswith("NodeName=")],
        [
            LivePartition(
                field(line, "PartitionName"),
                field(line, "Default") == "YES",
                field(line, "MaxTime"),
            )
            for line in partitions.splitlines()
            if line.startswith("PartitionName=")
        ],
        job_submit=setting(config, "JobSubmitPlugins"),
    )


def from_pyslurm(config: str, account: by_pyslurm.Account) -> Cluster:
    """Return the cluster by pyslurm's account; its name is scontrol's, of `show config`.

    Raises:
        SlurmError: something is not there, or not what it should be.
    """
    try:
        nodes = [
            Node(
                node["name"],
                node["total_cpus"],
                node["real_memory"],
                tuple(node["available_features"] or ()),
                _gpus(
                    ",".join(f"{name}:{amount}" for name, amount in node["configured_gres"].items())
                ),
                tuple(node["partitions"] or ()),
            )
            for node in account.nodes
        ]
        partitions = [
            LivePartition(
                partition["name"],
                partition["is_default"],
                by_pyslurm.time_limit(partition["max_time"]),
            )
            for partition in account.partitions
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise SlurmError(
            f"pyslurm {account.version}: no answer that can be read ({error!r})"
        ) from error
    name, plugins = setting(config, "ClusterName", "cluster"), setting(config, "JobSubmitPlugins")
    return Cluster(name, nodes, partitions, f"pyslurm {account.version}", plugins)


def host_list(names: Sequence[str]) -> str:
    """Return the host list that stands for the names.

    Raises:
        SlurmError: as `read`.
    """
    return client.run(["scontrol", "show", "hostlistsorted", ",".join(names)], _SECONDS).strip()


def _node(line: str) -> Node:
    configured = _NOTE.sub("", field(line, "Gres"))
    return Node(
        field(line, "NodeName"),
        int(field(line, "CPUTot") or 0),
        int(field(line, "RealMemory") or 0),
        _listed(field(line, "AvailableFeatures")),
        _gpus(configured),
        _listed(field(line, "Partitions")),
        tuple(
            entry for entry in gres.parse(configured or "none") if entry.count_text[-1:].isalpha()
        ),
    )


def _gpus(configured: str) -> tuple[Gres, ...]:
    """Return those of a node's GRES that are GPUs or shares of them."""
    return tuple(
        entry for entry in gres.parse(configured or "none") if entry.is_gpu or entry.is_share
    )


def setting(config: str, name: str, default: str = "") -> str:
    """Return a line of `scontrol show config`."""
    match = re.search(rf"^{name}\s*=\s*(\S+)", config, re.MULTILINE)
    return match[1] if match and match[1] != "(null)" else default


def field(line: str, key: str) -> str:
    """Return a field; the first of that name, as free text (Reason, Comment) comes last. Slurm's
    `(null)` is "".
    """
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match and match[1] != "(null)" else ""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
