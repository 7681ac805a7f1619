"""Data sets and weights that a job downloads, with the real torchvision: others of their form take
their place."""

import os
import subprocess
from pathlib import Path

import pytest

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.report.seen import seen_words
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=[
            "xmem_slurm/probe/*datasets*",
            "xmem_slurm/probe/*downloads*",
            "xmem_slurm/probe/*weights*",
            "xmem_slurm/probe/*network*",
        ]
    ),
]

H200 = load_catalogue()["h200"]

START = "import torch, torchvision, os\ntorch.zeros(1, device='cuda')\n"
EACH = (
    "assert (len(data), data[0][0].size, data[0][0].mode) == {shape}, (len(data), data[0][0])\n"
    "assert {{int(data[index][1]) for index in range(2000)}} == set(range({classes}))\n"
)
CIFAR = (
    "import pickle\n"
    "with open('data/cifar-10-batches-py/test_batch', 'rb') as file:\n"
    "    read = pickle.load(file, encoding='bytes')\n"
    "assert sorted(read) == [b'batch_label', b'data', b'filenames', b'labels']\n"
    "assert read[b'data'].shape == (10000, 3072)\n"
)


def run(folder: Path, python: Path, code: str, **environ: str) -> Trace:
    (folder / "train.py").write_text(START + code)
    environ |= {"HOME": str(folder), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    job = Job(b"#!/bin/bash\npython train.py\n", (), folder, environ)
    (trace,) = runner.run(DryRunOrder.of(job, H200, Budget(seconds=120))).traces
    return trace


@pytest.mark.parametrize(
    ("name", "shape", "classes", "title"),
    [
        ("MNIST", "(60000, (28, 28), 'L')", 10, "MNIST"),
        ("FashionMNIST", "(60000, (28, 28), 'L')", 10, "Fashion-MNIST"),
        ("CIFAR10", "(50000, (32, 32), 'RGB')", 10, "CIFAR-10"),
        ("CIFAR100", "(50000, (32, 32), 'RGB')", 100, "CIFAR-100"),
    ],
)
def test_what_torchvision_downloads(
    name: str, shape: str, classes: int, title: str, tmp_path: Path, job_python: Path
) -> None:
    code = f"data = torchvision.datasets.{name}('data', download=True)\n" + EACH.format(
        shape=shape, classes=classes
    )
    trace = run(tmp_path, job_python, code + (CIFAR if name == "CIFAR10" else ""))
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-data"] == [title]
    assert f"{title} is not on this machine" in seen_words(trace)
    # its shapes are published
    assert not any(title in reason for reason in estimate([trace], "h200", H200).reasons)
    assert not (tmp_path / "data").exists()


def test_a_split_without_labels_takes_no_disk(tmp_path: Path, job_python: Path) -> None:
    code = """
torchvision.datasets.STL10('data', 'train', download=True)
found = os.stat('data/stl10_binary/unlabeled_X.bin')
assert found.st_size == 100_000 * 27648 and found.st_blocks * 512 < 2**22, found
assert len(torchvision.datasets.STL10('data', 'test')) == 8000
"""
    assert run(tmp_path, job_python, code).error is None


def test_what_is_asked_for_otherwise(tmp_path: Path, job_python: Path) -> None:
    code = """
import gzip, requests, urllib.request
address = 'https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz'
urllib.request.urlretrieve(address, 'labels.gz')
with gzip.open('labels.gz') as file:
    assert len(file.read()) == 8 + 60000
assert requests.get(address).content == open('labels.gz', 'rb').read()
assert requests.head(address).headers['content-length'] == str(os.path.getsize('labels.gz'))
torch.hub.download_url_to_file(address, 'hub.gz')
assert os.path.getsize('hub.gz') == os.path.getsize('labels.gz')
"""
    assert run(tmp_path, job_python, code).error is None


@pytest.mark.parametrize("ask", ["urllib.request.urlopen", "requests.get"])
def test_anything_else_is_refused_as_it_was(ask: str, tmp_path: Path, job_python: Path) -> None:
    trace = run(
        tmp_path,
        job_python,
        f"import requests, urllib.request\n{ask}('http://nowhere.test/weights.pth')",
    )
    assert trace.error is not None
    assert "it had asked for" in trace.error
    assert "nowhere.test" in trace.error


def test_a_broken_file_that_is_there_is_not_taken_for_ours(
    tmp_path: Path, job_python: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz").write_bytes(b"broken")
    code = """
from torchvision.datasets.utils import check_integrity
assert not check_integrity('data/cifar-10-python.tar.gz', 'c58f30108f718f92721af3b95e74349a')
torchvision.datasets.CIFAR10('data', download=True)
assert check_integrity('data/cifar-10-python.tar.gz', 'c58f30108f718f92721af3b95e74349a')
"""
    assert run(tmp_path, job_python, code).error is None


def test_real_steps_on_the_cpu_are_told_of_it_too(tmp_path: Path, job_python: Path) -> None:
    code = """
data = torchvision.datasets.MNIST('data', download=True, transform=torchvision.transforms.ToTensor())
model = torch.nn.Linear(784, 10).cuda()
optimizer = torch.optim.SGD(model.parameters())
for images, labels in torch.utils.data.DataLoader(data, batch_size=64):
    torch.nn.functional.cross_entropy(model(images.cuda().flatten(1)), labels.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    trace = run(tmp_path, job_python, code, XMEM_ENGINE="profile")
    assert {"profile-engine", "stand-in-data"} <= {doubt.code for doubt in trace.doubts}


def test_a_second_python_of_the_job_takes_it_too(tmp_path: Path, job_python: Path) -> None:
    code = """
import subprocess, sys
made = "import torch, torchvision; torchvision.datasets.CIFAR10('data', download=True)"
subprocess.run([sys.executable, '-c', made], check=True)
assert len(torchvision.datasets.CIFAR10('data')) == 50000
"""
    (tmp_path / "train.py").write_text(START + code)
    environ = {"HOME": str(tmp_path), "PATH": f"{job_python.parent}:{os.environ['PATH']}"}
    job = Job(b"#!/bin/bash\npython train.py\n", (), tmp_path, environ)
    (trace,) = [
        each
        for each in runner.run(DryRunOrder.of(job, H200, Budget(seconds=120))).traces
        if each.allocations
    ]
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-data"] == ["CIFAR-10"]


WEIGHTS = {
    "torchvision's own": "model = torchvision.models.resnet18(weights='DEFAULT')\n",
    "with a backbone, for other classes": (
        "model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights='DEFAULT')\n"
        "assert model.roi_heads.box_predictor.cls_score.out_features == 91\n"
        "torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone='DEFAULT', "
        "num_classes=3)\n"
    ),
    "for a size of its own": "model = torchvision.models.vit_b_16(weights='IMAGENET1K_SWAG_E2E_V1')\n",
    "by an address that a script has copied": (
        "model = torchvision.models.resnet50()\n"
        "address = 'https://download.pytorch.org/models/resnet50-19c8e357.pth'\n"
        "state = torch.hub.load_state_dict_from_url(address, map_location='cuda')\n"
        "assert {each.device.type for each in state.values()} == {'cuda'}\n"
        "from torch.utils import model_zoo\n"
        "state = model_zoo.load_url(address)\n"
        "del state['fc.weight'], state['fc.bias']\n"
        "assert set(model.load_state_dict(state, strict=False).missing_keys) == {'fc.weight', "
        "'fc.bias'}\n"
    ),
}


@pytest.mark.parametrize("way", WEIGHTS)
def test_weights_of_models_whose_code_is_here(way: str, tmp_path: Path, job_python: Path) -> None:
    trace = run(tmp_path, job_python, WEIGHTS[way] + "model.cuda()\n")
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-weights"]
    assert "are not on this machine" in " ".join(estimate([trace], "h200", H200).reasons)


def test_weights_of_a_model_that_is_not_known_are_refused(tmp_path: Path, job_python: Path) -> None:
    trace = run(
        tmp_path,
        job_python,
        "torch.hub.load_state_dict_from_url('https://nowhere.test/own-0123abcd.pth')",
    )
    assert "nowhere.test" in str(trace.error)


def test_a_model_of_timm_keeps_what_it_has(tmp_path: Path, job_python: Path) -> None:
    if subprocess.run(
        [job_python, "-c", "import importlib.util as u; u.find_spec('timm').name"], check=False
    ).returncode:
        pytest.skip("the job's Python has no timm")
    trace = run(
        tmp_path,
        job_python,
        "import timm\ntimm.create_model('resnet18', pretrained=True, num_classes=7).cuda()",
    )
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-weights"] == [
        "ResNet"
    ]
