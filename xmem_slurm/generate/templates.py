"""Which job templates are there, what can be set in each, and what do they give?

A template is a Jinja2 file NAME.sh.j2 in `templates/jobs/`, in a folder of the user's own, which
goes first, or in the site's. Its first comment is TOML: `about`, whether it makes an `array`, and
its variables, each with what it is and a default (without one it must be set; a default that is a
whole number wants a whole number). The variables of `_head.sh.j2` are every template's. Beside its
variables a template is given

    command     the command line, one line of shell; in an array that of the first task
    commands    in an array: all of them
    torchrun    the command as torchrun takes it: without its `python`, or behind --no-python
    sh          a filter that quotes a word for the shell; sbatch reads #SBATCH lines the same way

Templates run in Jinja2's sandbox and see no file and no variable but these.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import BaseModel, ConfigDict, ValidationError

from xmem_slurm import resources
from xmem_slurm.errors import UsageError

SUFFIX = ".sh.j2"

_HEAD = "_head"
"""The template whose variables all share."""

_COMMENT = re.compile(r"\A\{#-?(.*?)-?#\}", re.DOTALL)


class Variable(BaseModel):
    """What can be set with `--set`. Without a default it must be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    default: int | str | None = None


class Header(BaseModel):
    """What a template says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    array: bool = False
    variable: Mapping[str, Variable] = {}


@dataclass(frozen=True)
class Template:
    """A job template; `variables` are its own and those that all share."""

    name: str
    path: Path
    about: str
    array: bool
    variables: Mapping[str, Variable]
    places: Sequence[Path]
    """The folders that it may include from."""


def folders(users_folder: Path | None, site: Path | None = None) -> list[Path]:
    """Return where templates are looked for: the user's own folder, then the site's, then those
    that ship.
    """
    shipped = resources.tree("templates") / "jobs"
    theirs = [
        place
        for place in resources.template_places("jobs", site)
        if place.is_dir() or place == shipped
    ]
    return [users_folder, *theirs] if users_folder is not None else theirs


def available(places: Sequence[Path]) -> list[Template]:
    """Return every template by name; one in an earlier folder stands before one of the same name in
    a later.

    Raises:
        UsageError: a folder is none, or a template's first comment is not as it should be.
    """
    templates: dict[str, Path] = {}
    for place in places:
        if not place.is_dir():
            raise UsageError(f"{place}: no such folder of templates")
        for path in sorted(place.glob(f"*{SUFFIX}")):
            templates.setdefault(path.name.removesuffix(SUFFIX), path)
    shared = _header(templates[_HEAD]).variable
    return [
        _template(name, path, shared, places)
        for name, path in sorted(templates.items())
        if not name.startswith("_")
    ]


def find(name: str, places: Sequence[Path]) -> Template:
    """Return the template of that name.

    Raises:
        UsageError: there is none; the message lists those that there are. Else as `available`.
    """
    templates = {template.name: template for template in available(places)}
    if name not in templates:
        raise UsageError(f"--template {name}: no such template; there are {', '.join(templates)}")
    return templates[name]


def values(template: Template, settings: Sequence[str]) -> dict[str, int | str]:
    """Return the value of every variable, from `key=value` settings and the defaults.

    Raises:
        UsageError: a setting names no variable (the message lists them) or has a value of the wrong
            kind, or a variable without a default is not set.
    """
    chosen: dict[str, int | str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in template.variables or not equals:
            raise UsageError(
                f"--set {setting}: write key=value; {template.name} has "
                f"{', '.join(template.variables)}"
            )
        if not value.isprintable():
            raise UsageError(f"--set {key}: a value is one line of printable characters")
        default = template.variables[key].default
        if isinstance(default, int):
            minimum = min(default, 1)  # what is 0 unless it is set may be 0
            if not value.isdecimal() or int(value) < minimum:
                form = f"a whole number from {minimum} on"
                raise UsageError(
                    f"--set {setting}: {key} is {form}: {template.variables[key].about}"
                )
            chosen[key] = int(value)
        else:
            chosen[key] = value
    filled: dict[str, int | str] = {}
    for key, variable in template.variables.items():
        setting_or_default = chosen.get(key, variable.default)
        if setting_or_default is None:
            raise UsageError(f"template {template.name} needs --set {key}=…: {variable.about}")
        filled[key] = setting_or_default
    return filled


def render(
    template: Template, settings: Mapping[str, int | str], commands: Sequence[Sequence[str]]
) -> str:
    """Return the script that runs `commands`: all of them as an array, or the only one.

    Raises:
        UsageError: the template has a mistake; names file and line.
    """
    lines = [shlex.join(command) for command in commands]
    values = {
        **settings,
        "command": lines[0],
        "commands": lines,
        "torchrun": _for_torchrun(commands[0]),
    }
    filters = {"sh": lambda value: shlex.quote(str(value))}
    return resources.render(
        template.places, template.path.name, values, filters=filters, sandboxed=True
    )


def describe(template: Template) -> str:
    """Return what a person wants to know of a template: its variables, and its text."""
    head, _, body = template.path.read_text(encoding="utf-8").partition("#}\n")
    lines = [f"{template.name}: {template.about}", f"{template.path}", ""]
    for key, variable in template.variables.items():
        setting = (
            f"{key} (must be set)" if variable.default is None else f"{key} = {variable.default}"
        )
        lines.append(f"  {setting:24} {variable.about}")
    return "\n".join([*lines, "", (body or head).rstrip()])


def _for_torchrun(command: Sequence[str]) -> str:
    is_python = re.fullmatch(r"python[\d.]*", PurePath(command[0]).name)
    return shlex.join(command[1:] if is_python else ["--no-python", *command])


def _template(
    name: str, path: Path, shared: Mapping[str, Variable], places: Sequence[Path]
) -> Template:
    header = _header(path)
    return Template(name, path, header.about, header.array, {**shared, **header.variable}, places)


def _header(path: Path) -> Header:
    comment = _COMMENT.match(path.read_text(encoding="utf-8"))
    try:
        return Header.model_validate(tomllib.loads(comment[1]) if comment is not None else {})
    except (ValueError, ValidationError) as error:
        raise UsageError(
            f"{path}: its first comment must be TOML with 'about' and [variable]: {error}"
        ) from error
