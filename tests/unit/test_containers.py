"""Command lines of container runtimes: what is dropped, what is kept, and where our folders and variables go."""

from pathlib import Path

import pytest

from xmem_slurm.dryrun.containers import command_line, named, pyxis
from xmem_slurm.dryrun.containers.command_line import Start
from xmem_slurm.dryrun.containers.refusals import CannotEnterError
from xmem_slurm.dryrun.containers.runtimes import RUNTIMES
from xmem_slurm.dryrun.job import Job
from xmem_slurm.slurm import options

ENROOT_BIND = "--mount /x:/x:none:x-create=auto,rbind"
OCI = "--runtime-flag cgroup-manager=disabled"
PODMAN = "--cgroups=no-conmon --pid=host --network=host --user=0:0 --pull=never --volume /x:/x --env A=1"
ENTERED = {
    "apptainer exec --nv image.sif python train.py": "exec --bind /x image.sif python train.py",
    "apptainer -q exec -eB /a:/b --nv --pwd /w i.sif ls --nv": "-q exec -eB /a:/b --pwd /w --bind /x i.sif ls --nv",
    "singularity run --bind=/a --rocm -C i.sif": "run --bind=/a --contain --cleanenv --bind /x i.sif",
    "singularity shell -B/a --nvccli --pid i.simg -c 'exit'": "shell -B/a --bind /x i.simg -c exit",
    "apptainer exec --device nvidia.com/gpu=all --overlay o.img --env B=2 i.sif a": (
        "exec --overlay o.img --env B=2 --bind /x i.sif a"
    ),
    "apptainer exec --device=nvidia.com/gpu=0 --network none -c i.sif a": "exec -c --bind /x i.sif a",
    "ch-run -b /a:/b --set-env=C=d --unset-env X /img -- python -b x": (
        "-b /a:/b --set-env=C=d --unset-env X --bind=/x:/x --set-env=A=1 /img -- python -b x"
    ),
    "ch-run -w img.sqsh -- true": "-w --bind=/x:/x --set-env=A=1 img.sqsh -- true",
    "enroot start -m /a:/b -e FOO --rw torch.sqsh python -e x": (
        f"start -m /a:/b -e FOO --rw {ENROOT_BIND} --env A=1 torch.sqsh python -e x"
    ),
    "enroot start torch -- nvidia-smi": f"start {ENROOT_BIND} --env A=1 torch -- nvidia-smi",
    "podman run --rm -it --gpus all --device nvidia.com/gpu=all -v /a:/b -w /b torch:2 python -d": (
        f"{OCI} run --rm -v /a:/b -w /b {PODMAN} torch:2 python -d"
    ),
    "podman --log-level error run --security-opt=label=disable -p 80:80 --entrypoint sh torch -c 'a b'": (
        f"{OCI} --log-level error run --security-opt=label=disable --entrypoint sh {PODMAN} torch -c a b"
    ),
    "podman-hpc run --gpu --userns=keep-id -u 5:5 torch python x.py": f"{OCI} run {PODMAN} torch python x.py",
}


@pytest.mark.parametrize("line", ENTERED)
def test_ours_is_added_and_the_gpu_is_dropped(line: str) -> None:
    name, *words = line.replace("'", "").split(" ")
    start = command_line.read(RUNTIMES[name], words)
    assert start is not None
    assert " ".join(command_line.entered(RUNTIMES[name], start, ["/x"], {"A": "1"})) == ENTERED[line]


@pytest.mark.parametrize(
    "line",
    [
        *("apptainer pull i.sif docker://x", "apptainer --version", "singularity instance start i.sif a"),
        *("apptainer exec", "enroot import docker://x", "podman ps", "podman build --device x .", "ch-run --version"),
        "enroot start --rw",
    ],
)
def test_what_starts_nothing_in_an_image_is_left_alone(line: str) -> None:
    name, *words = line.split()
    assert command_line.read(RUNTIMES[name], words) is None


def test_variables_go_in_by_name_where_a_runtime_has_that() -> None:
    found = command_line.variables(RUNTIMES["apptainer"], {"A": "1"})
    assert found["APPTAINERENV_A"] == found["SINGULARITYENV_A"] == "1"
    assert command_line.variables(RUNTIMES["ch-run"], {"A": "1"}) == {}


def test_images_of_registries() -> None:
    remote = {"apptainer": "docker://nvcr.io/x", "singularity": "library://a/b", "enroot": "docker://x"}
    assert all(command_line.from_registry(RUNTIMES[name], image) for name, image in remote.items())
    assert not command_line.from_registry(RUNTIMES["apptainer"], "docker/torch.sif")


def test_the_command_is_what_follows_the_image() -> None:
    start = command_line.read(RUNTIMES["apptainer"], ["exec", "--nv", "i.sif", "python", "-m", "x"])
    assert start == Start(["exec"], ["--nv"], "i.sif", ["python", "-m", "x"])


@pytest.mark.parametrize(
    ("script", "environ", "containers", "files"),
    [
        ("python train.py", {}, False, False),
        ("# my-podman.sh, data.sqsh\nunpack --containers data.sqsh", {}, False, False),
        ("apptainer exec --nv $IMAGE python", {}, True, False),
        ("apptainer exec --nv $IMAGE python", {"IMAGE": "/images/torch.sif"}, True, True),
        ("/opt/bin/ch-run /images/torch -- true", {}, True, False),
        ("srun --container-image=./torch.sqsh python", {}, True, True),
    ],
)
def test_the_sandbox_allows_what_the_script_names(
    script: str, environ: dict[str, str], containers: bool, files: bool
) -> None:
    job = Job(script.encode(), (), Path(), environ)
    assert (named.runs_containers(job), named.has_image_files(job)) == (containers, files)


def test_a_runtime_by_its_path_is_found() -> None:
    script = b"/opt/x-1/bin/ch-run /i -- true\n$HOME/bin/podman run x\n/usr/bin/apptainer-x\nf=$(/sw/bin/apptainer --version)"
    assert named.folders(Job(script, (), Path(), {})) == ["/opt/x-1/bin", "/sw/bin"]


PYXIS = {
    "--container-image=./t.sqsh": "--rw --root ./t.sqsh",
    "--container-image /i/t.sqsh --no-container-remap-root --no-container-mount-home": "--rw /i/t.sqsh",
    "--container-image=/t.sqsh --container-mounts=/a,/b:/c:ro+noexec": (
        "--rw --root --mount /a:/a:none:x-create=auto,rbind --mount /b:/c:none:x-create=auto,rbind,ro,noexec /t.sqsh"
    ),
    "--container-name=torch:exec": "--rw --root pyxis_torch",
}


@pytest.mark.parametrize("given", PYXIS)
def test_what_pyxis_would_have_enroot_start(given: str) -> None:
    table = options.srun_table().with_options(pyxis.OPTIONS)
    read, _ = options.scan([*given.split(), "python", "x"], table)
    found = {each.name: each.value or "" for each in read}
    assert pyxis.is_container(found)
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib"}
    assert " ".join(pyxis.started(found, ["python", "x"], environ)) == f"enroot start {PYXIS[given]} python x"


def test_pyxis_takes_the_job_s_variables_in_and_an_image_s_own_win() -> None:
    given = {"container-image": "./t.sqsh", "container-env": "PATH", "container-workdir": "/w"}
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "SLURM_PROCID": "0", "XMEM_TASK": "0/1"}
    words = pyxis.started(given, ["python", "x"], environ)
    assert [word for word in words if word in environ] == ["PATH", "SLURM_PROCID"]
    assert words[words.index("./t.sqsh") + 1 :] == ["sh", "-c", 'cd "$0" && exec "$@"', "/w", "python", "x"]


def test_an_image_of_a_registry_is_imported_once() -> None:
    with pytest.raises(
        CannotEnterError, match=r"nvcr.io#nvidia/pytorch:26.01 is in a registry.*`enroot import` it once"
    ):
        pyxis.started({"container-image": "nvcr.io#nvidia/pytorch:26.01"}, ["python"], {})
