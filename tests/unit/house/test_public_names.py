"""What other people's scripts, hooks, site files and dashboards name: it stands frozen in one
golden file.

A name that goes, or means something else, breaks somebody: that is a new major version, with a
fragment of news that says what to write in its place. A new name is a line more: `pytest
tests/unit/house/test_public_names.py --snapshot-update`."""

import dataclasses
import inspect
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from json import loads
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from syrupy.assertion import SnapshotAssertion

import xmem_slurm
from xmem_slurm import errors
from xmem_slurm.cli.main import whole
from xmem_slurm.cli.xsbatch import OWN_OPTIONS
from xmem_slurm.filter import changes, hooks, start
from xmem_slurm.generate import templates
from xmem_slurm.report import audit, comparison, files, json, prometheus, totals
from xmem_slurm.site import schema
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answer, settings

ROOT = Path(__file__).parents[3]


def programs() -> Iterable[str]:
    return sorted(path.name for path in (ROOT / "launchers").iterdir())


def xsbatch() -> Iterator[str]:
    for option in OWN_OPTIONS:
        between = "|" if isinstance(next(iter(option.takes), ""), str) else ".."
        takes = between.join(map(str, option.takes)) or option.form or option.value
        yield f"--{option.name}{f'={takes}' if option.value else ''}  {option.variable}"
    yield from (f"#XMEM {word}" for word in answer.OWN_WORDS)
    yield from (f"#XMEM {name}, settings.toml: {name}" for name in settings.ANYWHERE)
    yield "--xmem-report=FILE" + "".join(f" {ending}" for ending in files.WRITERS)


def variables() -> Iterable[str]:
    """Return those that the documentation tells users of, and those that installed hooks read."""
    users = {
        path
        for path in (ROOT / "docs").glob("*.md")
        if path.stem not in {"architecture", "structure"}
    }
    pages = [ROOT / "README.md", *users, *(ROOT / "templates").glob("[hp]*/*.j2")]
    return sorted(
        {name for page in pages for name in re.findall(r"\bXMEM_[A-Z_]+[A-Z]\b", page.read_text())}
    )


def verbs(command: Any = None, name: str = "xmem-slurm") -> Iterator[str]:
    """Yield each verb, and below it its arguments, its options and the words that they take."""
    command = command or whole()
    yield f"{name}{' (hidden)' if command.hidden else ''}"
    hints = inspect.signature(command.callback).parameters if command.callback else {}
    for parameter in command.params:
        taken = words(hints[parameter.name].annotation) if parameter.name in hints else ""
        spelled = (
            ", ".join(parameter.opts)
            if parameter.param_type_name == "option"
            else parameter.name.upper()
        )
        yield f"    {spelled}{f' = {taken}' if taken else ''}{f'  {parameter.envvar}' if parameter.envvar else ''}"
    for verb, inner in sorted(getattr(command, "commands", {}).items()):
        yield from verbs(inner, f"{name} {verb}")


def words(annotation: Any) -> str:
    """Return the words that a field takes, if it takes only some."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "|".join(annotation)
    return next(filter(None, map(words, get_args(annotation))), "")


def models(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the models in a field's type, and how one of them is named in it: in a table, in a
    list, alone."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    form = {dict: ".NAME", list: "[]", tuple: "[]", UnionType: ""}.get(
        get_origin(annotation) or object, ""
    )
    for inner in get_args(annotation):
        yield from ((form + rest, model) for rest, model in models(inner))


def fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield each field of a model and of those in it; "!" marks one that must be there."""
    for name, field in model.model_fields.items():
        inside = list(models(field.annotation))
        taken = words(field.annotation)
        required = "!" if field.is_required() else ""
        yield f"{path}{name}{required}{f' = {taken}' if taken and not inside else ''}"
        for form, inner in inside:
            yield from fields(inner, f"{path}{name}{form}.")


def exit_codes(error: type[errors.XmemError] = errors.XmemError) -> Iterator[str]:
    yield f"{error.exit_code} {error.__name__}"
    for each in sorted(error.__subclasses__(), key=lambda each: each.__name__):
        if each.__module__.startswith("xmem_slurm."):
            yield from exit_codes(each)


def filter_entry() -> Iterator[str]:
    """Yield what is written into the hooks of sites, which no upgrade of ours rewrites, and what
    those understand."""
    yield f"{start.__name__}.{start.main.__name__}{inspect.signature(start.main)}"
    yield f"{start.__name__}.{start.answer.__name__}{inspect.signature(start.answer)}"
    yield f"python -c {hooks.START}"
    yield from (f"answer: {name}=VALUE" for name in changes._SETTABLE)
    yield from ("answer: end", "answer: refuse")


def audit_line() -> Iterable[str]:
    """Return the keys of a line of the site's record, and what may stand as its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        job = Submission((), {}, b"#!/bin/sh\n")
        audit.record({"audit": {"folder": folder}}, "sbatch", job, audit.AuditOutcome(), began=0.0)
        (line,) = (file.read_text() for file in Path(folder).iterdir())
    return [*loads(line), f"outcome = {'|'.join(audit.OUTCOMES)}"]


def metrics() -> Iterator[str]:
    """Yield the names of the Prometheus metrics with their labels."""
    counted = totals.Totals()
    counted.count(audit.RecordedLine("changed", 1.0, ["gpu:a:1"], ["gpu:b:1"]), {"a", "b"})
    text = prometheus.text(counted)
    yield from sorted(
        {re.sub(r"}.*", "}", line) for line in text.splitlines() if not line.startswith("#")}
    )


def shipped_templates() -> Iterator[str]:
    for template in templates.available(templates.folders(None)):
        names = [
            f"{name}!" if each.default is None else name
            for name, each in template.variables.items()
        ]
        yield f"{template.name}: {', '.join(names)}"


def python() -> Iterator[str]:
    """Yield what `import xmem_slurm` gives: functions with their arguments, values with their
    fields."""
    for name in sorted({*xmem_slurm.__all__} - {"__version__"}):
        found = getattr(xmem_slurm, name)
        yield f"{name}{'' if isinstance(found, type) else inspect.signature(found)}"
        for each in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
            if not each.name.startswith("_"):
                yield f"    {each.name}: {each.type}"
        if dataclasses.is_dataclass(found):
            yield from (
                f"    {method}()"
                for method in vars(found)
                if callable(vars(found)[method]) and method[0] != "_"
            )


SECTIONS: Mapping[str, Callable[[], Iterable[str]]] = {
    "programs": programs,
    "Python": python,
    "xsbatch: options, variables, lines of a script": xsbatch,
    "variables": variables,
    "xmem-slurm: verbs and options": verbs,
    "xmem-slurm generate: templates and what --set takes": shipped_templates,
    "exit codes": exit_codes,
    "site file": lambda: fields(schema.Site),
    "GPU catalogue": lambda: fields(schema.Catalogue),
    "estimate --json": lambda: fields(json.Report),
    "compare --json": lambda: fields(comparison.Comparison),
    "filter": filter_entry,
    "record of decisions": audit_line,
    "Prometheus": metrics,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_names_that_others_use_are_those_of_before(
    section: str, snapshot: SnapshotAssertion
) -> None:
    assert "\n".join(SECTIONS[section]()) == snapshot


def test_a_variable_that_is_told_of_is_read() -> None:
    own = {option.variable for option in OWN_OPTIONS}
    sources = [
        path
        for folder in ("xmem_slurm", "launchers", "templates")
        for path in (ROOT / folder).rglob("*")
    ]
    code = "".join(
        path.read_text()
        for path in sources
        if path.suffix in {".py", ".lua", ".j2", ""} and path.is_file()
    )
    assert [
        name for name in variables() if name not in own and not re.search(rf"\b{name}\b", code)
    ] == []
