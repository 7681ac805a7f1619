"""The lab is a real Slurm: it comes up from a site file, runs jobs on its GPUs, and goes without a
trace."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from pathlib import Path

import psutil
import pytest

import xmem_slurm
from xmem_slurm import lab, resources
from xmem_slurm.errors import LabError, UsageError
from xmem_slurm.lab import processes
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Site

pytestmark = [
    pytest.mark.slurm, pytest.mark.slow(covers=["xmem_slurm/lab/*", "templates/lab/*", "xmem_slurm/site/schema.py"])
]  # fmt: skip

EXAMPLE = resources.tree("site-config") / "example.toml"
SMALL = Site.model_validate(
    {
        "schema_version": 1,
        "name": "small",
        "option": {"l4": {"gpu": "l4", "type": "l4", "cost": 1}},
        "nodes": [
            {
                "names": "s[1-2]",
                "cpus": 2,
                "memory_mib": 1000,
                "gpus": {"l4": 1},
                "partitions": ["gpu"],
            }
        ],
        "partition": {"gpu": {"default": True}},
    }
)

# No step below takes a tenth of this: it ends a test that would hang, and nothing is measured by
# it.
PATIENCE_SECONDS = 60


@pytest.fixture
def place():
    """A short path for a lab that is not there yet; whatever a test leaves there is ended."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent, "lab")
        lab.down(Path(parent, "lab"))


@pytest.fixture(scope="module")
def example():
    """A lab of the example site, shared by the tests that leave it as it is."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        running = lab.up(example_site(), Path(parent, "lab"))
        yield running
        lab.down(running.folder)


def example_site() -> Site:
    return Site.model_validate(tomllib.loads(EXAMPLE.read_text()))


def slurm(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | lab.environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(folder: Path, *options: str, wrap: str) -> str:
    return slurm(
        folder, "sbatch", "--parsable", f"--output={folder}/job-%j.out", *options, f"--wrap={wrap}"
    )


def until(condition, what: str):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.05)
    return result


def finished(folder: Path, job: str) -> dict[str, str]:
    def ended():
        said = slurm(folder, "scontrol", "--details", "show", "job", job)
        fields = dict(word.split("=", 1) for word in said.split() if "=" in word)
        return (
            fields
            if fields["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
            else None
        )

    return until(ended, f"job {job} to end")


def pids(folder: Path) -> dict[str, int]:
    return {path.name: int(path.read_text()) for path in (folder / "pid").iterdir()}


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_every_node_is_idle_with_the_gpus_and_features_of_the_site(example):
    said = slurm(example.folder, "sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%G|%f|%c|%m")
    nodes = {line.split("|")[0]: line.split("|")[1:] for line in said.splitlines()}
    assert nodes == {
        "l1": ["gpu*", "idle", "gpu:l4:4", "gpu_mem_24g,l4", "16", "128000"],
        "l2": ["gpu*", "idle", "gpu:l4:4", "gpu_mem_24g,l4", "16", "128000"],
        "a1": ["gpu*", "idle", "gpu:a100_40:2", "gpu_mem_40g,a100", "32", "256000"],
        "a2": ["gpu*", "idle", "gpu:a100_40:2", "gpu_mem_40g,a100", "32", "256000"],
        "b1": ["gpu*", "idle", "gpu:a100_80:2", "gpu_mem_80g,a100", "32", "512000"],
        "h1": ["gpu*", "idle", "gpu:h200:4", "gpu_mem_141g,h200", "64", "1024000"],
        "c1": ["cpu", "idle", "(null)", "(null)", "32", "128000"],
    }
    assert example.nodes == ("l1", "l2", "a1", "a2", "b1", "h1", "c1")


def test_a_job_runs_on_the_gpu_it_asked_for_and_slurm_still_knows_it_afterwards(example):
    wrap = (
        'echo "$SLURMD_NODENAME sees $CUDA_VISIBLE_DEVICES"; scontrol -d show job '
        '"$SLURM_JOB_ID" | grep -ow "GRES=.*"'
    )
    job = submit(example.folder, "--gres=gpu:l4:1", wrap=wrap)
    fields = finished(example.folder, job)
    assert fields["JobState"] == "COMPLETED"
    assert fields["NodeList"] in {"l1", "l2"}
    assert fields["TresPerNode"].endswith("gpu:l4:1")
    said = (example.folder / f"job-{job}.out").read_text().splitlines()
    assert said == [f"{fields['NodeList']} sees 0", "GRES=gpu:l4:1(IDX:0)"]


def test_a_job_gets_as_many_devices_as_it_asked_for(example):
    job = submit(example.folder, "--gres=gpu:h200:3", wrap="echo $CUDA_VISIBLE_DEVICES")
    assert finished(example.folder, job)["NodeList"] == "h1"
    assert (example.folder / f"job-{job}.out").read_text() == "0,1,2\n"


def test_srun_runs_steps_on_several_nodes(example):
    job = submit(
        example.folder,
        "--constraint=a100",
        "--nodes=2",
        "--gres=gpu:1",
        wrap="srun printenv SLURMD_NODENAME",
    )
    assert finished(example.folder, job)["JobState"] == "COMPLETED"
    assert len(set((example.folder / f"job-{job}.out").read_text().split())) == 2


def test_a_constraint_that_no_gpu_of_the_type_has_is_refused_by_slurm(example):
    command = ["sbatch", "--gres=gpu:l4:1", "--constraint=h200", "--wrap=true"]
    done = subprocess.run(
        command,
        env=os.environ | lab.environment(example.folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Requested node configuration is not available" in done.stderr


def test_up_again_is_the_same_lab(example):
    before = pids(example.folder)
    assert lab.up(example_site(), example.folder) == example
    assert pids(example.folder) == before
    assert all(runs(pid) for pid in before.values())


def test_up_with_another_site_says_so_and_leaves_the_lab_alone(example):
    with pytest.raises(LabError, match="another lab"):
        lab.up(SMALL, example.folder)
    assert lab.status(example.folder).running


def test_status_tells_daemons_and_nodes(example):
    status = lab.status(example.folder)
    assert status.running
    assert set(status.daemons) == {
        "munged",
        "slurmctld",
        *(f"slurmd.{node}" for node in example.nodes),
    }
    assert set(status.nodes) == set(example.nodes)


def test_what_a_command_in_the_lab_records_stays_in_the_lab(example):
    command = [
        sys.executable,
        "-c",
        "from xmem_slurm.cli.main import main; main()",
        "lab",
        "exec",
        "--",
    ]
    environ = {**os.environ, "XMEM_LAB": str(example.folder), "XDG_STATE_HOME": "/elsewhere"}
    said = subprocess.check_output(
        [*command, "sh", "-c", "echo $XDG_STATE_HOME"], env=environ, text=True
    )
    assert said == f"{example.folder}/records/{os.geteuid()}\n"


def test_only_this_machine_can_connect_where_its_name_is_a_loopback_one(example):
    if not socket.gethostbyname(socket.gethostname()).startswith("127."):
        pytest.skip("this machine's host name stands for an address that others can reach")
    listening = [
        connection.laddr.ip
        for pid in pids(example.folder).values()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == len(example.nodes) + 1
    assert all(ip.startswith("127.") for ip in listening)


def test_down_leaves_no_process_and_no_folder(place):
    lab.up(SMALL, place)
    stubborn = textwrap.dedent("""\
        trap '' TERM
        setsid sleep 86399 &
        echo $$ $! >pids
        srun --overlap sh -c 'trap "" TERM; echo $$ >step; sleep 86399'
    """)
    submit(place, "--gres=gpu:1", wrap=stubborn)
    until(lambda: (place / "step").is_file() and (place / "step").read_text(), "the job's step")
    ours = [
        *pids(place).values(),
        *map(int, ((place / "pids").read_text() + (place / "step").read_text()).split()),
    ]
    steps = [step.pid for step in processes._members(place) if step.name() == "slurmstepd"]
    assert len(ours) == 4 + 3
    assert len(steps) >= 2
    assert all(runs(pid) for pid in [*ours, *steps])

    lab.down(place)
    assert not place.exists()
    assert [pid for pid in [*ours, *steps] if runs(pid)] == []
    lab.down(place)


def test_down_spares_the_shell_that_uses_the_lab(place):
    lab.up(SMALL, place)
    with subprocess.Popen(["sleep", "86399"], env=os.environ | lab.environment(place)) as shell:
        lab.down(place)
        assert shell.poll() is None
        shell.kill()


def test_down_finds_the_daemons_of_a_folder_that_is_gone(place):
    lab.up(SMALL, place)
    ours = pids(place).values()
    shutil.rmtree(place)
    lab.down(place)
    assert [pid for pid in ours if runs(pid)] == []


def test_up_replaces_a_lab_that_lost_a_daemon(place):
    lab.up(SMALL, place)
    before = pids(place)
    psutil.Process(before["slurmd.s2"]).kill()
    until(lambda: not lab.status(place).daemons["slurmd.s2"], "slurmd to end")
    assert not lab.status(place).running
    with pytest.raises(LabError, match="no lab runs"):
        lab.environment(place)

    lab.up(SMALL, place)
    assert lab.status(place).running
    assert [pid for pid in before.values() if runs(pid)] == []


def test_two_labs_do_not_disturb_each_other(place, example):
    lab.up(SMALL, place)
    job = submit(place, "--gres=gpu:l4:1", wrap="echo $SLURMD_NODENAME")
    assert finished(place, job)["NodeList"] == "s1"
    assert lab.status(example.folder).running
    lab.down(place)
    assert lab.status(example.folder).running
    assert slurm(example.folder, "sinfo", "--noheader", "--format=%D", "--partition=cpu") == "1"


def test_a_daemon_that_fails_is_quoted_and_the_rest_is_taken_down(place, tmp_path, monkeypatch):
    broken = tmp_path / "slurmd"
    broken.write_text(
        f"#!/bin/sh\ncp -r {place}/pid {tmp_path}/\necho loading\necho 'fatal: no such luck' "
        ">&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LabError, match=r"slurmd\.s\d ended at once: fatal: no such luck"):
        lab.up(SMALL, place)
    assert not place.exists()
    started = [int((tmp_path / "pid" / name).read_text()) for name in ("munged", "slurmctld")]
    assert [pid for pid in started if runs(pid)] == []


def up_elsewhere(place: Path, path: str) -> subprocess.Popen[bytes]:
    """Run `up` in a process of its own, which finds programs through `path`."""
    script = textwrap.dedent(f"""
        from pathlib import Path
        from xmem_slurm import lab
        from xmem_slurm.site.schema import Site

        lab.up(Site.model_validate_json({SMALL.model_dump_json()!r}), Path({str(place)!r}))
    """)
    return subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PATH": path})


def test_two_ups_at_once_make_one_lab(place):
    with (
        up_elsewhere(place, os.environ["PATH"]) as one,
        up_elsewhere(place, os.environ["PATH"]) as other,
    ):
        assert (one.wait(), other.wait()) == (0, 0)
    assert lab.status(place).running
    daemons = [
        process
        for process in processes._members(place)
        if process.name() in {"munged", "slurmctld", "slurmd"}
    ]
    assert len(daemons) == 4


def test_an_up_that_was_killed_half_way_is_no_obstacle(place, tmp_path):
    stuck = tmp_path / "slurmd"
    stuck.write_text("#!/bin/sh\nexec sleep 86399\n")
    stuck.chmod(0o755)
    with up_elsewhere(place, f"{tmp_path}:{os.environ['PATH']}") as first:
        until((place / "pid" / "slurmd.s2").is_file, "the last slurmd")
        first.kill()
    left = pids(place)
    assert not lab.status(place).running
    lab.up(SMALL, place)
    assert [pid for pid in left.values() if runs(pid)] == []
    assert lab.status(place).nodes == {"s1": "idle", "s2": "idle"}


def test_what_slurm_itself_refuses_is_quoted(place):
    wrong = SMALL.model_copy(
        update={
            "partition": {"gpu": SMALL.partition["gpu"].model_copy(update={"max_time": "soon"})}
        }
    )
    with pytest.raises(LabError, match=r"slurmctld ended at once: .*fatal"):
        lab.up(wrong, place)
    assert not place.exists()


def test_what_is_no_host_list_is_refused(place):
    wrong = SMALL.model_copy(
        update={"nodes": (SMALL.nodes[0].model_copy(update={"names": "s[1-"}),)}
    )
    with pytest.raises(UsageError, match=r"s\[1-"):
        lab.up(wrong, place)
    assert not place.exists()


def test_no_lab_is_a_plain_answer(place):
    assert lab.status(place) == lab.Status(place, running=False, daemons={}, nodes={})
    with pytest.raises(LabError, match="lab up"):
        lab.environment(place)
    lab.down(place)


def test_an_ordinary_user_has_labs_too(place, tmp_path):
    """Run as root this becomes `nobody`; run as anybody else, every test above has shown it
    already."""
    if os.getuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chown(place.parent, nobody, -1)
    script = textwrap.dedent(f"""
        import os, subprocess, time
        from pathlib import Path
        from xmem_slurm import lab
        from xmem_slurm.site.schema import Site

        place = Path({str(place)!r})
        lab.up(Site.model_validate_json({SMALL.model_dump_json()!r}), place)
        environment = os.environ | lab.environment(place)
        out = place / "out"
        wrap = "--wrap=id -u; echo $CUDA_VISIBLE_DEVICES; srun printenv SLURMD_NODENAME"
        sbatch = ["sbatch", "--wait", "--quiet", "--gres=gpu:l4:1", f"--output={{out}}", wrap]
        subprocess.run(sbatch, env=environment, check=True)
        print(out.read_text().split())
        lab.down(place)
        print(place.exists())
    """)
    libraries = [str(Path(psutil.__file__).parents[1]), str(Path(xmem_slurm.__file__).parents[1])]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(libraries),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ours = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, ours):
        usable = subprocess.run(
            ["runuser", "-u", "nobody", "--", python, "-c", "import xmem_slurm.lab"],
            env=environment,
            cwd="/",
            capture_output=True,
            check=False,
        )
        if usable.returncode == 0:
            break
    else:
        pytest.skip(
            f"nobody can run neither {sys.executable} nor {ours} with this environment's libraries"
        )
    done = subprocess.run(
        ["runuser", "-u", "nobody", "--", python, "-c", script],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str([str(nobody), "0", "s1"]), "False"]


def test_roots_lab_runs_other_users_jobs(example):
    if os.getuid() != 0:
        pytest.skip("only a lab of root's runs jobs of other users")
    done = subprocess.run(
        ["runuser", "-u", "nobody", "--", "srun", "--gres=gpu:l4:1", "id", "-un"],
        env=os.environ | lab.environment(example.folder),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "nobody\n", done.stderr


def test_accounting_knows_the_gpu_type_of_a_job(place):
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [
        name
        for name in ("slurmdbd", "mariadbd", "mariadb")
        if shutil.which(name, path=path) is None
    ]
    if missing:
        pytest.skip(f"accounting needs {', '.join(missing)}, which are not installed")
    lab.up(SMALL, place, accounting=True)
    assert {"slurmdbd", "mariadbd"} < set(lab.status(place).daemons)
    assert (place / "slurmdbd.conf").stat().st_mode & 0o077 == 0, "it holds the password"
    job = submit(place, "--gres=gpu:l4:1", wrap="true")
    finished(place, job)
    query = (
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={job}",
        "--format=State,AllocTRES",
    )
    state, tres = until(
        lambda: (said := slurm(place, *query)).startswith("COMPLETED") and said,
        "slurmdbd to hear of the job",
    ).split("|")
    assert state == "COMPLETED"
    assert "gres/gpu:l4=1" in tres.split(",")

    with pytest.raises(LabError, match="another lab"):
        lab.up(SMALL, place)
    ours = pids(place).values()
    lab.down(place)
    assert [pid for pid in ours if runs(pid)] == []


@pytest.mark.torch
def test_torch_in_a_job_sees_the_gpu_that_its_node_declares(example):
    python = os.environ["XMEM_TEST_PYTHON"]
    code = (
        "import torch; p = torch.cuda.get_device_properties(0); "
        "print(torch.cuda.device_count(), p.total_memory)"
    )
    job = submit(example.folder, "--gres=gpu:h200:2", wrap=f"{python} -c '{code}'")
    assert finished(example.folder, job)["JobState"] == "COMPLETED"
    total = load_catalogue()["h200"].total_bytes
    assert (example.folder / f"job-{job}.out").read_text() == f"2 {total}\n"
