"""Rewriting: one option changed where it was set, everything else byte for byte."""

from pathlib import Path

import pytest

from xmem_slurm import resources
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting.rewrite import rewrite
from xmem_slurm.site.loading import load_site
from xmem_slurm.site.schema import Dialect, GpuOption
from xmem_slurm.slurm.submission import Submission

L4 = load_site(resources.tree("site-config") / "example.toml").option["l4"]
BY_FEATURE = GpuOption(gpu="l4", constraint="gpu_mem_24g", cost=1)


def job(*argv: str, script: bytes | None = b"#!/bin/bash\ntrue\n", **environ: str) -> Submission:
    return Submission(argv, environ, script)


def test_a_script_line_is_edited_in_place_and_says_so() -> None:
    script = b"#!/bin/bash\n#SBATCH -J x  --gres=gpu:h200:1   # big\n\necho \xff\xfe\n"
    edited, changes = rewrite(job("job.sh", script=script), L4, "because")
    assert edited.argv == ("job.sh",)
    assert edited.script is not None
    before, record, after = edited.script.partition(b"# xmem-slurm ")
    assert before == b"#!/bin/bash\n#SBATCH -J x  --gres=gpu:l4:1   # big\n"
    assert record
    assert after.endswith(b": because\n\necho \xff\xfe\n")
    assert [str(change) for change in changes] == ["--gres=gpu:h200:1 -> --gres=gpu:l4:1"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--gres=gpu:h200:1", "job.sh"), ("--gres=gpu:l4:1", "job.sh")),
        (("--gres", "gpu:1", "job.sh", "--gres=no"), ("--gres", "gpu:l4:1", "job.sh", "--gres=no")),
        (("-G1", "job.sh"), ("-Gl4:1", "job.sh")),
        (("--gpus-per-node=h200:1", "--wrap", "true"), ("--gpus-per-node=l4:1", "--wrap", "true")),
    ],
)
def test_the_command_line_is_edited_in_its_own_spelling(
    argv: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    script = None if "--wrap" in argv else b"#!/bin/bash\ntrue\n"
    edited, _ = rewrite(job(*argv, script=script), L4, "because")
    assert edited.argv == expected
    assert edited.script == script


def test_the_environment_is_edited_where_it_decides() -> None:
    script = b"#!/bin/bash\n#SBATCH --gres=gpu:a100_80:1\ntrue\n"
    edited, changes = rewrite(job("job.sh", script=script, SBATCH_GRES="gpu:h200:1"), L4, "because")
    assert edited.environ["SBATCH_GRES"] == "gpu:l4:1"
    assert edited.script == script
    assert changes[0].where == "SBATCH_GRES"


def test_what_is_right_already_stays_as_it_is() -> None:
    before = job("--gres=gpu:l4:1", "job.sh")
    assert rewrite(before, L4, "because") == (before, [])


def test_a_feature_is_anded_to_the_users_own() -> None:
    script = b"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH -C nvlink|infiniband\ntrue\n"
    edited, _ = rewrite(job("job.sh", script=script), BY_FEATURE, "because")
    assert edited.script is not None
    assert b"(nvlink|infiniband)&gpu_mem_24g" in edited.script


def test_a_feature_that_slurm_cannot_and_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot be AND-ed"):
        rewrite(job("--gres=gpu:1", "-C", "a*2&b*1", "job.sh"), BY_FEATURE, "because")


INNER = b"""#!/bin/bash
#SBATCH --gres=gpu:%s1
run() {
  srun -n1 --gres="gpu:%s1" python "$@" # one
}
run a.py && srun -G%s1 \\
  b.py \xff
"""


def test_the_jobs_own_steps_ask_for_the_same_type_each_in_its_own_spelling() -> None:
    for before in (b"", b"h200:"):
        edited, changes = rewrite(job("job.sh", script=INNER % ((before,) * 3)), L4, "because")
        assert edited.script is not None
        kept = [
            line
            for line in edited.script.splitlines(keepends=True)
            if not line.startswith(b"# xmem-slurm")
        ]
        assert b"".join(kept) == INNER % ((b"l4:",) * 3)
        assert [(change.command, change.name, change.where) for change in changes] == [
            ("", "gres", "line 2 of the script"),
            ("srun ", "gres", "line 4 of the script"),
            ("srun ", "gpus", "line 6 of the script"),
        ]


def test_many_steps_are_told_as_one() -> None:
    script = b"#!/bin/sh\n#SBATCH -G1\n" + b"srun --gpus=1 x\n" * 50
    edited, changes = rewrite(job("job.sh", script=script), L4, "because")
    assert edited.script is not None
    assert edited.script.count(b"srun --gpus=l4:1 x\n") == 50
    assert [change.where for change in changes] == [
        "line 2 of the script",
        "50 lines of the script, the first of them 3",
    ]
    assert str(changes[1]) == "srun --gpus=1 -> --gpus=l4:1"


def test_a_wrapped_step_is_changed_too() -> None:
    edited, _ = rewrite(
        job("-G1", "--wrap=no", "--wrap", "time srun -G 1 \udcff", script=None), L4, "because"
    )
    assert edited.argv == ("-Gl4:1", "--wrap=no", "--wrap", "time srun -G l4:1 \udcff")


def test_only_the_components_that_are_meant_are_changed() -> None:
    script = (
        b"#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH hetjob\n#SBATCH --gres=gpu:2\n"
        b"srun --gres=gpu:1 a : --gres=gpu:2 b\nsrun --het-group=1 --gres=gpu:2 c\n"
    )
    edited, changes = rewrite(job("job.sh", script=script), L4, "because", components=[1])
    assert edited.script is not None
    assert (
        b"srun --gres=gpu:1 a : --gres=gpu:l4:2 b\nsrun --het-group=1 --gres=gpu:l4:2 c\n"
        in edited.script
    )
    assert changes[-1].where == "2 lines of the script, the first of them 5"


STUCK = b"#!/bin/bash\n#SBATCH --gres=gpu:%s1\neval 'srun --gres=gpu:1 python train.py'\n"


def test_beside_a_step_that_cannot_be_changed_the_type_is_left_off() -> None:
    edited, changes = rewrite(job("job.sh", script=STUCK % b""), L4, "because")
    assert [str(change) for change in changes] == ["no --constraint -> --constraint=gpu_mem_24g"]
    assert edited.script is not None
    assert b"#SBATCH --gres=gpu:1\n#SBATCH --constraint=gpu_mem_24g\n" in edited.script


def test_a_typed_request_beside_such_a_step_is_left_alone() -> None:
    with pytest.raises(
        UsageError, match=r"line 3 of the script: srun --gres=gpu:1 asks for a GPU itself"
    ):
        rewrite(job("job.sh", script=STUCK % b"h200:"), L4, "because")


def test_a_step_in_a_script_that_is_sourced_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("true\nstart() { srun --gres=gpu:h200:1 $1; }\n")
    script = f"#!/bin/sh\n#SBATCH --gres=gpu:h200:1\n. {tmp_path}/env.sh\nstart x\n".encode()
    with pytest.raises(UsageError, match=r"line 2 of .*/env\.sh: srun --gres=gpu:h200:1 asks"):
        rewrite(job("job.sh", script=script), L4, "because")


def test_a_step_in_a_python_script_is_in_the_way() -> None:
    script = (
        b"#!/usr/bin/env python3\n#SBATCH --gres=gpu:h200:1\nos.system('srun "
        b"--gres=gpu:h200:1 x')\n"
    )
    with pytest.raises(UsageError, match=r"line 3 of the script: srun --gres=gpu:h200:1 asks"):
        rewrite(job("job.py", script=script), L4, "because")


def test_where_a_type_has_several_kinds_of_gpu_the_feature_goes_with_it() -> None:
    option = GpuOption(gpu="a100-sxm4-80gb", type="a100", constraint="gpu80", both=True, cost=1)
    edited, _ = rewrite(
        job("--gres=gpu:1", "--constraint=ib", "--wrap=x", script=None), option, "because"
    )
    assert edited.argv == ("--gres=gpu:a100:1", "--constraint=ib&gpu80", "--wrap=x")


HET = (
    b"#!/bin/sh\n#SBATCH --gres=gpu:1\n#SBATCH hetjob\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -G "
    b"h200:2 -C ib\ntrue\n"
)


def test_a_component_is_rewritten_alone() -> None:
    edited, changes = rewrite(job("job.sh", script=HET), L4, "because", components=[2])
    assert [str(change) for change in changes] == ["--gpus=h200:2 -> --gpus=l4:2"]
    assert changes[0].component == 2
    assert edited.script is not None
    kept = [line for line in edited.script.splitlines() if not line.startswith(b"# xmem-slurm")]
    assert kept == HET.replace(b"h200", b"l4").splitlines()


def test_components_that_one_place_sets_are_rewritten_together() -> None:
    before = job(
        "job.sh",
        script=HET.replace(b"--gres=gpu:1", b"-n1").replace(b"-G h200:2 ", b""),
        SBATCH_GRES="gpu:1",
    )
    edited, changes = rewrite(before, L4, "because", components=[0, 1, 2])
    assert (edited.script, edited.environ["SBATCH_GRES"]) == (before.script, "gpu:l4:1")
    assert [change.component for change in changes] == [0, 1, 2]
    with pytest.raises(UsageError, match="another component"):
        rewrite(before, L4, "because", components=[0, 2])


def test_host_memory_by_the_site_s_rule_is_not_given_to_the_component_after() -> None:
    rule = Dialect(host_memory_mib=1024, host_memory_option="mem")
    _, changes = rewrite(job("job.sh", script=HET), L4, "because", components=[0], spelled=rule)
    assert [change.name for change in changes] == ["gres"]
    per_gpu = Dialect(host_memory_mib=1024, host_memory_option="mem-per-gpu")
    _, changes = rewrite(job("job.sh", script=HET), L4, "because", components=[0], spelled=per_gpu)
    assert [change.name for change in changes] == ["gres", "mem-per-gpu"]
