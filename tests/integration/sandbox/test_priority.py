"""What a dry run starts comes after everybody else's, where Linux shares the CPU by sessions and
not by nice values."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
LOOK = "while ! grep 'nice 5$' /proc/self/autogroup; do sleep 0.1; done"
RUN = """
import sys
from pathlib import Path
from xmem_slurm.sandbox import sandbox
from xmem_slurm.sandbox.first_process import Limits
limits = Limits(seconds=60, wall_seconds=60, memory_bytes=1 << 28, processes=100, scratch_bytes=1 << 27)
outcome = sandbox.run(["/bin/sh", "-c", sys.argv[1]], cwd=Path.cwd(), environ={"PATH": "/usr/bin:/bin"}, limits=limits)
sys.stdout.buffer.write(outcome.output_tail)
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this Linux does not share the CPU by sessions")
def test_every_session_of_a_dry_run_is_nice_to_all_others(tmp_path: Path) -> None:
    """Also one that it begins later, as torchrun's workers do. A script that never saw it so would
    be stopped."""
    script = f'{LOOK}; setsid sh -c "{LOOK}"; echo and the end'
    done = subprocess.run(
        [sys.executable, "-c", RUN, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(set(lines)) == 3, done
    assert lines[-1] == "and the end"
