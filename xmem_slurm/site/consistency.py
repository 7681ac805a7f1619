"""Where does a site file contradict itself? All of it, not the first."""

from collections.abc import Iterator

from xmem_slurm.errors import UsageError
from xmem_slurm.site.schema import GpuOption, Nodes, Site
from xmem_slurm.slurm import hostlist

WRITABLE = ("gres", "gpus-per-node", "gpus", "gpus-per-task")
"""Options in which `dialect` can write a request for GPUs that was spelled in another one."""


def problems(site: Site) -> list[str]:
    """Return a line for each; it begins with the key, as in the file."""
    return [
        *_of_options(site),
        *_of_nodes(site),
        *_of_places(site),
        *_of_dialect(site),
        *_of_the_rest(site),
    ]


def _of_options(site: Site) -> Iterator[str]:
    """Say of each option what cannot be asked for, and which two Slurm could not tell apart."""
    kinds: dict[tuple[str, str | None, str | None], str] = {}
    for name, option in site.option.items():
        where = f"option.{name}"
        if (
            option.type is None
            and option.constraint is None
            and option.gres is None
            and option.share is None
        ):
            yield (
                f"{where}: an option needs a GRES type, a constraint, or a gres: else it cannot "
                "be asked for"
            )
        if option.both and (option.type is None or option.constraint is None):
            yield f"{where}: both = true needs a type and a constraint"
        feature = option.constraint if option.both or option.share is not None else None
        kind = option.share.kind if option.share is not None else "gpu"
        if option.share is not None:
            yield from _of_share(name, site)
        if option.share is not None or option.type is not None:
            first_name = kinds.setdefault((kind, option.type, feature), name)
            if site.option[first_name].gpu != option.gpu:
                remedy = "constraint" if option.share is not None else "constraint and both = true"
                yield (
                    f"option.{first_name} and {where} have one type and different GPUs: give each "
                    f"a {remedy}"
                )


def _of_share(name: str, site: Site) -> Iterator[str]:
    option = site.option[name]
    assert option.share is not None
    whole = site.option.get(option.share.of)
    if whole is None or whole.share is not None or whole.gpu != option.gpu:
        yield (
            f"option.{name}.share.of = {option.share.of!r}: not an option for whole GPUs of "
            f"{option.gpu!r}"
        )
    if option.share.least > option.share.per_gpu:
        yield f"option.{name}.share.least = {option.share.least}: a GPU has {option.share.per_gpu}"
    if "gres" not in site.dialect.options:
        yield (
            f"option.{name}.share: shares are asked for with --gres, which dialect.options does "
            "not have"
        )


def _of_nodes(site: Site) -> Iterator[str]:
    """Say of each group of nodes what it names that is not there, and which host is in two
    groups.
    """
    groups_of: dict[str, list[str]] = {}
    for group in site.nodes:
        where = f"nodes {group.names}"
        try:
            names = hostlist.expand(group.names)
        except UsageError as error:
            yield f"{where}: names: {error}"
            names = ()
        for host in names:
            groups_of.setdefault(host, []).append(group.names)
        for name in group.gpus:
            if name not in site.option:
                yield (
                    f"{where}: gpus names {name!r}, which is not an option; there are "
                    f"{', '.join(site.option)}"
                )
        for partition in group.partitions:
            if partition not in site.partition:
                yield (
                    f"{where}: partition {partition!r} is not defined; there are "
                    f"{', '.join(site.partition)}"
                )
        yield from (f"{where}: {line}" for line in _of_group(group, site))
    for host, groups in groups_of.items():
        if len(groups) > 1:
            yield f"nodes {groups[1]}: names: {host} is in nodes {groups[0]}, too"


def _of_group(group: Nodes, site: Site) -> Iterator[str]:
    """Say what a group's GPUs, features and host memory contradict each other in."""
    memory = 0
    everywhere = {feature for nodes in site.nodes for feature in nodes.features}
    for name, count in group.gpus.items():
        option = site.option.get(name)
        if option is None:
            continue
        if option.share is not None and count > group.gpus.get(option.share.of, 0):
            yield f"more GPUs in {name!r} than in {option.share.of!r}"
        lacks = option.constraint in everywhere and option.constraint not in group.features
        if lacks and _is_asked_for_by_feature(option, site):
            yield f"gpus has {name!r}, but features lacks its constraint {option.constraint!r}"
        if option.share is None:
            memory += count * (option.host_memory_mib or site.dialect.host_memory_mib or 0)
    for name, option in site.option.items():
        has_it = option.constraint in group.features and name not in group.gpus
        alike = any(site.option[n].type == option.type for n in group.gpus if n in site.option)
        if has_it and alike and _is_asked_for_by_feature(option, site):
            yield (
                f"features has {option.constraint!r}, by which option {name!r} is asked for, but "
                "gpus lacks it"
            )
    if memory > group.memory_mib:
        yield f"host_memory_mib of all its GPUs is {memory}, and memory_mib {group.memory_mib}"


def _is_asked_for_by_feature(option: GpuOption, site: Site) -> bool:
    return (
        option.type is None
        or option.both
        or option.share is not None
        or site.dialect.select == "constraint"
    )


def _of_places(site: Site) -> Iterator[str]:
    """Say what can never be had: options on no node, features that no node has."""
    offered = {name for group in site.nodes for name in group.gpus}
    features = {feature for group in site.nodes for feature in group.features}
    for name, option in site.option.items():
        if name not in offered:
            yield f"option.{name}: no nodes have it, so no partition offers it"
        if option.constraint is not None and option.constraint not in features:
            yield f"option.{name}.constraint = {option.constraint!r}: no nodes have this feature"
    if sum(partition.default for partition in site.partition.values()) > 1:
        yield "partition: more than one partition has default = true"


def _of_dialect(site: Site) -> Iterator[str]:
    dialect = site.dialect
    if dialect.options[0] not in WRITABLE:
        yield f"dialect.options: the first one is written, and must be one of {', '.join(WRITABLE)}"
    if len(set(dialect.options)) < len(dialect.options):
        yield "dialect.options: one stands there twice"
    if any(option.gres for option in site.option.values()) and "gres" not in dialect.options:
        yield "dialect.options: an option has gres, so --gres must be among them"
    if dialect.select == "constraint":
        for name, option in site.option.items():
            if option.constraint is None:
                yield f"option.{name}: dialect.select = 'constraint', and it has none"


def _of_the_rest(site: Site) -> Iterator[str]:
    for key in ("partitions", "not_partitions"):
        for name in getattr(site.filter, key):
            if name not in site.partition:
                yield (
                    f"filter.{key}: {name!r} is not a partition; there are "
                    f"{', '.join(site.partition)}"
                )
    for name in site.job_submit.reason_for:
        if name not in site.option or site.option[name].type is None:
            yield f"job_submit.reason_for: {name!r} is not an option with a GRES type"
    if site.policy.most_bytes is not None and site.policy.most_bytes < site.policy.least_bytes:
        yield "policy.most_bytes is less than policy.least_bytes"
    if site.templates is not None and not site.templates.is_dir():
        yield f"templates: {site.templates} is no folder"
