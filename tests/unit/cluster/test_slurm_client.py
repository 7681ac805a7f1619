"""Finding the real sbatch and the script, running Slurm's commands, and steps in a script's
body."""

import sys
from pathlib import Path

import pytest

from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError
from xmem_slurm.slurm.submission import Submission


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_real_sbatch_is_found_behind_our_own(tmp_path: Path) -> None:
    program(
        tmp_path / "ours" / "sbatch",
        "#!/usr/bin/python3\nfrom xmem_slurm.cli.xsbatch import main\n",
    )
    (tmp_path / "odd" / "sbatch").mkdir(parents=True)
    real = program(tmp_path / "real" / "sbatch", "#!/bin/sh\n")
    path = ":".join(str(tmp_path / name) for name in ("missing", "ours", "odd", "real"))
    assert client.find_sbatch({"PATH": path}) == real


def test_a_named_sbatch_is_taken_or_complained_about(tmp_path: Path) -> None:
    named = program(tmp_path / "my-sbatch", "#!/bin/sh\n")
    assert client.find_sbatch({"XMEM_SBATCH": str(named), "PATH": ""}) == named
    with pytest.raises(SlurmError, match="XMEM_SBATCH=/no/such"):
        client.find_sbatch({"XMEM_SBATCH": "/no/such"})


def test_no_sbatch_at_all(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="XMEM_SBATCH"):
        client.find_sbatch({"PATH": str(tmp_path)})


def test_the_script_is_looked_for_where_sbatch_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("here.sh", "sub/here.sh", "sub/only.sh", "path/tool.sh"):
        program(tmp_path / place, "#!/bin/sh\n")
    (tmp_path / "tool.sh").mkdir()
    environ = {"PATH": str(tmp_path / "path")}

    def found(*argv: str) -> Path | None:
        path = client.find_script(Submission(argv, environ, None))
        return None if path is None else path.resolve().relative_to(tmp_path)

    assert found("here.sh") == Path("here.sh")
    assert found("-D", "sub", "here.sh") == Path("sub/here.sh")
    assert found("-D", "sub", "./here.sh") == Path("here.sh")
    assert found("--chdir=sub", "only.sh") == Path("sub/only.sh")
    assert found("-D", "nowhere", "here.sh") == Path("here.sh")
    assert found("tool.sh") == Path("path/tool.sh")
    assert found("none.sh") is None
    assert found("--wrap=true") is None


def test_a_command_that_fails_is_quoted() -> None:
    assert client.run([sys.executable, "-c", "print('fine')"], 30) == "fine\n"
    with pytest.raises(SlurmError, match=r"ended with 3: one \| two"):
        client.run(
            [sys.executable, "-c", "import sys; sys.stderr.write('one\\n\\n two\\n'); sys.exit(3)"],
            30,
        )
    with pytest.raises(SlurmError, match=r"no answer within 0\.2 s"):
        client.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    with pytest.raises(SlurmError, match="No such file"):
        client.run(["/no/such/scontrol"], 1)


def test_options_of_plugins_are_read_off_the_help(tmp_path: Path) -> None:
    text = """
Usage: sbatch
  -A, --account=name    an account

Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              the image to use
      --container-mount-home  bind mount home

Help options:
  -h, --help
"""
    sbatch = program(tmp_path / "sbatch", f"#!/bin/sh\ncat <<'END'{text}END\n")
    found = client.plugin_options(sbatch)
    assert [(option.name, option.arity) for option in found] == [
        ("container-image", "required"),
        ("container-mount-home", "none"),
    ]
