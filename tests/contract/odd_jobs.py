"""Odd jobs for the tests of the contract with sbatch: scripts, command lines, variables, and every
option once."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import strategies as st

from xmem_slurm.slurm.options import NONE, Option

H = "#!/bin/bash\n"
T = "true\n"
G = "#SBATCH --gres=gpu:a100_40:1\n"


def is_in(option: Option, release: tuple[int, ...]) -> bool:
    def number(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return (not option.since or number(option.since) <= release) and (
        not option.until or number(option.until) >= release
    )


SAMPLES = {
    "begin": "now", "chdir": ".", "cpu-freq": "low", "deadline": "2039-01-01", "delay-boot": "1",
    "dependency": "singleton", "distribution": "block", "exclude": "nobody", "extra-node-info": "1:1:1", "gid": "0",
    "gpu-bind": "none", "gpu-freq": "low", "gres": "gpu:a100_40:1", "hint": "nomultithread",
    "kill-on-invalid-dep": "yes", "mail-type": "END", "mem-bind": "none", "nodefile": "nodes",
    "nodelist": "somewhere", "open-mode": "append", "profile": "none", "propagate": "NONE", "signal": "USR1@60",
    "uid": "0", "exclusive": "user", "gres-flags": "enforce-binding", "get-user-env": None, "requeue": None,
    "power": "level", "acctg-freq": "task=10", "resv-ports": "1", "tres-per-task": "cpu=1",
    "tres-bind": "gres/gpu:none", "oom-kill-step": "1", "switches": "1", "no-kill": "off", "prefer": "h200",
    "constraint": "h200",
}  # fmt: skip
NOT_SET = (
    "autocomplete",
    "help",
    "usage",
    "version",
    "wrap",
    "quiet",
    "verbose",
    "ignore-pbs",
    "stepmgr",
    "external",
)
"""Options that end sbatch, come before all others, or are flags of the whole command and in no
list."""
LATER_VARIABLES = {"SBATCH_SEGMENT_SIZE": (25, 5)}
"""Those that sbatch did not read yet when it had their option, and the release that does (its
NEWS)."""


def spelled(option: Option) -> str:
    value = SAMPLES.get(option.name, None if option.arity == NONE else "1")
    return f"--{option.name}" if value is None else f"--{option.name}={value}"


WORDS = st.sampled_from(
    [
        "--gres=gpu:1", "--gres gpu:a100_40:2", "-G2", "-Ch200", "-C 'a100|h200'", "--mem=1G", "--mem-per-cpu=2G",
        "-N2", "-n2", '--comment="a b"', "--comment='x #y'", '-J"a\\"b"', "-J z#cut", "--hold", "-HOt3", "--time 7",
        "--tasks-per-node=2", "--exclusive", "--exclusive=user", "--gpus-per-node=1", "--requeue", "--no-requeue",
        "--nice", "-pgpu", "--part=gpu", "--mem-per-gpu=1G", "-D.", "--cpus-per-task=2", "-c3", "--wckey=w", "hetjob",
        '""', "-k", "-koff",
    ]
)  # fmt: skip
LINES = st.lists(
    st.one_of(
        st.lists(WORDS, max_size=4).map(lambda words: " ".join(["#SBATCH", *words])),
        st.sampled_from(
            [
                "#SBATCH hetjob",
                "#SBATCH packjob",
                "",
                "# note",
                "##SBATCH -N3",
                " #SBATCH -N4",
                "true",
            ]
        ),
    ),
    max_size=6,
)
TYPED = st.lists(
    st.sampled_from(
        [
            "--gres=gpu:3",
            "-G 4",
            "--gres gpu:4",
            "--mem=5G",
            "-Ca100",
            "-J name",
            ":",
            "--time=9",
            "-HN1",
            "--hold",
            "-J : x",
        ]
    ),
    max_size=4,
).map(lambda typed: " ".join(typed).split())
FLAG_VALUES = st.sampled_from(["1", "no", "yes", "", "2"])
VARIABLES = st.fixed_dictionaries(
    {},
    optional={
        "SBATCH_CONSTRAINT": st.sampled_from(["h200", "a100|h200"]),
        "SBATCH_EXCLUSIVE": st.sampled_from(["", "user"]),
        "SBATCH_GRES": st.sampled_from(["gpu:1", "gpu:h200:1", "none", ""]),
        "SBATCH_JOB_NAME": st.sampled_from(["name", "a b"]),
        "SBATCH_MEM_PER_CPU": st.just("1G"),
        "SBATCH_MEM_PER_NODE": st.just("4G"),
        "SBATCH_NO_KILL": st.sampled_from(["", "off"]),
        "SBATCH_OVERCOMMIT": FLAG_VALUES,
        "SBATCH_REQUEUE": FLAG_VALUES,
        "SBATCH_TIMELIMIT": st.just("9"),
        "SLURM_GRES": st.just("gpu:7"),
        "SLURM_HINT": st.just("nomultithread"),
    },
)


class Case(NamedTuple):
    """An odd script and how it is submitted."""

    label: str
    script: bytes | str
    argv: tuple[str, ...] = ()
    environ: Mapping[str, str] = MappingProxyType({})
    stdin: bool = False


CASES = [
    Case("plain", H + G + T),
    Case("after first command", H + "echo hi\n" + G + T),
    Case("after blank and comment lines", H + "\n# note\n\n   \n" + G + T),
    Case("after an assignment", H + "X=1\n" + G + T),
    Case("double hash", H + "##SBATCH --gres=gpu:a100_40:1\n" + T),
    Case("space after hash", H + "# SBATCH --gres=gpu:a100_40:1\n" + T),
    Case("leading space", H + "  #SBATCH --gres=gpu:a100_40:1\n" + T),
    Case("tab after #SBATCH", H + "#SBATCH\t--gres=gpu:a100_40:1\n" + T),
    Case("tab before value", H + "#SBATCH --gres\tgpu:a100_40:1\n" + T),
    Case("no space", H + "#SBATCH--gres=gpu:a100_40:1\n" + T),
    Case("lower case", H + "#sbatch --gres=gpu:a100_40:1\n" + T),
    Case("CRLF", (H + G + T).replace("\n", "\r\n")),
    Case("CRLF on one line", H + G.replace("\n", "\r\n") + T),
    Case("trailing comment", H + "#SBATCH --gres=gpu:a100_40:1 # my comment --mem=1G\n" + T),
    Case("trailing comment without space", H + "#SBATCH --gres=gpu:a100_40:1#c\n" + T),
    Case("several options", H + "#SBATCH --gres=gpu:a100_40:1 --mem=3G -J two\n" + T),
    Case("double quotes", H + '#SBATCH --job-name="my job" --comment="a b"\n' + T),
    Case("single quotes", H + "#SBATCH --comment='x y' -J 'q'\n" + T),
    Case("escaped quote", H + '#SBATCH --comment="a\\"b" --job-name=a\\#b\n' + T),
    Case("quote in the middle", H + '#SBATCH --comment=a"b c"d\n' + T),
    Case("unclosed quote", H + '#SBATCH --comment="abc\n' + T),
    Case("positional", H + "#SBATCH --gres=gpu:a100_40:1 junk --mem=2G\n" + T),
    Case("abbreviation", H + "#SBATCH --constr=gpu_mem_40g --comm=c\n" + T),
    Case("empty word", H + '#SBATCH --mem=2G "" --comment=lost\n' + T),
    Case("value on the next line", H + "#SBATCH --gres\n#SBATCH gpu:a100_40:1\n" + T),
    Case("value missing", H + "#SBATCH -J x --gres\n" + T),
    Case("last wins", H + G + "#SBATCH --gres=gpu:h200:1\n" + T),
    Case("command line overrides", H + G, ("--gres=gpu:h200:1",)),
    Case("SBATCH_GRES overrides", H + G + T, (), {"SBATCH_GRES": "gpu:h200:1"}),
    Case("SBATCH_CONSTRAINT", H + T, (), {"SBATCH_CONSTRAINT": "h200"}),
    Case("SBATCH_MEM_PER_NODE", H + T, (), {"SBATCH_MEM_PER_NODE": "4G"}),
    Case(
        "overruled SBATCH_MEM_PER_NODE",
        H + "#SBATCH --mem-per-cpu=1G\n",
        (),
        {"SBATCH_MEM_PER_NODE": "4G"},
    ),
    Case(
        "environment below command line",
        H + T,
        ("--gres=gpu:a100_40:1",),
        {"SBATCH_GRES": "gpu:h200:1"},
    ),
    Case("SLURM_GRES", H + T, (), {"SLURM_GRES": "gpu:h200:1"}),
    Case("stdin", H + G + T, stdin=True),
    Case("no shebang", G + T),
    Case("python", "#!/usr/bin/env python3\n" + G + "print(1)\n"),
    Case("shebang on line two", "\n" + H + G + T),
    Case("BOM", b"\xef\xbb\xbf" + (H + G + T).encode()),
    Case("NUL", (H + G + "echo \0\n").encode()),
    Case("not UTF-8", b"#!/bin/bash\n#SBATCH --comment=\xe9t\xe9\n" + G.encode()),
    Case("empty", ""),
    Case("PBS", H + "#PBS -l walltime=00:07:00\n#PBS -N pbsname\n" + G + T),
    Case("PBS ignored", H + "#PBS -N pbsname\n" + T, ("--ignore-pbs",)),
    Case("BSUB", H + "#BSUB -J bsubname\n" + T),
    Case(
        "hetjob",
        H + G + "#SBATCH --mem=1G -t7\n#SBATCH hetjob\n#SBATCH --gres=gpu:h200:1 -Jb\n" + T,
    ),
    Case("packjob", H + G + "#SBATCH packjob\n#SBATCH --gres=gpu:h200:1\n" + T),
    Case("options after hetjob", H + "#SBATCH hetjob --gres=gpu:h200:1\n" + T),
    Case(
        "colon",
        H + "#SBATCH -J b\n",
        ("--gres=gpu:a100_40:1", ":", "--mem=3G", "--gres=gpu:h200:1"),
    ),
    Case(
        "colon and hetjob", H + G + "#SBATCH hetjob\n#SBATCH --mem=2G\n", ("--mem=1G", ":", "-Jx")
    ),
    Case("backslash at the end", H + "#SBATCH --gres=gpu:a100_40:1 \\\n#SBATCH --mem=9G\n" + T),
    Case("no final newline", H + G.strip()),
    Case("gres none", H + G, ("--gres=none",)),
    Case("gres twice in a list", H + "#SBATCH --gres=gpu:a100_40:1,gpu:a100_40:0\n" + T),
    Case("short options", H + "#SBATCH -Cgpu_mem_40g -t3\n" + T),
    Case("mem and mem-per-gpu", H + "#SBATCH --mem=1G --mem-per-gpu=2G --gpus=1\n" + T),
    Case("gres and gpus", H + "#SBATCH --gres=gpu:1 --gpus=1\n" + T),
    Case("mem 0", H + "#SBATCH --mem=0\n" + T),
    Case("mem in K", H + "#SBATCH --mem=2049K\n" + T),
    Case("script beside wrap", H + T, ("--wrap=true",)),
    Case("wrap", H + T, ("--wrap", G + "true"), stdin=True),
    Case("#SLURM", H + "#SLURM --mem=2G\n" + T),
    Case("early options in a script", H + "#SBATCH -Q --wrap=x -J y\n" + T),
    Case("chdir in a script", H + "#SBATCH -D/tmp\n" + T),
]
