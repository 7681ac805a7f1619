"""A submission in one script; `tests/contract/test_folding.py` asks Slurm whether it is the same
job."""

import shlex

import pytest

from xmem_slurm.rewriting.folding import differences, fold, wrapped
from xmem_slurm.slurm.submission import Submission

SCRIPT = b"#!/bin/sh\n#SBATCH --time=5 # mine\n\xff\n"


def job(*argv: str, script: bytes | None = SCRIPT, **environ: str) -> Submission:
    return Submission(argv, environ, script)


@pytest.mark.parametrize(
    ("submitted", "expected", "words"),
    [
        (
            job("-t9", "-H", "d/job.sh"),
            "#SBATCH --time=9 # mine\n#SBATCH --hold\n#SBATCH --job-name=job.sh\n",
            "",
        ),
        (
            job("job.sh", "a b", SBATCH_QOS="q"),
            "#SBATCH --time=5 # mine\n#SBATCH --qos=q\n#SBATCH --job-name=job.sh\n",
            "",
        ),
        (
            job("-Jx", "-t9", "job.sh", SBATCH_TIMELIMIT="7"),
            "#SBATCH --time=9 # mine\n#SBATCH --job-name=x\n",
            "",
        ),
        (
            job("-Jx", "-W", "--parsable", "job.sh"),
            "#SBATCH --time=5 # mine\n#SBATCH --job-name=x\n",
            "",
        ),
    ],
)
def test_options_become_lines(submitted: Submission, expected: str, words: str) -> None:
    folded = fold(submitted, submitted.environ)
    head, _, body = folded.script.partition(b"\xff")
    assert sorted(head.decode().splitlines()) == sorted(["#!/bin/sh", *expected.splitlines()])
    assert body == b"\n"


@pytest.mark.parametrize(
    ("submitted", "words"),
    [
        (job("-t9", "job.sh"), "sbatch SCRIPT"),
        (job("job.sh", "a b"), "sbatch SCRIPT 'a b'"),
        (job("-W", "--parsable", "-Q", "job.sh"), "sbatch -W --parsable SCRIPT"),
        (job("--of-a-plugin=x", "job.sh"), "sbatch --of-a-plugin=x SCRIPT"),
        (job("-t9", "job.sh", SBATCH_TIMELIMIT="7"), "env -u SBATCH_TIMELIMIT sbatch SCRIPT"),
        (job("--wrap=true", script=None), "sbatch SCRIPT"),
        (job("-t9"), "sbatch SCRIPT"),
    ],
)
def test_what_is_left_to_type(submitted: Submission, words: str) -> None:
    folded = fold(submitted, submitted.environ)
    assert (shlex.join(folded.words), folded.reason) == (words, None)


@pytest.mark.parametrize(
    "script",
    [b"#!/bin/sh\n#PBS -l mem=1gb\n", b"#!/usr/bin/env lua\nprint(1)\n"],
    ids=["PBS", "no comments"],
)
def test_a_script_that_can_carry_nothing_stays_as_it_is(script: bytes) -> None:
    folded = fold(job("-t9", "-Jx", "job.sh", "a", script=script), {"SBATCH_GRES": "gpu:1"})
    assert folded.script == script
    assert shlex.join(folded.words) == "sbatch -t9 -Jx SCRIPT a"
    assert folded.reason is not None


def test_a_changed_variable_of_the_job_is_exported() -> None:
    folded = fold(job("job.sh", A="b"), {})
    assert b"#SBATCH --export=ALL,A=b\n" in folded.script
    assert fold(job("-Jx", "job.sh", A="b,c"), {}).words == ["A=b,c", "sbatch", "-Jx", "SCRIPT"]


def test_directives_in_a_wrapped_command_do_not_count() -> None:
    assert wrapped("true") == b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\ntrue\n"
    assert wrapped("#SBATCH -N2\ntrue").endswith(b"\n\n:\n#SBATCH -N2\ntrue\n")


def test_differences_of_options_and_script() -> None:
    before = job("--gres=gpu:h200:1", "-Jx", "job.sh")
    after = job("--gres=gpu:l4:1", "-Jx", "job.sh")
    assert differences(before, after, fold(after, {})) == [
        "--- options as written", "+++ options as changed", "@@ -3 +3 @@", "---gres=gpu:h200:1", "+--gres=gpu:l4:1",
        "--- job.sh", "+++ SCRIPT", "@@ -1,3 +1,5 @@", " #!/bin/sh", " #SBATCH --time=5 # mine",
        "+#SBATCH --job-name=x", "+#SBATCH --gres=gpu:l4:1", " \udcff",
    ]  # fmt: skip
