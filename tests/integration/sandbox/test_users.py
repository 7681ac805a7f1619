"""Two ordinary users on one machine: dry runs at the login and on a CPU node, and neither touches
the other's files."""

import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, USES, Cluster, write_job
from tests.harness.told import messages
from xmem_slurm import resources

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

NAMES = ("games", "man")
"""Two users that Debian and Ubuntu have, and nobody is."""
SYSTEM_PYTHON = "/usr/bin/python3"
COUNTING = """
import sys
from xmem_slurm.dryrun import runner
from xmem_slurm.cli.main import main
run = runner.run
runner.run = lambda order: print("a dry run", file=sys.stderr, flush=True) or run(order)
main()
"""
"""xmem-slurm, with a line for each dry run."""
STEP = '[dry_run]\nwhere = "srun"\npartition = "cpu"\n'


class User:
    """An ordinary user: `home` is all that is theirs; what they run finds our packages and torch's,
    to read only."""

    def __init__(self, name: str, home: Path, cluster: Cluster, job_python: Path) -> None:
        self.account, self.home, self.cluster = pwd.getpwnam(name), home, cluster
        (home / "job").mkdir(parents=True)
        ours = _python(home / "ours", Path(sys.executable), resources.tree("templates").parent)
        write_job(
            home / "job",
            _python(home / "theirs", job_python),
            "--gres=gpu:h200:1",
            "--output=/dev/null",
            train=USES,
        )
        self.xsbatch = [str(ours), "-m", "xmem_slurm.cli.xsbatch_start", "--hold", "--parsable"]
        self.xmem_slurm = [str(ours), "-c", COUNTING]
        for path in (home, *home.rglob("*")):
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)
        home.chmod(0o700)

    def run(
        self, command: list[str], site: Path, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as that user, in the job's folder."""
        identity = [
            f"--reuid={self.account.pw_uid}",
            f"--regid={self.account.pw_gid}",
            "--clear-groups",
        ]
        kept = {name: self.cluster.environ[name] for name in ("PATH", "SLURM_CONF")}
        environment = (
            kept
            | {"HOME": str(self.home), "USER": self.account.pw_name, "XMEM_SITE": str(site)}
            | environ
        )
        done = subprocess.run(
            ["setpriv", *identity, *command],
            cwd=self.home / "job",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def submit(self, site: Path, **environ: str) -> tuple[str, str, str]:
        """Return whose job was submitted, its GRES, and what was said on stderr."""
        done = self.run([*self.xsbatch, "job.sh"], site, **environ)
        shown = self.cluster.show(done.stdout.strip())
        self.cluster.slurm("scancel", done.stdout.strip())
        return (
            re.findall(r"UserId=(\w+)", shown)[0],
            re.findall(r"TresPerNode=(\S+)", shown)[0],
            messages(done.stderr),
        )


def _python(folder: Path, like: Path, *more: Path) -> Path:
    """Make a Python that everybody may run, with the packages of another one."""
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run(
        [like, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text("\n".join(map(str, [packages, *more])))
    return folder / "bin" / "python"


def need_other_users() -> None:
    """Skip a test that becomes other users where that cannot be."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shown = subprocess.run(
        [SYSTEM_PYTHON, "--version"], capture_output=True, text=True, check=False
    ).stdout
    if os.getuid() != 0 or f" {version}." not in shown:
        pytest.skip(
            f"becomes other users, whose {SYSTEM_PYTHON} must be a Python {version}: needs root"
        )


@pytest.fixture
def users(cluster: Cluster, job_python: Path) -> Iterator[list[User]]:
    need_other_users()
    with tempfile.TemporaryDirectory(prefix="xmem-users-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield [User(name, Path(folder, name), cluster, job_python) for name in NAMES]


def site_file(folder: Path, table: str = "") -> Path:
    path = folder.parent / "site.toml"
    path.write_text(EXAMPLE_SITE.read_text().replace("[policy]", f"{table}\n[policy]"))
    return path


def owners(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the owner and the time of everything in a folder."""
    return {path: (path.lstat().st_uid, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize("table", ["", STEP], ids=["at the login", "as a step"])
def test_each_user_has_a_dry_run_of_their_own(users: list[User], table: str) -> None:
    site = site_file(users[0].home, table)
    for user in users:
        everywhere = set(Path("/tmp").iterdir()) | set(Path("/var/tmp").iterdir())
        others = [owners(other.home) for other in users if other is not user]
        owner, gres, said = user.submit(site)
        assert (owner, gres) == (user.account.pw_name, "gres:gpu:l4:1"), said
        known = user.submit(site)[2]
        assert "nothing that the dry run read has changed" in known
        assert {uid for uid, _ in owners(user.home).values()} == {user.account.pw_uid}
        assert others == [owners(other.home) for other in users if other is not user]
        left = (set(Path("/tmp").iterdir()) | set(Path("/var/tmp").iterdir())) - everywhere
        assert not [path for path in left if path.stat().st_uid == user.account.pw_uid]


def test_an_estimate_is_made_once(users: list[User]) -> None:
    """The second time, and for programs, it is what was kept of the first."""
    user, site = users[0], site_file(users[0].home)

    def dry_runs(*options: str) -> tuple[int, str]:
        told = user.run([*user.xmem_slurm, "estimate", *options, "job.sh"], site)
        return told.stderr.count("a dry run\n"), told.stdout

    made, needed = dry_runs()
    assert made >= 1
    assert dry_runs() == (0, needed)
    assert dry_runs("--json")[0] == 0


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_cache_of_another_user_is_neither_read_nor_written(users: list[User], mode: int) -> None:
    """With the answer to the very same submission in it; for the other user it was made to lie."""
    site, (owner, guest) = site_file(users[0].home), users
    place = owner.home.parent / "shared"
    place.mkdir()
    os.chown(place, owner.account.pw_uid, owner.account.pw_gid)
    assert owner.submit(site, XDG_CACHE_HOME=str(place))[1] == "gres:gpu:l4:1"
    for path in (place, *place.rglob("*")):
        path.chmod(mode if path.is_dir() else mode & 0o666)
    before = owners(place)
    submitted, gres, said = guest.submit(site, XDG_CACHE_HOME=str(place))
    assert (submitted, gres) == (guest.account.pw_name, "gres:gpu:h200:1")
    assert re.search("submitted as written: .*(others can write there|Permission denied)", said), (
        said
    )
    assert len(said.splitlines()) == 1
    assert before == owners(place)
