"""Which files a batch script reads: what its words name, and what the scripts among them name in
turn."""

from pathlib import Path

import pytest

from xmem_slurm.slurm import body, script_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "train.py": "",
        "env.sh": "export DATA=data.bin\n. nested.sh",
        "nested.sh": "cat deep.txt",
        "deep.txt": "",
        "run.sh": "#!/bin/bash\npython train.py",
        "conf.yaml": "",
        "data.bin": "",
        "list.txt": "",
        "out.txt": "",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.sh").write_text("cat inner.txt")
    (tmp_path / "sub" / "inner.txt").touch()
    (tmp_path / ".bashrc").write_text('eval "$WHATEVER"\ncat deep.txt\nsource ~/aliases.sh\n')
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text('eval "$_OLD"\n')
    (tmp_path / "long.sh").write_text("#" * (body.MOST_BYTES + 1))
    return tmp_path


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("python train.py", {"train.py"}),
        ("srun -n1 python -u train.py --config=conf.yaml", {"train.py", "conf.yaml"}),
        ('python "$HERE/train.py"', {"train.py"}),
        ("CONF=conf.yaml\npython train.py ${CONF}", {"train.py", "conf.yaml"}),
        ("X=1 python train.py", {"train.py"}),
        ("source env.sh\npython train.py", {"env.sh", "nested.sh", "deep.txt", "train.py"}),
        ("bash run.sh", {"run.sh", "train.py"}),
        ("srun -n1 bash -o pipefail run.sh train.py", {"run.sh", "train.py"}),
        ("time bash -lc 'cat conf.yaml; ./run.sh'", {"conf.yaml", "run.sh", "train.py"}),
        ("cd sub && bash run.sh", {"run.sh", "train.py", "inner.txt"}),
        ("cd nowhere || exit 1\npython train.py", {"nowhere", "train.py"}),
        ("bash $SLURM_SUBMIT_DIR/run.sh", {"run.sh", "train.py"}),
        ('exec "$@"', set()),
        ("./run.sh", {"run.sh", "train.py"}),
        ("while read x; do :; done <list.txt", {"list.txt"}),
        ("python train.py > out.txt 2>&1", {"train.py"}),
        ("python train.py &>out.txt", {"train.py"}),
        ("python train.py >logs/out.txt 2>&1", {"logs", "train.py"}),
        ("mkdir -p logs/a logs\npython train.py >logs/out.txt", {"train.py"}),
        ("python train.py 2> out.txt < list.txt", {"train.py", "list.txt"}),
        ("python train.py $(cat conf.yaml)", {"train.py", "conf.yaml"}),
        ("# python train.py", set()),
        ('eval "$(conda shell.bash hook)"; python train.py', {"train.py"}),
        ("source $(conda info --base)/etc/profile.d/conda.sh\npython train.py", {"train.py"}),
        ("source ~/.bashrc\npython train.py", {".bashrc", "aliases.sh", "deep.txt", "train.py"}),
        ("source venv/bin/activate\npython train.py", {"activate", "train.py"}),
        (". /no/such/file", {"file"}),
        ("srun bash no-such.sh", {"no-such.sh"}),
        ("module load cuda\nconda activate x\npython train.py", {"train.py"}),
        ("for f in list.txt conf.yaml; do cat $f; done", {"list.txt", "conf.yaml"}),
        (
            "FILES=(list.txt data.bin)\n[ -f conf.yaml ] && [[ -f out.txt ]]",
            {"list.txt", "data.bin", "conf.yaml", "out.txt"},
        ),
        (
            "if [ -f run/last ] || ! test -d $HERE/made || [[ -e $1 ]]; then python train.py; fi",
            {"last", "made", "train.py"},
        ),
        ("[ -n no.txt ] && [ no.txt = other.txt ]", set()),
        ("cat <<E | tee out.txt\ntrain.py\nE", {"out.txt"}),
        ("python >out.txt train.py", {"train.py"}),
        ("x" * 9999, set()),
    ],
)
def test_files_named_by_a_script(script: str, expected: set[str], folder: Path) -> None:
    found = script_files.named_files(
        script.encode(), folder, {"HERE": str(folder), "HOME": str(folder), "PATH": "/nowhere"}
    )
    assert {path.name for path in found} == expected


@pytest.mark.parametrize(
    "script",
    [
        "source $UNSET/env.sh",
        "source",
        'eval "$COMMAND"',
        ". ./1.sh",
        "bash $UNSET/run.sh",
        "bash ${RUN:-run.sh}",
        "$LAUNCHER train.py",
        'cd "$UNSET"',
        "bash long.sh",
        "if no shell script",
        'echo "',
    ],
)
def test_what_cannot_be_told(script: str, folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.sh").write_text(f"#!/bin/sh\n. ./{number + 1}.sh\n")
    with pytest.raises(script_files.Unknown):
        script_files.named_files(script.encode(), folder, {})


def test_scripts_that_run_in_circles_are_read_once(folder: Path) -> None:
    (folder / "loop.sh").write_text("#!/bin/sh\n. ./other.sh\n")
    (folder / "other.sh").write_text(". ./loop.sh\n. $UNKNOWN")
    found = script_files.scripts_run(b"./loop.sh", folder, {})
    assert {path.name: text for path, text in found.items()} == {
        "loop.sh": b"#!/bin/sh\n. ./other.sh\n",
        "other.sh": b". ./loop.sh\n. $UNKNOWN",
    }
