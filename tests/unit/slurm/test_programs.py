"""Which programs a script runs, whatever it gives them."""

import hashlib
from pathlib import Path

import pytest

from xmem_slurm.slurm.programs import programs


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("python train.py --lr 1 --also other.py", ["train.py"]),
        ("torchrun --nproc 4 train.py --lr 1", ["train.py"]),
        ("LR=1 srun -n 4 --mpi=x.py /opt/python3.11 -u $DIR/train.py $LR", ["$DIR/train.py"]),
        ("python -m pkg.train -m lr=1,2", ["-m pkg.train"]),
        (
            "srun -m block:block python -m torch.distributed.run --nproc 4 -m pkg.train --lr 1",
            ["-m pkg.train"],
        ),
        ("accelerate launch --config_file 1.yaml train.py", ["train.py"]),
        ("bash -c 'cd run_1 && exec python train.py --lr 1'", ["train.py"]),
        ("srun bash run.sh 1; ./tools/dist.sh configs/a.py 4", ["./tools/dist.sh", "run.sh"]),
        (
            "module load x/1\nexport LR=1\nfor a in 1 2; do python train.py $a; done\necho 1",
            ["train.py"],
        ),
        ("python train.py 1; python train.py 2; python test.py", ["test.py", "train.py"]),
        ("python -c 'train(1)'; ./own --lr 1", ["./own", "python"]),
        ("bash -c \"bash -c 'python train.py'\"", ["train.py"]),
        ("python -m", ["python"]),
        ("python -m ..", ["-m .."]),
        ("bash", ["bash"]),
        ("LR=1", []),
        ("if", []),
    ],
)
def test_a_command_is_its_program(tmp_path: Path, script: str, expected: list[str]) -> None:
    assert programs(script.encode(), tmp_path) == expected


def test_a_program_is_known_by_what_is_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "again.py", "pkg/__main__.py"):
        (tmp_path / name).write_text("train()\n")
    (tmp_path / "large.py").write_bytes(bytes(2 << 20))
    script = (
        b"python train.py 1; python ./again.py 2; python -m again; python -m pkg; python large.py"
    )
    assert programs(script, tmp_path) == [hashlib.sha256(b"train()\n").hexdigest(), "large.py"]
