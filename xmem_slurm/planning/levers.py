"""What changes the batch of a job that nobody edits: its DataLoaders, an argument of its command,
or a variable.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import UsageError
from xmem_slurm.planning.words import last_value
from xmem_slurm.rewriting import launch
from xmem_slurm.trace import Trace

_VARIED = re.compile(r"batch_size=(--?[A-Za-z][\w.-]*|[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class BatchLever:
    """`name` is an option of the job's command ("--batch-size"), a variable of its environment
    ("BATCH_SIZE"), or "".

    Without a name every DataLoader that is gone through with gradients on gives batches of the size
    that is wanted.
    """

    name: str = ""

    @classmethod
    def parse(cls, text: str) -> "BatchLever":
        """Read "batch_size=NAME".

        Raises:
            UsageError: it is something else.
        """
        match = _VARIED.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--vary {text}: not of the form batch_size=--OPTION or batch_size=VARIABLE"
            )
        return cls(match[1])

    def __str__(self) -> str:
        return self.name or "its DataLoaders' batch_size"

    def batch_in(self, trace: Trace) -> int:
        """Return the batch of one process that a dry run showed; 0: none.

        It is what DataLoaders gave; without any that give batches of one size, what an option had
        on the command line of the process. Whether a variable did anything only DataLoaders show.
        """
        return trace.training.drawn or self._option_batch(trace)

    def not_seen(self, trace: Trace) -> str:
        """Return why a dry run of the job as it is written does not show that this is its batch; ""
        where it does.
        """
        option_batch, drawn = self._option_batch(trace), trace.training.drawn
        if option_batch and drawn and option_batch != drawn:
            return (
                f"{self.name} is {option_batch}, and batches of {drawn} are what each process draws"
            )
        hint = "name an option of its command, which is seen without"
        if self.name.startswith("-"):
            hint = f"its command has no {self.name} NUMBER"
        if self.batch_in(trace):
            return ""
        return f"no DataLoader was seen to give all batches of its training; {hint}"

    def _option_batch(self, trace: Trace) -> int:
        text = last_value(trace.argv, self.name) or "" if self.name.startswith("-") else ""
        return int(text) if text.isdecimal() else 0

    def at(self, order: DryRunOrder, batch: int) -> DryRunOrder:
        """Return the order of a dry run with so many samples in a batch of one process.

        Raises:
            UsageError: the option stands neither in the job's script, with a number, nor in its
                arguments.
        """
        job = order.job
        if not self.name:
            return replace(order, engine="device", change="batch", batch=batch)
        if not self.name.startswith("-"):
            script = launch.with_assigned(job.script, self.name, str(batch))
            return replace(
                order,
                job=replace(
                    job,
                    script=script,
                    material=None,
                    environ={**job.environ, self.name: str(batch)},
                ),
            )
        return replace(order, job=self._with_option(job, str(batch)))

    @property
    def _option_pattern(self) -> re.Pattern[bytes]:
        """Finds the option with its number in a script."""
        return re.compile(
            rb"(?<![\w-])(%s(?:=|[ \t]+)[\"']?)(\d+)(?![\w.])" % re.escape(self.name).encode()
        )

    def _with_option(self, job: Job, number: str) -> Job:
        """Return the job with its option's number replaced wherever it stands: "--option 32",
        "--option=32".
        """
        script, in_script = self._option_pattern.subn(rb"\g<1>" + number.encode(), job.script)
        arguments, in_arguments = _with_number(job.arguments, self.name, number)
        if not in_script + in_arguments:
            raise UsageError(
                f"--vary batch_size={self.name}: the job has no {self.name} NUMBER; write it there "
                "first"
            )
        return replace(job, script=script, material=None, arguments=arguments)


def _with_number(words: Sequence[str], option: str, number: str) -> tuple[list[str], int]:
    """Return a job's arguments with an option's number replaced, and how often it stood there."""
    replaced = list(words)
    split = [
        place
        for place in range(1, len(words))
        if words[place - 1] == option and words[place].isdecimal()
    ]
    joined = [
        place for place, word in enumerate(words) if re.fullmatch(re.escape(option) + r"=\d+", word)
    ]
    for place in split:
        replaced[place] = number
    for place in joined:
        replaced[place] = f"{option}={number}"
    return replaced, len(split) + len(joined)
