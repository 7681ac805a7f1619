"""Whatever is kept for the next submission is kept for ordinary users, too: the tests of it once
more, as one of them. Root may write and read everywhere, so nothing that a user lacks fails there.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.sandbox.test_users import _python, need_other_users
from xmem_slurm import resources

USER = "uucp"
"""One that Debian and Ubuntu have, and that no other test is."""
TESTS = (
    "submission/test_answers.py",
    "dryrun/test_kept_runs.py",
    "dryrun/test_in_turn.py",
    "state/test_store.py",
    "state/test_own_files.py",
)


def test_what_is_kept_is_kept_for_an_ordinary_user() -> None:
    need_other_users()
    checkout, account = resources.tree("templates").parent, pwd.getpwnam(USER)
    with tempfile.TemporaryDirectory(prefix="xmem-ordinary-", dir="/var/tmp") as folder:
        python = _python(Path(folder, "ours"), Path(sys.executable), checkout)
        home = Path(folder, "home")  # with a copy of the tests: others' traces are not read
        shutil.copytree(checkout / "tests", home / "tests", ignore=lambda *_: {"integration"})
        shutil.copy(checkout / "pyproject.toml", home)
        for path in (home, *home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        Path(folder).chmod(0o755)
        become = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--basetemp={home}/tmp"]
        tests = [f"tests/unit/{name}" for name in TESTS]
        done = subprocess.run(
            ["setpriv", *become, str(python), "-B", "-m", "pytest", *options, *tests],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "USER": USER},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "root can write everywhere" not in done.stdout
