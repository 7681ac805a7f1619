"""A dry run without its sandbox: in a warm Python, where a test is of what comes of a script and
not of its isolation.

What the script writes stays, the network is there, and no limit holds it but the probe's own.
"""

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm.sandbox.sandbox import OUTPUT_BYTES, Outcome

HANG_SECONDS = 240


def run(
    argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], **_of_the_sandbox: object
) -> Outcome:
    """Stand for `sandbox.run`."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        ran = subprocess.run(
            argv, cwd=cwd, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            timeout=HANG_SECONDS, check=False,
        )  # fmt: skip
        output.seek(0)
        tail = output.read()[-OUTPUT_BYTES:]
    return Outcome(ran.returncode, None, time.monotonic() - started, 0, tail)
