"""A site file renders to the configuration that Slurm's releases take; no daemon runs here."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from xmem_slurm import resources
from xmem_slurm.errors import UsageError
from xmem_slurm.lab import settings
from xmem_slurm.site.loading import load_catalogue, option_gpus
from xmem_slurm.site.schema import Site

SITE = Site.model_validate(
    {
        "schema_version": 1,
        "name": "golden",
        "option": {
            "l4": {"gpu": "l4", "type": "l4", "cost": 1},
            "l4_near": {"gpu": "l4", "type": "l4", "constraint": "near", "cost": 1},
            "h200": {"gpu": "h200", "type": "h200", "cost": 9},
            "any": {"gpu": "t4", "constraint": "t4", "cost": 0.5},
        },
        "nodes": [
            {
                "names": "l[1-2]",
                "cpus": 16,
                "memory_mib": 128000,
                "features": ["gpu_mem_24g", "near"],
                "gpus": {"l4": 2, "h200": 1, "l4_near": 1},
                "partitions": ["gpu", "all"],
            },
            {
                "names": "t1",
                "cpus": 8,
                "memory_mib": 32000,
                "features": ["t4"],
                "gpus": {"any": 2},
                "partitions": ["all"],
            },
            {"names": "c1", "cpus": 64, "memory_mib": 256000, "partitions": ["all"]},
        ],
        "partition": {"gpu": {"default": True, "max_time": "2-00:00:00"}, "all": {}, "empty": {}},
    }
)
GPUS = option_gpus(SITE, load_catalogue())
NAMES = [["l1", "l2"], ["t1"], ["c1"]]
AROUND = settings.Surroundings(
    folder=Path("/tmp/lab"),
    user="ada",
    address="127.0.1.1",
    loopback_only=True,
    ports={
        "slurmctld": 20000,
        "slurmd.l1": 20001,
        "slurmd.l2": 20777,
        "slurmd.t1": 20003,
        "slurmd.c1": 20004,
        "slurmdbd": 20005,
        "mariadbd": 20006,
    },
    release="22.05.8",
    version=(22, 5),
    accounting=False,
    password="",
)
ACCOUNTING = replace(AROUND, accounting=True, password="sesame")


def settings_of(text: str) -> dict[str, str]:
    """Read `Key=Value` lines; the lines of nodes and partitions, which have several, are left
    out."""
    lines = [
        line
        for line in text.splitlines()
        if line and not line.startswith(("#", "NodeName", "PartitionName"))
    ]
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), "a setting stands twice"
    return dict(pairs)


def lines_of(text: str, key: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(key)]


def test_each_node_has_its_port_its_gpus_by_type_and_its_features():
    conf = settings.files(SITE, GPUS, NAMES, AROUND)["slurm.conf"]
    where = "NodeHostname=localhost NodeAddr=127.0.1.1"
    assert lines_of(conf, "NodeName") == [
        (
            f"NodeName=l1 {where} Port=20001 CPUs=16 RealMemory=128000 Gres=gpu:l4:3,gpu:h200:1 "
            "Feature=gpu_mem_24g,near"
        ),
        (
            f"NodeName=l2 {where} Port=20777 CPUs=16 RealMemory=128000 Gres=gpu:l4:3,gpu:h200:1 "
            "Feature=gpu_mem_24g,near"
        ),
        f"NodeName=t1 {where} Port=20003 CPUs=8 RealMemory=32000 Gres=gpu:2 Feature=t4",
        f"NodeName=c1 {where} Port=20004 CPUs=64 RealMemory=256000",
    ]


def test_every_gpu_of_a_node_has_a_device_of_its_own():
    conf = settings.files(SITE, GPUS, NAMES, AROUND)["gres.conf"]
    assert conf.splitlines()[1:] == [
        "AutoDetect=off",
        "NodeName=l1 Name=gpu Type=l4 File=/tmp/lab/dev/nvidia[0-2]",
        "NodeName=l1 Name=gpu Type=h200 File=/tmp/lab/dev/nvidia3",
        "NodeName=l2 Name=gpu Type=l4 File=/tmp/lab/dev/nvidia[0-2]",
        "NodeName=l2 Name=gpu Type=h200 File=/tmp/lab/dev/nvidia3",
        "NodeName=t1 Name=gpu File=/tmp/lab/dev/nvidia[0-1]",
    ]
    assert settings.device_count(SITE) == 4


def test_partitions_list_their_nodes_and_an_empty_one_is_allowed():
    conf = settings.files(SITE, GPUS, NAMES, AROUND)["slurm.conf"]
    assert lines_of(conf, "PartitionName") == [
        "PartitionName=gpu Nodes=l1,l2 Default=YES MaxTime=2-00:00:00 State=UP",
        "PartitionName=all Nodes=l1,l2,t1,c1 MaxTime=UNLIMITED State=UP",
        "PartitionName=empty MaxTime=UNLIMITED State=UP",
    ]


def test_everything_stays_in_the_folder_and_belongs_to_the_user():
    conf = settings_of(settings.files(SITE, GPUS, NAMES, AROUND)["slurm.conf"])
    assert {conf["SlurmUser"], conf["SlurmdUser"]} == {"ada"}
    paths = {
        key: value
        for key, value in conf.items()
        if key.endswith(("File", "Dir", "Location")) or key == "AuthInfo"
    }
    assert len(paths) == 7
    assert all(value.removeprefix("socket=").startswith("/tmp/lab/") for value in paths.values())


def test_a_job_that_names_no_memory_gets_the_poorest_nodes_share_per_cpu():
    conf = settings_of(settings.files(SITE, GPUS, NAMES, AROUND)["slurm.conf"])
    assert conf["DefMemPerCPU"] == "4000"


def test_the_daemons_listen_on_loopback_only_where_the_host_name_is_loopback():
    inside = settings_of(settings.files(SITE, GPUS, NAMES, AROUND)["slurm.conf"])
    assert inside["CommunicationParameters"] == "NoCtldInAddrAny,NoInAddrAny"
    assert inside["SlurmctldHost"] == "localhost(127.0.1.1)"
    outside = settings.files(
        SITE, GPUS, NAMES, replace(AROUND, address="127.0.0.1", loopback_only=False)
    )
    assert "CommunicationParameters" not in settings_of(outside["slurm.conf"])


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ((22, 5), "cgroup/v1"),
        ((23, 2), "cgroup/v1"),
        ((23, 11), "cgroup/v1"),
        ((24, 5), "disabled"),
        ((25, 11), "disabled"),
    ],
)
def test_cgroups_are_off_in_the_words_of_each_release(version, plugin):
    conf = settings.files(SITE, GPUS, NAMES, replace(AROUND, version=version))["cgroup.conf"]
    assert settings_of(conf) == {"CgroupPlugin": plugin}


def test_no_setting_is_used_that_some_supported_release_lacks():
    # switch/none, task/none, mpi/none and accounting_storage/none left Slurm's sources after 23.02.
    text = "".join(settings.files(SITE, GPUS, NAMES, ACCOUNTING).values())
    assert "/none" not in text


def prologue(tmp_path: Path, **environ: str) -> dict[str, str]:
    script = tmp_path / "task_prolog.sh"
    script.write_text(settings.files(SITE, GPUS, NAMES, AROUND)["task_prolog.sh"])
    said = subprocess.run(
        ["sh", script], env=environ, capture_output=True, text=True, check=True
    ).stdout
    return dict(line.removeprefix("export ").split("=", 1) for line in said.splitlines())


def test_a_job_with_gpus_finds_stand_ins_of_its_node_held_to_their_memory(tmp_path):
    found = prologue(tmp_path, SLURMD_NODENAME="t1", CUDA_VISIBLE_DEVICES="1", PYTHONPATH="/mine")
    assert found["XMEM_DEVICE_NAME"] == GPUS["any"].cuda_name
    assert (
        found["XMEM_DEVICE_LIMIT_BYTES"]
        == found["XMEM_DEVICE_TOTAL_BYTES"]
        == str(GPUS["any"].total_bytes)
    )
    assert found["XMEM_DEVICE_COUNT"] == "2"
    assert found["PYTHONPATH"].endswith("/probe:/mine")


def test_a_job_without_gpus_finds_its_cluster_and_nothing_else(tmp_path):
    assert prologue(tmp_path, SLURMD_NODENAME="t1") == {"SLURM_CONF": "/tmp/lab/slurm.conf"}
    assert set(prologue(tmp_path, SLURMD_NODENAME="c1", CUDA_VISIBLE_DEVICES="0")) == {"SLURM_CONF"}


def test_accounting_is_asked_for_or_absent():
    without = settings.files(SITE, GPUS, NAMES, AROUND)
    assert "slurmdbd.conf" not in without
    assert not [key for key in settings_of(without["slurm.conf"]) if key.startswith("Accounting")]

    with_it = settings.files(SITE, GPUS, NAMES, ACCOUNTING)
    conf = settings_of(with_it["slurm.conf"])
    database = settings_of(with_it["slurmdbd.conf"])
    assert conf["AccountingStoragePort"] == database["DbdPort"] == "20005"
    assert conf["AccountingStorageTRES"] == "gres/gpu,gres/gpu:h200,gres/gpu:l4"
    assert conf["AccountingStoragePass"] == "/tmp/lab/run/munge.socket"
    assert (database["StoragePort"], database["StoragePass"]) == ("20006", "sesame")
    assert "sesame" not in with_it["slurm.conf"]


def test_a_name_that_a_template_misspells_is_an_error(tmp_path, monkeypatch):
    real = resources.tree("templates") / "lab"
    (tmp_path / "lab").mkdir()
    for template in real.iterdir():
        (tmp_path / "lab" / template.name).write_text(template.read_text())
    broken = tmp_path / "lab" / "slurm.conf.j2"
    broken.write_text(broken.read_text().replace("{{ user }}", "{{ usr }}"))
    monkeypatch.setattr(resources, "tree", lambda name: tmp_path)
    with pytest.raises(UsageError, match=r"slurm\.conf\.j2: line \d+: 'usr' is undefined"):
        settings.files(SITE, GPUS, NAMES, AROUND)
