"""Which commands a shell script runs, which of them ask for GPUs, and what changing their type
changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parser_fuzz import SHELL, check_body
from xmem_slurm.slurm import body
from xmem_slurm.slurm.body import commands, gpu_steps, with_types


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("srun --gres=gpu:1 python x", "srun --gres=gpu:T:1 python x"),
        ("true\n  FOO=1 srun \\\n  -n2 --gpus 1 a", "true\n  FOO=1 srun \\\n  -n2 --gpus T:1 a"),
        ("if a; then /usr/bin/srun -G1 x & fi", "if a; then /usr/bin/srun -GT:1 x & fi"),
        ("x=$(srun --gpus-per-task=1 hostname)", "x=$(srun --gpus-per-task=T:1 hostname)"),
        ("y=`srun --gres=gpu:1 x`", "y=`srun --gres=gpu:T:1 x`"),
        ("srun -G1 a && srun --gres gpu:2 b", "srun -GT:1 a && srun --gres gpu:T:2 b"),
        ("exec srun -lG2 x", "exec srun -lGT:2 x"),
        (
            "time -p srun --gpus-per-node=h200:2 x | tee log",
            "time -p srun --gpus-per-node=T:2 x | tee log",
        ),
        ("nohup timeout 5 srun -G h200 x&", "nohup timeout 5 srun -G T x&"),
        ("srun >out --gres='gpu:1' 2>&1 x", "srun >out --gres='gpu:T:1' 2>&1 x"),
        ('srun --gres="gpu:h200:1,tmp:5" x', 'srun --gres="gpu:T:1,tmp:5" x'),
        ('srun "--gpus=1" x', 'srun "--gpus=T:1" x'),
        ("srun --tres-per-task=cpu=1,gres/gpu:1 x", "srun --tres-per-task=cpu=1,gres/gpu:T:1 x"),
        ("srun --gpus-per-soc=1 x", "srun --gpus-per-soc=T:1 x"),
        ("f() { while :; do srun -G1 x; done; }", "f() { while :; do srun -GT:1 x; done; }"),
        ("case $1 in a) srun -G1 y;; esac", "case $1 in a) srun -GT:1 y;; esac"),
        (
            "cat <<E | srun -G1 x\nsrun\nE\nsrun -G2 y",
            "cat <<E | srun -GT:1 x\nsrun\nE\nsrun -GT:2 y",
        ),
        ("srun <<E --gpus=1 x\nsrun\nE", "srun <<E --gpus=T:1 x\nsrun\nE"),
        ("srun -n $N --mem='1 G' -G1 x", "srun -n $N --mem='1 G' -GT:1 x"),
        ("srun -G1 python $X --gpus 2", "srun -GT:1 python $X --gpus 2"),
        ("srun python t.py --gpus 2; srun -G1 x", "srun python t.py --gpus 2; srun -GT:1 x"),
        ("# srun --gpus=2\nsrun -G1 x # srun -G1", "# srun --gpus=2\nsrun -GT:1 x # srun -G1"),
        ("srun --gres=gpu:1 a : --gpus=2 b", "srun --gres=gpu:T:1 a : --gpus=U:2 b"),
        (
            "srun --het-group=1 -G1 a : --het-group=0 -G2 b",
            "srun --het-group=1 -GU:1 a : --het-group=0 -GT:2 b",
        ),
        ("srun --gpus=1 \xff", "srun --gpus=T:1 \xff"),
    ],
)
def test_steps_get_their_type_and_nothing_else_changes(script: str, expected: str) -> None:
    data = script.encode("latin-1")
    steps = gpu_steps(data)
    assert all(step.can_have(["T", "U"]) for step in steps)
    assert with_types(data, steps, ["T", "U"]) == expected.encode("latin-1")
    assert with_types(data, steps, [None, None]) == data


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('srun --gres="$G" x', "srun --gres=$G"),
        ("srun --gres=gpu:$N x", "srun --gres=gpu:$N"),
        ("O='-n 1 --gres=gpu:1'\nsrun $O x", "srun $O"),
        ('P="-n1"\nO="$P -G2"\nsrun -l ${O} x', "srun ${O}"),
        ('O=(-n 1)\nO+=(-G 2)\nsrun "${O[@]}" x', "srun ${O[@]}"),
        ('run() { srun "$@"; }\nrun -G1 x', "srun $@"),
        ("srun $P -u --gpus 2", "srun --gpus=2"),
        ('eval "srun --gres=gpu:1 x"', "srun --gres=gpu:1"),
        ("bash -c 'srun -n1 -G 1 x'", "srun ... -G"),
        ('C="srun --gpus=1"\n$C x', "srun --gpus=1"),
        ("cat >step.sh <<E\nsrun --gpus=2 x\nE\nsh step.sh", "srun --gpus=2"),
        ("srun --het-group=$X -G1 x", "srun --gpus=1"),
        ("srun --het-group=0,1 -G1 x", "srun --gpus=1"),
        ("srun --het-group=7 -G1 x", "srun --gpus=1"),
        ("srun --gres=gpu\\:1", "srun --gres=gpu:1"),
        ("srun --gres=gpu:a:1,gpu:b:1 x", "srun --gres=gpu:a:1,gpu:b:1"),
        ("echo 'a\nsrun -G2 b", "srun -G2"),
        ("<<A\n" * 20_000 + "srun --gpus=1 x", "srun --gpus=1"),
        ("# " + "x" * body.MOST_BYTES + "\nsrun --gpus=1 x", "srun --gpus=1"),
    ],
    ids=lambda text: text[:40],
)
def test_what_cannot_be_changed_for_sure_is_in_the_way(script: str, told: str) -> None:
    steps = gpu_steps(script.encode())
    assert [step.text for step in steps if not step.can_have(["T", "U"])] == [told]


@pytest.mark.parametrize(
    "script",
    [
        "# srun --gres=gpu:1",
        "srun python t.py --gpus 2",
        "srun --gres=craynetwork:1 x",
        "srun --gpus=0 --gres=none x",
        "python srun.py --gres=gpu:1",
        "./my-srun --gres=gpu:1",
        "sbatch --gres=gpu:1 next.sh",
        "P='python -u'\nsrun $P train.py --gpus 2",
        "srun --gpu-bind=none --gres-flags=enforce-binding x",
    ],
)
def test_what_asks_for_no_gpu(script: str) -> None:
    assert gpu_steps(script.encode()) == ()


def test_a_python_script_is_only_searched() -> None:
    script = b"import os\n# srun --gpus=9\nos.system('srun -n 2 --gpus=1 x')\n"
    (step,) = gpu_steps(script, is_shell=False)
    assert (step.line, step.text, step.start) == (3, "srun ... --gpus=1", None)


def test_commands_are_words_without_quotes() -> None:
    script = b"""A=1 B='x y' one "two three" >out four <in | five\\ six
for f in a "b"; do :; done; [ -f c ]; D=(d e)
cat <<E
no commands
E
"""
    assert commands(script) == [
        ["one", "two three", "four"], ["A=1"], ["B=x y"], [">", "out"], ["", "in"], ["five six"],
        ["", "f", "a", "b"], [":"], ["", "-f", "c"], ["D=(d e)"], ["", "d", "e"], ["cat"],
    ]  # fmt: skip
    assert commands(b"if") is None


@settings(max_examples=1000, deadline=None)
@given(pieces=st.lists(st.sampled_from(SHELL), max_size=40))
def test_any_script_is_read_and_what_is_not_changed_stays(pieces: list[str]) -> None:
    """`python -m benchmarks.parser_fuzz` does the same by the million."""
    check_body("".join(pieces).encode(errors="surrogateescape"))
