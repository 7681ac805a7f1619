"""What does the site want of jobs that ask for no GPU and would use one? Asked before each of them, so cheaply.

A site file that does not have the word is not read any further.
"""

from collections.abc import Mapping

from xmem_slurm.site import places

MOST_SECONDS = 30.0
"""What a job that asks for no GPU may be kept waiting for the answer."""


def stance(named: str | None, environ: Mapping[str, str]) -> str:
    """Return what the site file that holds wants of such jobs; one that cannot be read wants them left alone."""
    try:
        return str(places.tables(named, environ, b"unasked").get("policy", {}).get("unasked", "leave"))
    except AttributeError:
        return "leave"
