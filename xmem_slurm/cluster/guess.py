"""Which GPU of the catalogue is meant by a cluster's GRES type and node features?

Sites name their types freely (`a100`, `nvidia_a100-sxm4-80gb`, `a100_80`, `1g.10gb`), so this finds
candidates: all entries of the longest model name that the type, else a feature, holds, and of those
the ones with the GiB or the MIG profile that is named. Where several are left, the one with the
least memory is safe.
"""

import difflib
import re
from collections.abc import Mapping, Sequence, Set

from xmem_slurm.errors import UsageError
from xmem_slurm.site.schema import Gpu

_PROFILE = re.compile(r"\d+g\.\d+gb")
_WORD = re.compile(rf"{_PROFILE.pattern}|[a-z0-9]+")
_FORM = re.compile(r"-(sxm\d|pcie|\d+gb)")
"""What an entry's name has after its model: form factor and memory."""
_SHOWN = 0.9
"""An L4, sold with 24 GB, shows 0.92 of 24 GiB, less than any other of the catalogue."""


def candidates(
    kind: str | None, features: Sequence[str], catalogue: Mapping[str, Gpu]
) -> list[str]:
    """Return the entries that may be meant, the one with the least memory first; none where no
    model is named.
    """
    typed = (kind or "").lower()
    hints = [typed, *(feature.lower() for feature in features)]
    profile = _PROFILE.search(typed)
    profiles = {
        name
        for name, gpu in catalogue.items()
        if gpu.mig_profile == (profile[0] if profile else None)
    }
    model = next(filter(None, (_model(_PROFILE.sub("", hint), catalogue) for hint in hints)), None)
    if model is None and profile is None:
        return []
    of_model = [
        name for name in profiles if model is None or _bare(catalogue[name].mig_of or name) == model
    ]
    of_form = _narrowed(of_model, hints)
    return sorted(of_form, key=lambda name: (catalogue[name].total_bytes, name))


def named(name: str, catalogue: Mapping[str, Gpu]) -> str:
    """Return the entry that a person means: by its name or CUDA's, in any case, or by so much of it
    that one is left.

    Raises:
        UsageError: there is none, or there are several; lists those that are meant or near.
    """
    lower, start = name.lower(), _letters(name.lower())
    same = [
        entry
        for entry, gpu in catalogue.items()
        if lower in (entry, gpu.cuda_name.lower(), gpu.description.lower())
    ]
    begun = [
        entry
        for entry, gpu in catalogue.items()
        if gpu.mig_of is None and _letters(entry).startswith(start)
    ]
    words = set(_WORD.findall(lower)) - {"nvidia", "tesla", "geforce"}
    partly = [entry for entry, gpu in catalogue.items() if words and _has(words, entry, gpu)]
    meant = same or begun or partly
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UsageError(
            f"--gpu {name}: {len(meant)} are meant by that; name one: {', '.join(meant)}"
        )
    near = difflib.get_close_matches(lower, catalogue)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise UsageError(f"--gpu {name}: not in the GPU catalogue{hint}; `xmem-slurm gpus` lists it")


def of_size(size_bytes: int, catalogue: Mapping[str, Gpu]) -> list[str]:
    """Return the whole GPUs that are sold as ones with this much memory: CUDA shows at least
    `_SHOWN` of it.
    """
    of_memory = [
        name
        for name, gpu in catalogue.items()
        if _SHOWN * size_bytes <= gpu.total_bytes <= size_bytes
    ]
    whole = [name for name in of_memory if catalogue[name].mig_of is None]
    return sorted(whole, key=lambda name: (catalogue[name].total_bytes, name))


def _narrowed(names: Sequence[str], hints: Sequence[str]) -> Sequence[str]:
    """Keep the names whose form factor and GiB a hint has, the GRES type before the features; all
    where none has.
    """
    for hint in hints:
        words = re.findall(r"sxm\d|pcie|\d+", _PROFILE.sub("", hint))
        for wanted in words:
            fitting = [
                name
                for name in names
                if wanted in re.findall(r"sxm\d|pcie|\d+(?=gb)", name.split(".")[0])
            ]
            names = fitting or names
    return names


def _model(hint: str, catalogue: Mapping[str, Gpu]) -> str | None:
    """Return the longest model name in the hint."""
    text = re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", hint)
    models = {_bare(name) for name, gpu in catalogue.items() if gpu.mig_of is None}
    named = [
        model
        for model in models
        if model in text or (len(model) > 5 and model.removeprefix("rtx") in text)
    ]
    return max(named, key=len, default=None)


def _bare(name: str) -> str:
    return _letters(_FORM.sub("", name))


def _has(words: Set[str], name: str, gpu: Gpu) -> bool:
    """Whether an entry's name has all of these words, GiB without their unit included, and no
    profile beside them.
    """
    name_words = set(_WORD.findall(name))
    return all(word in name_words or f"{word}gb" in name_words for word in words) and (
        gpu.mig_profile in words or gpu.mig_of is None
    )


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)
