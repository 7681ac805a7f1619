"""Templates: a site can put its own before any of ours, and a mistake in one is named by file and
line."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xmem_slurm import resources, trace_file
from xmem_slurm.errors import UsageError
from xmem_slurm.filter import hooks
from xmem_slurm.generate import templates
from xmem_slurm.lab import settings
from xmem_slurm.report import html
from xmem_slurm.rewriting.rewrite import rewrite
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission

EXAMPLE = resources.tree("site-config") / "example.toml"
SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
AROUND = settings.Surroundings(
    Path("/lab"), "me", "127.0.0.1", True, {"slurmctld": 1}, "22.05.8", (22, 5), False, ""
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "ours").mkdir()
    (tmp_path / "site.toml").write_text(
        EXAMPLE.read_text().replace("[policy]", 'templates = "ours"\n\n[policy]', 1)
    )
    return load_site(tmp_path / "site.toml")


def own(site: Site, name: str, text: str) -> None:
    assert site.templates is not None
    path = site.templates / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def rewritten(site: Site, script: bytes) -> bytes:
    job, _ = rewrite(
        Submission(("job.sh",), {}, script), site.option["l4"], "because", templates=site.templates
    )
    assert job.script is not None
    return job.script


SCRIPT = b"""#!/bin/bash
#SBATCH --gres=gpu:h200:1
set -eu
srun python3 train.py "$@"
"""


def test_the_folder_stands_beside_the_site_file(site: Site, tmp_path: Path) -> None:
    assert site.templates == tmp_path / "ours"


def test_a_site_adds_a_preamble_to_every_changed_script(site: Site, tmp_path: Path) -> None:
    own(site, "batch.sh.j2", "{{ head }}# {{ record }}\nexport SITE={{ 1 + 1 }}\n{{ body -}}\n")
    text = rewritten(site, SCRIPT)
    assert b"#SBATCH --gres=gpu:l4:1\n# xmem-slurm " in text
    assert text.endswith(b'\nexport SITE=2\nset -eu\nsrun python3 train.py "$@"\n')


def test_a_changed_script_is_clean_for_shellcheck(site: Site, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(rewritten(site, SCRIPT))
    done = subprocess.run(
        [SHELLCHECK, tmp_path / "job.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_labs_prolog_is_clean_for_shellcheck(site: Site, tmp_path: Path) -> None:
    names = [[f"n{index}"] for index, _ in enumerate(site.nodes)]
    around = dataclasses.replace(
        AROUND, ports={"slurmctld": 1, **{f"slurmd.{name}": 2 for (name,) in names}}
    )
    files = settings.files(site, option_gpus(site, load_catalogue()), names, around)
    (tmp_path / "prolog.sh").write_text(files["task_prolog.sh"])
    done = subprocess.run(
        [SHELLCHECK, tmp_path / "prolog.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_hooks_lab_files_and_job_templates_too(site: Site, tmp_path: Path) -> None:
    own(site, "hooks/cli_filter.lua.j2", "-- {{ site | lua }}\n")
    own(site, "lab/cgroup.conf.j2", "CgroupPlugin={{ cgroup_plugin }} # ours\n")
    own(site, "jobs/plain.sh.j2", '{#-\nabout = "Ours."\n-#}\n#!/bin/bash\n{{ command }}\n')
    assert hooks.render(tmp_path / "site.toml", site)["cli_filter.lua"] == '-- "example"\n'
    files = settings.files(
        site, option_gpus(site, load_catalogue()), [[] for _ in site.nodes], AROUND
    )
    assert files["cgroup.conf"].endswith("# ours\n")
    template = templates.find("plain", templates.folders(None, site.templates))
    assert (template.about, template.path) == ("Ours.", tmp_path / "ours" / "jobs" / "plain.sh.j2")


def test_the_users_job_templates_go_before_the_sites(site: Site, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for folder, about in ((mine, "Mine."), (site.templates, "Ours.")):
        own(
            site.model_copy(update={"templates": folder}),
            "plain.sh.j2",
            f'{{#-\nabout = "{about}"\n-#}}\n',
        )
    own(site, "jobs/plain.sh.j2", '{#-\nabout = "Ours."\n-#}\n')
    assert templates.find("plain", templates.folders(mine, site.templates)).about == "Mine."


def test_the_report_too(site: Site, tmp_path: Path) -> None:
    own(site, "report/report.css", "body { color: teal }")
    gpu = option_gpus(site, load_catalogue())["l4"]
    sized = Sizing(
        estimate([GPT2], "l4", gpu), Placement([Verdict("l4", gpu, fits=True)], "l4"), 0.0
    )
    html.write(tmp_path / "report.html", sized, site.templates)
    assert "<style>\nbody { color: teal }" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ head }}\n{% if %}\n", "batch.sh.j2: line 2: Expected an expression"),
        ("{{ head }}\n\n{{ bodi }}\n", "batch.sh.j2: line 3: 'bodi' is undefined"),
        ("{{ head }}\n{{ 1 / 0 }}", "batch.sh.j2: line 2: division by zero"),
        ("{% include 'nothing' %}", "nothing: no such template in"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(site: Site, text: str, told: str) -> None:
    own(site, "batch.sh.j2", text)
    with pytest.raises(UsageError) as caught:
        rewritten(site, SCRIPT)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["{{ ''.__class__.__mro__ }}", "{{ commands.append(1) or cycler.__init__.__globals__ }}"],
)
def test_a_users_template_reaches_nothing_but_its_values(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.sh.j2").write_text(f'{{#-\nabout = "Odd."\n-#}}\n{text}\n')
    template = templates.find("odd", templates.folders(tmp_path))
    with pytest.raises(UsageError, match=r"odd\.sh\.j2: line \d+: access to attribute"):
        templates.render(template, {}, [["true"]])
