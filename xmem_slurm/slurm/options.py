"""Which options sbatch and srun have, and how does getopt_long read them off a list of words?

The tables follow Slurm's own: `common_options` in src/common/slurm_opt.c, and for the environment
variables `env_vars` in src/sbatch/opt.c, of the branches slurm-22.05 to slurm-26.05. `scan` follows
glibc's getopt_long(3) with Slurm's option string, which begins with "+": it stops at the first word
that is no option.

This module is on the way of every `xsbatch`, so it imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

NONE = "none"
REQUIRED = "required"
OPTIONAL = "optional"
"""A value can only stand in the same word: `--nice=5`, `-k5`. For `scan` it is one with NONE, as
the next word is the value of neither; so one entry serves for options that changed between the two
(requeue, get-user-env, srun's pty)."""


class Option(NamedTuple):
    """One option of a Slurm command.

    `short` is its letter or "". `variables` are the environment variables that set it for sbatch,
    in the order in which sbatch reads them: the last one that is set wins. `carried`: in a
    heterogeneous job the value stays for the components that follow (`reset_each_pass` is false in
    slurm_opt.c). `early`: read from the command line only, never from a script
    (`sbatch_early_pass`). `since` and `until` are releases; "" means from before 22.05, or to this
    day.
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

    `option` is None for one that the table does not have; `typed` is the option as typed, without
    its value (`--gre`, `-C`). It begins at `words[at][start:]`; `start` is the letter's place for a
    short option. Its value is `words[value_at][value_start:]`, to the end of that word, and None
    where there is none, a required one missing too.
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
        """Return the option that `typed` names or begins, or None if there is none, or more than
        one.

        An abbreviation that only a newer release makes ambiguous still means what it means to the
        older one: we do not know the release, and the one that finds it ambiguous refuses the job
        itself.
        """
        exact = self.by_name.get(typed)
        if exact is not None or not typed:
            return exact
        matching = [option for option in self.options if option.name.startswith(typed)]
        if len(matching) > 1:
            matching = [option for option in matching if not option.since and not option.until]
        return matching[0] if len(matching) == 1 else None

    def with_options(self, options: Iterable[Option]) -> Table:
        """Return a table that also has these options."""
        return Table((*self.options, *options))


def scan(words: Sequence[str], table: Table) -> tuple[list[Occurrence], int]:
    """Read options off `words`; return them and the index of the first word that is none.

    An unknown option is taken to have no value but one after its own "=": whether the next word
    belongs to it cannot be known here.
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
                occurrences.append(
                    Occurrence(option, typed, value, index, 0, index, len(typed) + 1)
                )
            elif option is not None and option.arity == REQUIRED:
                index += 1
                occurrences.append(_with_next_word(words, index, option, typed, 0))
            else:
                occurrences.append(Occurrence(option, typed, None, index, 0, index, len(word)))
        else:
            index = _scan_letters(words, index, table, occurrences)
        index += 1
    return occurrences, min(index, len(words))


def _scan_letters(
    words: Sequence[str], index: int, table: Table, occurrences: list[Occurrence]
) -> int:
    """Read `-Hk5`, `-Cfoo` or `-C foo` at `words[index]`; return the index of the last word that
    was used.
    """
    word = words[index]
    for start in range(1, len(word)):
        letter = word[start]
        option = table.by_letter.get(letter)
        after = start + 1
        if option is None or option.arity == NONE:
            occurrences.append(Occurrence(option, "-" + letter, None, index, start, index, after))
        elif after < len(word):
            occurrences.append(
                Occurrence(option, "-" + letter, word[after:], index, start, index, after)
            )
            return index
        elif option.arity == REQUIRED:
            occurrences.append(_with_next_word(words, index + 1, option, "-" + letter, start))
            return index + 1
        else:
            occurrences.append(Occurrence(option, "-" + letter, None, index, start, index, after))
    return index


def _with_next_word(
    words: Sequence[str], index: int, option: Option, typed: str, start: int
) -> Occurrence:
    value = words[index] if index < len(words) else None
    return Occurrence(option, typed, value, index - 1, start, index, 0)


_ALIASES = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}
_OF_BOTH = {
    NONE: """
        consolidate-segments contiguous help/h hold/H overcommit/O oversubscribe/s quiet/Q reboot
        spread-job spread-segments stepmgr test-only usage use-min-nodes verbose/v version/V
    """,
    REQUIRED: """
        account/A acctg-freq autocomplete bb bbf begin/b chdir/D cluster cluster-constraint
        clusters/M comment constraint/C container container-id container-type context core-spec/S
        cores-per-socket cpu-freq cpus-per-gpu cpus-per-task/c deadline delay-boot dependency/d
        distribution/m error/e exclude/x export extra extra-node-info/B gid gpu-bind gpu-freq
        gpus-per-node gpus-per-socket gpus-per-task gpus/G gres gres-flags hint input/i job-name/J
        licenses/L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
        network nodefile/F nodelist/w nodes/N ntasks-per-core ntasks-per-gpu ntasks-per-node
        ntasks-per-socket ntasks-per-tres ntasks/n open-mode output/o partition/p power prefer
        priority profile qos/q reservation resources segment signal sockets-per-node switches
        tasks-per-node thread-spec threads-per-core time-min time/t tmp tres-bind tres-per-task uid
        wckey
    """,
    OPTIONAL: "exclusive nice no-kill/k oom-kill-step propagate resv-ports",
}
"""Names, with the letter behind a slash, by arity: those that sbatch and srun have in the same
form..."""
_OF_SBATCH = {
    NONE: "external ignore-pbs no-requeue parsable requeue wait/W",
    REQUIRED: "array/a batch export-file kill-on-invalid-dep wait-all-nodes wrap",
    OPTIONAL: "get-user-env",
}
_OF_SRUN = {
    NONE: """
        debugger-test disable-status/X exact interactive label/l multi-prog no-allocate/Z
        preserve-env/E quit-on-interrupt unbuffered/u wait-for-children whole
    """,
    REQUIRED: """
        accel-bind bcast-exclude cpu-bind cpu_bind epilog het-group jobid mpi msg-timeout pack-group
        prolog relative/r slurmd-debug task-epilog task-prolog threads/T treewidth wait/W
    """,
    OPTIONAL: "bcast compress external-launcher immediate/I kill-on-bad-exit/K overlap pty "
    "send-libs x11",
}
"""...and those that only one of them has, or in another form."""
_WITH_VARIABLE = """
    account acctg-freq batch cluster-constraint consolidate-segments constraint container
    container-id container-type core-spec cpus-per-gpu delay-boot distribution error exclusive
    export get-user-env gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
    gres-flags ignore-pbs input job-name mem-bind mem-per-cpu mem-per-gpu network no-kill no-requeue
    open-mode output overcommit partition power profile qos requeue reservation signal spread-job
    spread-segments thread-spec threads-per-core tres-bind tres-per-task use-min-nodes wait
    wait-all-nodes wckey
"""
"""Options of sbatch that SBATCH_NAME sets, NAME being their own..."""
_OTHER_VARIABLES = {
    "array": ("SBATCH_ARRAY_INX",),
    "bb": ("SBATCH_BURST_BUFFER",),
    "clusters": ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
    "cpu-freq": ("SBATCH_CPU_FREQ_REQ",),
    "hint": ("SLURM_HINT", "SBATCH_HINT"),
    "mem": ("SBATCH_MEM_PER_NODE",),
    "segment": ("SBATCH_SEGMENT_SIZE",),
    "time": ("SBATCH_TIMELIMIT",),
    "verbose": ("SBATCH_DEBUG",),
}
"""...and those that other variables set."""
_CARRIED = """
    account acctg-freq array autocomplete batch bbf begin chdir cluster cluster-constraint clusters
    comment container container-id container-type context deadline delay-boot dependency error
    exclude export export-file extra get-user-env gid hold ignore-pbs input job-name
    kill-on-invalid-dep mcs-label mem nice no-kill no-requeue oom-kill-step open-mode output
    parsable prefer priority profile propagate qos reboot requeue reservation signal stepmgr
    test-only time time-min uid wait wait-all-nodes wckey
"""
_EARLY = ("help", "quiet", "usage", "verbose", "version", "wrap")
_SINCE = {
    "23.02": "autocomplete container-id extra tres-per-task",
    "23.11": "tres-bind",
    "24.05": "resv-ports segment stepmgr",
    "24.11": "oom-kill-step",
    "25.05": "external",
    "25.11": "consolidate-segments resources spread-segments",
    "26.05": "container-type",
}
_UNTIL = {"power": "23.11"}


def _read(*tables: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return name, letter and arity of all options of these texts, by name."""
    words = (
        (entry.partition("/"), arity)
        for table in tables
        for arity in table
        for entry in table[arity].split()
    )
    return sorted((name, letter, arity) for (name, _, letter), arity in words)


def _sbatch_options() -> Iterator[Option]:
    """Yield sbatch's options, with all that is said of each."""
    usual = {name: ("SBATCH_" + name.upper().replace("-", "_"),) for name in _WITH_VARIABLE.split()}
    variables: Mapping[str, tuple[str, ...]] = {**usual, **_OTHER_VARIABLES}
    carried = set(_CARRIED.split())
    since = {name: release for release, names in _SINCE.items() for name in names.split()}
    for name, letter, arity in _read(_OF_BOTH, _OF_SBATCH):
        yield Option(
            name,
            letter,
            arity,
            alias_of=_ALIASES.get(name, ""),
            variables=variables.get(name, ()),
            carried=name in carried,
            early=name in _EARLY,
            since=since.get(name, ""),
            until=_UNTIL.get(name, ""),
        )


SBATCH = Table(_sbatch_options())


def srun_table() -> Table:
    """Return srun's options (name, letter and arity only): what is needed to find the command on an
    srun line.
    """
    return Table(Option(*row) for row in _read(_OF_BOTH, _OF_SRUN))
