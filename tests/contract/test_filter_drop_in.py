"""sbatch with the site's filter in it is sbatch: what the filter changes of an odd job is what it
says, and no other field of it.

Each job is submitted held, with the filter off and with an answer that is the same for all; then
`scontrol show job` must agree but for the GPU."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, Cluster, running_lab
from tests.contract.odd_jobs import CASES, Case
from tests.contract.test_drop_in import AROUND, SPELLINGS, Outcome, Place
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_site

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow(
        covers=[
            "xmem_slurm/filter/*",
            "xmem_slurm/slurm/*",
            "xmem_slurm/rewriting/*",
            "templates/hooks/*",
            "tests/contract/odd_jobs.py",
        ]
    ),
]

FORCED = [sys.executable, "-I", str(Path(__file__).with_name("forced_filter.py")), "l4"]
GPU_FIELDS = {"TresPerNode", "TresPerJob", "TresPerTask"}
ASKING = [case for case in CASES if "gpu:a100_40:1" in f"{case.script!r}{case.argv}{case.environ}"]
FEWER = ASKING[::3]
"""Each takes two submissions: all that there are would take minutes."""
OWN = "xmem-slurm: "


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    site_file = tmp_path_factory.mktemp("site") / "site.toml"
    table = '\n[filter]\nmode = "rewrite"\nseconds = 200\n'
    site_file.write_text(EXAMPLE_SITE.read_text() + table)
    rendered = hooks.render(site_file, load_site(site_file), FORCED)
    with running_lab(site_file, rendered) as cluster:
        yield cluster


@pytest.fixture
def place(tmp_path: Path, filtered: Cluster) -> Place:
    return Place(tmp_path, filtered)


def both(place: Place, case: Case) -> tuple[Outcome, Outcome]:
    """Submit it without the filter, and with it."""
    script = case.script if isinstance(case.script, bytes) else case.script.encode()
    (place.folder / "odd.sh").write_bytes(script)
    command = ["sbatch", "-H", *case.argv, *(() if case.stdin else ("odd.sh",))]
    stdin = script if case.stdin else b""
    theirs = place.submit(command, stdin, {**case.environ, "XMEM_OFF": "1"})
    ours = place.submit(command, stdin, case.environ)
    own = [line for line in ours.err.splitlines(keepends=True) if not line.startswith(OWN)]
    return theirs, ours._replace(err="".join(own))


@pytest.mark.parametrize("case", FEWER, ids=lambda case: case.label)
def test_nothing_but_the_gpu_of_an_odd_job_is_changed(case: Case, place: Place) -> None:
    theirs, ours = both(place, case)
    assert ours._replace(jobs=[]) == theirs._replace(jobs=[])
    for before, after in zip(theirs.jobs, ours.jobs, strict=True):
        differing = {name for name in before | after if before.get(name) != after.get(name)}
        assert differing <= GPU_FIELDS
        assert all(":l4:" in after[name] for name in differing)
        asks = "gpu" in before.get("TresPerNode", "")
        assert bool(differing) is (asks and len(theirs.jobs) == 1 and not case.stdin)


@pytest.mark.parametrize(("spelling", "field", "expected"), SPELLINGS)
def test_a_request_is_changed_however_it_is_spelled(
    spelling: str, field: str, expected: str, place: Place
) -> None:
    text = f"#!/bin/bash\n#SBATCH {AROUND}\n#SBATCH {spelling}\ntrue\n"
    theirs, ours = both(place, Case(spelling, text))
    (before,), (after,) = theirs.jobs, ours.jobs
    assert after[field] == expected
    differing = {name for name in before | after if before.get(name) != after.get(name)}
    assert differing <= GPU_FIELDS
    assert after["Comment"] == "a b"
