"""Reports: the lines that a person reads and the object that a program reads say the same."""

import json
from pathlib import Path

from xmem_slurm import resources, trace
from xmem_slurm.estimate import estimate
from xmem_slurm.placement import Placement, Verdict
from xmem_slurm.report import json as json_report
from xmem_slurm.report import terminal
from xmem_slurm.rewrite import Change
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing import Sizing

GPUS = option_gpus(load_site(resources.tree("site-config") / "example.toml"), load_catalogue())
GPT2 = trace.read(Path(__file__).parents[1] / "data" / "gpt2-small.json.gz")
FITS = {"l4": True, "a100_40": None, "a100_80": None, "h200": None}
SIZING = Sizing(
    estimate([GPT2], "l4", GPUS["l4"]),
    Placement([Verdict(name, GPUS[name], fits) for name, fits in FITS.items()], "l4"),
    8.25,
)


def test_the_object_has_everything_that_the_schema_names(tmp_path: Path) -> None:
    json_report.write(tmp_path / "report.json", SIZING)
    found = json.loads((tmp_path / "report.json").read_text())
    rank = found["ranks"][0]
    assert found["schema_version"] == 1
    assert (found["engine"], found["torch_version"], found["gpu"]) == ("device", "2.11.0+cu130", "l4")
    assert rank["peak_reserved_bytes"] == 15_252_586_496
    assert rank["required_bytes"] == found["required_bytes"]
    assert found["required_bytes"] == 15_252_586_496 + rank["outside_allocator_bytes"] + found["margin_bytes"]
    assert sum(rank["breakdown"].values()) == rank["peak_allocated_bytes"]
    assert list(rank["breakdown"]) == ["PARAM", "BUFFER", "GRAD", "ACT", "TEMP", "OPT", "OTH"]
    assert (rank["steps"], rank["growing"]) == (3, False)
    assert found["confidence"] == {"level": "high", "reasons": []}
    assert [(option["name"], option["fits"]) for option in found["options"]] == list(FITS.items())
    assert (found["choice"], found["wall_seconds"]) == ("l4", 8.25)
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_the_lines_are_few_and_begin_with_the_answer() -> None:
    change = Change("gres", "gpu:h200:1", "gpu:l4:1", "line 3 of the script")
    lines = [*terminal.estimate_lines(SIZING.estimate), terminal.outcome([change], SIZING)]
    assert lines == [
        "GPU memory needed: 15.12 GiB = 14.21 GiB peak + 640.00 MiB CUDA context + 292.00 MiB margin",
        (
            "at the peak: activations 8.14 GiB, temporary 3.07 GiB, optimizer state 963.40 MiB, parameters 475.46 MiB,"
            " other 65.06 MiB"
        ),
        "confidence high: 3 optimizer steps seen",
        (
            "--gres=gpu:h200:1 -> --gres=gpu:l4:1 (line 3 of the script): 15.12 GiB of GPU memory needed; l4 has 21.95"
            " GiB, the cheapest of 4 options that fits [--xmem-keep-type keeps a type you wrote]"
        ),
    ]


def test_every_option_has_a_line() -> None:
    assert [line.split()[0] for line in terminal.option_lines(SIZING.placement)] == list(FITS)


def test_a_job_too_large_for_every_option_is_told_so() -> None:
    nowhere = Sizing(SIZING.estimate, Placement([Verdict("l4", GPUS["l4"], False)], None), 1.0)
    assert "no GPU option open to this job is large enough; the largest has 21.95 GiB" in terminal.nothing_fits(nowhere)
    assert "no nodes for this partition" in terminal.nothing_fits(Sizing(SIZING.estimate, Placement([], None), 1.0))
