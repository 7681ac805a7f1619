"""Dry runs that go into containers, by real runtimes, as an ordinary user: the same bytes as
without a container.

The image is made of this machine's Python and shell, without a compiler and without torch, which a
bind brings in. The runtimes are Debian's Charliecloud and Podman, and, where they are, Enroot,
podman-hpc and Singularity 2.6. In a mount namespace of the test's own /dev/fuse is everybody's, as
udev has it, and control groups are v2's."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE_SITE, Cluster, as_of_22_05
from tests.integration.sandbox.test_users import SYSTEM_PYTHON, _python
from xmem_slurm import resources
from xmem_slurm.errors import NoEstimate, XmemError
from xmem_slurm.generate import scripts, templates
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission

pytestmark = pytest.mark.slow(
    covers=[
        "xmem_slurm/dryrun/containers/*",
        "xmem_slurm/*sandbox*",
        "xmem_slurm/device/*",
        "xmem_slurm/dryrun/*runner*",
    ]
)

USER = "news"
"""One that Debian and Ubuntu have, and that no other test is: what is left of a user in /tmp is
looked at there."""
DRIVER = Path(__file__).with_name("container_driver.py")
PROGRAMS = ("sh", "dash", "bash", "env", "cat", "python3", Path(SYSTEM_PYTHON).resolve().name)
AS_EVERYWHERE = (
    "mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse;"
    " sed 's#^news:.*#news:x:9:9:news:{home}:/bin/sh#' /etc/passwd > /mnt/passwd;"
    " mount --bind /mnt/passwd /etc/passwd; umount -l /mnt; umount -l /sys/fs/cgroup 2> /dev/null;"
    ' mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'
)
TRAIN = """
import os, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    model(torch.ones(int(os.environ.get("ROWS", 64)), 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
INSIDE_SCRIPT = """
case $0 in */*) cd "${0%/*}" ;; esac
set -- $(nvidia-smi --query-gpu=index --format=csv,noheader)
[ $# = 4 ] && sbatch next.sh && srun -n 1 python3 train.py
"""
DDP = """
import os, torch
if "RANK" not in os.environ:
    os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"], LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")
torch.distributed.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 4096).cuda())
optimizer = torch.optim.SGD(model.parameters())  # its steps wait for torch's NCCL thread
for _ in range(8):
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def _in_usr(program: str) -> str | None:
    return shutil.which(program, path="/usr/bin:/bin")


class Machine:
    """An ordinary user on it, with a job in `job`, an image in `image`, `image.sqsh`, and torch in
    `packages`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job, self.image = folder, folder / "home" / "job", folder / "image"
        self.job.mkdir(parents=True)
        self.ours = _python(
            folder / "ours", Path(sys.executable), resources.tree("templates").parent
        )
        self.packages = Path("/nowhere")
        (self.job / "train.py").write_text(TRAIN)
        (self.job / "ddp.py").write_text(DDP)
        (self.job / "inside.sh").write_text(INSIDE_SCRIPT)
        (folder / "bin").mkdir()
        for path in (folder / "home", *(folder / "home").rglob("*")):
            os.chown(path, 9, 9)
        folder.chmod(0o755)

    def with_image(self) -> None:
        """Make the image: this machine's Python and shell, and the libraries that they and torch
        are linked to."""
        programs = [Path(found).resolve() for found in map(_in_usr, PROGRAMS) if found]
        libraries = min(Path("/usr/lib").glob("python3.*"))
        names = (
            "libstdc++.so.6",
            "libgcc_s.so.1",
            "libpthread.so.0",
            "libdl.so.2",
            "librt.so.1",
            "libutil.so.1",
        )
        of_torch = [each for name in names for each in Path("/usr/lib").glob(f"*/{name}")]
        linked = [*programs, *libraries.rglob("*.so"), *of_torch]
        shown = subprocess.run(
            ["ldd", *map(str, linked)], capture_output=True, text=True, check=False
        ).stdout
        needed = {
            word
            for word in shown.split()
            if word.startswith("/") and ".so" in word and not word.endswith(":")
        }
        for name in (
            "usr/bin",
            "usr/lib64",
            *(
                [
                    "dev",
                    "proc",
                    "sys",
                    "tmp",
                    "etc",
                    "home",
                    "mnt",
                    "srv",
                    "root",
                    "run",
                    "var/tmp",
                    "opt/site-packages",
                ]
            ),
        ):
            (self.image / name).mkdir(parents=True, exist_ok=True)
        shutil.copytree(
            libraries,
            self.image / str(libraries)[1:],
            ignore=shutil.ignore_patterns("test*", "__pyc*"),
        )
        for file in {*map(str, [*programs, *of_torch]), *needed}:
            real = self.image / "usr" / file.removeprefix("/usr").lstrip("/")
            real.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, real)
        for name in ("bin", "lib", "lib64"):
            (self.image / name).symlink_to(f"usr/{name}")
        for name, target in {"sh": "dash", "python3": programs[-1].name}.items():
            (self.image / "usr/bin" / name).unlink(missing_ok=True)
            (self.image / "usr/bin" / name).symlink_to(target)
        for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf"):
            (self.image / "etc" / name).write_text("")
        for path in (self.image, *self.image.rglob("*")):  # as of who unpacked it
            os.chown(path, 9, 9, follow_symlinks=False)
        pack = [
            "mksquashfs",
            self.image,
            f"{self.image}.sqsh",
            "-comp",
            "gzip",
            "-Xcompression-level",
            "1",
            "-quiet",
        ]
        subprocess.run([*pack, "-no-progress"], check=True, capture_output=True)

    def with_helpers(self) -> None:
        """Put into the image what `singularity build` (2.6) puts into each, which sets PATH."""
        of_singularity = (
            Path(str(shutil.which("singularity"))).parents[1]
            / "libexec/singularity/bootstrap-scripts"
        )
        shutil.unpack_archive(of_singularity / "environment.tar", self.image, filter="data")

    def import_for_hpc(self) -> dict[str, str]:
        """Have it in podman-hpc's store, by fuse-overlayfs, as `y`; return the variables that it
        wants."""
        home = f"{self.folder}/home"
        places = {
            f"PODMANHPC_{name}": f"{home}/{name}"
            for name in ("SQUASH_DIR", "GRAPH_ROOT", "RUN_ROOT")
        }
        environ = {"STORAGE_DRIVER": "overlay", **places}
        pack = (
            f"tar --owner=0 --group=0 -C {self.image} -cf ../y.tar . && podman-hpc import -q "
            "../y.tar y"
        )
        self.as_user(["sh", "-c", pack], **environ).check_returncode()
        return environ

    def import_image(self, image: Path | None = None, name: str = "x") -> None:
        """Have it, or another one, in Podman's own store, as `x`, with a configuration of its
        own."""
        settings = self.folder / "home/.config/containers/storage.conf"
        text = '[storage]\ndriver = "vfs"\n[storage.options.vfs]\nignore_chown_errors = "true"\n'
        configured = '-c WORKDIR=/srv -c ENV=PYTHONPATH=/mnt -c \'ENTRYPOINT ["sh","inside.sh"]\''
        pack = (
            f"mkdir -p {settings.parent}; echo '{text}' > {settings}; tar -C '{image or self.image}' -c . "
            f"| podman import -q {configured} - {name}"
        )
        self.as_user(["sh", "-c", pack]).check_returncode()

    def give_to_others(self) -> None:
        """Have files of other users and groups in that store, as images have them whose user has
        more numbers (subuid(5))."""
        for layer in (self.folder / "home/.local/share/containers/storage/vfs/dir").iterdir():
            (layer / "etc/shadow").touch()
            os.chown(layer / "etc/shadow", 100031, 100041)
            os.chown(layer / "usr/bin/env", 9, 100041)

    def as_user(
        self, command: list[str], user: bool = True, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as that user, or as root."""
        identity = (
            ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if user else []
        )
        home = str(self.folder / "home")
        variables = {
            "HOME": home,
            "USER": USER,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", AS_EVERYWHERE.replace("{home}", home), "sh", *identity, *command],
            cwd=self.job, env=variables | environ, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(self, script: str, user: bool = True, **environ: str) -> dict[str, Any]:
        """Run a batch script dry as that user, and return what the driver says."""
        file = self.folder / "job.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        done = self.as_user([str(self.ours), str(DRIVER), str(file), "4"], user, **environ)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def program(self, name: str, text: str = "exit 0") -> Path:
        """Put a program in the user's way."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if os.getuid() != 0 or pwd.getpwnam(USER).pw_uid != 9:
        pytest.skip("becomes another user: needs root")
    with tempfile.TemporaryDirectory(prefix="xmem-containers-", dir="/var/tmp") as folder:
        yield Machine(Path(folder))


@pytest.fixture(scope="module")
def torch(machine: Machine, job_python: Path) -> Machine:
    code = (
        "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_paths()['purelib'], "
        "sep='|')"
    )
    shown = [
        subprocess.check_output([each, "-c", code], text=True)
        for each in (SYSTEM_PYTHON, job_python)
    ]
    (ours, _), (theirs, packages) = (each.strip().split("|") for each in shown)
    if ours != theirs:
        pytest.skip(
            f"the Python of XMEM_TEST_PYTHON is another than {SYSTEM_PYTHON}, which is in the image"
        )
    machine.packages = Path(packages)
    machine.with_image()
    return machine


@pytest.fixture(scope="module")
def outside(torch: Machine) -> list[dict[str, int]]:
    found = torch.run(f"PYTHONPATH={torch.packages} {SYSTEM_PYTHON} train.py")
    assert found["error"] is None, found
    return found["bytes"]  # type: ignore[no-any-return]


CH_RUN = (
    "export PYTHONPATH=/mnt\nch-run -c $PWD -b {packages}:/mnt -b $HOME:/srv -c /srv/job "
    "{image}{form} -- "
)
PODMAN = (
    "podman run --rm --device nvidia.com/gpu=all --user $(id -u) -v {packages}:/mnt -v $PWD:/srv "
)
ENROOT = (
    "enroot start -m {packages}:/mnt -m $PWD:/srv -e PYTHONPATH=/mnt {image}.sqsh sh /srv/inside.sh"
)
SINGULARITY = (
    "export PYTHONPATH=/mnt\nsingularity exec --nv -B {packages}:/mnt,$PWD:/srv --pwd /srv {image} "
)
SRUN = (
    "export PYTHONPATH=/mnt\nsrun --container-image={image}.sqsh "
    "--container-mounts={packages}:/mnt,$PWD:/srv:ro"
)
SBATCH = (
    "#SBATCH --container-image={image}.sqsh "
    "--container-mounts={packages}:/mnt,{job}:/srv\nPYTHONPATH=/mnt "
)
INSIDE = {
    "ch-run, a folder": ("ch-run", CH_RUN.replace("{form}", "") + "sh inside.sh"),
    "ch-run, an image file": ("ch-run", CH_RUN.replace("{form}", ".sqsh") + "sh inside.sh"),
    "ch-run by its path": (
        "ch-run",
        CH_RUN.replace("{form}", "").replace("ch-", "/usr/bin/ch-") + "sh inside.sh",
    ),
    "podman": ("podman", PODMAN + "-w /srv -e PYTHONPATH=/mnt --entrypoint sh x inside.sh"),
    "podman, as the image says": ("podman", PODMAN + "x"),
    "podman-hpc": (
        "podman-hpc",
        PODMAN.replace("podman", "podman-hpc", 1) + "-w /srv -e PYTHONPATH=/mnt y sh inside.sh",
    ),
    "an OCI bundle": ("ch-run", "#SBATCH --container={image}-bundle\nPYTHONPATH=/mnt sh inside.sh"),
    "enroot, an image file": ("enroot", ENROOT),
    "singularity, a folder": ("singularity", SINGULARITY + "sh inside.sh"),
    "srun with pyxis": (
        "enroot",
        f"{SRUN} --container-env=PYTHONPATH --container-workdir=/srv sh inside.sh",
    ),
    "a batch script with pyxis": ("enroot", SBATCH + "sh /srv/inside.sh"),
}


@pytest.mark.torch
@pytest.mark.parametrize("way", INSIDE)
def test_the_peak_is_the_same_inside(
    way: str, torch: Machine, outside: list[dict[str, int]]
) -> None:
    """What a script calls inside is answered as outside: nvidia-smi, sbatch, srun."""
    program, script = INSIDE[way]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    bundle = Path(f"{torch.image}-bundle")
    bundle.mkdir(exist_ok=True)
    mounts = [{"source": str(torch.packages), "destination": "/mnt", "options": ["rbind", "ro"]}]
    mounts += [{"source": str(torch.job), "destination": str(torch.job), "options": ["bind"]}]
    (torch.image / str(torch.job)[1:]).mkdir(parents=True, exist_ok=True)
    (bundle / "config.json").write_text(
        json.dumps({"root": {"path": "../image"}, "mounts": mounts})
    )
    if program == "podman":
        torch.import_image()
        torch.give_to_others()
    environ = torch.import_for_hpc() if program == "podman-hpc" else {}
    if program == "singularity":
        torch.with_helpers()
    named = {"{packages}": torch.packages, "{image}": torch.image, "{job}": torch.job}
    for name, path in named.items():
        script = script.replace(name, str(path))
    found = torch.run(script, ENROOT_LOGIN_SHELL="no", **environ)
    assert (found.get("why"), found.get("error")) == (None, None), found["said"]
    assert found["bytes"] == outside
    assert str(torch.job / "train.py") in found["files"]
    # an answer rests on the image, so that it is not given of another one
    image = f"{torch.image}.sqsh" if ".sqsh" in script else str(torch.image)
    noted = "images.json" if program.startswith("podman") else image
    assert any(path.endswith(noted) for path in found["files"])
    if program != "podman-hpc":  # a Python program of this machine
        # the image's own
        assert not [each for each in found["files"] if each.startswith("/usr/lib/python3")]


@pytest.mark.torch
def test_a_container_s_variables_are_the_job_s(
    torch: Machine, outside: list[dict[str, int]]
) -> None:
    script = (
        CH_RUN.replace("{form}", "").replace("ch-run", "ch-run --set-env=ROWS=4096")
        + "python3 train.py"
    )
    found = torch.run(
        script.replace("{packages}", str(torch.packages)).replace("{image}", str(torch.image))
    )
    assert found["bytes"][0]["allocated_bytes"] > outside[0]["allocated_bytes"]


LAUNCHED = {
    "torchrun in one container": "{}python3 -m torch.distributed.run --nproc-per-node 4 ddp.py",
    "srun, a container a rank": "export PYTHONPATH=/mnt\nsrun -n4 {}python3 ddp.py",
}


@pytest.mark.torch
@pytest.mark.parametrize("way", LAUNCHED)
def test_ranks_in_containers(way: str, torch: Machine) -> None:
    start = (
        CH_RUN.replace("{form}", "")
        .replace("{packages}", str(torch.packages))
        .replace("{image}", str(torch.image))
    )
    script = LAUNCHED[way].replace("{}", start if "torchrun" in way else start.partition("\n")[2])
    inside = torch.run(script)
    plain = torch.run(
        LAUNCHED[way]
        .replace("{}", "")
        .replace("python3", SYSTEM_PYTHON)
        .replace("/mnt", str(torch.packages)),
        PYTHONPATH=str(torch.packages),
    )
    assert [each[:2] for each in inside.get("ranks", ())] == [[0, 4]], inside
    assert inside["bytes"] == plain["bytes"]


SUBMITTED = """#!/bin/bash
#SBATCH --gres=gpu:h200:1
#SBATCH --output=job.out
{reads} > inside
{trains}
"""
IN_A_JOB = {
    "ch-run": (
        "ch-run {image} -- cat /etc/inside",
        CH_RUN.replace("{form}", "") + "python3 train.py",
    ),
    "podman": (
        "podman run --rm --network none --entrypoint cat x /etc/inside",
        PODMAN + "-w /srv -e PYTHONPATH=/mnt --entrypoint python3 x train.py",
    ),
}


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.parametrize("way", IN_A_JOB)
def test_the_job_that_is_submitted_runs_in_its_container(
    way: str, torch: Machine, cluster: Cluster
) -> None:
    """On the GPU that was chosen for it."""
    if shutil.which(way) is None:
        pytest.skip(f"there is no {way} here")
    (torch.image / "etc" / "inside").write_text("inside\n")
    (torch.job / "inside").unlink(missing_ok=True)
    if way == "podman":
        torch.import_image()
    reads, trains = (
        line.replace("{packages}", str(torch.packages)).replace("{image}", str(torch.image))
        for line in IN_A_JOB[way]
    )
    (torch.job / "job.sh").write_text(SUBMITTED.format(reads=reads, trains=trains))
    slurm = {name: cluster.environ[name] for name in ("PATH", "SLURM_CONF")} | {
        "XMEM_SITE": str(EXAMPLE_SITE)
    }
    command = [
        str(torch.ours),
        "-m",
        "xmem_slurm.cli.xsbatch_start",
        "--parsable",
        "--wait",
        "job.sh",
    ]
    done = torch.as_user(command, **slurm)  # its training fails, on no GPU
    assert "TresPerNode=gres:gpu:l4:1" in as_of_22_05(cluster.show(done.stdout.strip())), (
        done.stderr
    )
    assert (torch.job / "inside").read_text() == "inside\n", (torch.job / "job.out").read_text()


GENERATED = {
    "pyxis": ("enroot", "image={image}.sqsh", "mounts={packages}:/mnt"),
    "apptainer": ("singularity", "image={image}", "bind={packages}:/mnt"),
}


@pytest.mark.torch
@pytest.mark.parametrize("template", GENERATED)
def test_a_generated_script_is_sized_in_its_container(
    template: str, torch: Machine, outside: list[dict[str, int]]
) -> None:
    program, *settings = GENERATED[template]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    torch.program("apptainer", 'exec singularity "$@"')
    found = list[dict[str, Any]]()

    def size(jobs: Sequence[Submission]) -> list[Sizing | XmemError]:
        found.extend(
            torch.run((job.script or b"").decode(), ENROOT_LOGIN_SHELL="no") for job in jobs
        )
        return [NoEstimate("it is seen below") for _ in jobs]

    shipped = templates.find(template, templates.folders(None))
    values = templates.values(
        shipped, [each.format(image=torch.image, packages=torch.packages) for each in settings]
    )
    site = load_site(EXAMPLE_SITE)
    target = scripts.Target(site, option_gpus(site, load_catalogue()), {})
    command = ["env", "PYTHONPATH=/mnt", "python3", str(torch.job / "train.py")]
    scripts.generate(shipped, values, [("", command)], target, size)
    assert [each.get("bytes") for each in found] == [outside], found


REFUSED = {
    "an image of a registry": (
        "apptainer exec --nv docker://nvcr.io/nvidia/pytorch:26.01-py3 python train.py",
        (
            "the image is in a registry, and there is no network: `apptainer pull` it once, and name "
            "the file"
        ),
    ),
    "a name of pyxis": (
        "srun --container-image=nvcr.io#nvidia/pytorch:26.01-py3 python train.py",
        "is in a registry, and there is no network: `enroot import` it once, and name the file",
    ),
    "a batch script in an image of a registry": (
        "#SBATCH --container-image=nvcr.io\\#nvidia/pytorch:26.01-py3\npython train.py",
        "is in a registry, and there is no network: `enroot import` it once, and name the file",
    ),
    "under srun": ("srun singularity run --nv library://a/b", "`singularity pull` it once"),
    "not here": (
        "enroot start none",
        "cannot go inside: there is no enroot on this machine, with which a dry run would",
    ),
    "a runtime of root's": (
        "shifter --image=x python train.py",
        "shifter starts containers as root",
    ),
    "another machine type": (
        "apptainer run arm.sif",
        "the image is for aarch64, and this machine is",
    ),
    "a script of the script's": ("bash go.sh", "the batch script itself does not name the runtime"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_why_not_is_one_line_with_a_remedy(case: str, machine: Machine) -> None:
    script, why = REFUSED[case]
    if case == "not here" and shutil.which("enroot"):
        pytest.skip("there is an enroot here")
    for name in ("apptainer", "singularity", "shifter"):
        machine.program(name)
    (machine.job / "arm.sif").write_bytes(
        bytes(32) + b"SIF_MAGIC\0" + b"01\0" + b"04\0" + bytes(80)
    )
    (machine.job / "go.sh").write_text("apptainer run /\n")
    said = machine.run(script)["why"]
    assert why in said
    assert said.startswith("the script runs a container (")
    assert "\n" not in said


IN_CH_RUN = "ch-run -b $HOME:/srv -c /srv/job '{image}' -- "
WHOSE = "the script runs a container ({container}) whose image has no"
NO_PYTHON = (
    f"{WHOSE} program python3: the job would fail, too; name one of the image's own by its path, "
    "or use an image that has it"
)
NO_PASSWD = (
    f"{WHOSE} /etc/passwd to mount this machine's on: the job would fail, too; make an empty one "
    "in the image (or leave that bind out)"
)
LACKING = {
    "ch-run, nvidia-smi without python": (
        "usr/bin/python3*",
        f"{IN_CH_RUN}nvidia-smi",
        "nvidia-smi: the image has no python3, by which it is",
    ),
    "ch-run, python": ("usr/bin/python*", f"{IN_CH_RUN}python3 train.py", NO_PYTHON),
    "ch-run, passwd": ("etc/passwd", f"{IN_CH_RUN}python3 train.py", NO_PASSWD),
    "podman, python": (
        "usr/bin/python*",
        "podman run --rm --network none --entrypoint python3 lacking train.py",
        NO_PYTHON,
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", LACKING)
def test_what_an_image_lacks_is_named_with_what_helps(case: str, torch: Machine) -> None:
    runtime = case.partition(",")[0]
    if shutil.which(runtime) is None:
        pytest.skip(f"there is no {runtime} here")
    lacks, script, why = LACKING[case]
    image = torch.folder / f"image of {case}"
    shutil.copytree(torch.image, image, symlinks=True)
    for path in image.glob(lacks):
        path.unlink()
    if runtime == "podman":
        torch.import_image(image, "lacking")
    container = "podman lacking" if runtime == "podman" else f"ch-run {image}"
    said = torch.run(script.format(image=image))["why"]
    assert why.format(container=container) in said


def test_root_s_containers_are_a_reason(machine: Machine) -> None:
    machine.program("apptainer")
    assert (
        "root gives up in a dry run what containers need"
        in machine.run("apptainer run /", user=False, XDG_CACHE_HOME=str(machine.folder / "root"))[
            "why"
        ]
    )


def test_what_fails_inside_is_in_the_runtime_s_words(machine: Machine) -> None:
    machine.program("apptainer", "echo 'FATAL: no such image' >&2; exit 255")
    assert machine.run("apptainer run /")["why"].endswith("FATAL: no such image")
