"""How many GPUs of a kind may a job ever have, by the limits of its QOS and of its user's
association?

Where a QOS does not deny (DenyOnLimit), Slurm takes a job beyond them, says when it would start
(`--test-only`), and has it wait for ever (QOSMaxGRESPerJob). Of limits on the same TRES that of the
partition's QOS counts before that of the job's, unless the latter has OverPartQOS, and both before
the association's (Slurm's resource_limits.html).
"""

import time
from collections.abc import Mapping, Sequence

from xmem_slurm.cluster import client, live
from xmem_slurm.errors import SlurmError
from xmem_slurm.slurm import submitter
from xmem_slurm.slurm.request import Request

_ENFORCED = {"limits", "safe", "all"}
_ASSOCIATION = "cluster,defaultaccount,account,partition,defaultqos,maxtresperjob,grptres"
_QOS = "name,flags,maxtresperjob,grptres"


def most(request: Request, timeout: float) -> Sequence[Mapping[str, int]]:
    """Return how many of each TRES, such as "gres/gpu:l4", the job may have in each of the
    partitions that it names.

    Nothing where no limit is enforced, or nobody says so within `timeout` seconds.
    """
    until, name = time.monotonic() + timeout, submitter.name()

    def ask(*command: str) -> str:
        return client.run(command, max(0.0, until - time.monotonic()))

    try:
        config = ask("scontrol", "show", "config")
        if not _ENFORCED & {*live.setting(config, "AccountingStorageEnforce").split(",")}:
            return []
        partitions = ask("scontrol", "--oneliner", "--all", "show", "partitions")
        of_user = ask(
            "sacctmgr", "-nP", "show", "user", name, "withassoc", f"format={_ASSOCIATION}"
        )
        every = ask("sacctmgr", "-nP", "show", "qos", f"format={_QOS}")
    except SlurmError:
        return []
    return parse(request, live.setting(config, "ClusterName"), partitions, of_user, every)


def parse(
    request: Request, cluster: str, partitions: str, of_user: str, every: str
) -> Sequence[Mapping[str, int]]:
    """Return the same from what Slurm printed; `of_user` and `every` are the user's associations
    and all QOS.
    """
    qos = {
        name: (flags, limits)
        for name, flags, *limits in (line.split("|") for line in every.splitlines())
    }
    lines = [line for line in partitions.splitlines() if line.startswith("PartitionName=")]
    named = [*request.partitions] or [
        live.field(line, "PartitionName") for line in lines if "Default=YES" in line
    ]
    associations = [line.split("|") for line in of_user.splitlines()]
    of_partitions = []
    for partition in named:
        record = next(
            (line for line in lines if live.field(line, "PartitionName") == partition), ""
        )
        fitting = [
            (bool(where), default, limits)
            for at, usual, account, where, default, *limits in associations
            if at == cluster
            and account == (request.value("account") or usual)
            and where in ("", partition)
        ]
        _, default, limits = max(fitting, default=(False, "", []))
        flags, jobs = qos.get(request.value("qos") or default or "normal", ("", []))
        theirs = qos.get(live.field(record, "QoS"), ("", []))[1]
        order = (theirs, jobs) if "OverPartQOS" in flags else (jobs, theirs)
        of_partitions.append(
            {name: count for texts in (limits, *order) for name, count in _smallest(texts).items()}
        )
    return of_partitions


def exceeded(gpus: int, kind: str | None, limits: Sequence[Mapping[str, int]]) -> bool:
    """Whether so many GPUs of this GRES type, None for any, are too many in all of the
    partitions.
    """
    names = ("gres/gpu", f"gres/gpu:{kind}")
    return bool(limits) and all(
        any(gpus > allowed.get(name, gpus) for name in names) for allowed in limits
    )


def _smallest(limits: Sequence[str]) -> Mapping[str, int]:
    """Return the smallest limit on each TRES of lists such as "cpu=4,gres/gpu=2"; memory has a unit
    and is no count.
    """
    smallest: dict[str, int] = {}
    for entry in ",".join(limits).split(","):
        name, _, count = entry.partition("=")
        if name.startswith("gres/") and count.isdecimal():
            smallest[name] = min(int(count), smallest.get(name, int(count)))
    return smallest
