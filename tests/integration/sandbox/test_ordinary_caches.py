"""Whatever is kept for the next submission is kept for ordinary users, too: the tests of it once
more, as one of them. Root may write and read everywhere, so nothing that a user lacks fails there.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.sandbox.test_users import _python, need_other_users
from xmem_slurm import resources

USER = "uucp"
"""One that Debian and Ubuntu have, and that no other test is."""
TESTS = (
    "unit/submission/test_answers.py",
    "unit/dryrun/test_kept_runs.py",
    "unit/dryrun/test_in_turn.py",
    "unit/outcomes/test_kept_by_earlier_versions.py",
    "unit/outcomes/test_kept_by_a_later_version.py",
    "unit/state/test_store.py",
    "unit/state/test_own_files.py",
)
OF_BUILDS = "unit/device/test_builder.py"
OF_DRY_RUNS = "integration/dryrun/test_kept_runs.py"


def pass_for_an_ordinary_user(tests: Sequence[str], job_python: Path | None = None) -> None:
    """Run these tests as one, who has a copy of them: others' traces are not read."""
    need_other_users()
    checkout, account = resources.tree("templates").parent, pwd.getpwnam(USER)
    with tempfile.TemporaryDirectory(prefix="xmem-ordinary-", dir="/var/tmp") as folder:
        python = _python(Path(folder, "ours"), Path(sys.executable), checkout)
        home = Path(folder, "home")
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": USER}
        if job_python is not None:
            environ["XMEM_TEST_PYTHON"] = str(_python(Path(folder, "theirs"), job_python))
        shutil.copytree(checkout / "tests", home / "tests", ignore=lambda *_: {"integration"})
        shutil.copy(checkout / "pyproject.toml", home)
        for name in tests:
            (home / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / "tests" / name, home / "tests" / name)
        for path in (home, *home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        Path(folder).chmod(0o755)
        become = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        options = ["-q", "-rs", "-p", "no:cacheprovider", "-p", "no:randomly"]
        named = [f"--basetemp={home}/tmp", *(f"tests/{name}" for name in tests)]
        done = subprocess.run(
            ["setpriv", *become, str(python), "-B", "-m", "pytest", *options, *named],
            cwd=home,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:]
    for skipped in ("root can write everywhere", "XMEM_TEST_PYTHON does not name"):
        assert skipped not in done.stdout


def test_what_is_kept_is_kept_for_an_ordinary_user() -> None:
    pass_for_an_ordinary_user(TESTS)


@pytest.mark.slow(covers=["xmem_slurm/device/builder.py", "xmem_slurm/state/*"])
def test_stand_ins_are_built_once_for_an_ordinary_user() -> None:
    pass_for_an_ordinary_user([OF_BUILDS])


@pytest.mark.torch
@pytest.mark.slow(covers=["xmem_slurm/dryrun/kept_runs.py", "xmem_slurm/state/*"])
def test_a_dry_run_is_kept_for_an_ordinary_user(job_python: Path) -> None:
    pass_for_an_ordinary_user([OF_DRY_RUNS], job_python)
