"""How do Slurm's two Lua hooks come from a site file into Slurm's configuration folder?

`cli_filter.lua` runs in every sbatch, `job_submit.lua` in slurmctld. A hook that does not parse
makes every sbatch fail, so none is installed that Lua's own compiler has not read, and what was
there before is kept beside it.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xmem_slurm import __version__, isolated, resources
from xmem_slurm.errors import SiteError
from xmem_slurm.site.schema import Site
from xmem_slurm.state import own_files
from xmem_slurm.submission import settings

NAMES = ("cli_filter.lua", "job_submit.lua")

_STARTED = """
import sys
try:
    from xmem_slurm.filter.start import main
    main()
except Exception as error:
    if getattr(error, "name", "") != "xmem_slurm":
        why = str(error).partition(chr(10))[0]
        print(f"xmem-slurm: submitted as written: {type(error).__name__}: {why}", file=sys.stderr)
    print("end")
""".strip()
"""What this Python runs for a hook. Where its package is gone the job goes as it was written,
without a word."""
_WAITING = """
read -r began _ </proc/uptime;
{{ ( exec </dev/null 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; {answering} ) & }} |
PATH=/usr/bin:/bin exec {timeout} {seconds} sed -u "/^end$/q;/^refuse$/q;/^strict$/q"
""".strip().replace("\n", " ")
"""What the hook waits for is a sed of this machine: it hands on the answer, and ends with it, or
when its time is up.

What answers has nothing of sbatch's open but that pipe, and nobody waits for it to end: where its
Python, or whatever it reads, lies on a file system that does not answer, no signal ends it (a FUSE
mount's request, once it is read). """

_COMPILERS = ("luac", "luac5.1", "luac5.3", "luac5.4")
_RECORD_SECONDS = 10
"""What answers has so much longer than the hook waits, for the site's record of its answer..."""
_KILL_AFTER_SECONDS = 5
"""...and to end a dry run and clear away what is left of it."""
_NICE = ("/usr/bin/nice", "-n5")
"""What sbatch itself does next must not wait for what others' hooks have started: see
docs/limits.md on munge."""
_TIMEOUT = "/usr/bin/timeout"
START = f"exec({_STARTED!r})"
_COMMAND = "local COMMAND = "
_NOBODY = 65534
_PROBE_SECONDS = 30


def render(site_file: Path, site: Site, program: Sequence[str] | None = None) -> Mapping[str, str]:
    """Return the text of each hook by its file's name; `program` is what answers, else this
    xmem-slurm.

    This Python starts isolated from the user's PYTHON* variables: only the job's own Python is to
    see those. Where it is gone, or closed to a user, their sbatch says nothing of it; the
    administrator is told (`unusable`).
    """
    words = [*(program or isolated.command(START)), str(site_file.absolute())]
    seconds = f"{site.filter.seconds:g}"
    limit = [
        *_NICE,
        _TIMEOUT,
        f"--kill-after={_KILL_AFTER_SECONDS}",
        f"{site.filter.seconds + _RECORD_SECONDS:g}",
    ]
    if_present = f"command -v {shlex.quote(words[0])} >/dev/null || exec echo end"
    answering = f'{if_present}; exec {shlex.join([*limit, *words])} "$PPID" "$began" {seconds}'
    values = {
        "site": site.name,
        "version": __version__,
        "label": "xmem-slurm",
        "commands": site.filter.commands if site.filter.mode != "off" else (),
        "seconds": seconds,
        "command": _WAITING.format(answering=answering, timeout=_TIMEOUT, seconds=seconds),
        "every_job": site.policy.unasked != "leave",
        "no": settings.NO,
        "may_refuse": "refuse" in (site.policy.unasked, site.policy.unused, site.policy.cannot_run),
        "mode": site.job_submit.mode,
        "types": [site.option[name].type for name in site.job_submit.reason_for],
    }
    places = resources.template_places("hooks", site.templates)
    return {
        name: resources.render(places, f"{name}.j2", values, filters={"lua": _lua_string})
        for name in NAMES
    }


def check(name: str, text: str) -> bool:
    """Have Lua's compiler read a hook; False where there is none here.

    Raises:
        SiteError: it is no Lua; the message has the compiler's words.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return False
    completed = subprocess.run(
        [compiler, "-p", "-"], input=text, capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        raise SiteError(f"{name}: {completed.stderr.strip()}")
    return True


def install(texts: Mapping[str, str], folder: Path) -> Sequence[tuple[Path, Path | None]]:
    """Put hooks into Slurm's configuration folder, each whole or not at all; return the files and
    their backups.

    Raises:
        SiteError: the folder cannot be written to.
    """
    installed: list[tuple[Path, Path | None]] = []
    try:
        for name, text in texts.items():
            target, backup = folder / name, None
            if target.exists():
                if target.read_text(encoding="utf-8", errors="surrogateescape") == text:
                    continue
                backup = folder / f"{name}.{time.strftime('%Y%m%d-%H%M%S')}"
                shutil.copy2(target, backup)
            own_files.write(target, text.encode(), 0o644)
            installed.append((target, backup))
    except OSError as error:
        raise SiteError(
            f"{error.filename or folder}: {error.strerror}; nothing else was changed"
        ) from error
    return installed


def installed_python(folder: Path) -> str | None:
    """Return the Python that the hook in Slurm's configuration folder starts; None where there is
    no hook of ours.
    """
    try:
        lines = (
            (folder / NAMES[0]).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
        command = next(line.removeprefix(_COMMAND) for line in lines if line.startswith(_COMMAND))
        words = shlex.split(json.loads(command))
        return words[words.index("-I") - 1]
    except (OSError, StopIteration, ValueError):
        return None


def unusable(python: str) -> str | None:
    """Return why this Python cannot answer for every user, or None: it is started as nobody, where
    we are root.
    """
    anybody: dict[str, Any] = (
        {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    look = "import xmem_slurm.filter.start"
    command = isolated.command(look) if python == sys.executable else [python, "-I", "-c", look]
    try:
        completed = subprocess.run(
            command,
            cwd="/",
            env={},
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
            **anybody,
        )
    except subprocess.TimeoutExpired:
        why = f"it does not start within {_PROBE_SECONDS} s"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if completed.returncode == 0:
            return None
        why = completed.stderr.strip().rpartition("\n")[2] or f"it ends with {completed.returncode}"
    return (
        f"{python}: {why}; the filter cannot "
        f"start{' for other users than root' if anybody else ''}, and no job is seen"
    )


def _lua_string(text: str) -> str:
    """Write a text as a Lua string: JSON's escapes are Lua's for all that a command or a name can
    hold.

    Raises:
        SiteError: a control character, which Lua spells otherwise.
    """
    if not text.isprintable():
        raise SiteError(
            f"{text!r} cannot stand in a hook: it has characters that cannot be printed"
        )
    return json.dumps(text, ensure_ascii=False)
