"""Where is a repository at the commit that a row is of? The checkout itself, or a clone of it
beside its neighbours.
"""

import subprocess
from pathlib import Path


class CheckoutError(Exception):
    """There is no checkout of a repository, or not at the commit; says where it was looked for."""


def at(repositories: Path, source: str, commit: str, folder: Path) -> Path:
    """Return the checkout of "owner/name" in `repositories`, or a clone at another commit that it
    has, in `folder`.

    What is no git checkout, and a row that names no commit, are taken as they are.

    Raises:
        CheckoutError: there is none.
    """
    checkout = (repositories / source.replace("/", "+")).absolute()
    if not checkout.is_dir():
        raise CheckoutError(f"no checkout in {checkout}")
    head = _git(checkout, "rev-parse", "HEAD")
    if head is None or not commit or head.startswith(commit):
        return checkout
    clone = folder / checkout.name
    cloned = ["clone", "-q", "--shared", "--no-checkout", str(checkout), str(clone)]
    if None in (_git(checkout, *cloned), _git(clone, "checkout", "-q", commit)):
        raise CheckoutError(
            f"{checkout} is at {head[:10]} and cannot be had at {commit[:10]}, of which the row is"
        )
    for neighbour in repositories.absolute().iterdir():
        if neighbour.name != checkout.name:
            (folder / neighbour.name).symlink_to(neighbour)
    return clone


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints; None where it fails."""
    where = ["-C", str(checkout)] if checkout.is_dir() else []
    done = subprocess.run(["git", *where, *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
