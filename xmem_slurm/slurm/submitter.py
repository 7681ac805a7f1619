"""The name of the user who submits, as Slurm has it."""

import os
import pwd


def name() -> str:
    """Return it; "nobody" where the system has no name for the number (src/common/uid.c,
    uid_to_string).

    So it is in a container, and on a node whose directory service does not answer.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "nobody"
