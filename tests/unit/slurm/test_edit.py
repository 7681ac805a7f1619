"""Edits go where an option was set, in its own spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.edit import Edit, EditError, apply, type_edits, without
from xmem_slurm.slurm.gres import GresError
from xmem_slurm.slurm.options import REQUIRED, Option
from xmem_slurm.slurm.submission import Submission

HEAD = b"#!/bin/bash\n"


def job(argv: str = "job.sh", lines: bytes | None = b"", **environ: str) -> Submission:
    return Submission(tuple(argv.split()), environ, None if lines is None else HEAD + lines)


def edited(before: Submission, *edits: Edit) -> Submission:
    return apply(edits, before)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--gres=gpu:1 job.sh", "--gres=gpu:h200:1 job.sh"),
        ("--gres gpu:1 job.sh", "--gres gpu:h200:1 job.sh"),
        ("-G1 job.sh", "-Gh200:1 job.sh"),
        ("-HG 1 job.sh a", "-HG h200:1 job.sh a"),
        ("--gpus-per-n=a100:2 job.sh", "--gpus-per-n=h200:2 job.sh"),
        ("--gres=gpu:1 --gres=gpu:2 job.sh", "--gres=gpu:1 --gres=gpu:h200:2 job.sh"),
    ],
)
def test_on_the_command_line(argv: str, expected: str) -> None:
    before = job(argv, b"#SBATCH --gres=gpu:7\n" if "gres" in argv else b"")
    after = edited(before, *type_edits(before.request, "h200"))
    assert after == before.but(argv=tuple(expected.split()))


def test_in_the_environment() -> None:
    before = job("job.sh", b"#SBATCH --gres=gpu:7\n", SBATCH_GRES="gpu:a100:1", HOME="/h")
    after = edited(before, *type_edits(before.request, "h200"))
    assert after == before.but(environ={"SBATCH_GRES": "gpu:h200:1", "HOME": "/h"})
    assert before.environ["SBATCH_GRES"] == "gpu:a100:1"


def test_in_the_script() -> None:
    before = job("job.sh", b"#SBATCH --gres=gpu:7 -N2 # x\n#SBATCH -Ca\ntrue\n")
    after = edited(before, *type_edits(before.request, "h200"), Edit("constraint", "a&b"))
    assert after == before.but(
        script=HEAD + b"#SBATCH --gres=gpu:h200:7 -N2 # x\n#SBATCH -Ca&b\ntrue\n"
    )


def test_every_gpu_option_gets_the_type() -> None:
    before = job("-G2 job.sh", b"#SBATCH --gres=gpu:a100:1\n", SBATCH_GPUS_PER_TASK="1")
    after = edited(before, *type_edits(before.request, "h200")).request
    assert after.gpu_types == ("h200",)
    assert all(gpu.type == "h200" for gpu in after.gpus)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            job("job.sh", b"#SBATCH -N1\ntrue\n"),
            job("job.sh", b"#SBATCH -N1\n#SBATCH --constraint=f\ntrue\n"),
        ),
        (job("", b"true\n"), job("", b"#SBATCH --constraint=f\ntrue\n")),
        (job("-N1 --wrap=true", None), job("--constraint=f -N1 --wrap=true", None)),
        (job("-N1 -- job.sh", None), job("--constraint=f -N1 -- job.sh", None)),
    ],
)
def test_what_was_set_nowhere_is_added(before: Submission, after: Submission) -> None:
    assert edited(before, Edit("constraint", "f")) == after


def test_a_script_whose_comments_do_not_begin_with_a_hash_is_left_alone() -> None:
    before = Submission(("job.lua",), {}, b"#!/usr/bin/lua\nprint(1)\n")
    assert edited(before, Edit("constraint", "f")) == before.but(argv=("--constraint=f", "job.lua"))


@pytest.mark.parametrize(
    "shebang", [b"#!/usr/bin/env python3", b"#!/usr/bin/python3.12", b"#!/bin/sh -e"]
)
def test_a_script_whose_comments_do_gets_a_line(shebang: bytes) -> None:
    after = edited(Submission(("job",), {}, shebang + b"\nx\n"), Edit("constraint", "f"))
    assert after.script == shebang + b"\n#SBATCH --constraint=f\nx\n"


def test_options_of_a_plugin_are_no_obstacle() -> None:
    plugins = (Option("container-image", "", REQUIRED),)
    lines = b"#SBATCH --container-image img\n#SBATCH --gres=gpu:1\ntrue\n"
    before = Submission(("--container-image", "img", "-G1", "job.sh"), {}, HEAD + lines, plugins)
    after = edited(before, *type_edits(before.request, "h200"))
    assert after.argv == ("--container-image", "img", "-Gh200:1", "job.sh")
    assert after.script == HEAD + lines.replace(b"gpu:1", b"gpu:h200:1")
    assert before.but(plugins=()).parsed_script.unknown == ("--container-image",)


def test_components_are_edited_apart() -> None:
    before = job(
        "job.sh", b"#SBATCH --gres=gpu:1\n#SBATCH hetjob\n#SBATCH --gres=gpu:a100:2\ntrue\n"
    )
    after = edited(before, Edit("gres", "gpu:h200:2", 1), Edit("constraint", "f", 0))
    assert after.script == (
        HEAD + b"#SBATCH --gres=gpu:1\n#SBATCH --constraint=f\n#SBATCH hetjob\n#SBATCH "
        b"--gres=gpu:h200:2\ntrue\n"
    )


@pytest.mark.parametrize(
    "before",
    [
        job("job.sh", b"#SBATCH -N1\n#SBATCH hetjob\n", SBATCH_GRES="gpu:1"),
        job("--gres=gpu:1 job.sh", b"#SBATCH -N1\n#SBATCH hetjob\n"),
    ],
)
def test_one_place_for_two_components_is_not_edited_for_one(before: Submission) -> None:
    with pytest.raises(EditError, match="another component"):
        edited(before, Edit("gres", "gpu:h200:1", 0))
    both = edited(before, Edit("gres", "gpu:h200:1", 0), Edit("gres", "gpu:h200:1", 1))
    assert [part.value("gres") for part in both.request.components] == ["gpu:h200:1", "gpu:h200:1"]


def test_taking_an_option_away_uncovers_none() -> None:
    before = job(
        "--gres=gpu:1 -HG1 job.sh",
        b"#SBATCH --gres=gpu:2\n#SBATCH --gres gpu:3 -N1\n",
        SBATCH_GRES="gpu:4",
    )
    after = edited(before, Edit("gres", None))
    assert after == Submission(("-HG1", "job.sh"), {}, HEAD + b"#SBATCH -N1\n")


def test_lines_for_another_scheduler_are_in_the_way_of_the_script_only() -> None:
    lines = b"#SBATCH --gres=gpu:1\n#PBS -l naccelerators=2\n"
    with pytest.raises(EditError, match="#PBS"):
        edited(job("job.sh", lines), Edit("gres", "gpu:h200:1"))
    with pytest.raises(EditError, match="#PBS"):
        edited(job("job.sh", lines), Edit("constraint", "f"))
    assert edited(job("--gres=gpu:1 job.sh", lines), Edit("gres", "gpu:2")).argv == (
        "--gres=gpu:2",
        "job.sh",
    )
    assert (
        edited(job("--ignore-pbs job.sh", lines), Edit("gres", "gpu:2")).request.value("gres")
        == "gpu:2"
    )


def test_a_component_that_is_not_there() -> None:
    with pytest.raises(EditError, match="no component 1"):
        edited(job(), Edit("gres", "gpu:1", 1))


def test_several_types_in_one_option_are_not_touched() -> None:
    with pytest.raises(GresError):
        type_edits(job("--gres=gpu:a:1,gpu:b:1 job.sh").request, "h200")


def test_options_are_taken_off_the_command_line() -> None:
    argv = ("-HOC", "foo", "--mem", "1", "-Gx", "--nice=3", "job.sh", "--mem=1")
    names = {"overcommit", "constraint", "mem", "gpus"}
    gone = [o for o in split_command_line(argv).occurrences if o.name in names]
    assert without(argv, gone) == ("-H", "--nice=3", "job.sh", "--mem=1")


set_somewhere = st.sampled_from(
    [
        "--gres=gpu:1",
        "--gres gpu:a100:2",
        "-G2",
        "-Ca",
        "-HC b",
        "--mem=1G",
        "-N2",
        "--gpus-per-n=1",
    ]
)
places = st.lists(set_somewhere, max_size=3)
edits = st.lists(
    st.builds(
        Edit,
        st.sampled_from(["gres", "gpus", "constraint", "comment", "gpus-per-node"]),
        st.one_of(st.none(), st.text("ab:1 #'\"\\\u00e9-&|", min_size=1)),
        st.integers(0, 1),
    ),
    max_size=3,
    unique_by=lambda edit: (edit.name, edit.component),
)


@given(
    places,
    places,
    places,
    st.dictionaries(st.sampled_from(["SBATCH_GRES", "SBATCH_CONSTRAINT"]), st.just("x")),
    edits,
)
def test_an_edit_does_what_it_says_or_refuses(
    line: list[str],
    first: list[str],
    second: list[str],
    environ: dict[str, str],
    wanted: list[Edit],
) -> None:
    script = (
        f"#!/bin/sh\n#SBATCH {' '.join(first)}\n#SBATCH hetjob\n#SBATCH {' '.join(second)}\ntrue\n"
    )
    before = Submission((*" ".join(line).split(), "job.sh"), environ, script.encode())
    expected = [
        {n: s.value for n, s in part.settings.items()} for part in before.request.components
    ]
    for edit in wanted:
        if edit.value is None:
            expected[edit.component].pop(edit.name, None)
        else:
            expected[edit.component][edit.name] = edit.value
    try:
        after = edited(before, *wanted)
    except UsageError:
        assert wanted
        return
    assert [
        {n: s.value for n, s in part.settings.items()} for part in after.request.components
    ] == expected
    if not wanted:
        assert after == before


def test_a_flag_is_added_and_stays_where_it_is_set() -> None:
    after = edited(job(lines=b"#SBATCH -t5\n"), Edit("hold", ""))
    assert after.script == HEAD + b"#SBATCH -t5\n#SBATCH --hold\n"
    assert edited(after, Edit("hold", "")) == after
    assert edited(job("--wrap=x", None), Edit("hold", "")).argv == ("--hold", "--wrap=x")


def test_a_value_carried_from_the_component_before_is_not_changed_there() -> None:
    before = job(lines=b"#SBATCH -Ja\n#SBATCH hetjob\n#SBATCH -t1\n")
    after = edited(before, Edit("job-name", "b", 1))
    assert (
        after.script == HEAD + b"#SBATCH -Ja\n#SBATCH hetjob\n#SBATCH -t1\n#SBATCH --job-name=b\n"
    )
