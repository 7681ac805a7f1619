"""How long does plain sbatch take where xmem-slurm is broken, or where what it touches does not
answer or is full?

    python -m benchmarks.broken_places [--seconds 5]

As root. Starts a throw-away Slurm cluster of the example site with the filter, which waits for
`--seconds`, and submits one job a row: to a copy of xmem-slurm that is broken in some way, or where
a folder is a FUSE mount of which no request is ever answered, or a tmpfs of 200 KiB that is full,
in a namespace of mounts of its own. Prints how long sbatch took and what was said; ends with 1 if a
job was lost or changed, took 3 seconds longer than the hook may wait, or had more than one line
about it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.overhead import SITE
from benchmarks.text_table import text_table
from tests.harness.hung_mount import hung
from xmem_slurm import lab
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_site

JOB = "#!/bin/sh\n#SBATCH --gres=gpu:h200:1 --output=/dev/null\n{line}\nexit 3\n"
FILTER = '\n[filter]\nmode = "rewrite"\nseconds = {seconds}\n'
SLACK_SECONDS = 3
FULL = (
    'mount -t tmpfs -o size=200k none "$0" && head -c 1M /dev/zero >"$0/full" 2>/dev/null; exec '
    '"$@"'
)
NO_INODES = 'mount -t tmpfs -o size=200k,nr_inodes=1 none "$0"; exec "$@"'
READ_ONLY = 'mount -t tmpfs -o ro none "$0"; exec "$@"'


class Case(NamedTuple):
    """What is done to a copy of the checkout, or to a folder; how it is then reached."""

    name: str
    breaks: Callable[[Path], object] | None = None
    python: str | None = None
    environ: Mapping[str, str] = {}
    site: str = ""
    line: str = "true"
    mount: str = ""
    site_file: str = ""


def _write(name: str, text: str) -> Callable[[Path], object]:
    # one that is gone would break nothing
    return lambda tree: (tree / name).resolve(strict=True).write_text(text)


def _half(name: str) -> Callable[[Path], object]:
    return lambda tree: (tree / name).write_bytes(
        (tree / name).read_bytes()[: (tree / name).stat().st_size // 2]
    )


def _gone(name: str) -> Callable[[Path], object]:
    return lambda tree: (
        shutil.rmtree(tree / name) if (tree / name).is_dir() else (tree / name).unlink()
    )


def _script(text: str) -> Callable[[Path], object]:
    def write(tree: Path) -> None:
        (tree / "python").write_text(text)
        (tree / "python").chmod(0o755)

    return write


HERE = "{tree}/python"
BROKEN = (
    Case("its Python is gone", python="/nowhere/python"),
    Case("its Python is a folder", python="/tmp"),
    Case("its Python may not be run", lambda tree: (tree / "python").touch(), HERE),
    Case(
        "its Python fails",
        _script("#!/bin/sh\necho libpython.so: cannot open >&2; exit 127\n"),
        HERE,
    ),
    Case("its Python dies", _script("#!/bin/sh\nkill -SEGV $$\n"), HERE),
    Case("its Python does not end", _script("#!/bin/sh\nsleep 600\n"), HERE),
    Case("its Python has no package", python="/usr/bin/python3"),
    Case("the package is gone", _gone("xmem_slurm")),
    Case("a module does not parse", _write("xmem_slurm/filter/changes.py", "def (\n")),
    Case(
        "a module that sizes does not parse",
        _write("xmem_slurm/submission/by_sizing.py", "def (\n"),
    ),
    Case("a module is gone", _gone("xmem_slurm/filter/caller.py")),
    Case("a module is cut off", _half("xmem_slurm/filter/changes.py")),
    Case("a module is empty", _write("xmem_slurm/filter/detached.py", "")),
    Case(
        "a module is of another release",
        _write("xmem_slurm/submission/answers.py", "def key(job): return 'x'\n"),
    ),
    Case("the package does not start", _write("xmem_slurm/__init__.py", "1 / 0\n")),
    Case("a module asks for input", _write("xmem_slurm/filter/start.py", "input()\n")),
    Case("a module ends it", _write("xmem_slurm/filter/start.py", "raise SystemExit(0)\n")),
    Case("the templates are gone", _gone("templates")),
    Case("the GPU catalogue is broken", _write("site-config/gpus.toml", "[[[")),
    Case("the site file is no TOML", site="[[["),
    Case("the site file is of another release", site="\n[new]\nkey = 1\n"),
    Case("the site file is gone", site_file="/nowhere/site.toml"),
    Case(
        "the site file is a pipe",
        lambda tree: os.mkfifo(tree / "site.toml"),
        site_file="{tree}/site.toml",
    ),
)
SOURCED = ". {mount}/environment.sh 2>/dev/null"
HUNG = (
    Case("its Python", python="{mount}/bin/python"),
    Case("its package", environ={"XMEM_TREE": "{mount}"}),
    Case("the site file", site_file="{mount}/site.toml"),
    Case("the cache", environ={"XDG_CACHE_HOME": "{mount}"}),
    Case("the state folder", environ={"XDG_STATE_HOME": "{mount}"}),
    Case("the folder of settings", environ={"XDG_CONFIG_HOME": "{mount}"}),
    Case("the home", environ={"HOME": "{mount}", "XDG_CACHE_HOME": "", "XDG_STATE_HOME": ""}),
    Case("TMPDIR", environ={"TMPDIR": "{mount}"}),
    Case("a folder on PATH", environ={"PATH": "{path}:{mount}"}),
    Case("a folder on PYTHONPATH", environ={"PYTHONPATH": "{mount}"}),
    Case("a file that the script reads", line=SOURCED),
    Case("the audit folder", site='\n[audit]\nfolder = "{mount}"\n'),
    Case("the spool", site='\n[outcomes]\nspool = "{mount}"\n'),
    Case("the margins", site='\n[outcomes]\nmargins = "{mount}/margins.toml"\n'),
)
FULL_PLACES = tuple(
    Case(f"{name} {what}", environ=environ, site=site, mount=mount)
    for what, mount in (("full", FULL), ("without inodes", NO_INODES), ("read-only", READ_ONLY))
    for name, environ, site in (
        ("the cache", {"XDG_CACHE_HOME": "{mount}"}, ""),
        ("the state folder", {"XDG_STATE_HOME": "{mount}"}, ""),
        ("the home", {"HOME": "{mount}", "XDG_CACHE_HOME": "", "XDG_STATE_HOME": ""}, ""),
        ("TMPDIR", {"TMPDIR": "{mount}"}, ""),
        ("the audit folder", {}, '\n[audit]\nfolder = "{mount}"\n'),
    )
)


class Rig:
    """A cluster whose hook a row can change: Slurm reads it anew for each sbatch."""

    def __init__(self, parent: Path, seconds: float) -> None:
        self.parent, self.seconds, self.number = parent, seconds, 0
        self.site_file = parent / "site.toml"
        self.site_file.write_text(
            SITE.read_text(encoding="utf-8") + FILTER.format(seconds=seconds), encoding="utf-8"
        )
        self.site = load_site(self.site_file)
        lab.up(self.site, parent / "lab", hooks=hooks.render(self.site_file, self.site))
        self.environ = os.environ | lab.environment(parent / "lab")

    def submit(self, case: Case, *, is_hung: bool) -> tuple[float, str]:
        """Submit a job there; return how long that took, and what was wrong with it or said."""
        self.number += 1
        folder = self.parent / f"case-{self.number}"
        mount, tree = folder / "mount", folder / "tree"
        mount.mkdir(parents=True)
        root = Path(__file__).parents[1]
        for name in ("xmem_slurm", "templates", "site-config"):
            shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        if case.breaks is not None:
            case.breaks(tree)
        known = {"mount": mount, "tree": tree, "path": self.environ["PATH"]}
        (folder / "job.sh").write_text(JOB.format(line=case.line.format(**known)), encoding="utf-8")
        (folder / "site.toml").write_text(
            self.site_file.read_text(encoding="utf-8") + case.site.format(**known), encoding="utf-8"
        )
        given = {
            "XMEM_TREE": str(tree),
            **{name: value.format(**known) for name, value in case.environ.items()},
        }
        own = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        environ = {name: value for name, value in (self.environ | own | given).items() if value}
        start = f"import sys; sys.path.insert(0, {given['XMEM_TREE']!r}); {hooks.START}"
        program = [(case.python or sys.executable).format(**known), "-I", "-c", start]
        site_file = Path((case.site_file or "{folder}/site.toml").format(folder=folder, **known))
        text = hooks.render(site_file, self.site, program)["cli_filter.lua"]
        (self.parent / "lab" / "cli_filter.lua").write_text(text, encoding="utf-8")
        with ExitStack() as stack:
            inside = stack.enter_context(hung(mount)) if is_hung else []
            if case.mount:
                inside = ["unshare", "--mount", "sh", "-c", case.mount, str(mount)]
            return self._timed(
                [*inside, "sbatch", "--hold", "--parsable", "job.sh"], folder, environ
            )

    def _timed(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str]
    ) -> tuple[float, str]:
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - began
        shown = subprocess.run(
            ["scontrol", "show", "job", done.stdout.strip()],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        lost = "" if "gpu:h200:1" in shown else "LOST: "
        subprocess.run(
            ["scancel", done.stdout.strip()], env=self.environ, capture_output=True, check=False
        )
        return took, lost + " / ".join(done.stderr.splitlines())


def main() -> None:
    """Submit each, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5)
    asked = parser.parse_args()
    rows, fine = [], True
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder:
        parent = Path(folder)
        parent.chmod(0o755)
        rig = Rig(parent, asked.seconds)
        try:
            for what, cases, is_hung in (
                ("broken", BROKEN, False),
                ("hung", HUNG, True),
                ("", FULL_PLACES, False),
            ):
                for case in cases:
                    took, said = rig.submit(case, is_hung=is_hung)
                    brief = said.count("submitted as written") <= 1 and "Traceback" not in said
                    fine &= (
                        not said.startswith("LOST")
                        and took < asked.seconds + SLACK_SECONDS
                        and brief
                    )
                    rows.append([what, case.name, f"{took:.2f} s", said[:130]])
                    print(*rows[-1], file=sys.stderr, flush=True)
        finally:
            lab.down(parent / "lab")
    print("\n".join(text_table(["", "where", "sbatch took", "said"], rows)))
    lost = f"{'no' if fine else 'A'} job was lost or kept longer"
    print(f"{len(rows)} submissions; the hook waits {asked.seconds:g} s; {lost}")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
