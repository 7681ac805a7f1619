"""Is xsbatch sbatch? Some 400 odd submissions by both, and what came of them compared, field by
field.

    python -m benchmarks.drop_in [--every 1]

Starts a throw-away Slurm cluster of the example site and submits each case, held, four times: by
sbatch, by xsbatch that is turned off, by xsbatch that is on and has nothing to change (no site
file), and by xsbatch with an answer that is made up, an l4 for every GPU. Exit code, stdout, stderr
and all that `scontrol show job` has of the job must be the same, but for job numbers, times, and
xsbatch's own lines on stderr; where the request is changed also but for what says which GPU, and
for the path of a script whose copy was changed. Of a script in a named pipe, which can be read once
only, Slurm shows the copy that took its place. A difference is printed, and the command then ends
with status 1.

The cases are others than those of tests/contract: odd quotes, line ends and byte order marks,
abbreviations, letters run together, scripts from pipes, descriptors and links, odd names and
arguments, chains by --parsable, mixes of variables.
"""

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_site
from xmem_slurm.slurm.options import NONE, SBATCH

SITE = resources.tree("site-config") / "example.toml"
XSBATCH = str(Path(sys.executable).parent / "xsbatch")
FORCED = Path(__file__).parents[1] / "tests" / "contract" / "forced_xsbatch.py"
H, T = "#!/bin/bash\n", "true\n"
GRES = "--gres=gpu:a100_40:1"
OF_THE_MOMENT = {
    "JobId", "HetJobId", "HetJobIdSet", "ArrayJobId", "SubmitTime", "EligibleTime", "AccrueTime",
    "StartTime",
    "EndTime", "Deadline", "LastSchedEval", "Priority", "SuspendTime",
}  # fmt: skip


OF_THE_GPU = {"TresPerNode", "TresPerJob", "TresPerTask", "ReqTRES", "SubmitLine"}
"""Fields that say which GPU a job asks for; the last, since 26.05, as it was typed."""

OF_A_COPY = {"Command", "SubmitLine"}
"""Fields that say where a script lies, or the copy of one that can be read only once."""

SAID_OF_A_CHANGE = r"(?m)^(xsbatch|sbatch: (gres|gpus[a-z-]*) +): .*\n"
"""What differs on stderr where the request does: our own lines, and with --verbose sbatch's of the
request."""

NUMBERED = ("StdOut", "StdErr", "Dependency")
"""Fields in which the numbers of jobs stand."""


class Case(NamedTuple):
    """One submission: `argv` follows the command; `name` is the script's file, or "" where there is
    none.

    `how` it is reached: a file, a fifo, a symlink, stdin, or `chain`: `argv` is a shell line, the
    command its $X.
    """

    family: str
    argv: Sequence[str]
    script: str | bytes = H + T
    environ: Mapping[str, str] = MappingProxyType({})
    name: str = "job.sh"
    how: str = "file"


QUOTED = [
    "-J'a'b\"c\"", '--comment="a\'b"', "--comment='a\"b'", "--comment=''", '--comment=""x',
    "-J\"a b\"' c'",
    "-J a\\\\b",
    '--comment="x\\\\y"', '--comment="tab\there"', "--comment='#x'", '--comment="a#b" #c',
    "--comment=a'#'b",
    "'--comment=whole'", '"--mem=1G"', "--me\"m=1\"G", "'-J' 'two words'", "-J '' -t3",
    '--output="a b.out"',
    "--comment=$HOME", "--comment='$(date)'", "--comment=`date`", "--comment=%j", "--comment=a\\",
    "--comment='\\'",
    '"" --mem=1G', "'' '' -t3", "--comment==", "--comment= -t3", "-t=3", "--time '3' --mem '1G'",
]  # fmt: skip
BYTES = [
    b"\xef\xbb\xbf#!/bin/bash\n", b"\xff\xfe#!/bin/bash\n", (b"#!/bin/bash\n\xef\xbb\xbf#SBATCH "
                                                            b"-t3\n"),
    b"#!/bin/bash\r\n",
    b"#!/bin/bash\n#SBATCH -t3\r\n", b"#!/bin/bash\n#SBATCH -J a\r\nexit\r\n",
    b"#!/bin/bash\n\r\n#SBATCH -t3\n",
    b"#!/bin/bash\r#SBATCH -t3\r", b"#!/bin/bash\n#SBATCH\v-t3\n", b"#!/bin/bash\n#SBATCH\f-t3\n",
    b"#!/bin/bash\n#SBATCH",
    b"#!/bin/bash\n#SBATCH -J \xe9\n", b"#!/bin/bash\n#SBATCH -J \xc3\xa9\n",
    b"#!/bin/bash\n#SBATCH -t3\0\n", b"#!\n",
    b"#!/bin/bash -x -e\n#SBATCH -t3\n", b"#! /bin/bash\n#SBATCH -t3\n",
    b"#!/no/such/shell\n#SBATCH -t3\n", b"\n\n",
    b"#",
    b"#!/bin/bash\n" + b"#" * 9000 + b"\n#SBATCH -t3\n", b"#!/bin/bash\n#SBATCH "
                                                         b"--comment=" + b"x" * 900 + b"\n",
    b"#!/usr/bin/env -S bash -e\n#SBATCH -t3\n", b"#!/bin/bash\n\t#SBATCH -t3\n",
    b"#!/bin/bash\n#SBATCH\t\t-t3\t\n",
]  # fmt: skip
LETTERS = [
    "-HQ", "-QH", "-Hk", "-HO", "-HOk", "-Ht3", "-HN1", "-HN1-2", "-Hn2", "-Hc2", "-HJx", "-HJ-x",
    "-HOt3", "-HOkN1",
    "-HkOn1",
    "-Hvv", "-HvQ", "-Hs", "-HsO", "-HD.", "-HD/", "-Hpgpu", "-Hpcpu", "-HCh200", "-HG1",
    "-HGh200:1", "-HGl4",
    "-HL", "-HZ",
    "-H3", "-H-", "-Ha0-3", "-Ha1,5%1", "-Ho%j", "-Hoa", "-HxN1", "-Hwl1", "-Hd", "-HI",
    "-He/dev/null",
    "-Hi/dev/null", "-HW0",
]  # fmt: skip
NAMES = [
    "a b.sh", "a\nb.sh", " a.sh", "a.sh ", "a'b.sh", 'a"b.sh', "$a.sh", "`a`.sh", "a;b.sh",
    "a\\b.sh", "a\tb.sh",
    "\N{SNOWMAN}.sh",
    "\udcff.sh", "x" * 250, "a=b.sh", "a%j.sh", "a:b.sh", ":", "#a.sh", "a,b.sh", "sub/job.sh",
    "./job.sh",
    "sub/../job.sh", "~",
]  # fmt: skip
ARGUMENTS = [
    [""], ["a b"], ["a\nb"], ["--", "x"], ["--xmem-off"], ["-H", "--gres=gpu:9"], [":"],
    ["\udcff"], ["*"],
    ["$HOME"], ["--help"],
    ["-"], ["'"], ['"'], ["x" * 5000],
]  # fmt: skip
VALUES = {
    "SBATCH_GRES": ["gpu:1", "gpu:l4:2", "none", "", "gpu:0"], "SBATCH_GPUS": ["1", "h200:2", ""],
    "SBATCH_GPUS_PER_NODE": ["l4:1"], "SBATCH_CONSTRAINT": ["h200", "a100&gpu_mem_40g",
    "[h200|a100]"],
    "SBATCH_PARTITION": ["gpu", "cpu", "gpu,cpu"], "SBATCH_TIMELIMIT": ["5", "1-0", "0:30", "junk"],
    "SBATCH_JOB_NAME": ["a b", "", "n"], "SBATCH_MEM_PER_NODE": ["1G", "0"],
    "SBATCH_MEM_PER_CPU": ["100"],
    "SBATCH_EXCLUSIVE": ["", "user"], "SBATCH_NO_REQUEUE": ["", "1"], "SBATCH_REQUEUE": ["1"],
    "SBATCH_OPEN_MODE": ["append", "z"],
    "SBATCH_EXPORT": ["NONE", "ALL", "A=b"], "SBATCH_ARRAY_INX": ["0-3%2"],
    "SBATCH_OUTPUT": ["o-%j", "/dev/null"],
    "SBATCH_HINT": ["nomultithread"], "SBATCH_ACCOUNT": ["x"], "SBATCH_QOS": ["normal"],
    "SBATCH_OVERCOMMIT": ["yes", "no"],
    "SBATCH_CLUSTERS": [""], "SBATCH_DISTRIBUTION": ["cyclic"], "SBATCH_IGNORE_PBS": [""],
    "SBATCH_SIGNAL": ["USR1@30"],
    "SLURM_GRES": ["gpu:1"], "SLURM_JOB_NAME": ["other"], "SBATCH_DEBUG": ["1"],
    "SLURM_EXIT_ERROR": ["7"],
    "SBATCH_WAIT": [""],
}  # fmt: skip
SAMPLE = {
    "begin": "now+1hour", "chdir": "/", "dependency": "singleton", "output": "o.txt",
    "error": "e.txt",
    "input": "/dev/null",
    "job-name": "n", "comment": "c", "time": "7", "time-min": "1", "mem": "1G",
    "mem-per-cpu": "100M",
    "mem-per-gpu": "1G",
    "nodes": "1", "ntasks": "2", "cpus-per-task": "2", "gres": "gpu:1", "gpus": "1",
    "gpus-per-node": "1",
    "constraint": "h200",
    "partition": "gpu", "array": "0-1", "exclude": "l1", "nodelist": "l1", "nice": "5",
    "open-mode": "append",
    "signal": "9@9",
    "licenses": "x", "ntasks-per-node": "1", "cpus-per-gpu": "1", "gpus-per-task": "1", "tmp": "1",
    "wckey": "w",
    "switches": "1",
}  # fmt: skip
CHAINS = [
    "j=$($X -H --parsable job.sh) && $X -H --parsable -d afterany:$j job.sh; echo $j",
    ("j=$($X --parsable -H job.sh | cut -d';' -f1); $X -H --dependency=afterok:$j --wrap true; echo "
    "$j"),
    "for i in 1 2; do j=$($X -H --parsable ${j:+-d afterany:$j} -J c$i job.sh); echo $j; done",
    "$X -H --parsable < job.sh", "cat job.sh | $X -H", "$X -H job.sh > out; cat out",
    "$X -H <<E\n#!/bin/sh\ntrue\nE",
    "$X -HQ job.sh; echo $?", ("$X -H nowhere.sh || echo failed "
                              "$?"), "echo x | $X -H job.sh", "$X -H job.sh 2>&1 | cat",
    "$X -H --wrap 'echo \"a b\" $HOME'", "$X -H job.sh <&-", ("(cd / && $X -H "
                                                             "$OLDPWD/job.sh)"), ("$X -H <(cat "
                                                                                "job.sh)"),
    ("SBATCH_JOB_NAME=v $X -H "
    "job.sh"), "umask 077; $X -H job.sh", "ulimit -n 64; $X -H job.sh", "$X -H job.sh & wait $!",
]  # fmt: skip

ASKED = [
    "--gres=gpu:1", "--gres=gpu:h200:1", "--gres gpu:a100_40:2", "--gre=gpu:1", "--gres=gpu",
    "--gres=gpu:1 --gres=gpu:a100_40:1", "-G1", "-G h200:1", "--gpus=1", "--gpus=a100_40:2",
    "--gpus-per-node=1", "--gpus-per-node=h200:1", "--gpus-per-task=1 -n2",
    "--gpus-per-task=h200:1 -n1", "-C h200 --gres=gpu:1", "-C h200|a100 -G1",
    "--gres=gpu:1 --mem-per-gpu=1G", "-G1 --cpus-per-gpu=2", "--gres=gpu:1 -N1 -n2 -c2",
    "--gres=gpu:h200:1 -a0-3%2", "-pgpu --gres=gpu:h200:1 --exclusive", "-G1 -t3 --begin=now+1hour",
]  # fmt: skip
"""Ways to ask for a GPU."""


def cases() -> Iterator[Case]:
    """Yield every case, the same each time."""
    for text in QUOTED:
        yield Case("quotes", ["-H", "job.sh"], f"{H}#SBATCH {text}\n{T}")
        yield Case("quotes, stdin", ["-H", GRES], f"{H}#SBATCH {text}\n{T}", how="stdin", name="")
    for number, content in enumerate(BYTES):
        yield Case(
            "bytes",
            ["-H", "job.sh"],
            content + T.encode(),
            how=("file", "symlink", "fifo")[number % 3],
        )
    for number, letters in enumerate(LETTERS):
        yield Case("letters", [letters, *(["-H"] if "H" not in letters else []), "job.sh"])
        yield Case(
            "letters, script",
            ["-H", "job.sh"],
            f"{H}#SBATCH {letters}\n{T}",
            how=("file", "symlink")[number % 2],
        )
    for name in NAMES:
        yield Case("names", ["-H", *(["--"] if name.startswith("-") else []), name], name=name)
        yield Case("names, links", ["-H", GRES, name], name=name, how="symlink")
    for arguments in ARGUMENTS:
        yield Case("arguments", ["-H", "job.sh", *arguments])
    for number, chain in enumerate(CHAINS):
        yield Case(
            "chains", [chain], f"{H}#SBATCH {'-t9' if number % 2 else GRES}\n{T}", how="chain"
        )
    for asked in ASKED:
        yield Case("asked", ["-H", *asked.split(), "job.sh", "--gres=gpu:1"])
        yield Case("asked, script", ["-H", "job.sh"], f"{H}#SBATCH {asked} # odd\n{T}", how="fifo")
        yield Case("asked, stdin", ["-H"], f"{H}#SBATCH -J x\n#SBATCH {asked}\n{T}", how="stdin")
    yield from _abbreviated()
    yield from _mixed(80)


def _abbreviated() -> Iterator[Case]:
    """Each option that has a value here, by a beginning of its name, in a script or on the command
    line.
    """
    dice = random.Random(0)
    for number, (name, value) in enumerate(SAMPLE.items()):
        least = next(
            n for n in itertools.count(1) if n == len(name) or SBATCH.long(name[:n]) is not None
        )
        word = f"--{name[: dice.randint(least, len(name))]}"
        spelled = [f"{word}={value}"] if number % 2 else [word, value]
        yield Case("abbreviations", ["-H", *spelled, "job.sh"])
        yield Case(
            "abbreviations, script", ["--hol", "job.sh"], f"{H}#SBATCH {' '.join(spelled)}\n{T}"
        )
    for option in SBATCH.options:
        if option.arity == NONE and option.name not in (
            "help",
            "usage",
            "version",
            "wait",
            "test-only",
        ):
            yield Case("flags", [f"--{option.name[:-1]}", "-H", "job.sh"])


def _mixed(count: int) -> Iterator[Case]:
    dice = random.Random(1)
    for _ in range(count):
        names = dice.sample(sorted(VALUES), dice.randint(2, 5))
        environ = {name: dice.choice(VALUES[name]) for name in names if name != "SBATCH_WAIT"}
        line = dice.choice(
            ["", "#SBATCH -t4", f"#SBATCH {GRES}", "#SBATCH -J s --mem=2G", "#SBATCH hetjob"]
        )
        typed = dice.choice(
            [[], ["-t6"], ["--gres=gpu:2"], ["-Gl4:1"], ["--mem=3G", ":", "-n2"], ["--wrap=true"]]
        )
        wrapped = "--wrap=true" in typed
        yield Case(
            "variables",
            ["-H", *typed, *([] if wrapped else ["job.sh"])],
            f"{H}{line}\n{T}",
            environ,
        )


class Outcome(NamedTuple):
    """What one command said; `numbers` are its jobs, in order, and stand as JOB1, JOB2 in the
    texts.
    """

    code: int
    out: str
    err: str
    numbers: Sequence[str]


def submit(case: Case, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Outcome:
    """Submit a case from a folder of its own, by a command."""
    content = case.script if isinstance(case.script, bytes) else case.script.encode()
    path = folder / (case.name or "unused")
    (folder / "sub").mkdir(exist_ok=True)
    stdin, words = b"", [*command, *case.argv]
    writer = None
    if case.how == "stdin":
        stdin = content
    elif case.how == "fifo":
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        writer = threading.Thread(target=_write, args=(path, content), daemon=True)
        writer.start()
    elif case.how == "symlink":
        (folder / "kept").write_bytes(content)
        path.unlink(missing_ok=True)
        path.symlink_to(folder / "kept")
    else:
        path.write_bytes(content)
    if case.how == "chain":
        words = ["bash", "-c", f'X="{" ".join(command)}"\n{case.argv[0]}']
    done = subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        cwd=folder,
        env={**environ, **case.environ},
        check=False,
        timeout=120,
    )
    # A number in the folder's own name may be a job's, too (pytest-255).
    out, err = (
        each.decode(errors="surrogateescape").replace(str(folder), "FOLDER")
        for each in (done.stdout, done.stderr)
    )
    numbers = list(
        dict.fromkeys(re.findall(r"(?m)(?:^|Submitted batch job )([1-9]\d*)(?:$|;| on )", out))
    )
    for index, number in enumerate(numbers):
        out, err = (re.sub(rf"\b{number}\b", f"JOB{index}", text) for text in (out, err))
    return Outcome(done.returncode, out, err, numbers)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def compare(
    chosen: Sequence[Case], folder: Path, environ: Mapping[str, str]
) -> tuple[list[tuple[Case, str]], int]:
    """Submit the cases in each way; return those that differ in something, in what, and how many
    requests changed.
    """
    ways = {
        "off": [XSBATCH, "--xmem-off"],
        "on": [XSBATCH],
        "changed": [sys.executable, str(FORCED), "l4"],
    }
    kept = {n: v for n, v in environ.items() if not n.startswith(("SBATCH_", "SLURM_", "XMEM_"))}
    kept |= {
        "SLURM_CONF": environ["SLURM_CONF"],
        "XMEM_SITE": str(folder / "none.toml"),
        "XDG_STATE_HOME": str(folder),
    }
    outcomes: list[tuple[Case, Outcome, dict[str, Outcome]]] = []
    for index, case in enumerate(chosen):
        own = folder / f"case{index:04}"
        own.mkdir()
        theirs = submit(case, ["sbatch"], own, kept)
        by_way = {
            way: submit(
                case, command, own, kept | ({"XMEM_SITE": str(SITE)} if way == "changed" else {})
            )
            for way, command in ways.items()
        }
        outcomes.append((case, theirs, by_way))
    shown = subprocess.run(
        ["scontrol", "show", "job", "-o"], env=kept, capture_output=True, check=True
    ).stdout
    records = _records(shown.decode(errors="surrogateescape").replace(str(folder), "FOLDER"))
    found, changed = [], 0
    for case, theirs, others in outcomes:
        expected = _fields(theirs.numbers, records, case)
        for way, ours in others.items():
            if way == "changed" and "(with and without type identification)" in theirs.err:
                continue  # all GPUs of a changed request have a type: what sbatch refuses of it is mended
            said = (
                SAID_OF_A_CHANGE
                if way == "changed"
                else r"(?m)^xsbatch: submitted as written:.*\n(xsbatch:   .*\n)*"
            )
            texts = [re.sub(said, "", text) for text in (ours.out, ours.err)]
            wanted = (theirs.code, theirs.out, re.sub(said, "", theirs.err))
            differing = expected ^ _fields(ours.numbers, records, case)
            if way == "changed":
                changed += any(each[-1].partition("=")[0] in OF_THE_GPU for each in differing)
                differing = {each for each in differing if not _is_of_the_change(each[-1], case)}
            if (ours.code, *texts) != wanted:
                found.append((case, f"{way}: {ours}, not {theirs}"))
            elif differing:
                found.append((case, f"{way}: {sorted(differing)}"))
    numbers = [
        number
        for _, theirs, others in outcomes
        for each in (theirs, *others.values())
        for number in each.numbers
    ]
    subprocess.run(["scancel", *numbers], env=kept, check=False)
    return found, changed


def _is_of_the_change(field: str, case: Case) -> bool:
    """Whether a field says which GPU is asked for, or where the copy of a changed script lies."""
    name, _, value = field.partition("=")
    return name in OF_THE_GPU or (
        name == "Command" and Path(value.split(" ")[0]).name == Path(case.name).name
    )


def _records(shown: str) -> dict[str, list[dict[str, str]]]:
    """Return the fields of each job by its number, that of its first component, or that of its
    array.
    """
    fields = re.compile(r"(?s)(?:^| )([A-Za-z][\w/:]*)=(.*?)(?= [A-Za-z][\w/:]*=|$)")
    records: dict[str, list[dict[str, str]]] = {}
    for text in re.split(r"(?m)^(?=JobId=\d+ )", shown)[1:]:
        record = {name: value.strip() for name, value in fields.findall(text)}
        records.setdefault(record.get("HetJobId") or record["JobId"], []).append(record)
    return records


def _fields(
    numbers: Sequence[str], records: Mapping[str, Sequence[Mapping[str, str]]], case: Case
) -> set[tuple[int, int, str]]:
    """Return what Slurm says of these jobs, field by field: with its place among them, and names
    for their numbers.
    """
    found = set()
    for index, number in enumerate(numbers):
        for component, record in enumerate(records.get(number, [])):
            names = {record["JobId"]: "JOB", **{each: f"JOB{n}" for n, each in enumerate(numbers)}}
            for name in (
                record.keys() - OF_THE_MOMENT - (OF_A_COPY if case.how == "fifo" else set())
            ):
                value = record[name]
                if name in NUMBERED:
                    value = re.sub(
                        r"(?<![A-Za-z\d])\d+(?![A-Za-z\d])",
                        lambda digits, names=names: names.get(digits[0], digits[0]),
                        value,
                    )
                found.add((index, component, f"{name}={value}"))
    return found


def main() -> None:
    """Submit them all, and print how many of each family differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="take each nth case only")
    chosen = list(cases())[:: parser.parse_args().every]
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        cluster, work = Path(parent, "lab"), Path(parent, "work")
        work.mkdir()
        lab.up(load_site(SITE), cluster)
        try:
            found, changed = compare(chosen, work, {**os.environ, **lab.environment(cluster)})
        finally:
            lab.down(cluster)
    differing = Counter(case.family for case, _ in found)
    for family, count in Counter(case.family for case in chosen).items():
        print(f"{family:24} {count:4} cases  {differing[family]:4} differ")
    print(
        f"{'all':24} {len(chosen):4} cases  {len(found):4} differ; of {changed} the request was "
        "changed"
    )
    for case, difference in found:
        print(f"{case}\n    {difference}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
