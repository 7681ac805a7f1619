"""Which options sbatch and srun have, and how does getopt_long read them off a list of words?

The tables follow Slurm's own: `common_options` in src/common/slurm_opt.c, and for the environment variables `env_vars`
in src/sbatch/opt.c, of the branches slurm-22.05 to slurm-25.11. `scan` follows glibc's getopt_long(3) with Slurm's
option string, which begins with "+": it stops at the first word that is no option.

This module is on the way of every `xsbatch`, so it imports next to nothing.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = "none"
REQUIRED = "required"
OPTIONAL = "optional"
"""A value can only stand in the same word: `--nice=5`, `-k5`. For `scan` it is one with NONE, as the next word is the
value of neither; so one entry serves for options that changed between the two (requeue, get-user-env, srun's pty)."""


class Option(NamedTuple):
    """One option of a Slurm command.

    `short` is its letter or "". `variables` are the environment variables that set it for sbatch, in the order in which
    sbatch reads them: the last one that is set wins. `carried`: in a heterogeneous job the value stays for the
    components that follow (`reset_each_pass` is false in slurm_opt.c). `early`: read from the command line only, never
    from a script (`sbatch_early_pass`). `since` and `until` are releases; "" means from before 22.05, or to this day.
    """

    name: str
    short: str
    arity: str
    alias_of: str = ""
    variables: tuple[str, ...] = ()
    carried: bool = False
    early: bool = False
    since: str = ""
    until: str = ""


class Occurrence(NamedTuple):
    """One option as it stands in a list of words.

    `option` is None for one that the table does not have; `typed` is the option as typed, without its value (`--gre`,
    `-C`). It begins at `words[at][start:]`; `start` is the letter's place for a short option. Its value is
    `words[value_at][value_start:]`, to the end of that word, and None where there is none, a required one missing too.
    """

    option: Option | None
    typed: str
    value: str | None
    at: int
    start: int
    value_at: int
    value_start: int

    @property
    def name(self) -> str:
        """The long name of the option, an alias resolved; as typed if it is unknown."""
        if self.option is None:
            return self.typed.lstrip("-")
        return self.option.alias_of or self.option.name


class Table:
    """The options of one command, found by name, unique beginning of a name, or letter."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self.by_name = {option.name: option for option in self.options}
        self.by_letter = {option.short: option for option in self.options if option.short}

    def long(self, typed: str) -> Option | None:
        """Return the option that `typed` names or begins, or None if there is none, or more than one.

        An abbreviation that only a newer release makes ambiguous still means what it means to the older one: we do not
        know the release, and the one that finds it ambiguous refuses the job itself.
        """
        exact = self.by_name.get(typed)
        if exact is not None or not typed:
            return exact
        matching = [option for option in self.options if option.name.startswith(typed)]
        if len(matching) > 1:
            matching = [option for option in matching if not option.since and not option.until]
        return matching[0] if len(matching) == 1 else None

    def with_options(self, more: Iterable[Option]) -> "Table":
        """Return a table that also has the options `more`."""
        return Table((*self.options, *more))


def scan(words: Sequence[str], table: Table) -> tuple[list[Occurrence], int]:
    """Read options off `words`; return them and the index of the first word that is none.

    An unknown option is taken to have no value but one after its own "=": whether the next word belongs to it cannot be
    known here.
    """
    occurrences: list[Occurrence] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return occurrences, index + 1
        if word == "-" or not word.startswith("-"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = table.long(name)
            typed = "--" + name
            if equals:
                occurrences.append(Occurrence(option, typed, value, index, 0, index, len(typed) + 1))
            elif option is not None and option.arity == REQUIRED:
                index += 1
                occurrences.append(_with_next_word(words, index, option, typed, 0))
            else:
                occurrences.append(Occurrence(option, typed, None, index, 0, index, len(word)))
        else:
            index = _scan_letters(words, index, table, occurrences)
        index += 1
    return occurrences, min(index, len(words))


def _scan_letters(words: Sequence[str], index: int, table: Table, occurrences: list[Occurrence]) -> int:
    """Read `-Hk5`, `-Cfoo` or `-C foo` at `words[index]`; return the index of the last word that was used."""
    word = words[index]
    for start in range(1, len(word)):
        letter = word[start]
        option = table.by_letter.get(letter)
        after = start + 1
        if option is None or option.arity == NONE:
            occurrences.append(Occurrence(option, "-" + letter, None, index, start, index, after))
        elif after < len(word):
            occurrences.append(Occurrence(option, "-" + letter, word[after:], index, start, index, after))
            return index
        elif option.arity == REQUIRED:
            occurrences.append(_with_next_word(words, index + 1, option, "-" + letter, start))
            return index + 1
        else:
            occurrences.append(Occurrence(option, "-" + letter, None, index, start, index, after))
    return index


def _with_next_word(words: Sequence[str], index: int, option: Option, typed: str, start: int) -> Occurrence:
    value = words[index] if index < len(words) else None
    return Occurrence(option, typed, value, index - 1, start, index, 0)


SBATCH = Table(
    (
        Option("account", "A", REQUIRED, variables=("SBATCH_ACCOUNT",), carried=True),
        Option("acctg-freq", "", REQUIRED, variables=("SBATCH_ACCTG_FREQ",), carried=True),
        Option("array", "a", REQUIRED, variables=("SBATCH_ARRAY_INX",), carried=True),
        Option("autocomplete", "", REQUIRED, carried=True, since="23.02"),
        Option("batch", "", REQUIRED, variables=("SBATCH_BATCH",), carried=True),
        Option("bb", "", REQUIRED, variables=("SBATCH_BURST_BUFFER",)),
        Option("bbf", "", REQUIRED, carried=True),
        Option("begin", "b", REQUIRED, carried=True),
        Option("chdir", "D", REQUIRED, carried=True),
        Option("cluster", "", REQUIRED, alias_of="clusters", carried=True),
        Option("cluster-constraint", "", REQUIRED, variables=("SBATCH_CLUSTER_CONSTRAINT",), carried=True),
        Option("clusters", "M", REQUIRED, variables=("SBATCH_CLUSTERS", "SLURM_CLUSTERS"), carried=True),
        Option("comment", "", REQUIRED, carried=True),
        Option("consolidate-segments", "", NONE, variables=("SBATCH_CONSOLIDATE_SEGMENTS",), since="25.11"),
        Option("constraint", "C", REQUIRED, variables=("SBATCH_CONSTRAINT",)),
        Option("container", "", REQUIRED, variables=("SBATCH_CONTAINER",), carried=True),
        Option("container-id", "", REQUIRED, variables=("SBATCH_CONTAINER_ID",), carried=True, since="23.02"),
        Option("context", "", REQUIRED, carried=True),
        Option("contiguous", "", NONE),
        Option("core-spec", "S", REQUIRED, variables=("SBATCH_CORE_SPEC",)),
        Option("cores-per-socket", "", REQUIRED),
        Option("cpu-freq", "", REQUIRED, variables=("SBATCH_CPU_FREQ_REQ",)),
        Option("cpus-per-gpu", "", REQUIRED, variables=("SBATCH_CPUS_PER_GPU",)),
        Option("cpus-per-task", "c", REQUIRED),
        Option("deadline", "", REQUIRED, carried=True),
        Option("delay-boot", "", REQUIRED, variables=("SBATCH_DELAY_BOOT",), carried=True),
        Option("dependency", "d", REQUIRED, carried=True),
        Option("distribution", "m", REQUIRED, variables=("SBATCH_DISTRIBUTION",)),
        Option("error", "e", REQUIRED, variables=("SBATCH_ERROR",), carried=True),
        Option("exclude", "x", REQUIRED, carried=True),
        Option("exclusive", "", OPTIONAL, variables=("SBATCH_EXCLUSIVE",)),
        Option("export", "", REQUIRED, variables=("SBATCH_EXPORT",), carried=True),
        Option("export-file", "", REQUIRED, carried=True),
        Option("external", "", NONE, since="25.05"),
        Option("extra", "", REQUIRED, carried=True, since="23.02"),
        Option("extra-node-info", "B", REQUIRED),
        Option("get-user-env", "", OPTIONAL, variables=("SBATCH_GET_USER_ENV",), carried=True),
        Option("gid", "", REQUIRED, carried=True),
        Option("gpu-bind", "", REQUIRED, variables=("SBATCH_GPU_BIND",)),
        Option("gpu-freq", "", REQUIRED, variables=("SBATCH_GPU_FREQ",)),
        Option("gpus", "G", REQUIRED, variables=("SBATCH_GPUS",)),
        Option("gpus-per-node", "", REQUIRED, variables=("SBATCH_GPUS_PER_NODE",)),
        Option("gpus-per-socket", "", REQUIRED, variables=("SBATCH_GPUS_PER_SOCKET",)),
        Option("gpus-per-task", "", REQUIRED, variables=("SBATCH_GPUS_PER_TASK",)),
        Option("gres", "", REQUIRED, variables=("SBATCH_GRES",)),
        Option("gres-flags", "", REQUIRED, variables=("SBATCH_GRES_FLAGS",)),
        Option("help", "h", NONE, early=True),
        Option("hint", "", REQUIRED, variables=("SLURM_HINT", "SBATCH_HINT")),
        Option("hold", "H", NONE, carried=True),
        Option("ignore-pbs", "", NONE, variables=("SBATCH_IGNORE_PBS",), carried=True),
        Option("input", "i", REQUIRED, variables=("SBATCH_INPUT",), carried=True),
        Option("job-name", "J", REQUIRED, variables=("SBATCH_JOB_NAME",), carried=True),
        Option("kill-on-invalid-dep", "", REQUIRED, carried=True),
        Option("licenses", "L", REQUIRED),
        Option("mail-type", "", REQUIRED),
        Option("mail-user", "", REQUIRED),
        Option("mcs-label", "", REQUIRED, carried=True),
        Option("mem", "", REQUIRED, variables=("SBATCH_MEM_PER_NODE",), carried=True),
        Option("mem-bind", "", REQUIRED, variables=("SBATCH_MEM_BIND",)),
        Option("mem-per-cpu", "", REQUIRED, variables=("SBATCH_MEM_PER_CPU",)),
        Option("mem-per-gpu", "", REQUIRED, variables=("SBATCH_MEM_PER_GPU",)),
        Option("mincpus", "", REQUIRED),
        Option("network", "", REQUIRED, variables=("SBATCH_NETWORK",)),
        Option("nice", "", OPTIONAL, carried=True),
        Option("no-kill", "k", OPTIONAL, variables=("SBATCH_NO_KILL",), carried=True),
        Option("no-requeue", "", NONE, variables=("SBATCH_NO_REQUEUE",), carried=True),
        Option("nodefile", "F", REQUIRED),
        Option("nodelist", "w", REQUIRED),
        Option("nodes", "N", REQUIRED),
        Option("ntasks", "n", REQUIRED),
        Option("ntasks-per-core", "", REQUIRED),
        Option("ntasks-per-gpu", "", REQUIRED),
        Option("ntasks-per-node", "", REQUIRED),
        Option("ntasks-per-socket", "", REQUIRED),
        Option("ntasks-per-tres", "", REQUIRED),
        Option("oom-kill-step", "", OPTIONAL, carried=True, since="24.11"),
        Option("open-mode", "", REQUIRED, variables=("SBATCH_OPEN_MODE",), carried=True),
        Option("output", "o", REQUIRED, variables=("SBATCH_OUTPUT",), carried=True),
        Option("overcommit", "O", NONE, variables=("SBATCH_OVERCOMMIT",)),
        Option("oversubscribe", "s", NONE),
        Option("parsable", "", NONE, carried=True),
        Option("partition", "p", REQUIRED, variables=("SBATCH_PARTITION",)),
        Option("power", "", REQUIRED, variables=("SBATCH_POWER",), until="23.11"),
        Option("prefer", "", REQUIRED, carried=True),
        Option("priority", "", REQUIRED, carried=True),
        Option("profile", "", REQUIRED, variables=("SBATCH_PROFILE",), carried=True),
        Option("propagate", "", OPTIONAL, carried=True),
        Option("qos", "q", REQUIRED, variables=("SBATCH_QOS",), carried=True),
        Option("quiet", "Q", NONE, early=True),
        Option("reboot", "", NONE, carried=True),
        Option("requeue", "", NONE, variables=("SBATCH_REQUEUE",), carried=True),
        Option("reservation", "", REQUIRED, variables=("SBATCH_RESERVATION",), carried=True),
        Option("resources", "", REQUIRED, since="25.11"),
        Option("resv-ports", "", OPTIONAL, since="24.05"),
        Option("segment", "", REQUIRED, variables=("SBATCH_SEGMENT_SIZE",), since="24.05"),
        Option("signal", "", REQUIRED, variables=("SBATCH_SIGNAL",), carried=True),
        Option("sockets-per-node", "", REQUIRED),
        Option("spread-job", "", NONE, variables=("SBATCH_SPREAD_JOB",)),
        Option("spread-segments", "", NONE, variables=("SBATCH_SPREAD_SEGMENTS",), since="25.11"),
        Option("stepmgr", "", NONE, carried=True, since="24.05"),
        Option("switches", "", REQUIRED),
        Option("tasks-per-node", "", REQUIRED, alias_of="ntasks-per-node"),
        Option("test-only", "", NONE, carried=True),
        Option("thread-spec", "", REQUIRED, variables=("SBATCH_THREAD_SPEC",)),
        Option("threads-per-core", "", REQUIRED, variables=("SBATCH_THREADS_PER_CORE",)),
        Option("time", "t", REQUIRED, variables=("SBATCH_TIMELIMIT",), carried=True),
        Option("time-min", "", REQUIRED, carried=True),
        Option("tmp", "", REQUIRED),
        Option("tres-bind", "", REQUIRED, variables=("SBATCH_TRES_BIND",), since="23.11"),
        Option("tres-per-task", "", REQUIRED, variables=("SBATCH_TRES_PER_TASK",), since="23.02"),
        Option("uid", "", REQUIRED, carried=True),
        Option("usage", "", NONE, early=True),
        Option("use-min-nodes", "", NONE, variables=("SBATCH_USE_MIN_NODES",)),
        Option("verbose", "v", NONE, variables=("SBATCH_DEBUG",), early=True),
        Option("version", "V", NONE, early=True),
        Option("wait", "W", NONE, variables=("SBATCH_WAIT",), carried=True),
        Option("wait-all-nodes", "", REQUIRED, variables=("SBATCH_WAIT_ALL_NODES",), carried=True),
        Option("wckey", "", REQUIRED, variables=("SBATCH_WCKEY",), carried=True),
        Option("wrap", "", REQUIRED, early=True),
    )
)

_SRUN_NONE = """
    consolidate-segments contiguous debugger-test disable-status/X exact help/h hold/H interactive label/l
    multi-prog no-allocate/Z overcommit/O oversubscribe/s preserve-env/E quiet/Q quit-on-interrupt reboot
    spread-job spread-segments stepmgr test-only unbuffered/u usage use-min-nodes verbose/v version/V
    wait-for-children whole
"""
_SRUN_REQUIRED = """
    accel-bind account/A acctg-freq autocomplete bb bbf bcast-exclude begin/b chdir/D cluster cluster-constraint
    clusters/M comment constraint/C container container-id context core-spec/S cores-per-socket cpu-bind
    cpu-freq cpu_bind cpus-per-gpu cpus-per-task/c deadline delay-boot dependency/d distribution/m epilog
    error/e exclude/x export extra extra-node-info/B gid gpu-bind gpu-freq gpus/G gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags het-group hint input/i job-name/J jobid licenses/L mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile/F nodelist/w nodes/N
    ntasks/n ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output/o
    pack-group partition/p power prefer priority profile prolog qos/q relative/r reservation resources segment
    signal slurmd-debug sockets-per-node switches task-epilog task-prolog tasks-per-node thread-spec threads/T
    threads-per-core time/t time-min tmp treewidth tres-bind tres-per-task uid wait/W wckey
"""
_SRUN_OPTIONAL = """
    bcast compress exclusive external-launcher immediate/I kill-on-bad-exit/K nice no-kill/k oom-kill-step
    overlap propagate pty resv-ports send-libs x11
"""


def srun_table() -> Table:
    """Return srun's options (name, letter and arity only): what is needed to find the command on an srun line."""
    return Table(
        Option(name, letter, arity)
        for text, arity in ((_SRUN_NONE, NONE), (_SRUN_REQUIRED, REQUIRED), (_SRUN_OPTIONAL, OPTIONAL))
        for name, _, letter in (entry.partition("/") for entry in text.split())
    )
