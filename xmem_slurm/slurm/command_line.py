"""What is on an sbatch command line: which words are options, which is the script, and where does
each stand?
"""

from collections.abc import Sequence
from typing import NamedTuple

from xmem_slurm.slurm.options import SBATCH, Occurrence, Option, scan


class CommandLine(NamedTuple):
    """An sbatch command line, taken apart. Positions count in `argv`, which is without the command
    itself.

    `first_pass` holds the options as sbatch reads them first, every ":" left out. `components`
    holds those of each heterogeneous component (one for an ordinary job), `starts` the position in
    `argv` at which each component's options begin. `script_index` is None where the script comes
    from stdin or `--wrap`.
    """

    argv: tuple[str, ...]
    first_pass: tuple[Occurrence, ...]
    components: tuple[tuple[Occurrence, ...], ...]
    starts: tuple[int, ...]
    script_index: int | None
    script_arguments: tuple[str, ...]
    wrap: str | None

    @property
    def script(self) -> str | None:
        """The script's path as typed, or None."""
        return None if self.script_index is None else self.argv[self.script_index]

    @property
    def reads_stdin(self) -> bool:
        """Whether sbatch reads the script from its standard input."""
        return self.script_index is None and self.wrap is None

    @property
    def occurrences(self) -> tuple[Occurrence, ...]:
        """Every option, of all components, in order."""
        return tuple(occurrence for component in self.components for occurrence in component)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Options that are not in the table and have no `=value`: the word after one may be its
        value or the script.
        """
        return tuple(o.typed for o in self.occurrences if o.option is None and o.value is None)

    def has(self, name: str) -> bool:
        """Whether the option with this long name is given, for whatever component."""
        return any(occurrence.name == name for occurrence in self.first_pass)

    def last(self, name: str) -> str | None:
        """Return the last value of an option, whatever component it is for, or None."""
        return next((o.value for o in reversed(self.first_pass) if o.name == name), None)


def split_command_line(argv: Sequence[str], extra: Sequence[Option] = ()) -> CommandLine:
    """Take an sbatch command line apart, `argv` being without `sbatch` itself; never fails.

    `extra` are options to know beside sbatch's: xsbatch's own, or those of a site's SPANK plugins.
    sbatch reads its command line twice, and so do we. The first pass leaves out every ":" and finds
    the script and its arguments; the second reads the components between the ":" (src/sbatch/opt.c,
    process_options_first_pass; sbatch.c, main).
    """
    table = SBATCH.with_options(extra) if extra else SBATCH
    words = tuple(argv)
    kept = [index for index, word in enumerate(words) if word != ":"]
    first_pass, stop = scan([words[index] for index in kept], table)
    after_options = kept[stop:]
    wrap = next((o.value for o in reversed(first_pass) if o.name == "wrap"), None)

    limit = len(words) - len(after_options)
    components: list[tuple[Occurrence, ...]] = []
    starts: list[int] = []
    start = 0
    while True:
        occurrences, stop = scan(words[start:limit], table)
        components.append(
            tuple(o._replace(at=o.at + start, value_at=o.value_at + start) for o in occurrences)
        )
        starts.append(start)
        stop += start
        if stop >= limit or words[stop] != ":":
            break
        start = stop + 1
    return CommandLine(
        argv=words,
        first_pass=tuple(
            o._replace(at=kept[o.at], value_at=kept[o.at if o.value is None else o.value_at])
            for o in first_pass
        ),
        components=tuple(components),
        starts=tuple(starts),
        script_index=after_options[0] if after_options else None,
        script_arguments=tuple(words[index] for index in after_options[1:]),
        wrap=wrap,
    )
