"""A dry run of real job scripts, in the sandbox: what they find, what they leave (nothing), why
there is no trace."""

import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import as_of_22_05
from xmem_slurm.dryrun import dispatch, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.sandbox import sandbox
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission

MIB = 1 << 20
BUDGET = Budget(seconds=90, memory_bytes=4096 * MIB, scratch_bytes=256 * MIB, processes=256)
NAME = "h100-sxm5-80gb"

TRAIN = """
import os, sys, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(4): step()
"""


@dataclass
class Place:
    """A folder of a job, with a home beside it; `run` is one dry run of a script there.

    `tails` are the ends of what the scripts printed.
    """

    folder: Path
    home: Path
    python: Path | None
    tails: list[bytes] = field(default_factory=list)

    def job(
        self,
        script: str,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        **environ: str,
    ) -> Job:
        """What sbatch would be given from this folder."""
        path = [str(self.python.parent)] if self.python is not None else []
        base = {
            "PATH": os.pathsep.join([*path, "/usr/local/bin:/usr/bin:/bin"]),
            "HOME": str(self.home),
            "LANG": "C",
        }
        argv = ("--gres=gpu:1", *options, "job.sh", *arguments)
        return from_submission(Submission(argv, base | environ, script.encode()))

    def run(
        self, script: str, *arguments: str, budget: Budget = BUDGET, **environ: str
    ) -> DryRunResult:
        """Run it dry."""
        job = self.job(script, (), arguments, **environ)
        return runner.run(DryRunOrder.of(job, load_catalogue()[NAME], budget))

    def say(
        self,
        script: str,
        *options: str,
        arguments: Sequence[str] = (),
        after: str = "",
        **environ: str,
    ) -> str:
        """Return the last line of what a script prints that uses no GPU."""
        job = self.job(f"{script}\nexit 9\n{after}", options, arguments, **environ)
        with pytest.raises(NoEstimate, match="ended with code 9"):
            assert runner.run(DryRunOrder.of(job, load_catalogue()[NAME], BUDGET)).traces
        return self.tails[-1].decode().rstrip("\n").rpartition("\n")[2]

    def why(self, script: str, budget: Budget = BUDGET, **environ: str) -> str:
        """Return why there is no estimate."""
        with pytest.raises(NoEstimate) as caught:
            estimate(
                self.run(script, budget=budget, **environ).traces, NAME, load_catalogue()[NAME]
            )
        return str(caught.value)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="dry-run-test-", dir="/tmp"))
    (folder / "job").mkdir()
    (folder / "home").mkdir()
    monkeypatch.chdir(folder / "job")
    python = os.environ.get("XMEM_TEST_PYTHON")
    found = Place(folder / "job", folder / "home", Path(python) if python else None)
    real = sandbox.run

    def heard(*arguments: Any, **settings: Any) -> sandbox.Outcome:
        outcome = real(*arguments, **settings)
        found.tails.append(outcome.output_tail)
        return outcome

    monkeypatch.setattr(sandbox, "run", heard)
    yield found
    shutil.rmtree(folder)


@pytest.fixture
def warm_place(without_sandbox: None, place: Place, warm_python: Path) -> Place:
    """Return that place, where a dry run is no more than processes of a warm Python."""
    place.python = warm_python
    return place


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a folder that a script might change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        facts = path.lstat()
        content = (
            hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(facts.st_mode) else None
        )
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino, content)
    return found


# -- what a script leaves --------------------------------------------------------------------------


@pytest.mark.torch
def test_nothing_is_left_of_what_a_training_job_writes(place: Place) -> None:
    for name in ("kept.txt", "truncated.pt", "deleted.txt"):
        (place.folder / name).write_text(f"{name} " * 1000)
    (place.folder / "train.py").write_text(
        TRAIN
        + "torch.save(model.state_dict(), 'truncated.pt')\ntorch.save(optimizer.state_dict(), "
        "'new.pt')\n"
        + "os.remove('deleted.txt')\nos.makedirs(os.path.expanduser('~/.cache/models'))\n"
    )
    before = tree(place.folder.parent)
    script = (
        "#!/bin/bash\necho log >> kept.txt\n: > truncated.pt\ntouch ~/.bashrc "
        "$OURS-of-the-job\npython train.py\n"
    )
    script += "test -s new.pt && test ! -e deleted.txt && rm -rf ./* && mkdir other\n"
    found = place.run(script, OURS=str(place.folder.parent))
    assert [trace.error for trace in found.traces] == [None]
    assert found.outcome.returncode == 0
    assert tree(place.folder.parent) == before
    assert not Path("/tmp", place.folder.parent.name + "-of-the-job").exists()


def test_no_process_survives(place: Place) -> None:
    marker = f"xmem-marker-{os.getpid()}"
    script = f'#!/bin/bash\nsetsid nohup bash -c "exec -a {marker} sleep 600" >/dev/null 2>&1 &\n'
    script += f'(trap "" TERM HUP; exec -a {marker} sleep 600) &\nsleep 0.5; echo started'
    assert place.say(script) == "started"
    assert subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False).stdout == b""


STOPPED = {
    "time": "trap '' TERM\nwhile true; do sleep 0.1; done",
    "memory": "python3 -c 'x = []\nwhile True: x.append(bytearray(b\"1\" * (8 << 20)))'",
    "processes": "for i in $(seq 400); do sleep 60 & done; wait",
}


@pytest.mark.parametrize("limit", STOPPED)
def test_a_script_without_measure_is_stopped_and_the_reason_is_its_limit(
    place: Place, limit: str
) -> None:
    budget = Budget(seconds=6, memory_bytes=300 * MIB, scratch_bytes=64 * MIB, processes=100)
    if limit != "time":
        budget = Budget(seconds=60, memory_bytes=300 * MIB, scratch_bytes=64 * MIB, processes=100)
    reason = place.why("#!/bin/bash\n" + STOPPED[limit], budget)
    remedy = "; a larger --xmem-budget gives it more" if limit == "time" else ""
    assert (
        reason
        == f"the dry run was stopped at its {limit} limit before any GPU memory was used{remedy}"
    )


def test_our_own_folder_is_never_where_the_sandbox_hides_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access("/run/lock", os.W_OK):
        pytest.skip("/run cannot be written to")
    monkeypatch.setattr(tempfile, "tempdir", "/run/lock")
    assert place.say("#!/bin/bash\necho seen") == "seen"


# -- what a script finds ---------------------------------------------------------------------------


def test_folder_arguments_and_stdin(place: Place) -> None:
    script = '#!/bin/bash\nread line && exit 1\nsrun=$(basename $0)\necho $PWD $srun $# "$2"'
    assert (
        place.say(script, arguments=["one", "two words"])
        == f"{place.folder} slurm_script 2 two words"
    )


def test_chdir_is_the_working_directory(place: Place) -> None:
    (place.folder / "below").mkdir()
    said = place.say("#!/bin/bash\necho $PWD $SLURM_SUBMIT_DIR", "--chdir=below")
    assert said == f"{place.folder}/below {place.folder}"


VARIABLES = (
    "echo ${MINE:-no} ${OTHER:-no} ${HOME:+home} $CUDA_VISIBLE_DEVICES $SLURM_JOB_NAME "
    "$SLURM_CPUS_PER_TASK"
)
EXPORTS = {
    (): "mine other home 0 job.sh",
    ("--export=NONE",): "no no home 0 job.sh",
    ("--export=NIL",): "no no 0 job.sh",
    ("--export=MINE",): "mine no home 0 job.sh",
    ("--export=ALL,MINE=new", "-c", "4", "-J", "name"): "new other home 0 name 4",
    ("--export=MINE='a,b',OTHER",): "a,b other home 0 job.sh",
}


@pytest.mark.parametrize("options", EXPORTS, ids=" ".join)
def test_the_environment_is_the_job_s(place: Place, options: tuple[str, ...]) -> None:
    said = place.say("#!/bin/bash\n" + VARIABLES, *options, MINE="mine", OTHER="other")
    assert said == EXPORTS[options]


def test_an_array_job_is_its_first_task(place: Place) -> None:
    script = "#!/bin/bash\necho $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MAX"
    assert place.say(script, "--array=3-9:3,20%2") == "3 4 20"


INTERPRETERS = {
    "#!/bin/bash": "echo ${BASH_VERSION:+bash}",
    "#!/bin/bash -l": "shopt -q login_shell && echo bash",
    "#!/bin/sh": "echo bash",
    "#!/usr/bin/env bash": "echo bash",
    "#!/usr/bin/env python3": "print('bash')\nraise SystemExit(9)\n'''",
}


@pytest.mark.parametrize("first_line", INTERPRETERS)
def test_a_script_runs_with_the_interpreter_that_it_names(place: Place, first_line: str) -> None:
    end = "'''" if "python" in first_line else ""  # what `say` adds is a text there
    assert place.say(f"{first_line}\n{INTERPRETERS[first_line]}", after=end) == "bash"


SUBMITTED = [
    ["-c", "2", "-J", "named", "--array=2-6:2", "-n", "1"],
    ["-N", "2", "--ntasks-per-node=2", "--gpus-per-node=l4:1", "--chdir=/tmp"],
    ["-n", "2", "--gpus-per-task=l4:1", "--mem-per-cpu=100"],
    ["--gpus=l4:1", "--mem=1G", "--account=physics"],
    [
        "-n2",
        "-c2",
        "-Gl4:1",
        "-Ja",
        ":",
        "-pcpu",
        "--ntasks-per-node=2",
        ":",
        "-pgpu",
        "-N2",
        "--gres=gpu:a100_40:1",
    ],
    [
        "-pcpu",
        "--mem=1G",
        ":",
        "-n2",
        "-pgpu",
        "--gpus-per-task=l4:1",
        "-Ax",
        ":",
        "-pgpu",
        "--gpus-per-node=h200:2",
    ],
]


@pytest.mark.slurm
@pytest.mark.parametrize("options", SUBMITTED, ids=" ".join)
def test_slurm_s_variables_are_those_of_a_real_job(
    place: Place, cluster: Any, options: list[str]
) -> None:
    """Every variable of Slurm's that a dry run sets is set in a real job, and to the same, but for
    ids and the host."""
    options = ["-p", "gpu", *options] + (
        [] if any("gpu" in word for word in options) else ["--gres=gpu:l4:1"]
    )
    out = place.folder / "environment"
    place.folder.parent.chmod(0o755)
    place.folder.chmod(0o777)
    script = f"#!/bin/bash\n[ ${{SLURM_ARRAY_TASK_ID:-2}} = 2 ] || exit 0\nenv -0 > {out}\n"
    Path("job.sh").write_text(script)
    subprocess.run(
        ["sbatch", "-W", "-o", "/dev/null", *options, "job.sh"], env=cluster.environ, check=True
    )
    found = dict(entry.partition("=")[::2] for entry in out.read_text().split("\0"))
    # what came before HET (until 22.05)
    real = {name: value for name, value in found.items() if "PACK" not in name}
    ours = from_submission(
        Submission((*options, "job.sh"), cluster.environ, script.encode())
    ).environ
    named = {
        name for name in ours if name.startswith(("SLURM", "CUDA_VISIBLE")) and name != "SLURM_CONF"
    }
    elsewhere = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_SUBMIT_HOST"}
    elsewhere |= {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME"}
    elsewhere |= {"SLURM_TOPOLOGY_ADDR", "SLURM_CLUSTER_NAME", "SLURM_TASK_PID"}
    newer, older = (
        {"SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"},
        {"SLURM_GPUS_PER_TASK"},
    )  # than 22.05, than 24.11
    elsewhere |= newer | {f"{name}_HET_GROUP_{index}" for name in elsewhere for index in range(3)}
    older |= {
        f"SLURM_{name}_HET_GROUP_{index}"
        for name in ("GPUS_PER_TASK", "NPROCS", "NTASKS")
        for index in range(3)
    }
    assert named - real.keys() <= newer | older
    named &= real.keys()
    not_known = {
        "SLURM_CONF",
        "SLURM_WORKING_CLUSTER",
        "SLURM_MEM_PER_CPU",
    }  # the last: the cluster's default
    not_known |= {"SLURM_NODE_ALIASES"}  # of 22.05; of 24.11:
    not_known |= {"SLURM_OOM_KILL_STEP", "SLURM_TRES_BIND", "SLURM_TRES_PER_TASK"}
    not_known |= {f"{name}_HET_GROUP_{index}" for name in not_known for index in range(3)}
    assert {name for name in real if name.startswith("SLURM")} - named <= not_known
    assert {name: ours[name] for name in named - elsewhere} == {
        name: real[name] for name in named - elsewhere
    }


HET = [
    "-n2",
    "-c2",
    "-pgpu",
    "--gres=gpu:l4:1",
    ":",
    "-pcpu",
    "-n1",
    ":",
    "-pgpu",
    "-N2",
    "-n4",
    "--gres=gpu:a100_40:2",
]
SHOWN = (
    "'echo step: $SLURM_PROCID of $SLURM_NTASKS, node $SLURM_NODEID of $SLURM_NNODES, "
    "$SLURM_STEP_NUM_TASKS,"
    " gpus $CUDA_VISIBLE_DEVICES, $SLURM_GPUS_ON_NODE $0'"
)
STEPS = {
    "srun": 2,
    "srun --het-group=1": 1,
    "srun --het-group 2": 1,
    "srun --pack-group=2,0": 3,
    "srun --het-group=0-2 -n1": 3,
    f"srun bash -c {SHOWN} first :": 3,
    f"srun --het-group=2 bash -c {SHOWN} last : --het-group=0": 3,
}
"""How many tasks each starts: the first of each component, and both that share the GPU of component
0."""


@pytest.mark.slurm
def test_the_steps_of_a_heterogeneous_job_are_those_of_a_real_one(
    place: Place, cluster: Any
) -> None:
    """The tasks that are started find what tasks of the real step find."""
    place.folder.parent.chmod(0o755)
    place.folder.chmod(0o777)
    script = "#!/bin/bash\n" + "".join(
        f"echo step {n}\n{step} bash -c {SHOWN} one\n" for n, step in enumerate(STEPS)
    )
    Path("job.sh").write_text(script)
    out = place.folder / "out"
    subprocess.run(
        ["sbatch", "-W", "-o", str(out), *HET, "job.sh"], env=cluster.environ, check=True
    )
    job = from_submission(
        Submission((*HET, "job.sh"), cluster.environ, f"{script}exit 9\n".encode())
    )
    with pytest.raises(NoEstimate, match="ended with code 9"):
        assert runner.run(DryRunOrder.of(job, load_catalogue()[NAME], BUDGET)).traces
    real, ours = (
        re.split(r"step \d\n", text)[1:] for text in (out.read_text(), place.tails[-1].decode())
    )
    for (step, count), theirs, own in zip(STEPS.items(), real, ours, strict=True):
        lines = own.splitlines()
        assert (len(lines), set(lines) - set(theirs.splitlines())) == (count, set()), step


# -- what stands in the place of launchers and of Slurm --------------------------------------------

LAUNCHES = {
    "python": "python train.py",
    "srun": "srun --ntasks=1 --gpus-per-task=1 -u --cpu-bind=none python train.py --epochs 3",
    "srun python -m": "srun -n1 python -m train",
    "srun bash -c": "srun bash -c 'python train.py'",
    "mpirun": "mpirun -np 1 --map-by slot -x PATH python train.py",
    "torchrun": "torchrun --standalone --nproc-per-node=1 train.py",
    "torchrun -m": "torchrun --standalone --nproc_per_node 1 -m train",
    "exec": "exec srun python -u train.py",
    "an absolute python": "$PYTHON train.py",
    "PATH begun anew": "export PATH=$(dirname $PYTHON):/usr/bin:/bin\nsrun python train.py",
    "set -euo pipefail": "set -euo pipefail\npython train.py | tee log\ntest -s log",
    "commands that are not here": "module load cuda/12\nconda activate torch\n. "
    "nowhere/activate\npython train.py",
    "the training in a function of the script": "main() { python train.py; }\nmain || exit 1",
}


COLD = ("torchrun", "torchrun -m", "exec")
"""Where the Python is named by torchrun's first line, or has options."""


@pytest.mark.torch
@pytest.mark.parametrize("way", LAUNCHES)
def test_the_training_is_found_however_it_is_launched(
    way: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue("place" if way in COLD else "warm_place")
    (place.folder / "train.py").write_text(TRAIN + "print('trained')\n")
    found = place.run(f"#!/bin/bash\n{LAUNCHES[way]}\n", PYTHON=str(place.python))
    assert found.outcome.returncode == 0, found.outcome.output_tail.decode()
    (trace,) = [trace for trace in found.traces if trace.allocations]
    assert (trace.steps, trace.state, trace.error, trace.rank, trace.world_size) == (
        4,
        "exit",
        None,
        0,
        1,
    )


@pytest.mark.torch
def test_a_login_shell_that_sets_its_own_path_is_followed(warm_place: Place) -> None:
    """Only what the site's and the user's profile put on PATH is there, as in the job; srun is
    still ours."""
    place = warm_place
    assert place.python is not None
    (place.home / ".bash_profile").write_text(f"export PATH={place.python.parent}:/usr/bin:/bin\n")
    (place.folder / "train.py").write_text(TRAIN)
    found = place.run("#!/bin/bash -l\nsrun python train.py\n")
    assert [trace.steps for trace in found.traces] == [4]


ASKED = r"""#!/bin/bash
i=$SLURM_JOB_ID
ask() {
scontrol show job $i | grep -E '^ +(Command|WorkDir|StdErr|StdOut|StdIn)='
scontrol show job $i | grep -oE '(JobName|JobState|Num[a-zA-Z]+|Features|Partition|CPUs/Task)=[^ ]*'
scontrol show jobid=$i | awk -F= '/Command=/{print $2}'
scontrol -o show job "$i" | tr ' ' '\n' | grep ^Command=
scontrol show jobs $i -o | wc -l
squeue -h -j $i -o '%o|%Z|%j|%T|%t|%D|%u|%P|%C|%K'
squeue --noheader --jobs=$i --format='%.20j|%12P|%.2t'
squeue -hj$i -o%o
squeue -j $i -o '%o %T %.9P'
squeue -h -j $i -O Command:60,Name:.20,JobID:4 | sed "s/$i *$/ID/"
squeue -j $i | tail -1 | awk '{print $2, $3, $4, $5, $7}'
scontrol show job 99999; echo $?
}
ask 2>&1 | base64 -w 0 | tee OUT
"""


@pytest.mark.slurm
def test_slurm_says_of_a_job_in_a_dry_run_what_it_says_of_a_real_one(
    place: Place, cluster: Any
) -> None:
    """Many a script finds its folder by its own path."""
    place.folder.parent.chmod(0o755)
    place.folder.chmod(0o777)
    options = ["-p", "gpu", "-c", "2", "-J", "named", "-C", "gpu_mem_24g", "-o", "out-%x.txt"]
    script = ASKED.replace("OUT", str(place.folder / "said"))
    Path("job.sh").write_text(script)
    words = ["sbatch", "-W", "--gres=gpu:1", *options, "job.sh", "an", "argument"]
    subprocess.run(words, env=cluster.environ, check=True)
    real = base64.b64decode((place.folder / "said").read_bytes()).decode()
    place.say(script, *options, arguments=["an", "argument"])
    ours = base64.b64decode(place.tails[-1]).decode()
    assert as_of_22_05(real).splitlines() == ours.splitlines()


LIMITS = {
    "leaves": "import subprocess, torch\nsubprocess.run(['true'], env=dict(os.environ)); "
    "os.system('true')",
    "sets": "os.environ['PYTORCH_ALLOC_CONF'] = 'max_split_size_mb:64'",
    "calls": "import torch\ntorch.cuda.set_per_process_memory_fraction(0.9)",
    "children": "import subprocess, torch\nsubprocess.run(['true'], env={})",
    "shells": "import torch\nos.system('env -i true')",
    "exported": "",
}
"""What a job does about the limits of a share of a GPU."""


@pytest.mark.torch
def test_a_job_that_overrules_the_limits_of_a_share_is_seen_to(place: Place) -> None:
    use = "import torch\ntorch.zeros(9, device='cuda')"
    for name, code in LIMITS.items():
        (place.folder / f"{name}.py").write_text(f"import os\n{code}\n{use}\n")
    lines = [f"python {name}.py" for name in LIMITS]
    lines[-1] = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {lines[-1]}"
    codes = ("own-allocator", "own-environment")
    told = {
        Path(trace.argv[-1]).stem: [
            f"{doubt.code}: {doubt.detail}" for doubt in trace.doubts if doubt.code in codes
        ]
        for trace in place.run(
            "\n".join(["#!/bin/bash", *lines]), PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"
        ).traces
        if trace.allocations
    }
    assert told == {
        "leaves": [],
        "sets": ["own-allocator: the job sets PYTORCH_ALLOC_CONF itself"],
        "calls": ["own-allocator: the job calls set_per_process_memory_fraction"],
        "children": ["own-environment: the job starts true in an environment of its own"],
        "shells": ["own-environment: the job starts env -i true in an environment of its own"],
        "exported": ["own-allocator: the job sets PYTORCH_CUDA_ALLOC_CONF itself"],
    }


@pytest.mark.torch
def test_a_torch_without_kernels_for_a_gpu_says_so(place: Place) -> None:
    (place.folder / "train.py").write_text(TRAIN)
    job = Submission(
        ("--gres=gpu:1", "job.sh"),
        {"PATH": f"{place.python.parent}:/usr/bin:/bin"},
        b"#!/bin/sh\npython train.py\n",
    )
    # of no release that is supported
    gpu = load_catalogue()["v100-sxm2-16gb"].model_copy(update={"capability": "3.5"})
    on_one = sizing.size_components(job, [0], Premises(None, {"k40": gpu}, BUDGET))
    (found,) = dispatch.one(on_one, DryRuns()).values()
    assert re.match(
        r"the job's torch has no kernels for k40 \(compute capability 3\.5\): it has sm_",
        str(found),
    ), found


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asks", "told"),
    [
        (
            "c = 'scon' + 'trol'; os.popen(c + ' show job ' + os.environ['SLURM_JOB_ID']).read()",
            True,
        ),
        ("os.popen('squeue -h -o %o').read()", True),
        ("os.popen('squeue -h -o %T; scontrol show hostnames').read()", False),
    ],
)
def test_that_a_job_asks_for_its_own_script_is_told(
    warm_place: Place, asks: str, told: bool
) -> None:
    (warm_place.folder / "train.py").write_text(f"{TRAIN}{asks}\n")
    (found,) = warm_place.run("#!/bin/bash\npython train.py\n").traces
    assert [doubt.code for doubt in found.doubts if doubt.code == "own-script"] == [
        "own-script"
    ] * told


ANSWERS = {
    "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits": "81079",
    "nvidia-smi --query-gpu=index,memory.used,temperature.gpu "
    "--format=csv,noheader": "0, 0 MiB, [N/A]",
    "nvidia-smi --query-gpu=name,memory.total --format=csv | head -1": "name, memory.total [MiB]",
    "nvidia-smi -L": f"GPU 0: {load_catalogue()[NAME].cuda_name} (UUID: "
    "GPU-00000000-0000-0000-0000-000000000000)",
    "nvidia-smi | grep -c H100": "1",
    "nvidia-smi --query-compute-apps=pid --format=csv,noheader; echo none": "none",
    "scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1": os.uname().nodename,
    "sbatch --dependency=afterok:$SLURM_JOB_ID next.sh": "Submitted batch job 0",
    "squeue -h -j 7; scancel 7; echo done": "done",
}


@pytest.mark.parametrize("command", [each for each in ANSWERS if not each.startswith("sbatch")])
def test_commands_of_a_gpu_node_answer(place: Place, command: str) -> None:
    said = place.say(f"#!/bin/bash\n{command}")
    assert said == ANSWERS[command]


def test_a_job_that_submits_another_submits_nothing(place: Place) -> None:
    reason = place.why(
        "#!/bin/bash\ntest \"$(sbatch next.sh)\" = 'Submitted batch job 0' || exit 1"
    )
    assert reason == "the job submits another job: that one was not examined"


# -- why there is no estimate ----------------------------------------------------------------------

REASONS = {
    "no torch": ("echo hello", "the script did not load torch"),
    "a wrong command": ("pyhton train.py", "pyhton: command not found"),
    "an error that stops the script": (
        "set -e\nmodule load cuda\npython train.py",
        "module: command not found",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_says_what_happened(place: Place, case: str) -> None:
    script, reason = REASONS[case]
    assert reason in place.why(f"#!/bin/bash\n{script}\n")


TORCH_REASONS = {
    "-I": ("python -I -c 'import sys'", TRAIN, "the script did not load torch"),
    "unset": ("unset PYTHONPATH\npython -c pass", TRAIN, "the script did not load torch"),
    "no GPU used": (
        "python -c 'import torch'",
        TRAIN,
        "torch was imported but no GPU memory was used",
    ),
    "an exception": (
        "python train.py",
        TRAIN.replace("range(4)", "range(1)") + "1 / 0",
        "1 optimizer step with ZeroDiv",
    ),
    "an exit code": (
        "python train.py",
        "import torch\ntorch.ones(1).cuda()\nraise SystemExit(3)",
        "ended with code 3",
    ),
    "a crash": (
        "python train.py",
        TRAIN.replace("range(4)", "range(1)") + "import ctypes; ctypes.string_at(0)",
        "a crash or a kill: ",
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", TORCH_REASONS)
def test_the_reason_says_what_torch_s_process_did(warm_place: Place, case: str) -> None:
    script, training, reason = TORCH_REASONS[case]
    (warm_place.folder / "train.py").write_text(training)
    assert reason in warm_place.why(f"#!/bin/bash\n{script}\n")


@pytest.mark.torch
def test_what_a_stopped_process_had_done_is_kept(place: Place) -> None:
    (place.folder / "train.py").write_text(
        TRAIN + "x = []\nwhile True: x.append(bytearray(b'1' * (8 << 20)))\n"
    )
    found = place.run(
        "#!/bin/bash\npython train.py\n", budget=Budget(seconds=90, memory_bytes=1500 * MIB)
    )
    (trace,) = found.traces
    assert found.outcome.stopped == "memory"
    assert (trace.state, trace.error, trace.steps) == ("running", "the dry run's memory limit", 4)


def test_folders_that_could_not_be_written_to_are_part_of_the_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sandbox.run

    def with_read_only(*arguments: Any, **settings: Any) -> sandbox.Outcome:
        outcome = real(*arguments, **settings)
        return sandbox.Outcome(
            1, None, outcome.seconds, 0, b"touch: Read-only file system\n", ("/data",)
        )

    monkeypatch.setattr(sandbox, "run", with_read_only)
    reason = place.why("#!/bin/bash\nexit 1")
    assert reason.endswith(
        "Read-only file system (nothing could be written to /data in the dry run)"
    )
