"""The merged request: who said what, and what it comes to."""

import pytest

from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request, Source, merge
from xmem_slurm.slurm.script import parse
from xmem_slurm.slurm.submission import Submission

HEAD = "#!/bin/bash\n"


def request(argv: str, environ: dict[str, str] | None = None, lines: str = "") -> Request:
    return merge(
        split_command_line(argv.split()), environ or {}, parse((HEAD + lines + "true\n").encode())
    )


def test_command_line_beats_environment_beats_script() -> None:
    lines, environ = "#SBATCH --gres=gpu:1\n", {"SBATCH_GRES": "gpu:2"}
    for merged, value, source, where in [
        (request("job.sh", None, lines), "gpu:1", Source.SCRIPT, "line 2 of the script"),
        (request("job.sh", environ, lines), "gpu:2", Source.ENVIRONMENT, "SBATCH_GRES"),
        (
            request("--gres=gpu:3 job.sh", environ, lines),
            "gpu:3",
            Source.COMMAND_LINE,
            "--gres on the command line",
        ),
    ]:
        setting = merged.settings["gres"]
        assert (setting.value, setting.source, setting.where) == (value, source, where)


def test_the_last_one_wins_within_a_source() -> None:
    assert request("-C a -C b job.sh").constraint == "b"
    assert request("job.sh", None, "#SBATCH -Ca\n#SBATCH --constraint=b\n").constraint == "b"
    assert (
        request("job.sh", {"SLURM_HINT": "nomultithread", "SBATCH_HINT": "compute_bound"}).value(
            "hint"
        )
        == "compute_bound"
    )


@pytest.mark.parametrize(
    ("value", "there"), [("", True), ("yes", True), ("1", True), ("no", False), ("0", False)]
)
def test_a_flags_variable_can_take_the_flag_away(value: str, there: bool) -> None:
    merged = request("job.sh", {"SBATCH_OVERCOMMIT": value}, "#SBATCH --overcommit\n")
    assert ("overcommit" in merged.settings) is there
    assert ("overcommit" in request("job.sh", {"SBATCH_OVERCOMMIT": value}).settings) is there


def test_slurm_gres_is_no_input_of_sbatch() -> None:
    assert not request("job.sh", {"SLURM_GRES": "gpu:1"}).asks_for_gpu


def test_script_and_command_line_overrule_the_environments_memory_option() -> None:
    merged = request("job.sh", {"SBATCH_MEM_PER_NODE": "3G"}, "#SBATCH --mem-per-cpu=1G\n")
    assert [setting.name for setting in merged.memory] == ["mem-per-cpu"]


@pytest.mark.parametrize(
    ("argv", "per_node", "total"),
    [
        ("--gres=gpu:2", 2, 2),
        ("--gres=gpu:2 -N3", 2, 6),
        ("--gres=gpu:a100:1,gpu:h200:1", 2, 2),
        ("--gpus=4 -N2", 2, 4),
        ("--gpus=4", None, 4),
        ("-G1", 1, 1),
        ("--gpus=3 -N2", None, 3),
        ("--gpus-per-node=2 -N2-4", 2, 4),
        ("--gpus-per-task=1 -n4 -N2", 2, 4),
        ("--tres-per-task=gres/gpu:1 -n2", None, 2),
        ("--gpus-per-task=1 -N2 --ntasks-per-node=4", 4, 8),
        ("-n8 --ntasks-per-node=4 --gres=gpu:4", 4, 8),
        ("--gpus-per-socket=1", None, None),
        ("--gres=gpu:0", 0, 0),
        ("--gres=none", 0, 0),
        ("-N2", 0, 0),
    ],
)
def test_how_many_gpus(argv: str, per_node: int | None, total: int | None) -> None:
    merged = request(argv + " job.sh")
    assert (merged.gpus_per_node, merged.gpus_total) == (per_node, total)


@pytest.mark.parametrize(
    ("argv", "ntasks", "tasks_per_node", "cpus_per_node"),
    [
        ("-N2 -n8 -c4", 8, 4, 16),
        ("-n8 --ntasks-per-node=4 -c8", 8, 4, 32),
        ("-N2 --ntasks-per-node=3", 6, 3, 3),
        ("--gpus=1 --ntasks-per-gpu=2", 2, 2, 2),
        ("-N2 --gres=gpu:4 --ntasks-per-gpu=1", 8, 4, 4),
        ("--gpus=4 --gpus-per-task=1", 4, 4, 4),
        ("--gres=gpu:2 --cpus-per-gpu=8", 1, 1, 16),
        ("", 1, 1, 1),
    ],
)
def test_how_many_tasks_and_cpus(
    argv: str, ntasks: int, tasks_per_node: int, cpus_per_node: int
) -> None:
    merged = request(argv + " job.sh")
    assert (merged.ntasks, merged.tasks_per_node, merged.cpus_per_node) == (
        ntasks,
        tasks_per_node,
        cpus_per_node,
    )


def test_types_and_shares() -> None:
    merged = request("--gres=gpu:a100:1 --gpus=a100:1 job.sh")
    assert merged.gpu_types == ("a100",)
    assert [gpu.setting.name for gpu in merged.gpus] == ["gres", "gpus"]
    shares = request("--gres=shard:4 job.sh")
    assert (shares.gpus, shares.asks_for_gpu) == ((), True)
    assert [(gpu.resource, gpu.amount) for gpu in shares.accelerators] == [("shard", 4)]


def test_the_rest_of_the_request() -> None:
    merged = request("-pa,b -c4 -a1-3 -D/tmp --export=NONE -n8 path/job.sh")
    assert merged.partitions == ("a", "b")
    assert (merged.cpus_per_task, merged.value("array"), merged.chdir) == (4, "1-3", "/tmp")
    assert (merged.ntasks, merged.nodes, merged.job_name) == (8, None, "job.sh")


def test_job_names() -> None:
    assert request("-J x job.sh").job_name == "x"
    assert request("--wrap=true").job_name == "wrap"
    assert request("").job_name is None


def test_options_in_the_script_beside_wrap_do_not_count() -> None:
    assert not request("--wrap=true", None, "#SBATCH --gres=gpu:1\n").settings.keys() - {"wrap"}


def test_options_that_only_the_command_line_has() -> None:
    assert request("job.sh", None, "#SBATCH --quiet --wrap=x -v\n").settings == {}


def test_components_of_script_and_command_line() -> None:
    lines = "#SBATCH --mem=1G --gres=gpu:1\n#SBATCH hetjob\n#SBATCH -Jb\n#SBATCH hetjob\n"
    merged = request("--gres=gpu:2 : --gres=gpu:3 job.sh", {"SBATCH_CONSTRAINT": "c"}, lines)
    first, second, third = merged.components
    assert [part.value("gres") for part in (first, second, third)] == ["gpu:2", "gpu:3", "gpu:3"]
    assert [part.constraint for part in (first, second, third)] == ["c", "c", "c"]
    assert [part.value("mem") for part in (first, second, third)] == ["1G", "1G", "1G"]
    assert [part.job_name for part in (first, second, third)] == ["job.sh", "b", "b"]


def test_options_that_are_carried_reach_the_first_component_from_the_second_on_the_command_line() -> (
    None
):
    first, second = request("-N1 : --mem=3G -Jb -N2 job.sh").components
    assert (first.value("mem"), first.job_name, first.nodes) == ("3G", "b", 1)
    assert (second.value("mem"), second.job_name, second.nodes) == ("3G", "b", 2)
    first, second = request("-N1 : --mem=3G job.sh", None, "#SBATCH --mem-per-cpu=1G\n").components
    assert [setting.name for setting in first.memory] == ["mem-per-cpu"]
    assert [setting.name for setting in second.memory] == ["mem"]


def test_foreign_lines_are_told_unless_ignored() -> None:
    assert request("job.sh", None, "#PBS -N x\n").foreign == "PBS"
    assert request("--ignore-pbs job.sh", None, "#PBS -N x\n").foreign is None


@pytest.mark.parametrize(
    ("argv", "script", "reason"),
    [
        ("job.sh", "#!/bin/sh\n#SBATCH --mem=1 x\n", "line 2 of the script: 'x'"),
        ("job.sh", "#!/bin/sh\n#SBATCH --mem\n", "--mem in the script"),
        ("job.sh", "#!/bin/sh\n#SBATCH 'a\n", "line 2: the quote"),
        ("job.sh", "true\n", "does not begin"),
        (
            "--mem=1 job.sh",
            "#!/bin/sh\n#SBATCH --mem-per-gpu=1\n",
            "--mem and --mem-per-gpu exclude",
        ),
        ("--wrap=x job.sh", "#!/bin/sh\n", "--wrap"),
        ("--mem", "#!/bin/sh\n", "--mem on the command line"),
    ],
)
def test_what_sbatch_will_refuse(argv: str, script: str, reason: str) -> None:
    said = refusal(Submission(tuple(argv.split()), {}, script.encode()))
    assert said is not None
    assert reason in said


def test_what_sbatch_will_not_refuse() -> None:
    argv = ("--mem=1", "--gres=gpu:1", "--brand-new", "job.sh")
    assert (
        refusal(Submission(argv, {"SBATCH_MEM_PER_CPU": "1"}, b"#!/bin/sh\n#SBATCH -N1\n")) is None
    )
    assert refusal(Submission(("job.sh",), {}, b"#!/bin/sh\n#SBATCH --container-image x\n")) is None
