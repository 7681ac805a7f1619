"""What is submitted is read once, and so is each changed version of it that is read back to be
checked."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from xmem_slurm import trace_file
from xmem_slurm.cli import xsbatch
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.slurm import command_line, script
from xmem_slurm.slurm.options import Option
from xmem_slurm.submission import handover
from xmem_slurm.trace import File

PARSE, SPLIT = script.parse, command_line.split_command_line
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
PLAIN = "#!/bin/sh\n#SBATCH --time=1\ntrue\n"
GPU = "#!/bin/sh\n#SBATCH --gres=gpu:h200:1\npython train.py\n"
OTHERS = 3
"""GPU options of the site that the job does not ask for: when it would start there is asked of
Slurm."""


class Reads:
    """How often each script and each command line was read."""

    def __init__(self) -> None:
        self.scripts, self.command_lines = Counter[str](), Counter[str]()

    def parse(self, data: bytes, plugins: tuple[Option, ...] = ()) -> script.Script:
        self.scripts[data.decode()] += 1
        return PARSE(data, plugins)

    def split_command_line(
        self, argv: Sequence[str], extra: Sequence[Option] = ()
    ) -> command_line.CommandLine:
        self.command_lines[" ".join(argv)] += 1
        return SPLIT(argv, extra)


@pytest.fixture(autouse=True)
def nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run is a trace, and nobody becomes sbatch."""
    ran = dataclasses.replace(GPT2, files=[File("A", 0, 0, str(tmp_path / "checkpoint.pt"))])

    def become(*_: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(handover, "become", become)
    # so would the tests that follow
    monkeypatch.setattr(handover, "die_of_broken_pipe", lambda: None)
    monkeypatch.setattr(runner, "run", lambda _order: DryRunResult([ran]))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("XMEM_SBATCH", "/bin/true")
    monkeypatch.setenv("XMEM_SITE", str(EXAMPLE_SITE))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("XMEM_ACTIVE", raising=False)
    monkeypatch.chdir(tmp_path)


def submit(monkeypatch: pytest.MonkeyPatch, text: str, *options: str) -> Reads:
    """Submit a script, and count what is read under whatever name the two readers were imported."""
    Path("job.sh").write_text(text)
    reads = Reads()
    with monkeypatch.context() as patches:
        patches.setattr(sys, "argv", ["xsbatch", *options, "job.sh"])
        for module in [
            module for name, module in sys.modules.items() if name.startswith("xmem_slurm.")
        ]:
            for name, value in list(vars(module).items()):
                if value in (PARSE, SPLIT):
                    patches.setattr(
                        module, name, reads.parse if value is PARSE else reads.split_command_line
                    )
        with pytest.raises(SystemExit):
            xsbatch.main()
    return reads


def test_a_job_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = submit(monkeypatch, PLAIN)
    assert reads.scripts == {PLAIN: 1}
    assert reads.command_lines == {"job.sh": 1}


def test_a_job_that_is_sized_and_then_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # and the one that is kept is taken apart
    for is_known, changed in ((False, OTHERS + 2), (True, 0)):
        reads = submit(monkeypatch, GPU)
        told = capsys.readouterr().err
        assert "--gres=gpu:h200:1 -> --gres=gpu:l4:1" in told
        assert ("known since" in told) == is_known
        assert reads.scripts.pop(GPU) == 1
        assert reads.scripts.total() == changed
        assert reads.command_lines.pop("job.sh") == 1
        (copy,) = reads.command_lines
        assert copy.endswith("/job.sh")
        assert reads.command_lines.total() == 1


def test_a_script_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = submit(monkeypatch, GPU, "--xmem-dry-run")
    shown = capsys.readouterr().out
    assert reads.scripts[GPU] == reads.scripts[shown] == 1
    assert reads.scripts.total() == 1 + OTHERS + len(
        ["rewritten", "with its record", "with its name"]
    )
    assert reads.command_lines == {"--xmem-dry-run job.sh": 1, "job.sh": 1, "SCRIPT": 1}
