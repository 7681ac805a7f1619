"""A job and those for the case that it runs out of memory: none is submitted twice, whatever
breaks."""

import subprocess
import sys
from pathlib import Path

import pytest

SBATCH = """\
#!/bin/sh
# A fake: what a test needs of sbatch is that it says a number, and that it is known how often it ran.
echo submitted >>"$SUBMITTED"
echo "Submitted batch job 7"
"""
SUBMITTING = """\
import sys
from pathlib import Path
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import retrying

SCRIPT = b"#!/bin/sh\\n#SBATCH --gres=gpu:1\\n"
job = Submission(("job.sh",), {"SUBMITTED": sys.argv[2]}, SCRIPT)
retry = job.but(script=None) if sys.argv[3] == "broken" else job
raise SystemExit(retrying.submit(Path(sys.argv[1]), job, [retry], lambda lines: None))
"""


@pytest.mark.parametrize(
    ("stdout", "retry", "jobs"),
    [("full", "whole", 2), ("closed", "whole", 2), ("read", "broken", 1)],
)
def test_a_job_is_submitted_once_though_its_number_cannot_be_told_or_its_retry_breaks(
    stdout: str, retry: str, jobs: int, tmp_path: Path
) -> None:
    sbatch, submitted = tmp_path / "sbatch", tmp_path / "submitted"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    redirection = {"full": ">/dev/full", "closed": ">&-", "read": ""}[stdout]
    command = [sys.executable, "-c", SUBMITTING, str(sbatch), str(submitted), retry]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert submitted.read_text().split() == ["submitted"] * jobs
