"""Hooks: what is rendered is Lua, whatever the site's names and paths hold; what is not is never
installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from xmem_slurm import resources
from xmem_slurm.errors import SiteError
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_site

SITE = load_site(resources.tree("site-config") / "example.toml")
PATHS = ["site.toml", "a b/it's $(touch x).toml", 'q"u\\o`te;.toml', "]] --.toml"]

needs_lua = pytest.mark.skipif(
    shutil.which("lua") is None or shutil.which("luac") is None, reason="no Lua here"
)


@needs_lua
@pytest.mark.parametrize("path", PATHS)
def test_any_path_comes_through_lua_and_the_shell_as_it_is(tmp_path: Path, path: str) -> None:
    site_file = tmp_path / path
    texts = hooks.render(site_file, SITE, ["printf", "%s\\n"])
    assert all(hooks.check(name, text) for name, text in texts.items())
    command = next(
        line for line in texts["cli_filter.lua"].splitlines() if line.startswith("local COMMAND")
    )
    done = subprocess.run(
        ["lua", "-e", f"{command}; os.execute(COMMAND)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == str(site_file)
    assert list(tmp_path.iterdir()) == []


@needs_lua
@pytest.mark.parametrize(
    ("value", "said"), [("1", "off"), ("No", "on"), ("", "on"), ("FALSE", "on")]
)
def test_the_hook_knows_what_says_no(value: str, said: str) -> None:
    text = hooks.render(Path("/etc/site.toml"), SITE)["cli_filter.lua"]
    (no,) = (line for line in text.splitlines() if line.startswith("local NO"))
    code = f'{no}\nprint(NO[string.lower(os.getenv("XMEM_OFF"))] and "on" or "off")'
    done = subprocess.run(
        ["lua", "-e", code], env={"XMEM_OFF": value}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{said}\n"


@needs_lua
def test_what_is_no_lua_is_refused_in_the_compilers_words() -> None:
    with pytest.raises(SiteError, match=r"cli_filter\.lua: .*near"):
        hooks.check("cli_filter.lua", "function (")


def test_a_path_that_no_hook_can_hold_is_refused() -> None:
    with pytest.raises(SiteError, match="cannot stand in a hook"):
        hooks.render(Path("/etc/a\nb.toml"), SITE)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="nowhere"):
        hooks.install({"cli_filter.lua": "return 0"}, tmp_path / "nowhere")
