"""Write a site file from what a live cluster says, with a question wherever it does not say enough."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xmem_slurm import resources
from xmem_slurm.site import guess
from xmem_slurm.site.live import Cluster, Node
from xmem_slurm.site.schema import Gpu

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
    questions: list[str] = field(default_factory=list)


@dataclass
class _Group:
    node: Node
    names: str
    gpus: dict[str, int]


@dataclass
class _Draft:
    options: dict[str, _Option] = field(default_factory=dict)
    groups: list[_Group] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


def write(cluster: Cluster, catalogue: Mapping[str, Gpu], host_list: Callable[[Sequence[str]], str]) -> tuple[str, int]:
    """Return the text of a site file and how many questions it asks; `host_list` writes names as Slurm does."""
    draft = _Draft()
    alike: dict[Node, list[str]] = {}
    for node in cluster.nodes:
        if node.partitions:
            alike.setdefault(node._replace(name=""), []).append(node.name)
    for node, names in alike.items():
        draft.groups.append(_Group(node, host_list(names), _gpus(node, names[0], draft, catalogue)))
    values = {"cluster": cluster, "draft": draft, "catalogue": catalogue}
    text = resources.render(resources.template_places(), "site.toml.j2", values, filters={"toml": _toml})
    return text, len(draft.questions) + sum(len(option.questions) for option in draft.options.values())


def _gpus(node: Node, name: str, draft: _Draft, catalogue: Mapping[str, Gpu]) -> dict[str, int]:
    """Return the options of a kind of node with their numbers, adding those that are new to the draft."""
    found: dict[str, int] = {}
    for entry in (entry for entry in node.gres if entry.is_gpu):
        option = _whole(entry.type, node, draft, catalogue)
        if option is None:
            draft.questions.append(
                f"which GPU is {entry} of node {name}, features {','.join(node.features) or 'none'}?"
                " Add an option with its name in the GPU catalogue, and here to gpus"
            )
        else:
            found[option] = found.get(option, 0) + entry.amount
    for entry in (entry for entry in node.gres if entry.is_share):
        whole = next((option for option in found if entry.type in {None, draft.options[option].type}), None)
        if whole is None or entry.amount % found[whole] or entry.amount == found[whole]:
            draft.questions.append(f"of which GPUs is {entry} of node {name}? Add an option with share")
            continue
        found[_share(entry.name, whole, entry.amount // found[whole], draft)] = found[whole]
    return found


def _whole(kind: str | None, node: Node, draft: _Draft, catalogue: Mapping[str, Gpu]) -> str | None:
    likely = guess.candidates(kind, node.features, catalogue)
    constraint = None if kind else next((f for f in node.features if guess.candidates(f, (), catalogue)), None)
    name = kind or constraint
    if not likely or name is None:
        return None
    if name not in draft.options:
        option = _Option(likely[0], kind, constraint, round(catalogue[likely[0]].total_bytes / _COST_BYTES, 1))
        if len(likely) > 1:
            option.questions.append(f"is it {', '.join(likely[1:])} instead? The one with the least memory stands here")
        draft.options[name] = option
    return name


def _share(kind: str, whole: str, per_gpu: int, draft: _Draft) -> str:
    of = draft.options[whole]
    name = f"{kind}-{whole}"
    cost = max(round(of.cost / per_gpu, 4), 0.0001)
    draft.options.setdefault(name, _Option(of.gpu, of.type, of.constraint, cost, (kind, whole, per_gpu)))
    return name


def _toml(value: object) -> str:
    """Write a value as TOML: JSON's strings are TOML's basic strings."""
    return json.dumps(value, ensure_ascii=False)
