"""What is submitted? All that sbatch is given for a job, and what it asks for by that; read
once.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.command_line import CommandLine, split_command_line
from xmem_slurm.slurm.options import Option
from xmem_slurm.slurm.request import Request, merge
from xmem_slurm.slurm.script import Script

_READ_FROM = {"command_line": {"argv", "plugins"}, "parsed_script": {"script", "plugins"}}
"""What hangs on which fields: where these stay as they are, it is not read again."""


class _Given(NamedTuple):
    """What a submission is given. No dataclass: to import these takes a tenth of all CPU time of a
    submission whose answer is known.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    script: bytes | None
    plugins: tuple[Option, ...] = ()


class Submission(_Given):
    """The words after `sbatch`, the environment, the script's bytes (None for `--wrap`).

    `plugins` are the options that the site's SPANK plugins add to sbatch's own
    (`client.plugin_options`).
    """

    @cached_property
    def request(self) -> Request:
        """What the job asks for.

        Raises:
            ScriptError: sbatch refuses the script's #SBATCH lines.
        """
        return merge(self.command_line, self.environ, self.parsed_script)

    @cached_property
    def command_line(self) -> CommandLine:
        """The command line, taken apart."""
        return split_command_line(self.argv, self.plugins)

    @cached_property
    def parsed_script(self) -> Script | None:
        """The script and its options; None where there is no script.

        Raises:
            ScriptError: sbatch refuses the script's #SBATCH lines.
        """
        return None if self.script is None else scripts.parse(self.script, self.plugins)

    @property
    def only_asks(self) -> bool:
        """Whether Slurm is only asked about it (`--test-only`), and nothing is queued.

        Raises:
            ScriptError: sbatch refuses the script's #SBATCH lines.
        """
        return "test-only" in self.request.settings

    def but(self, **fields: Any) -> "Submission":
        """Return it with these fields instead; what does not hang on those that change is not read
        again.
        """
        changed = {name: value for name, value in fields.items() if value != getattr(self, name)}
        if not changed:
            return self
        copy = self._replace(**changed)
        for name, read_from in _READ_FROM.items():
            if name in self.__dict__ and not read_from & changed.keys():
                copy.__dict__[name] = self.__dict__[name]
        return copy

    def with_script(self, script: Script) -> "Submission":
        """Return it with a script that has been read, as another one of its editors leaves it."""
        copy = self.but(script=script.data)
        copy.__dict__["parsed_script"] = script
        return copy
