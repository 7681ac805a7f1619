"""MariaDB and slurmdbd for a lab that keeps accounts: what `sacct` and `sreport` need."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm.errors import LabError
from xmem_slurm.lab.settings import Surroundings

WRITES_SECONDS = 60.0
"""How long slurmdbd may take until it can write, once it answers."""


def create_database(programs: Mapping[str, str], around: Surroundings) -> None:
    """Make MariaDB's own tables in `mysql/` (a few seconds, 120 MB of disk)."""
    _run(
        [
            programs["mariadb-install-db"],
            "--no-defaults",
            f"--user={around.user}",
            f"--datadir={around.folder / 'mysql'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
        around.folder,
    )


def mariadbd_command(programs: Mapping[str, str], around: Surroundings) -> list[str]:
    """Return the command line of the database: loopback only, small, and fast rather than
    durable.
    """
    return [
        programs["mariadbd"],
        "--no-defaults",
        f"--user={around.user}",
        f"--datadir={around.folder / 'mysql'}",
        f"--socket={around.folder / 'run' / 'mysql.sock'}",
        f"--pid-file={around.folder / 'run' / 'mariadbd.pid'}",
        "--bind-address=127.0.0.1",
        f"--port={around.ports['mariadbd']}",
        "--skip-name-resolve",
        # slurmdbd recommends 1 GiB and 900 s (_check_database_variables,
        # accounting_storage_mysql.c, Slurm 22.05). Few jobs need no such buffer; its log says that
        # the size is not the recommended one, and it goes on.
        "--innodb-buffer-pool-size=128M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
    ]


def grant(programs: Mapping[str, str], around: Surroundings) -> None:
    """Make slurmdbd's database and user; the password goes through stdin, out of sight of `ps`."""
    _run(
        [
            programs["mariadb"],
            "--no-defaults",
            f"--socket={around.folder / 'run' / 'mysql.sock'}",
            "--user=root",
        ],
        around.folder,
        stdin=(
            "create database slurm_acct_db;"
            f"create user slurm@'127.0.0.1' identified by '{around.password}';"
            "grant all on slurm_acct_db.* to slurm@'127.0.0.1';"
        ),
    )


def add_cluster(programs: Mapping[str, str], folder: Path, name: str) -> None:
    """Tell slurmdbd of the cluster, so that slurmctld finds itself known and its TRES defined.

    On a busy machine slurmdbd answers before it can write ("Unspecified error"): it is asked again.
    """
    sacctmgr = programs["sacctmgr"]
    until = time.monotonic() + WRITES_SECONDS
    while True:
        try:
            _run([sacctmgr, "--immediate", "add", "cluster", name], folder)
        except LabError:
            known = _run([sacctmgr, "-nP", "show", "cluster", "format=cluster"], folder)
            if name not in known.split():  # else it was added all the same
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
                continue
        return


def _run(command: Sequence[str], folder: Path, stdin: str = "") -> str:
    """Return what it says on stdout.

    Raises:
        LabError: it failed.
    """
    environment = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }
    completed = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    if completed.returncode:
        last_line = (
            completed.stderr.strip() or completed.stdout.strip() or "it said nothing"
        ).splitlines()[-1]
        raise LabError(f"{Path(command[0]).name} failed: {last_line}")
    return completed.stdout
