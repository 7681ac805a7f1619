"""What xsbatch and the filter told, a message a line: on stderr a long one goes on in the next lines,
indented (`report/columns`), and where it is broken is no other test's concern.
"""

import re


def messages(stderr: str) -> str:
    """Return stderr with each message in one line again."""
    return re.sub(r"\n(?:xsbatch|xmem-slurm):   ", " ", stderr)
