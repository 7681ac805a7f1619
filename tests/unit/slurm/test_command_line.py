"""Which words of a command line are options, by getopt's rules."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.options import NONE, OPTIONAL, REQUIRED, SBATCH, Option, scan, srun_table


def options(*argv: str) -> list[tuple[str, str | None]]:
    return [(o.name, o.value) for o in split_command_line(argv).occurrences]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--gres=gpu:1"], [("gres", "gpu:1")]),
        (["--gres", "gpu:1"], [("gres", "gpu:1")]),
        (["-Cfoo"], [("constraint", "foo")]),
        (["-C", "foo"], [("constraint", "foo")]),
        (["-HCfoo"], [("hold", None), ("constraint", "foo")]),
        (["-HN2", "-t", "3"], [("hold", None), ("nodes", "2"), ("time", "3")]),
        (["--cons=a"], [("constraint", "a")]),
        (["--gpus-per-n=1"], [("gpus-per-node", "1")]),
        (["--gpus=1"], [("gpus", "1")]),
        (["--nice", "5"], [("nice", None)]),
        (["--nice=5"], [("nice", "5")]),
        (["-k5"], [("no-kill", "5")]),
        (["--tasks-per-node=2"], [("ntasks-per-node", "2")]),
        (["--cluster=x"], [("clusters", "x")]),
        (["--gres"], [("gres", None)]),
        (["--comment", "--mem=1"], [("comment", "--mem=1")]),
        (["--comment=", "x"], [("comment", "")]),
    ],
)
def test_reads_options_as_getopt_does(
    argv: list[str], expected: list[tuple[str, str | None]]
) -> None:
    assert options(*argv) == expected


@pytest.mark.parametrize("ambiguous", ["--gre=gpu:1", "--g=1", "--mem-p=1"])
def test_an_ambiguous_abbreviation_is_no_option(ambiguous: str) -> None:
    (occurrence,) = split_command_line([ambiguous]).occurrences
    assert occurrence.option is None


def test_an_abbreviation_keeps_its_older_meaning_when_a_newer_option_begins_alike() -> None:
    assert "consolidate-segments".startswith("cons")
    assert options("--cons=a") == [("constraint", "a")]


def test_options_end_at_the_script_and_the_rest_is_the_scripts_own() -> None:
    line = split_command_line(["-N1", "job.sh", "--mem=1", "-x"])
    assert (line.script, line.script_arguments, line.has("mem")) == (
        "job.sh",
        ("--mem=1", "-x"),
        False,
    )


def test_two_dashes_end_the_options() -> None:
    line = split_command_line(["-N1", "--", "--odd.sh", "a"])
    assert (line.script, line.script_arguments) == ("--odd.sh", ("a",))


def test_a_script_from_stdin_and_wrap() -> None:
    assert split_command_line(["-N1"]).reads_stdin
    line = split_command_line(["--wrap", "true", "-N1"])
    assert (line.wrap, line.script, line.reads_stdin) == ("true", None, False)


def test_components_of_a_heterogeneous_job() -> None:
    line = split_command_line(["-N1", ":", "-N2", "--mem=1", "job.sh", "a"])
    assert [[(o.name, o.value) for o in part] for part in line.components] == [
        [("nodes", "1")],
        [("nodes", "2"), ("mem", "1")],
    ]
    assert (line.starts, line.script) == ((0, 2), "job.sh")
    assert line.argv[line.components[1][1].at] == "--mem=1"


def test_sbatch_takes_colons_out_of_the_scripts_arguments() -> None:
    line = split_command_line(["job.sh", "a", ":", "b"])
    assert (line.script_arguments, len(line.components)) == (("a", "b"), 1)


def test_unknown_options_are_kept_and_named() -> None:
    line = split_command_line(["--brand-new=3", "--other", "job.sh"])
    assert [(o.typed, o.value) for o in line.occurrences] == [
        ("--brand-new", "3"),
        ("--other", None),
    ]
    assert line.unknown == ("--other",)


def test_an_option_of_a_plugin_can_be_made_known() -> None:
    plugin = Option("container-image", "", REQUIRED)
    argv = ["--container-image", "img", "job.sh", "--container-image", "x"]
    assert split_command_line(argv, [plugin]).script == "job.sh"
    assert split_command_line(argv).unknown == ("--container-image",)


def test_sruns_options_are_skipped_to_find_the_command() -> None:
    words = [
        "-n",
        "2",
        "--gres=gpu:1",
        "-l",
        "--mpi=pmix",
        "-W",
        "3",
        "--pty",
        "python",
        "-u",
        "train.py",
    ]
    _, stop = scan(words, srun_table())
    assert words[stop:] == ["python", "-u", "train.py"]


def test_the_table_is_sound() -> None:
    names = [option.name for option in SBATCH.options]
    letters = [option.short for option in SBATCH.options if option.short]
    assert len(set(names)) == len(names)
    assert len(set(letters)) == len(letters)
    assert {option.arity for option in SBATCH.options} == {NONE, REQUIRED, OPTIONAL}
    assert all(option.alias_of in ("", *names) for option in SBATCH.options)


word = st.sampled_from(
    ["-N1", "-N", "--gres", "--gres=x", ":", "--", "-", "job.sh", "-HC", "--wrap=x", "--nope", "-"]
)


@given(st.lists(st.one_of(word, st.text()), max_size=8))
def test_positions_point_at_what_was_typed(argv: list[str]) -> None:
    line = split_command_line(argv)
    for occurrence in line.occurrences:
        assert line.argv[occurrence.at][occurrence.start :].startswith(
            occurrence.typed.lstrip("-")[:1] or "-"
        ) or (occurrence.start == 0 and line.argv[occurrence.at].startswith(occurrence.typed))
        if occurrence.value is not None:
            assert line.argv[occurrence.value_at][occurrence.value_start :] == occurrence.value


def test_reading_a_command_line_needs_no_heavy_import() -> None:
    code = (
        "import sys; before = set(sys.modules); import xmem_slurm.slurm.command_line;"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"dataclasses", "inspect", "argparse", "pydantic", "typer", "rich", "jinja2"} & set(
        loaded
    )
