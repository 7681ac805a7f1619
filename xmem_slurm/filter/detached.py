"""How does a dry run go on that is not done when the submission that it is for must be?

It is made by a process of its own, which has nothing of sbatch's open: no pipe that the hook reads
to its end, no terminal. This process waits for its answer as long as the site has it, and as long
as sbatch lives. After that the other one goes on by itself, with its place among the dry runs of
this machine (`admission`) and within the limits of one, keeps what it finds for the next submission
of the job (`known`), and ends.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from xmem_slurm.descriptors import close_all_but
from xmem_slurm.report.audit import AuditOutcome
from xmem_slurm.state import signals
from xmem_slurm.submission.answer import Tell

LONGEST_SECONDS = 3600
"""After so long it is ended, whatever it does: dry runs have limits of their own, and nothing else
takes minutes."""
NICENESS = 5
"""The sandbox adds its own. What sbatch itself does next must not wait for us: see docs/limits.md
on munge."""


class Answer(NamedTuple):
    """Options to set, "" for one to take away, lines for the user's stderr, and the last word
    (`changes`).

    `outcome` is for the site's record.
    """

    changes: Mapping[str, str] = {}
    lines: Sequence[str] = ()
    last: str = "end"
    outcome: AuditOutcome = AuditOutcome()


def ask(find: Callable[[Tell], Answer], process: int, until: float, tell: Tell) -> Answer | None:
    """Return what a process of its own finds; None where it has not at this time of the monotonic
    clock, and goes on.

    Where `process` ends before, whom the answer is for, both are ended. `tell` gets what is said
    meanwhile.

    Raises:
        RuntimeError: it ended without an answer.
    """
    watched = []
    try:
        watched = [os.pidfd_open(process)]
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGTERM)
    except OSError:  # Linux is too old to say when it ends
        pass
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        _find(find, write_end)
    os.close(write_end)
    unread = b""
    while True:
        ready, _, _ = select.select(
            [read_end, *watched], [], [], max(0.0, until - time.monotonic())
        )
        if not ready or time.monotonic() >= until:  # who has no more time may have gone on, too
            return None
        if read_end not in ready:
            os.kill(child, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        chunk = os.read(read_end, 65536)
        *lines, unread = (unread + chunk).split(b"\n")
        for message in map(json.loads, lines):
            if "answer" in message:
                answer = Answer(*message["answer"])
                return answer._replace(outcome=AuditOutcome(*answer.outcome))
            tell(message["line"])
        if not chunk:
            raise RuntimeError("what sizes the job ended without an answer")


def _find(find: Callable[[Tell], Answer], write_end: int) -> NoReturn:
    """Be the process of its own."""
    try:
        # no session of its own: there, what is nice is so to nobody else (sched(7), autogroup)
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        close_all_but(write_end)
        os.nice(NICENESS)
        for number in (
            signal.SIGINT,
            signal.SIGQUIT,
        ):  # which a shell ignores for what it starts with "&"
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.alarm(LONGEST_SECONDS)

        def say(message: Mapping[str, object]) -> None:
            with suppress(BrokenPipeError):  # nobody waits any more
                os.write(write_end, json.dumps(message).encode() + b"\n")

        with signals.clearing_up():
            say({"answer": find(lambda line: say({"line": line}))})
    finally:
        os._exit(0)
