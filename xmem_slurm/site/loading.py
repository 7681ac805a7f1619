"""Find and read the site file and the GPU catalogue."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import platformdirs
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from xmem_slurm import resources
from xmem_slurm.errors import SiteError
from xmem_slurm.site.schema import Catalogue, Gpu, Option, Site

_Model = TypeVar("_Model", bound=BaseModel)


def site_file(named: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Say which site file holds: the one named, else XMEM_SITE, else the cluster's, else the user's.

    Raises:
        SiteError: none of them exists.
    """
    if named or environ.get("XMEM_SITE"):
        return Path(named or environ["XMEM_SITE"])
    for place in site_places():
        if place.is_file():
            return place
    raise SiteError(
        f"no site file: looked for {' and '.join(map(str, site_places()))}; name one with XMEM_SITE=FILE, or an option"
    )


def site_places() -> tuple[Path, ...]:
    """Return where a site file is looked for, the first one first."""
    return Path("/etc/xmem-slurm/site.toml"), platformdirs.user_config_path("xmem-slurm") / "site.toml"


def load_site(path: Path) -> Site:
    """Read a site file and check it against itself.

    Raises:
        SiteError: it cannot be read, or says something that the schema does not allow; names the file and each key.
    """
    return _load(path, Site)


def load_catalogue() -> dict[str, Gpu]:
    """Read the GPU catalogue that ships with the code: GPU models by name."""
    return _load(resources.tree("site-config") / "gpus.toml", Catalogue).gpu


def option_gpus(site: Site, catalogue: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the catalogue's entry of every option of the site, by the option's name.

    Raises:
        SiteError: an option names a GPU that the catalogue does not have.
    """
    for name, option in site.option.items():
        if option.gpu not in catalogue:
            near = [known for known in catalogue if known.split("-")[0] == option.gpu.split("-")[0]]
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise SiteError(f"site {site.name}: option.{name}.gpu = {option.gpu!r} is not in the GPU catalogue{hint}")
    return {name: _as_measured(catalogue[option.gpu], option) for name, option in site.option.items()}


def _as_measured(gpu: Gpu, option: Option) -> Gpu:
    if option.context_bytes is None:
        return gpu
    source = "measured at this site: context_bytes of the option"
    return gpu.model_copy(
        update={"context_bytes": option.context_bytes, "context_source": source, "context_measured": True}
    )


def _load(path: Path, model: type[_Model]) -> _Model:
    try:
        return model.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise SiteError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SiteError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        problems = [_problem(each, model) for each in error.errors()]
        raise SiteError(f"{path}: {'; '.join(problems[:3])}") from error


def _problem(found: ErrorDetails, model: type[BaseModel]) -> str:
    """Name the key and say what is wrong with it; for a key that does not exist, which keys there are."""
    where = ".".join(map(str, found["loc"])) or "file"
    if found["type"] != "extra_forbidden":
        return f"{where}: {found['msg']}"
    return f"{where}: no such key; there are {', '.join(_keys_beside(found['loc'], model))}"


def _keys_beside(location: Iterable[int | str], model: type[BaseModel]) -> list[str]:
    """Return the keys of the table that `location` ends in, following the schema down from `model`."""
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
