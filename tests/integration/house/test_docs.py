"""The documentation is true: its commands work, its links lead somewhere, its tables of options are
complete."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs import tree
from tests.conftest import Cluster
from xmem_slurm.cli import xsbatch
from xmem_slurm.cli.main import whole
from xmem_slurm.generate import templates
from xmem_slurm.site import schema

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
OURS = [ROOT / "docs" / name for name in ("tutorial.md", "guide.md")]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
COMMANDS = [
    line[2:]
    for page in OURS
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


def test_the_tree_is_the_one_that_the_rules_of_imports_hold() -> None:
    assert tree.page() == tree.PAGE.read_text(encoding="utf-8"), "run: make tree"


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs(
    cluster: Cluster, job_python: Path, tmp_path: Path, command: str
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = os.pathsep.join(
        [str(job_python.parent), str(Path(sys.executable).parent), cluster.environ["PATH"]]
    )
    environ = cluster.environ | {"PATH": path, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "submitted as written" not in done.stderr
    assert "not estimated" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_files_of_the_site(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        assert target.is_file(), link
        assert target.is_relative_to(ROOT / "docs"), (
            f"{link}: the site has docs/ alone; write it as a path in backquotes"
        )


def test_the_site_has_every_page() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    assert sorted(page for entry in site["project"]["nav"] for page in entry.values()) == [
        page.name for page in PAGES
    ]


def section(title: str) -> str:
    return REFERENCE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("verb", ["estimate", "generate", "plan"])
def test_the_reference_has_every_option_of_a_verb_and_no_other(verb: str) -> None:
    command = whole().commands[verb]  # type: ignore[attr-defined]
    names = (name for option in command.params for name in (*option.opts, *option.secondary_opts))
    options = {name for name in names if name.startswith("--")} - {"--help"}
    rows = re.findall(r"^\| (`--[^|]*)", section(f"xmem-slurm {verb}"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(--[a-z-]+)", row)} == options


def test_the_reference_has_every_option_of_xsbatch_and_no_other() -> None:
    told = re.findall(r"^\| `--([a-z-]+)[^|]*\| `([A-Z_]+)`", section("xsbatch"), re.MULTILINE)
    assert {name for name, _ in told} == {option.name for option in xsbatch._OPTIONS}
    assert all(variable == name.upper().replace("-", "_") for name, variable in told)


def keys(title: str) -> set[str]:
    table = section("The site file").partition(f"### {title}\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^\| `([a-z_]+)`", table, re.MULTILINE))


def test_the_reference_has_every_key_of_a_site_file_and_no_other() -> None:
    tables = {
        "[option.NAME]": schema.GpuOption,
        "[[nodes]]": schema.Nodes,
        "[partition.NAME]": schema.Partition,
        "[dialect]": schema.Dialect,
        "[policy]": schema.Policy,
        "[dry_run]": schema.DryRuns,
        "[filter]": schema.Filter,
        "[audit]": schema.Audit,
        "[outcomes]": schema.Outcomes,
        "[job_submit]": schema.JobSubmit,
    }
    for title, model in tables.items():
        assert keys(title) == set(model.model_fields), title
    inside = {re.sub(r"\W|NAME", "", title) for title in tables}
    assert keys("At the top") == set(schema.Site.model_fields) - inside
    for model in (schema.Share, schema.Measured):
        assert all(f"`{name}`" in section("The site file") for name in model.model_fields)


def test_the_reference_has_every_variable_of_every_template() -> None:
    for template in templates.available(templates.folders(None)):
        own = (
            section("xmem-slurm generate")
            .partition(f"### Template {template.name}\n")[2]
            .partition("\n### ")[0]
        )
        shared = (
            section("xmem-slurm generate")
            .partition("### Variables of every template")[2]
            .partition("\n### ")[0]
        )
        assert template.about in own
        for name, variable in template.variables.items():
            default = {None: "must be set", "": "empty"}.get(
                variable.default, f"`{variable.default}`"
            )
            assert f"| `{name}` | {default} | {variable.about} |" in own + shared
