"""What does a process's command line give one of its options?"""

from collections.abc import Sequence


def last_value(argv: Sequence[str], option: str) -> str | None:
    """Return what stands behind an option, or is joined to it by "=", the last time: that one
    counts; None: nothing.
    """
    value = None
    for place, word in enumerate(argv):
        behind = next(iter(argv[place + 1 : place + 2]), "-")
        if word == option and not behind.startswith("-"):
            value = behind
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value
