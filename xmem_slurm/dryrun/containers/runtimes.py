"""What is there to know of each container runtime: how its command line is read, and how a folder
and a variable go in.

Sources: the manual of each, `apptainer exec --help` (1.4), SingularityCE 4, Singularity 2.6,
ch-run(1) (0.31 to 0.40), doc/cmd/start.md of enroot (4.1), podman-run(1) (4.3 to 5). podman-hpc
(1.1) is a Python program that runs `podman run` with where its images are: it is left alone, and
that podman is not.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Runtime(NamedTuple):
    """One of them. Options are named as they are written; a value follows in the next word, or
    behind a "=".

    `verbs` start something in an image; without any, the command itself does. `valued` are its
    options with a value. `dropped` are options that a dry run does without, and whether each has a
    value; `replaced` are written otherwise. `bind` and `setting` are the words for a folder, at the
    same path inside, and for a variable. `path` are the words by which the shims are first on PATH
    inside, where no option begins with one of `own_path`: "{run}" is the folder of the run,
    "{path}" the PATH of the image (for Apptainer a variable does it: PREPEND_PATH). `prefixes` are
    those of variables outside that become variables inside. `first` and `added` are further words,
    before the verb and after it, `outside` variables of the runtime's own. `registry` begins the
    names of images that have to be fetched, and `remedy` is what a user does about that.
    `lays_over` is whether it makes what is missing in an image to mount on; where not, that is done
    for it (`layout`). `as_root` is whether the runtime is started as root of a user namespace made
    for it, in which it maps nobody else, as by `podman unshare`.
    """

    valued: frozenset[str]
    dropped: Mapping[str, bool]
    bind: Sequence[str]
    setting: Sequence[str] = ()
    verbs: frozenset[str] = frozenset()
    replaced: Mapping[str, Sequence[str]] = MappingProxyType({})
    path: Sequence[str] = ()
    own_path: tuple[str, ...] = ()
    prefixes: Sequence[str] = ()
    first: Sequence[str] = ()
    added: Sequence[str] = ()
    outside: Mapping[str, str] = MappingProxyType({})
    registry: Sequence[str] = ()
    remedy: str = ""
    lays_over: bool = True
    as_root: bool = False


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_APPTAINER = Runtime(
    verbs=_words("exec run shell test"),
    valued=_words(
        """-B --bind -H --home -W --workdir -S --scratch -o --overlay --pwd --cwd --env --env-file
        --app --apply-cgroups --security --dns --add-caps --drop-caps --mount --fusemount --hostname
        --blkio-weight --blkio-weight-device --cpu-shares --cpus --cpuset-cpus --cpuset-mems
        --memory --memory-reservation --memory-swap --pids-limit --pem-path --shell --config"""
    ),
    # A PID namespace would want a new /proc, which the kernel refuses where parts of the one here
    # are mounted over.
    dropped={
        **dict.fromkeys(("--nv", "--nvccli", "--rocm", "-p", "--pid", "-n", "--net"), False),
        **dict.fromkeys(("--device", "--network", "--network-args"), True),
    },
    replaced=dict.fromkeys(("-C", "--containall"), ("--contain", "--cleanenv")),
    bind=("--bind", "{0}"),
    prefixes=("APPTAINERENV_", "SINGULARITYENV_"),
    # Without the setuid helper, which cannot run here; the last one is of Singularity 2.
    outside=dict.fromkeys(("APPTAINER_USERNS", "SINGULARITY_USERNS", "SINGULARITY_NOSUID"), "1"),
    registry=("docker", "library", "oras", "shub", "http", "https", "docker-daemon"),
    remedy="`{name} pull` it once, and name the file",
)
_ENROOT = Runtime(
    verbs=_words("start"),
    valued=_words("-c --conf --rc -e --env -m --mount"),
    dropped={},
    bind=("--mount", "{0}:{0}:none:x-create=auto,rbind"),
    setting=("--env", "{name}={value}"),
    path=("--conf", "{run}/enroot.conf"),
    own_path=("-c", "--conf"),
    outside={"NVIDIA_VISIBLE_DEVICES": "void", "MELLANOX_VISIBLE_DEVICES": "void"},
    registry=("docker", "dockerd", "podman"),
    remedy="`enroot import` it once, and name the file (with pyxis --container-image=./FILE.sqsh)",
)
OF_STORAGE = ("--root", "--runroot", "--storage-driver", "--storage-opt")
"""Options by which Podman finds its images; each has a value."""
_PODMAN = Runtime(
    verbs=_words("run"),
    valued=_words(
        """-a --add-host --annotation --arch --attach --authfile -c --cap-add --cap-drop
        --cgroup-conf --cgroup-manager --cgroup-parent --cgroupns --cgroups --cidfile --conmon
        --conmon-pidfile --cpu-shares --cpus --cpuset-cpus --cpuset-mems --detach-keys --device
        --device-cgroup-rule --dns -e --entrypoint --env --env-file --expose --gidmap --gpus
        --group-add -h --health-cmd --hooks-dir --hostname --hostuser --image-volume --init-path
        --ip --ipc -l --label --label-file --log-driver --log-level --log-opt -m --memory
        --memory-reservation --memory-swap --module --mount --name --net --network --network-alias
        --oom-score-adj --os -p --pid --pids-limit --platform --pod --preserve-fds --publish --pull
        --requires --restart --root --runroot --runtime --seccomp-policy --secret --security-opt
        --shm-size --stop-signal --stop-timeout --storage-driver --storage-opt --subgidname
        --subuidname --sysctl --timeout --tmpdir --tmpfs --tz -u --uidmap --ulimit --umask
        --unsetenv --user --userns --uts -v --variant --volume --volumes-from -w --workdir"""
    ),
    # One user is mapped, nobody is at the terminal, there is one network, and no cgroup,
    # /dev/mqueue or new /proc.
    dropped={
        **dict.fromkeys(
            ("--gpu", "-d", "--detach", "-t", "--tty", "-i", "--interactive", "-it", "-ti"), False
        ),
        **dict.fromkeys(("--privileged", "-P", "--publish-all"), False),
        **dict.fromkeys(
            ("--gpus", "--device", "--net", "--network", "-p", "--publish", "--pid", "--ipc"), True
        ),
        **dict.fromkeys(
            ("-u", "--user", "--userns", "--uidmap", "--gidmap", "--group-add", "--pull"), True
        ),
        **dict.fromkeys(
            ("--cgroups", "--cgroupns", "--cpus", "--cpuset-cpus", "--pids-limit", "--ulimit"), True
        ),
        **dict.fromkeys(("-m", "--memory", "--memory-swap", "--shm-size"), True),
    },
    bind=("--volume", "{0}:{0}"),
    setting=("--env", "{name}={value}"),
    path=("--env", "PATH={run}/bin:{path}"),
    own_path=("PATH=", "-ePATH=", "--env=PATH="),
    first=("--runtime-flag", "cgroup-manager=disabled"),
    added=("--cgroups=no-conmon", "--pid=host", "--network=host", "--user=0:0", "--pull=never"),
    as_root=True,
    registry=("docker",),
    remedy="`{name} pull` it once",
)

RUNTIMES: Mapping[str, Runtime] = {
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "enroot": _ENROOT,
    "podman": _PODMAN,
    "ch-run": Runtime(
        valued=_words(
            "-b --bind -c --cd -g --gid -m --mount -s --storage -u --uid --join-ct --join-pid "
            "--join-tag --unset-env"
        ),
        dropped={},
        bind=("--bind={0}:{0}",),
        setting=("--set-env={name}={value}",),
        path=("--set-env=PATH={run}/bin:$PATH",),
        own_path=("--env-no-expand",),
        lays_over=False,
    ),
}
"""By the name of the command."""
OF_IMAGES = ("crun", "runc")
"""What Podman starts. They copy themselves to a memory file, which a dry run has not, unless they
cannot be written."""
WRAPPERS = ("podman-hpc",)
"""These start one of the others."""
ROOT_ONLY = ("shifter",)
"""These are setuid by their design: they do not run without privileges."""
