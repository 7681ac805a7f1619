"""Command lines of container runtimes: what is dropped, what is kept, and where our folders and
variables go."""

import ast
import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from xmem_slurm.dryrun.containers import (
    command_line,
    detection,
    layout,
    oci_bundle,
    pyxis,
    refusals,
    said,
)
from xmem_slurm.dryrun.containers.command_line import Start
from xmem_slurm.dryrun.containers.refusals import CannotEnterError
from xmem_slurm.dryrun.containers.runtimes import RUNTIMES
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.dryrun.shims import commands
from xmem_slurm.sandbox import linux
from xmem_slurm.slurm import options
from xmem_slurm.slurm.submission import Submission

ENROOT_BIND = "--mount /x:/x:none:x-create=auto,rbind"
ENROOT_PATH = "--conf /x/enroot.conf"
CH_RUN = "--bind=/x:/x --set-env=A=1 --set-env=PATH=/x/bin:$PATH"
OCI = "--runtime-flag cgroup-manager=disabled"
PODMAN = (
    "--cgroups=no-conmon --pid=host --network=host --user=0:0 --pull=never --volume /x:/x --env A=1"
    " --env PATH=/x/bin:/image"
)
ENTERED = {
    "apptainer exec --nv image.sif python train.py": "exec --bind /x image.sif python train.py",
    "apptainer -q exec -eB /a:/b --nv --pwd /w i.sif ls --nv": "-q exec -eB /a:/b --pwd /w --bind "
    "/x i.sif ls --nv",
    "singularity run --bind=/a --rocm -C i.sif": "run --bind=/a --contain --cleanenv --bind /x "
    "i.sif",
    "singularity shell -B/a --nvccli --pid i.simg -c 'exit'": "shell -B/a --bind /x i.simg -c exit",
    "apptainer exec --device nvidia.com/gpu=all --overlay o.img --env B=2 i.sif a": (
        "exec --overlay o.img --env B=2 --bind /x i.sif a"
    ),
    "apptainer exec --device=nvidia.com/gpu=0 --network none -c i.sif a": "exec -c --bind /x i.sif "
    "a",
    "ch-run -b /a:/b --set-env=C=d --unset-env X /img -- python -b x": (
        f"-b /a:/b --set-env=C=d --unset-env X {CH_RUN} /img -- python -b x"
    ),
    "ch-run --env-no-expand --set-env=A=$B /img true": (
        "--env-no-expand --set-env=A=$B --bind=/x:/x --set-env=A=1 /img true"
    ),
    "ch-run -w img.sqsh -- true": f"-w {CH_RUN} img.sqsh -- true",
    "enroot start -m /a:/b -e FOO --rw torch.sqsh python -e x": (
        f"start -m /a:/b -e FOO --rw {ENROOT_BIND} --env A=1 {ENROOT_PATH} torch.sqsh python -e x"
    ),
    "enroot start torch -- nvidia-smi": f"start {ENROOT_BIND} --env A=1 {ENROOT_PATH} torch -- "
    "nvidia-smi",
    "enroot start --conf mine.conf torch": f"start --conf mine.conf {ENROOT_BIND} --env A=1 torch",
    "podman run --rm -it --gpus all --device nvidia.com/gpu=all -v /a:/b -w /b torch:2 python -d": (
        f"{OCI} run --rm -v /a:/b -w /b {PODMAN} torch:2 python -d"
    ),
    "podman --log-level error run --security-opt=label=disable -p 80:80 --entrypoint sh torch -c "
    "'a b'": (
        f"{OCI} --log-level error run --security-opt=label=disable --entrypoint sh {PODMAN} torch "
        "-c a b"
    ),
    "podman run --root /r --gpu --userns=keep-id -u 5:5 torch python x.py": (
        f"{OCI} run --root /r {PODMAN} torch python x.py"
    ),
}


@pytest.mark.parametrize("line", ENTERED)
def test_ours_is_added_and_the_gpu_is_dropped(line: str) -> None:
    name, *words = line.replace("'", "").split(" ")
    start = command_line.read(RUNTIMES[name], words)
    assert start is not None
    assert (
        " ".join(command_line.entered(RUNTIMES[name], start, ["/x"], {"A": "1"}, "/image"))
        == ENTERED[line]
    )


@pytest.mark.parametrize(
    "line",
    [
        *(
            "apptainer pull i.sif docker://x",
            "apptainer --version",
            "singularity instance start i.sif a",
        ),
        *(
            "apptainer exec",
            "enroot import docker://x",
            "podman ps",
            "podman build --device x .",
            "ch-run --version",
        ),
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
    remote = {
        "apptainer": "docker://nvcr.io/x",
        "singularity": "library://a/b",
        "enroot": "docker://x",
    }
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
    assert (detection.runs_containers(job), detection.has_image_files(job)) == (containers, files)


def test_a_runtime_by_its_path_is_found() -> None:
    script = (
        b"/opt/x-1/bin/ch-run /i -- true\n$HOME/bin/podman run "
        b"x\n/usr/bin/apptainer-x\n$(/sw/bin/apptainer -h)"
    )
    assert detection.folders(Job(script, (), Path(), {})) == ["/opt/x-1/bin", "/sw/bin"]


def test_podman_is_asked_for_an_image_where_the_container_would_be_started_from() -> None:
    words = (
        "--log-level error --root=/r run --storage-opt additionalimagestore=/squash --env A=1 "
        "torch true"
    )
    start = command_line.read(RUNTIMES["podman"], words.split())
    assert start is not None
    assert command_line.storage(start) == [
        "--root=/r",
        "--storage-opt",
        "additionalimagestore=/squash",
    ]


def test_no_container_is_started_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMEM_TRACE_DIR", str(tmp_path))
    monkeypatch.setenv("XMEM_MOUNTS", "[]")
    with pytest.raises(SystemExit):
        commands.SHIMS["podman"](["run", "torch"])
    assert "runs a container (podman) in a container" in (tmp_path / "notes.jsonl").read_text()


def test_what_is_called_in_a_container_runs_on_the_python_of_its_image() -> None:
    """Which may be 3.9: no newer syntax, no `X | Y` that is evaluated, no zip(strict=)."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); from xmem_slurm.dryrun.shims import "
        "commands; print(*sys.modules)"
    )
    root = Path(command_line.__file__).parents[3]
    loaded = subprocess.check_output(
        [sys.executable, "-I", "-S", "-c", code, root], text=True
    ).split()
    names = [name.replace(".", "/") for name in loaded if name.startswith("xmem_slurm")]
    files = [root / f"{name}.py" for name in names if (root / f"{name}.py").is_file()]
    assert len(files) > 8
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        nodes = list(ast.walk(tree))
        deferred = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in nodes
        )
        annotations = [
            getattr(node, "annotation", None) or getattr(node, "returns", None) for node in nodes
        ]
        inner = [
            each
            for annotation in annotations
            if annotation is not None
            for each in ast.walk(annotation)
        ]
        assert deferred or not any(isinstance(each, ast.BitOr) for each in inner), file
        assert not any(isinstance(node, ast.keyword) and node.arg == "strict" for node in nodes), (
            file
        )


PYXIS = {
    "--container-image=./t.sqsh": "--rw --root ./t.sqsh",
    "--container-image /i/t.sqsh --no-container-remap-root "
    "--no-container-mount-home": "--rw /i/t.sqsh",
    "--container-image=/t.sqsh --container-mounts=/a,/b:/c:ro+noexec": (
        "--rw --root --mount /a:/a:none:x-create=auto,rbind --mount "
        "/b:/c:none:x-create=auto,rbind,ro,noexec /t.sqsh"
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
    assert (
        " ".join(pyxis.started(found, ["python", "x"], environ))
        == f"enroot start {PYXIS[given]} python x"
    )


def test_pyxis_takes_the_job_s_variables_in_and_an_image_s_own_win() -> None:
    given = {"container-image": "./t.sqsh", "container-env": "PATH", "container-workdir": "/w"}
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib", "SLURM_PROCID": "0", "XMEM_TASK": "0/1"}
    words = pyxis.started(given, ["python", "x"], environ)
    assert [word for word in words if word in environ] == ["PATH", "SLURM_PROCID"]
    assert words[words.index("./t.sqsh") + 1 :] == [
        "sh",
        "-c",
        'cd "$0" && exec "$@"',
        "/w",
        "python",
        "x",
    ]


def test_an_image_of_a_registry_is_imported_once() -> None:
    words = pyxis.started({"container-image": "nvcr.io#nvidia/pytorch:26.01"}, ["python"], {})
    start = command_line.read(RUNTIMES["enroot"], words[1:])
    assert start is not None
    with pytest.raises(
        CannotEnterError, match=r"in a registry, and there is no network: `enroot import` it once"
    ):
        refusals.check_registry("enroot", RUNTIMES["enroot"], start)


IN_IMAGE = b"#!/bin/sh\n#SBATCH --container-image /i.sqsh\n#SBATCH --no-container-remap-root\n"


@pytest.mark.parametrize(
    ("argv", "script", "environ", "container"),
    [
        (("job.sh",), b"#!/bin/sh\nsrun --container-image=./x python\n", {}, {}),
        (("job.sh",), IN_IMAGE, {}, {"container-image": "/i.sqsh", "no-container-remap-root": ""}),
        (
            ("--container-image=./b", "job.sh"),
            IN_IMAGE,
            {},
            {"container-image": "./b", "no-container-remap-root": ""},
        ),
        (("--container-image", "./b", "--wrap=x"), None, {}, {"container-image": "./b"}),
        (
            ("--container-mounts=/a", "job.sh"),
            b"#!/bin/sh\n",
            {"PYXIS_CONTAINER_MOUNT_HOME": "1"},
            {},
        ),
        (
            ("--container-mounts=/a", "job.sh"),
            b"#!/bin/sh\n",
            {
                "PYXIS_CONTAINER_IMAGE": "./e",
                "PYXIS_CONTAINER_MOUNTS": "/b",
                "PYXIS_CONTAINER_MOUNT_HOME": "no",
            },
            {"container-image": "./e", "container-mounts": "/a", "no-container-mount-home": ""},
        ),
        (("--container=bundle", "job.sh"), b"#!/bin/sh\n", {}, {"container": "bundle"}),
    ],
)
def test_the_container_of_the_batch_script_itself(
    argv: tuple[str, ...], script: bytes | None, environ: dict[str, str], container: dict[str, str]
) -> None:
    """By sbatch's options and by variables, whether or not this site's sbatch was asked for its
    plugins."""
    for plugins in ((), pyxis.OPTIONS):
        job = from_submission(Submission(argv, environ, script, plugins))
        assert job.container == container
        assert detection.runs_containers(job) == (bool(container) or b"srun" in (script or b""))


START = Start(["exec"], [], "image.sif", ["python"])


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Be an ordinary user in a folder with an image file, who may open /dev/fuse; return a
    runtime."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.sif").write_bytes(bytes(200))
    (tmp_path / "ch-run").touch(mode=0o755)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(linux, "unshare", lambda _: None)
    return tmp_path / "ch-run"


def why(runtime: Path, start: Start = START) -> str:
    with pytest.raises(CannotEnterError) as caught:
        refusals.check(str(runtime), start)
    return str(caught.value)


def test_nothing_stands_in_the_way_of_an_ordinary_user(user: Path) -> None:
    refusals.check(str(user), START)


def test_root_is_not_an_ordinary_user(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert why(user).endswith("what containers need: submit as an ordinary user")


def test_a_setuid_runtime(user: Path) -> None:
    user.chmod(0o4755)
    assert (
        why(user) == f"{user} is setuid, and a dry run gains no privileges; one without setuid can"
    )


def test_an_image_file_needs_fuse_and_a_folder_does_not(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != "/dev/fuse")
    assert "/dev/fuse, which this user cannot open here: an administrator would allow it" in why(
        user
    )
    assert why(user).endswith("or the image can be unpacked to a folder")
    refusals.check(str(user), START._replace(image="."))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.ENOSPC,
            (
                "user namespaces are nested too deep here, or there are too many: submit from outside "
                "of containers"
            ),
        ),
        (errno.EPERM, "the batch script itself does not name the runtime"),
        (errno.EINVAL, "user namespaces are refused (Invalid argument)"),
    ],
)
def test_user_namespaces_that_cannot_be_had(
    user: Path, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(linux, "unshare", refuse)
    assert why(user).startswith(words)


def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        CannotEnterError, match=f"^there is no image {tmp_path}/none.sif on this machine$"
    ):
        layout.laid_over(tmp_path / "none.sif", tmp_path, (), {})


def test_an_image_for_another_machine_type(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (user.parent / "image.sif").write_bytes(
        bytes(32) + b"SIF_MAGIC\0" + b"01\0" + b"04\0" + bytes(80)
    )
    assert why(user) == "the image is for aarch64, and this machine is x86_64"
    folder = user.parent / "image"
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "usr" / "bin" / "sh").write_bytes(
        b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little") + bytes(44)
    )
    assert (
        why(user, START._replace(image="image"))
        == "the image is for aarch64, and this machine is x86_64"
    )
    (folder / "usr" / "bin" / "sh").write_bytes(
        b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little") + bytes(44)
    )
    refusals.check(str(user), START._replace(image="image"))


def test_a_script_in_an_oci_bundle(tmp_path: Path) -> None:
    bind = {"source": "/data", "destination": "/d", "type": "none", "options": ["rbind", "ro"]}
    proc = {"source": "proc", "destination": "/proc", "type": "proc"}
    config = {"root": {"path": "root"}, "mounts": [proc, bind], "process": {"env": ["A=1"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = oci_bundle.started(tmp_path, Path("/job"), ["/slurm_script", "x"])
    assert words[:4] == ["ch-run", "--bind=/data:/d", "--set-env=A=1", "--cd=/job"]
    assert words[4:] == [str(tmp_path / "root"), "--", "/slurm_script", "x"]
    (tmp_path / "config.json").write_text("[]")
    assert oci_bundle.started(tmp_path, Path("/job"), ["x"])[2] == str(tmp_path / "rootfs")


LAST_WORDS = {
    "ch-run[7]: error: can't execve(2): python3: No such file or directory (ch-run.c:389 2)": (
        "no program python3: the job would fail, too; name one of the image's own by its path"
    ),
    "Error: crun: executable file `python3` not found in $PATH: No such file or directory: OCI "
    "runtime attempted to invoke a command that was not found": "no program python3: the job",
    'FATAL:   "python3": executable file not found in $PATH': "no program python3: the job",
    "/.singularity.d/actions/exec: 21: exec: python: not found": "no program python: the job",
    "enroot-switchroot: failed to execute: /bin/sh: No such file or directory": (
        "no program /bin/sh: the job"
    ),
    "ch-run[7]: error: can't bind: destination not found: /etc/passwd (ch_misc.c:120)": (
        "no /etc/passwd to mount this machine's on: the job would fail, too; make an empty one in"
    ),
}


@pytest.mark.parametrize("words", LAST_WORDS)
def test_what_a_runtime_says_of_an_image_is_said_with_what_helps(words: str) -> None:
    told = said.in_our_words(words, "ch-run /images/a")
    assert told is not None
    lacking = f"the script runs a container (ch-run /images/a) whose image has {LAST_WORDS[words]}"
    assert told.startswith(lacking)
    assert said.in_our_words(words, "") is None, "a script says so that runs no container"


def test_what_is_not_known_of_a_runtime_stays_in_its_words() -> None:
    for words in ("FATAL: no such image", "python3: can't open file 'train.py'", ""):
        assert said.in_our_words(words, "apptainer a.sif") is None
