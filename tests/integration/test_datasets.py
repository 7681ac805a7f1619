"""Data sets that a job downloads, with the real torchvision: stand-ins of their form take their place, and are told."""

import os
from pathlib import Path

import pytest

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.job import Job
from xmem_slurm.estimate import estimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace import Trace

pytestmark = pytest.mark.torch

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


def run(folder: Path, python: Path, code: str, seconds: float = 120) -> Trace:
    (folder / "train.py").write_text(START + code)
    environ = {"HOME": str(folder), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    job = Job(b"#!/bin/bash\npython train.py\n", (), folder, environ)
    (trace,) = runner.run(job, H200, runner.Budget(seconds=seconds)).traces
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
    code = f"data = torchvision.datasets.{name}('data', download=True)\n" + EACH.format(shape=shape, classes=classes)
    trace = run(tmp_path, job_python, code + (CIFAR if name == "CIFAR10" else ""))
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-data"] == [title]
    assert f"{title} is not on this machine" in " ".join(estimate([trace], "h200", H200).reasons)
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
    trace = run(tmp_path, job_python, f"import requests, urllib.request\n{ask}('http://nowhere.test/weights.pth')")
    assert trace.error is not None
    assert "it had asked for" in trace.error
    assert "nowhere.test" in trace.error


def test_a_broken_file_that_is_there_is_not_taken_for_ours(tmp_path: Path, job_python: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz").write_bytes(b"broken")
    code = """
from torchvision.datasets.utils import check_integrity
assert not check_integrity('data/cifar-10-python.tar.gz', 'c58f30108f718f92721af3b95e74349a')
torchvision.datasets.CIFAR10('data', download=True)
assert check_integrity('data/cifar-10-python.tar.gz', 'c58f30108f718f92721af3b95e74349a')
"""
    assert run(tmp_path, job_python, code).error is None


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
    (trace,) = [each for each in runner.run(job, H200, runner.Budget(seconds=120)).traces if each.allocations]
    assert trace.error is None
    assert [doubt.detail for doubt in trace.doubts if doubt.code == "stand-in-data"] == ["CIFAR-10"]
