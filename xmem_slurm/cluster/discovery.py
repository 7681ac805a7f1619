"""Write a site file from what a live cluster says and takes, with a question wherever that is not
enough.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xmem_slurm import resources
from xmem_slurm.cluster import guess
from xmem_slurm.cluster.live import Cluster, Node
from xmem_slurm.cluster.spellings import OPTIONS, Accepted, GpuKind
from xmem_slurm.site.schema import Gpu
from xmem_slurm.slurm.gres import Gres

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
"""What may stand in a feature, and not in an option's name."""
_COST_BYTES = 10**10
"""Until a site says what its GPUs cost, ten gigabytes of GPU memory cost 1."""


@dataclass
class _Option:
    gpu: str
    type: str | None
    constraint: str | None
    cost: float
    share: tuple[str, str, int] | None = None
    """Kind, the whole GPU's option, units per GPU."""
    feature: str | None = None
    """A feature of its nodes that names it."""
    gres: str | None = None
    """What else a node has that says how large its GPUs are."""
    both: bool = False
    telling: Sequence[str] = ()
    """Features that nodes of other GPUs of its type lack."""

    @property
    def asked_by(self) -> tuple[str | None, ...]:
        """What a request for it says."""
        return self.type, self.constraint, self.gres, self.share and self.share[0]

    questions: list[str] = field(default_factory=list)


@dataclass
class _NodeGroup:
    node: Node
    names: str
    gpus: dict[str, int]


@dataclass
class _Draft:
    options: dict[str, _Option] = field(default_factory=dict)
    groups: list[_NodeGroup] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    accepted: Accepted = field(default_factory=Accepted)
    host_memory_mib: int = 0
    """For each GPU, where a job must say how much host memory it wants: the least that a node has
    for each."""


def write(
    cluster: Cluster,
    catalogue: Mapping[str, Gpu],
    host_list: Callable[[Sequence[str]], str],
    ask: Callable[[GpuKind, str], Accepted],
) -> str:
    """Return the text of a site file; what it could not find out it asks, in lines that begin with
    "# QUESTION".

    `host_list` writes names as Slurm does; `ask` says which spellings of a request for a GPU a
    partition takes.
    """
    draft = _Draft()
    alike: dict[Node, list[str]] = {}
    for node in cluster.nodes:
        if node.partitions:
            alike.setdefault(node._replace(name=""), []).append(node.name)
    for node, names in alike.items():
        draft.groups.append(
            _NodeGroup(node, host_list(names), _gpus(node, names[0], draft, catalogue))
        )
    _tell_apart(draft)
    _spell(draft, cluster, ask)
    values = {"cluster": cluster, "draft": draft, "catalogue": catalogue, "options": OPTIONS}
    return resources.render(
        resources.template_places(), "site.toml.j2", values, filters={"toml": _toml}
    )


def _tell_apart(draft: _Draft) -> None:
    """Give options that are asked for alike, and are different GPUs, the feature that the nodes of
    one alone have.
    """
    for name, option in draft.options.items():
        like = [
            other_name
            for other_name, other_option in draft.options.items()
            if other_option.gpu != option.gpu and other_option.asked_by == option.asked_by
        ]
        if like:
            feature_sets = [
                set(group.node.features) for group in draft.groups if name in group.gpus
            ]
            features_elsewhere = {
                feature
                for group in draft.groups
                if not group.gpus.keys().isdisjoint(like)
                for feature in group.node.features
            }
            option.telling = sorted(set.intersection(*feature_sets) - features_elsewhere)
            if not option.telling:
                option.questions.append(
                    f"by which feature is it told from {', '.join(like)}? Add it, and both = true"
                )
    for option in draft.options.values():
        if option.telling:
            option.constraint = option.telling[0]
            option.both = option.type is not None and option.share is None


def _spell(draft: _Draft, cluster: Cluster, ask: Callable[[GpuKind, str], Accepted]) -> None:
    """Find out in which spelling a GPU is asked for here, by the first option that there is."""
    offered = (
        (draft.options[name], group.node.partitions[0])
        for group in draft.groups
        for name in group.gpus
    )
    option, partition = next(
        ((option, place) for option, place in offered if option.share is None), (None, "")
    )
    if option is None:
        return
    accepted = draft.accepted = ask(GpuKind(option.type, option.feature, option.gres), partition)
    if not accepted.options:
        refused = accepted.refused.items()
        draft.questions += [
            f"how is a GPU asked for here? --{name} was refused: {words}" for name, words in refused
        ]
    elif cluster.job_submit:
        draft.questions.append(
            f"slurmctld has jobs go through plugins ({cluster.job_submit}): do they want more of "
            "one with a GPU"
            " than trials show?"
        )
    if accepted.by == "constraint":
        _by_feature(draft)
    if accepted.memory is not None:
        draft.host_memory_mib = min(
            _memory_for_each(group, draft) for group in draft.groups if group.gpus
        )
        draft.questions.append(
            "how much host memory is a job to ask for, for each GPU? What nodes have for each is "
            "in dialect"
        )


def _memory_for_each(group: _NodeGroup, draft: _Draft) -> int:
    whole = sum(count for name, count in group.gpus.items() if draft.options[name].share is None)
    return group.node.memory_mib // whole


def _by_feature(draft: _Draft) -> None:
    for option in draft.options.values():
        option.constraint = option.feature
        if option.constraint is None:
            option.questions.append("by which feature is it asked for? Types are refused here")


def _gpus(node: Node, name: str, draft: _Draft, catalogue: Mapping[str, Gpu]) -> dict[str, int]:
    """Return the options of a kind of node with their numbers, adding those that are new to the
    draft.
    """
    amounts: dict[str, int] = {}
    for entry in (entry for entry in node.gres if entry.is_gpu):
        option = _whole(entry.type, node, draft, catalogue)
        if option is None:
            draft.questions.append(
                f"which GPU is {entry} of node {name}, features "
                f"{','.join(node.features) or 'none'}?"
                " Add an option with its name in the GPU catalogue, and here to gpus"
            )
        else:
            amounts[option] = amounts.get(option, 0) + entry.amount
    for entry in (entry for entry in node.gres if entry.is_share):
        whole = next(
            (option for option in amounts if entry.type in {None, draft.options[option].type}), None
        )
        if whole is None or entry.amount % amounts[whole] or entry.amount == amounts[whole]:
            draft.questions.append(
                f"of which GPUs is {entry} of node {name}? Add an option with share"
            )
            continue
        amounts[_share(entry, whole, entry.amount // amounts[whole], draft)] = amounts[whole]
    return amounts


def _whole(kind: str | None, node: Node, draft: _Draft, catalogue: Mapping[str, Gpu]) -> str | None:
    """Return the draft's option for these GPUs, a new one if need be; None if they do not tell
    their model.
    """
    likely = guess.candidates(kind, node.features, catalogue)
    feature = next((f for f in node.features if guess.candidates(f, (), catalogue)), None)
    constraint = None if kind else feature
    beside = next(iter(node.sizes), None) if kind is None and constraint is None else None
    if beside is not None:
        likely = likely or guess.of_size(beside.amount, catalogue)
    name = (
        kind or constraint or (f"{beside.name}-{beside.count_text}" if beside is not None else None)
    )
    if not likely or name is None:
        return None
    name = _NO_NAME.sub("-", name)
    if name in draft.options and draft.options[name].gpu != likely[0]:
        name = f"{name}-{likely[0].rpartition('-')[2]}"
    if name not in draft.options:
        option = _Option(
            likely[0], kind, constraint, round(catalogue[likely[0]].total_bytes / _COST_BYTES, 1)
        )
        option.feature = feature
        option.gres = f"{beside.name}:{beside.count_text}" if beside is not None else None
        if len(likely) > 1:
            option.questions.append(
                f"is it {', '.join(likely[1:])} instead? The one with the least memory stands here"
            )
        draft.options[name] = option
    return name


def _share(entry: Gres, whole: str, per_gpu: int, draft: _Draft) -> str:
    of = draft.options[whole]
    name = f"{entry.name}-{whole}"
    cost = max(round(of.cost / per_gpu, 4), 0.0001)
    share = (entry.name, whole, per_gpu)
    draft.options.setdefault(
        name, _Option(of.gpu, entry.type, of.constraint, cost, share, feature=of.feature)
    )
    return name


def _toml(value: object) -> str:
    """Write a value as TOML: JSON's strings are TOML's basic strings."""
    return json.dumps(value, ensure_ascii=False)
