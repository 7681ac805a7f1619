"""What a plan changes in a job is what the job reads, and nothing else of it."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.traces import trace_of
from tests.unit.planning.test_plan import gpu, site_of
from xmem_slurm.planning import deepspeed_json
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.changes import changed
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import METHODS
from xmem_slurm.planning.search import Ways
from xmem_slurm.planning.space import Space
from xmem_slurm.report import plan as report
from xmem_slurm.rewriting import launch
from xmem_slurm.rewriting.launch import Processes
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import File, Trace, Training

OWN = Training()


def ran(*argv: str, training: Training = OWN, ranks: int = 1, read: Sequence[Path] = ()) -> Trace:
    """Return what a dry run of `python train.py ARGV` showed."""
    files = [File("R", 1, 1, str(path)) for path in read]
    words = ["python", "train.py", *argv]
    return replace(
        trace_of("+p:1:PARAM"), argv=words, world_size=ranks, training=training, files=files
    )


def written(path: Path, optimizer: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"optimizer": {"type": optimizer}}))
    return path


def test_deepspeeds_file_is_the_one_that_was_read(tmp_path: Path) -> None:
    """One of the same name is where the job starts; and where two were read that differ, it may be
    either."""
    here = written(tmp_path / "ds.json", "SGD")
    there = written(tmp_path / "sub" / "ds.json", "AdamW")
    for read, optimizer in (
        ([there], "AdamW"),
        ([here], "SGD"),
        ([], "SGD"),
        ([tmp_path / "xds.json"], "SGD"),
    ):
        found = deepspeed_json.find(ran("--deepspeed", "ds.json", read=read), tmp_path, tmp_path)
        assert found is not None
        assert found.config["optimizer"]["type"] == optimizer
    assert (
        deepspeed_json.find(ran("--deepspeed", "ds.json", read=[here, there]), tmp_path, tmp_path)
        is None
    )


@pytest.mark.parametrize(
    "words", ["--deepspeed a.json --deepspeed=b.json", "--deepspeed=a.json --deepspeed b.json"]
)
def test_of_deepspeeds_files_the_last_that_is_named_counts(words: str, tmp_path: Path) -> None:
    written(tmp_path / "a.json", "SGD"), written(tmp_path / "b.json", "AdamW")
    found = deepspeed_json.find(ran(*words.split()), tmp_path, tmp_path)
    assert found is not None
    assert found.config["optimizer"]["type"] == "AdamW"


OTHERS = """#!/bin/bash
# --batch-size 4 ran out of memory
python tokenize.py --batch-size 4 --fp16
MORE=(--fp16 "$LAST") LAST='--deepspeed ds.json'
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "python train.py --batch_size 4 --batch-size=2 >a",
            "train.py --more 1 --batch_size 8 --batch-size=8 >a",
        ),
        ("python train.py --batch-size ${BATCH:-4}", "train.py --more 1 --batch-size 8"),
        ('python train.py \\\n  --batch-size "$BATCH"', 'train.py --more 1 \\\n  --batch-size "8"'),
        (
            "python eval.py --batch-size 4; python train.py",
            "eval.py --batch-size 4; python train.py --batch-size 8",
        ),
        (
            "A='--batch-size 4'\npython train.py --x $A",
            "A='--batch-size 8'\npython train.py --more 1 --x $A",
        ),
    ],
)
def test_arguments_are_those_of_the_command_that_is_launched(command: str, expected: str) -> None:
    """What else has them stays as it is: a comment, another command, a variable of another
    command."""
    script = f"{OTHERS}{command}\n".encode()
    arguments = {"--batch-size": "8", "--more": "1"}
    one = Processes(1, 1)
    text = launch.changed(
        script, launch.find(script, "train.py"), (one, one), variables={}, arguments=arguments
    )
    assert text.decode().startswith(OTHERS)
    assert expected in text.decode()


def test_arguments_in_variables_of_variables_are_changed_there() -> None:
    script = f'{OTHERS}python train.py "${{MORE[@]}}"\n'.encode()
    arguments = {"--fp16": "False", "--deepspeed": "copy.json"}
    one = Processes(1, 1)
    text = launch.changed(
        script, launch.find(script, "train.py"), (one, one), variables={}, arguments=arguments
    )
    assert text.decode() == (
        OTHERS.replace("(--fp16", "(--fp16 False").replace("ds.json", "copy.json")
        + 'python train.py "${MORE[@]}"\n'
    )


@pytest.mark.parametrize(
    "body",
    [
        "python train.py --batch-size ${BATCH:-4}",
        "if true; then\n  python train.py --batch-size $BATCH\nfi",
        'B="--batch-size $BATCH"\ncd / && python train.py $B | cat',
        "BATCH=$((2 * 2)) python eval.py\nBATCH=4\npython train.py --batch-size $((BATCH * 1))",
        "export BATCH='4'; X=1 python train.py --batch-size \"$BATCH\"",
    ],
)
def test_a_variable_reaches_the_words_of_the_command_that_it_stands_before(body: str) -> None:
    """A shell says what python is called with; the job is submitted with BATCH=4, and is to have
    8."""
    one, script = Processes(1, 1), f"#!/bin/bash\n#SBATCH --gpus=1\n\n{body}\n".encode()
    shown = b'python() { [ "$1" = eval.py ] || echo "$@" $(env | grep ^BATCH=); }\n'
    found = launch.find(script, "train.py")
    changed = launch.changed(script, found, (one, one), variables={"BATCH": "8"}, arguments={})
    assert changed.startswith(b"#!/bin/bash\n#SBATCH --gpus=1\n\nexport BATCH=8\n")
    for text, batch in ((script, "4"), (changed, "8")):
        environ = {"BATCH": "4", "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["bash"], input=shown + text, env=environ, capture_output=True, check=True
        )
        assert done.stdout.decode().split() == ["train.py", "--batch-size", batch, f"BATCH={batch}"]


def test_a_variable_that_the_shell_does_not_read_is_the_commands_alone() -> None:
    one, script = Processes(1, 1), b"export BATCH=4\npython train.py; python eval.py # $BATCH\n"
    found = launch.find(script, "train.py")
    changed = launch.changed(script, found, (one, one), variables={"BATCH": "8"}, arguments={})
    assert changed == script.replace(b"python train", b"BATCH=8 python train")


@pytest.mark.parametrize(
    ("asked", "command", "gpus", "expected"),
    [
        (
            "--ntasks=4 --gpus-per-task=1",
            "srun python train.py",
            (2, 1),
            "--ntasks=2 --gpus-per-task=1 --nodes=1",
        ),
        ("--nodes=1 --ntasks-per-node=4 --gpus-per-task=a:1", "srun python train.py", (8, 2), None),
        (
            "--gpus=4 --gpus-per-task=1",
            "srun python train.py",
            (2, 1),
            "--gpus-per-task=1 --ntasks=2 --nodes=1",
        ),
        (
            "--ntasks=1 --gpus-per-task=4",
            "torchrun train.py",
            (8, 1),
            "--ntasks=1 --gpus-per-task=8 --nodes=1",
        ),
        (
            "--ntasks=4 --tres-per-task=cpu=4,gres/gpu:1",
            "srun python train.py",
            (2, 1),
            "--ntasks=2 --tres-per-task=cpu=4,gres/gpu:1 --nodes=1",
        ),
        (
            "--gres=mps:50,lscratch:9",
            "torchrun train.py",
            (2, 1),
            "--gres=lscratch:9 --gpus-per-node=2",
        ),
        ("--gres=shard:2", "torchrun train.py", (4, 1), "--gpus-per-node=4"),
        ("--gres=gpu:a:4 --ntasks=4", "srun python train.py", (2, 1), "--ntasks=2 --gres=gpu:2"),
    ],
)
def test_gpus_are_asked_for_by_task_where_they_were(
    asked: str, command: str, gpus: tuple[int, int], expected: str | None
) -> None:
    """Each task has GPUs of its own by that, and no share stays beside a GPU."""
    lines = "".join(f"#SBATCH {word}\n" for word in asked.split())
    job = Submission(("job.sh",), {}, f"#!/bin/bash\n{lines}{command}\n".encode())
    base = Base(job, ran(ranks=4, training=Training("accelerate", "ddp", 4, 1)))
    per_node, nodes = gpus
    way = Candidate("a", per_node * nodes, nodes, METHODS["ddp"], 1, 4, 1, checkpointing=False)
    script = changed(base, way, site_of(a=8)).script
    assert script is not None
    found = sorted(
        line.partition(" ")[2]
        for line in script.decode().splitlines()
        if line.startswith("#SBATCH")
    )
    assert found == sorted((expected or "--nodes=2 --ntasks-per-node=8 --gpus-per-task=1").split())


def test_a_job_that_cannot_ask_for_others_keeps_its_number_of_gpus_and_that_is_said() -> None:
    """What PBS is asked for is not known here; two GPUs of a node would be four on two nodes."""
    script = (
        b"#!/bin/bash\n#PBS -l x\n#SBATCH --gpus-per-node=4\ntorchrun --nproc-per-node=4 train.py\n"
    )
    base = Base(
        Submission(("job.sh",), {}, script),
        ran(ranks=4, training=Training("accelerate", "ddp", 4, 1, has_deepspeed=True)),
    )
    site = site_of(a=8, b=2)
    space = Space(site, {name: gpu(9000) for name in "ab"}, [1, 2, 4, 8], list(METHODS.values()))
    assert {(way.option, way.gpus) for way in space.all_of(base)} == {("a", 4)}
    assert "#PBS" in base.not_scaled


@pytest.mark.parametrize(
    "step", ["srun --gres=gpu:4 python", "srun -G4 python", "srun --gpus-per-task=4 torchrun"]
)
def test_a_step_that_asks_for_gpus_itself_is_launched_as_it_is(step: str) -> None:
    """Of fewer it would get none, and of more not all."""
    job = Submission(
        ("--gpus-per-node=4", "job.sh"), {}, f"#!/bin/bash\n{step} train.py\n".encode()
    )
    base = Base(job, ran(ranks=4, training=Training("accelerate", "ddp", 4, 1)))
    assert base.not_scaled.startswith("the srun that starts train.py asks for GPUs: -")


OPTION, VARIABLE = BatchLever.parse("batch_size=--batch-size"), BatchLever.parse("batch_size=BATCH")


@pytest.mark.parametrize(
    ("lever", "argv", "drawn", "batch", "why"),
    [
        (OPTION, "--batch-size 64 --batch-size=16", 0, 16, ""),
        (OPTION, "--batch-size=64 --batch-size 16", 16, 16, ""),
        (OPTION, "", 16, 16, ""),
        (
            OPTION,
            "--batch-size 64",
            16,
            0,
            "--batch-size is 64, and batches of 16 are what each process draws",
        ),
        (
            OPTION,
            "--batch 16",
            0,
            0,
            "no DataLoader was seen to give all batches of its training; its command has",
        ),
        (VARIABLE, "--batch-size 64", 16, 16, ""),
        (
            VARIABLE,
            "--batch-size 64",
            0,
            0,
            "no DataLoader was seen to give all batches of its training; name an option",
        ),
    ],
)
def test_a_batch_is_varied_where_it_was_seen(
    lever: BatchLever, argv: str, drawn: int, batch: int, why: str
) -> None:
    """Neither a comment nor the environment says what a process trains with; a way has its batch if
    that was seen."""
    script = (
        b"#!/bin/bash\n#SBATCH --gpus-per-node=1\n# --batch-size 64 ran out of memory\npython "
        b"train.py\n"
    )
    seen = ran(*argv.split(), training=Training(drawn=drawn))
    base = Base(Submission(("job.sh",), {"BATCH": "64"}, script), seen, lever)
    assert (base.training.micro_batch, base.not_varied[: len(why)], bool(base.lever)) == (
        batch,
        why,
        not why,
    )
    space = Space(site_of(a=8), {"a": gpu(9000)}, [1], list(METHODS.values()), same_batch=False)
    ways = list(space.all_of(base))
    assert len(ways) == 1
    assert ways[0].is_seen(seen, base.training) == ("micro batch" if base.lever else "")
    assert replace(ways[0], micro_batch=batch).is_seen(seen, base.training) == ""


def test_a_lever_that_is_not_heeded_is_said() -> None:
    base = Base(Submission(("job.sh",), {}, b"#!/bin/bash\npython train.py\n"), ran(), VARIABLE)
    words = report.lines(Ways(base, [], "cost", 1, 0), {})
    (said,) = [line for line in words if "--vary" in line]
    assert said.startswith(
        "--vary batch_size=BATCH is ignored: no DataLoader was seen to give all batches"
    )
