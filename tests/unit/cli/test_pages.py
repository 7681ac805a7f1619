"""The man page and the completions: what a shell and man make of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xmem_slurm import resources
from xmem_slurm.cli import pages, verb_pages
from xmem_slurm.cli.main import VERBS as TABLE
from xmem_slurm.cli.main import app, whole
from xmem_slurm.cli.xsbatch import OWN_OPTIONS
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.options import SBATCH

VERBS = whole()


def completed(tmp_path: Path, *words: str, program: str = "xsbatch", **programs: str) -> list[str]:
    """Let bash complete the last of `words`; `programs` stand for Slurm's."""
    text = pages.render("bash") if program == "xsbatch" else verb_pages.render("bash", VERBS)
    (tmp_path / program).write_text(text)
    for name, said in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{said}\\n'\n")
        (tmp_path / name).chmod(0o755)
    script = (
        f'compopt() {{ :; }}; . ./{program}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        f"_{program.replace('-', '_')}; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-uc", script, "bash", program, *words],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_knows_every_option_of_both(tmp_path: Path) -> None:
    found = {word.rstrip("=") for word in completed(tmp_path, "--")}
    assert found == {f"--{o.name}" for o in SBATCH.options if not o.until} | {
        f"--{o.name}" for o in OWN_OPTIONS
    }


def test_bash_completes_values(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert completed(tmp_path, "--gpus-per-n") == ["--gpus-per-node="]
    assert completed(tmp_path, "--partition", "=", "g", sinfo="gpu\\ncpu") == ["gpu"]
    assert completed(tmp_path, "-p", "c", sinfo="gpu\\ncpu") == ["cpu"]
    assert completed(tmp_path, "--chdir", "=", "f") == ["folder"]
    assert completed(tmp_path, "--xmem-site", "=", "xsb") == ["xsbatch"]
    assert completed(tmp_path, "xsb") == ["xsbatch"]
    assert completed(tmp_path, "--xmem-policy", "=", "") == ["cost", "memory", "start"]


def test_zsh_has_every_option() -> None:
    text = pages.render("zsh")
    assert all(
        f"--{option.name}" in text
        for option in (*OWN_OPTIONS, *(o for o in SBATCH.options if not o.until))
    )
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=text, text=True, check=True)


def test_fish_has_every_option() -> None:
    text = pages.render("fish")
    assert all(f" -l {option.name} " in text.replace("\n", " ") for option in OWN_OPTIONS)
    assert all(
        f" -l {option.name} " in text.replace("\n", " ")
        for option in SBATCH.options
        if not option.until
    )
    if shutil.which("fish"):
        subprocess.run(["fish", "--no-execute"], input=text, text=True, check=True)


@pytest.mark.parametrize("place", [*pages.SHARE.values(), *verb_pages.SHARE.values()])
def test_what_is_shipped_is_what_the_tables_say(place: str) -> None:
    """If not: `python -m xmem_slurm.cli.pages`."""
    assert (resources.tree("share") / place).read_text(encoding="utf-8") == pages.shipped()[place]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_verb_prints_it(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert (done.exit_code, done.stdout) == (0, pages.render(shell))
    done = CliRunner().invoke(app, ["completion", shell, "xmem-slurm"])
    assert done.stdout == verb_pages.render(shell, VERBS)


def test_bash_completes_verbs_and_their_options(tmp_path: Path) -> None:
    assert {"estimate", "site", "gpus"} <= set(completed(tmp_path, "", program="xmem-slurm"))
    assert completed(tmp_path, "site", "che", program="xmem-slurm") == ["check"]
    assert completed(tmp_path, "site", "check", "--of", program="xmem-slurm") == ["--offline"]
    assert completed(tmp_path, "estimate", "--gpu", "l4", "--ht", program="xmem-slurm") == [
        "--html"
    ]
    (tmp_path / "train.py").touch()
    assert completed(tmp_path, "estimate", "tr", program="xmem-slurm") == ["train.py"]


@pytest.mark.parametrize("page", ["zsh", "fish", "man"])
def test_other_pages_have_every_verb_and_option(page: str) -> None:
    text = verb_pages.render(page, VERBS).replace("\\-", "-")
    for name, verb in VERBS.commands.items():  # type: ignore[attr-defined]
        if not verb.hidden:
            assert re.search(rf"(?m)(-a |[( ]|^\.SS ){name}\b", text)
            long = [
                next(name for name in each.opts if name.startswith("--"))
                for each in verb.params
                if "--" in str(each.opts)
            ]
            options = [name.removeprefix("--") for name in long]
            assert [
                option for option in options if not re.search(rf"-l {option}\b|--{option}\b", text)
            ] == []
    shell = shutil.which(page)
    if shell is not None and page != "man":
        subprocess.run(
            [shell, "-n" if page == "zsh" else "--no-execute"], input=text, text=True, check=True
        )


def test_the_man_page_has_our_options_and_no_errors() -> None:
    text = pages.render("man")
    assert all(option.variable in text for option in OWN_OPTIONS)
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""


def test_no_such_page() -> None:
    with pytest.raises(UsageError, match="bash, zsh, fish, man"):
        pages.render("csh")


def test_the_list_of_verbs_says_what_each_says_of_itself() -> None:
    own = {
        name: (" ".join(verb.help.split()), verb.hidden) for name, verb in VERBS.commands.items()
    }
    assert own == {name: (place.help, place.hidden) for name, place in TABLE.items()}
