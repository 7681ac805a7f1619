"""Read the site file and the GPU catalogue."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from xmem_slurm import resources
from xmem_slurm.errors import SiteError
from xmem_slurm.site import consistency
from xmem_slurm.site.schema import Catalogue, Gpu, GpuOption, Site
from xmem_slurm.state import silent

_Model = TypeVar("_Model", bound=BaseModel)


def load_site(path: Path) -> Site:
    """Read a site file and check it against itself.

    Raises:
        SiteError: it cannot be read, or is wrong; names the file and the first keys that are.
        SilentPlace: what its templates are on does not answer.
    """
    site, problems = examine(path)
    if site is None or problems:
        hint = ""
        if len(problems) > 3:
            hint = f"; {len(problems) - 3} more: `xmem-slurm site check` lists them"
        raise SiteError(f"{path}: {'; '.join(problems[:3])}{hint}")
    return site


def examine(path: Path) -> tuple[Site | None, list[str]]:
    """Read a site file and say all that is wrong with it; None where it is not by the schema.

    What its parts say of each other is looked at there, too, without those that the schema does not
    allow.

    Raises:
        SiteError: it cannot be read, or is no TOML.
        SilentPlace: what its templates are on does not answer.
    """
    site, problems = _read(path, Site)
    if site is None:
        mended, gone = _mended(tomllib.loads(path.read_text(encoding="utf-8")))
        further = consistency.problems(mended) if mended is not None else []
        return None, problems + [line for line in further if not any(word in line for word in gone)]
    if site.templates is not None:
        templates = path.absolute().parent / site.templates
        silent.require_answers([templates])
        site = site.model_copy(update={"templates": templates})
    return site, consistency.problems(site)


def load_catalogue() -> dict[str, Gpu]:
    """Read the GPU catalogue that ships with the code: GPU models by name.

    Raises:
        SiteError: it is wrong; names the keys.
    """
    path = resources.tree("site-config") / "gpus.toml"
    catalogue, problems = _read(path, Catalogue)
    if catalogue is None:
        raise SiteError(f"{path}: {'; '.join(problems)}")
    return {name: _with_speed(gpu, catalogue.gpu) for name, gpu in catalogue.gpu.items()}


def _with_speed(gpu: Gpu, catalogue: Mapping[str, Gpu]) -> Gpu:
    """Return a MIG profile with its part of the whole GPU's speed; any other as it is."""
    whole = catalogue.get(gpu.mig_of or "")
    if whole is None or whole.speed is None:
        return gpu
    shares = gpu.multiprocessors / whole.multiprocessors, gpu.total_bytes / whole.total_bytes
    return gpu.model_copy(update={"speed": whole.speed.of_part(*shares)})


def option_gpus(site: Site, catalogue: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the catalogue's entry of every option of the site, by the option's name.

    Raises:
        SiteError: options name GPUs that the catalogue does not have.
    """
    unknown = unknown_gpus(site, catalogue)
    if unknown:
        raise SiteError(f"site {site.name}: {'; '.join(unknown)}")
    return {
        name: _as_measured(catalogue[option.gpu], option, site)
        for name, option in site.option.items()
    }


def unknown_gpus(site: Site, catalogue: Mapping[str, Gpu]) -> list[str]:
    """Return a line for each option whose GPU the catalogue does not have, with the entries that
    are near.
    """
    lines = []
    for name, option in site.option.items():
        if option.gpu not in catalogue:
            near = [entry for entry in catalogue if entry.split("-")[0] == option.gpu.split("-")[0]]
            hint = f"; near it: {', '.join(near)}" if near else ""
            lines.append(f"option.{name}.gpu = {option.gpu!r} is not in the GPU catalogue{hint}")
    return lines


def _as_measured(gpu: Gpu, option: GpuOption, site: Site) -> Gpu:
    """Return the catalogue's entry with what was measured of the option's GPU; of a share's, on the
    whole one.
    """
    whole = option
    if option.measured is None and option.share is not None:
        whole = site.option[option.share.of]
    if whole.measured is None:
        return gpu
    figures = {
        "context_bytes": whole.measured.context_bytes,
        "nccl_bytes": whole.measured.nccl_bytes,
    }
    return gpu.model_copy(
        update={**figures, "context_source": whole.measured.source, "context_measured": True}
    )


def _read(path: Path, model: type[_Model]) -> tuple[_Model | None, list[str]]:
    """Return what a file says, or all that the schema does not allow in it."""
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))), []
    except OSError as error:
        raise SiteError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SiteError(f"{path}: not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SiteError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        return None, [_problem(detail, model) for detail in error.errors()]


_STAND_INS: Mapping[str, Any] = {
    "schema_version": 1,
    "name": "x",
    "names": "x",
    "cpus": 1,
    "memory_mib": 2**40,
    "cost": 1,
}
"""What stands for a value that must be there, and is missing or wrong."""
_MOST_MENDED = 100


def _mended(content: dict[str, Any]) -> tuple[Site | None, set[str]]:
    """Return a site without what is not by the schema, and what must not be said of it, as that is
    why.
    """
    gone: set[str] = set()
    for _ in range(_MOST_MENDED):
        try:
            return Site.model_validate(content), gone
        except ValidationError as error:
            path = [part for part in error.errors()[0]["loc"] if part != "[key]"]
            tables: list[Any] = [content]
            for part in path[:-1]:
                tables.append(tables[-1][part])
            last = path[-1] if path else None
            if (
                isinstance(last, str)
                and last in _STAND_INS
                and tables[-1].get(last) != _STAND_INS[last]
            ):
                tables[-1][last] = _STAND_INS[last]
                continue
            # it is missing: all of it goes
            while tables and not (isinstance(tables[-1], list) or path[-1] in tables[-1]):
                path.pop()
                tables.pop()
            if not tables:
                return None, gone
            del tables[-1][path[-1]]
            gone |= {"no nodes have"} if path[0] == "nodes" else {str(path[-1])}
    return None, gone


def _problem(error: ErrorDetails, model: type[BaseModel]) -> str:
    """Name the key and say what is wrong with it; for a key that does not exist, which keys there
    are.
    """
    where = ".".join(map(str, error["loc"])) or "file"
    if error["type"] != "extra_forbidden":
        return f"{where}: {error['msg']}"
    return f"{where}: no such key; there are {', '.join(_keys_beside(error['loc'], model))}"


def _keys_beside(location: Iterable[int | str], model: type[BaseModel]) -> list[str]:
    """Return the keys of the table that `location` ends in, following the schema down from
    `model`.
    """
    *path, _ = location
    schema = model.model_json_schema()
    table = schema
    for part in path:
        named = {part: table.get("items", {}), **table.get("properties", {})}
        below = next(iter(table.get("patternProperties", {}).values()), named.get(part, {}))
        for choice in [below, *below.get("anyOf", [])]:
            reference = choice.get("$ref", "").rpartition("/")[2]
            below = schema["$defs"].get(reference, below)
        table = below
    return list(table.get("properties", {}))
