"""Which programs a lab takes, which packages have them, and which release of Slurm is here."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from xmem_slurm.errors import LabError

Version = tuple[int, int]

OLDEST: Version = (22, 5)

# Debian keeps daemons here, and ordinary users' PATH leaves these folders out.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Program:
    """A program, and the package that has it on Debian and on RHEL (EPEL)."""

    name: str
    debian: str
    rhel: str


_ALWAYS = (
    Program("munged", "munge", "munge"),
    Program("slurmctld", "slurmctld", "slurm-slurmctld"),
    Program("slurmd", "slurmd", "slurm-slurmd"),
    Program("scontrol", "slurm-client", "slurm"),
    Program("sinfo", "slurm-client", "slurm"),
    Program("setsid", "util-linux", "util-linux"),
)
_ACCOUNTING = (
    Program("slurmdbd", "slurmdbd", "slurm-slurmdbd"),
    Program("sacctmgr", "slurm-client", "slurm"),
    Program("mariadbd", "mariadb-server", "mariadb-server"),
    Program("mariadb-install-db", "mariadb-server", "mariadb-server"),
    Program("mariadb", "mariadb-client", "mariadb"),
)


def find(*, accounting: bool) -> dict[str, str]:
    """Return the path of every program a lab needs, by name.

    Raises:
        LabError: some are not installed; the message names them and the packages to install.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    wanted = _ALWAYS + (_ACCOUNTING if accounting else ())
    paths = {
        program.name: where
        for program in wanted
        if (where := shutil.which(program.name, path=path))
    }
    missing = [program for program in wanted if program.name not in paths]
    if missing:
        names = ", ".join(program.name for program in missing)
        debian = " ".join(dict.fromkeys(program.debian for program in missing))
        rhel = " ".join(dict.fromkeys(program.rhel for program in missing))
        raise LabError(
            f"the lab runs a real Slurm, and these programs are not installed: {names}\n"
            f"Debian: apt-get install --no-install-recommends {debian}; RHEL: dnf install {rhel} "
            "(from EPEL)"
        )
    return paths


def slurm_version(slurmctld: str) -> tuple[str, Version]:
    """Return the release of Slurm, in full (`22.05.8`) and to compare with (`(22, 5)`).

    Raises:
        LabError: `slurmctld -V` did not say, or it is older than OLDEST.
    """
    printed = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, check=False)
    match = re.search(r"\b(\d+)\.(\d+)\.\S+", printed.stdout)
    if match is None:
        raise LabError(
            f"{slurmctld} -V does not tell its version: "
            f"{(printed.stderr or printed.stdout).strip()}"
        )
    version = int(match[1]), int(match[2])
    if version < OLDEST:
        raise LabError(
            f"{slurmctld} is Slurm {match[0]}; the lab needs {OLDEST[0]}.{OLDEST[1]:02} or newer"
        )
    return match[0], version
