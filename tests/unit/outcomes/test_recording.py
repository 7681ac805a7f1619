"""What is recorded of whose jobs, what goes with the job for it, and what is submitted beside
it."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sizing.test_sizing import GPT2, GPUS, SITE
from xmem_slurm.decision import Decision, Kind, Retry
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.outcomes.prediction import Prediction, parse
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.services import service
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers, by_sizing, recording, retrying, submit
from xmem_slurm.submission.answer import Wishes

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:h200:1\n# more\npython train.py\n"
WRITTEN = Submission(("job.sh", "a"), {"PATH": "/bin"}, SCRIPT)
READY = WRITTEN.but(script=SCRIPT.replace(b"h200", b"l4"))
PREDICTED = Prediction(gpu="NVIDIA L4", reserved_bytes=7, unseen=["nccl"], promise=0.9)
DECIDED = Decision(Kind.REWRITTEN, WRITTEN, READY, prediction=PREDICTED)
YES = Wishes(record=True)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "xmem-slurm" / "outcomes"


def site(folder: Path, text: str) -> Decision:
    (folder / "site.toml").write_text(text)
    environ = {**WRITTEN.environ, "XMEM_SITE": str(folder / "site.toml")}
    return DECIDED._replace(written=WRITTEN.but(environ=environ), ready=READY.but(environ=environ))


def test_the_recorder_and_the_prediction_go_in_the_job_s_environment(state: Path) -> None:
    ready = recording.recorded(
        DECIDED._replace(ready=READY.but(environ={"PYTHONPATH": "/own"})), YES
    ).ready
    assert ready.environ["PYTHONPATH"] == f"{recording.RECORDER}{os.pathsep}/own"
    assert (recording.RECORDER / "sitecustomize.py").is_file()
    assert ready.environ["XMEM_RECORD_TO"] == str(state)
    content = json.loads(ready.environ["XMEM_PREDICTION"])
    predicted = parse(content)
    assert predicted._replace(script="", run="", asked=(), given=()) == PREDICTED._replace(
        asked=(), given=()
    )
    assert (predicted.asked, predicted.given) == (["gpu:h200:1"], ["gpu:l4:1"])
    assert not {"train.py", "job.sh", "a"} & {str(value) for value in content.values()}
    assert "XMEM_SUMMARY" not in ready.environ
    assert recording.recorded(DECIDED, Wishes(summary=True)).ready.environ["XMEM_SUMMARY"] == "1"


def test_nobody_is_recorded_who_did_not_ask_for_it(state: Path) -> None:
    assert recording.recorded(DECIDED, Wishes()) is DECIDED
    left = DECIDED._replace(kind=Kind.LEFT_ALONE)
    assert recording.recorded(left, YES) is left
    assert not state.exists()


@pytest.mark.parametrize(
    ("table", "wishes", "wanted"),
    [
        ("record = true", Wishes(), True),
        ("record = true", Wishes(record=False), False),
        ("record = true\nshare_of_users = 0", Wishes(), False),
        ("record = 'yes'", Wishes(), False),
        ("record = true\nshare_of_users = 'half'", Wishes(), False),
        ("", YES, True),
    ],
)
def test_a_site_records_where_its_users_do_not_say_otherwise(
    tmp_path: Path, table: str, wishes: Wishes, wanted: bool
) -> None:
    decision = site(tmp_path, f"[outcomes]\n{table}\nspool = '{tmp_path}'\n")
    environ = recording.recorded(decision, wishes).ready.environ
    assert ("XMEM_RECORD_TO" in environ) is wanted
    assert not wanted or environ["XMEM_RECORD_TO"].endswith(f"{os.pathsep}{tmp_path}")


def test_a_sample_of_a_site_s_jobs_goes_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = site(tmp_path, "[outcomes]\nrecord = true\nas_written = 0.25\n")
    monkeypatch.setattr("random.random", lambda: 0.24)
    sampled = recording.sampled(decision, Wishes())
    assert (sampled.ready, sampled.lines[-1][:20]) == (decision.written, "submitted as written")
    assert sampled.prediction is not None
    assert sampled.prediction.sampled
    assert recording.sampled(decision, Wishes(record=False)) is decision  # it would teach nothing
    monkeypatch.setattr("random.random", lambda: 0.25)
    assert recording.sampled(decision, Wishes()) is decision


def test_it_is_said_where_the_recorder_cannot_reach_the_job() -> None:
    for export, said in (("NONE", True), ("ALL,X=1", False), ("PATH", True)):
        job = WRITTEN.but(argv=(f"--export={export}", *WRITTEN.argv))
        lines = recording.recorded(Decision(Kind.FITS, job, job), YES).lines
        assert bool(lines) is said
        assert all(f"--export={export}" in each for each in lines)


def test_a_folder_that_others_can_write_in_costs_no_job(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o777)
    decision = recording.recorded(DECIDED, YES)
    assert decision.ready == READY
    assert decision.lines[0].startswith("what it uses is not recorded: ")


def test_a_kept_decision_has_its_prediction_and_its_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    retry = READY.but(script=SCRIPT.replace(b"h200", b"a100"), environ={**READY.environ, "X": "1"})
    own = PREDICTED._replace(gpu="NVIDIA A100", asked=[], given=[])
    answers.keep_decision("k", DECIDED._replace(retries=[Retry(retry, own), Retry(retry)]), [])
    kept = answers.look_up("k", WRITTEN)
    assert kept is not None
    assert kept.prediction == PREDICTED._replace(asked=[], given=[])
    assert kept.retries == (Retry(retry, own), Retry(retry, None))


def sized_on(name: str) -> Sizing:
    """GPT-2, for which the option of this name was chosen; all others were not asked."""
    fits = ((each, True if each == name else None) for each in GPUS if each not in ("shard", "mps"))
    verdicts = [Verdict(each, GPUS[each], known) for each, known in fits]
    return Sizing(estimate([GPT2], name, GPUS[name]), Placement(verdicts, name), 1.0)


def test_a_retry_has_the_prediction_for_its_own_gpu_or_none() -> None:
    """A dry run on an A100 of 40 GB speaks for one of 80 GB, not for other compute capabilities."""
    sized = sized_on("a100_40")
    retries = by_sizing._larger(WRITTEN, Premises(SITE, GPUS, Budget()), sized, 5)
    of_gpu = {each.ready.request.components[0].gpu_types[0]: each.prediction for each in retries}
    assert of_gpu.keys() == {"a100_80", "h200"}
    assert of_gpu["a100_80"] is not None
    assert of_gpu["a100_80"].gpu == GPUS["a100_80"].cuda_name
    assert of_gpu["a100_80"].capability == "8.0"
    assert of_gpu["a100_80"].reserved_bytes == 15_252_586_496
    assert of_gpu["h200"] is None


def test_what_a_retry_uses_is_held_against_its_own_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never goes with the prediction of the job for whose failure it is there."""
    given: list[Submission] = []

    def submitted(_: Path, __: Submission, others: Sequence[Submission], ___: object) -> int:
        given.extend(others)
        return 0

    monkeypatch.setattr(retrying, "submit", submitted)
    own = PREDICTED._replace(gpu="NVIDIA A100", capability="8.0", reserved_bytes=9)
    decision = DECIDED._replace(retries=[Retry(READY, own), Retry(READY)])
    with pytest.raises(SystemExit):
        submit._retry(Path("sbatch"), decision, YES)
    predicted = [parse(json.loads(each.environ["XMEM_PREDICTION"])) for each in given]
    assert [(each.gpu, each.capability, each.reserved_bytes) for each in predicted] == [
        ("NVIDIA A100", "8.0", 9),
        ("", "", 0),
    ]
    assert all(each.run and each.given for each in predicted)


def test_a_retry_begins_if_the_job_fails_and_goes_on_if_that_ran_out(state: Path) -> None:
    job = retrying.after(READY, ["7", "8"])
    assert job.argv[-2:] == ("/dev/stdin", "a")
    assert {"--dependency=afternotok:7:8", "--kill-on-invalid-dep=yes", "--job-name=job.sh"} <= set(
        job.argv
    )
    assert job.script is not None
    head, _, body = job.script.partition(
        b"# xmem-slurm: for the case that job 8 ran out of GPU memory\n"
    )
    assert head == b"#!/bin/bash\n#SBATCH --gres=gpu:l4:1\n"
    assert f"{state}/*.jsonl".encode() in body
    assert body.endswith(b"# more\npython train.py\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"retries": []},
        {"ready": READY.but(script=b"#!/usr/bin/python3\n#SBATCH --gres=gpu:l4:1\n")},
        {"written": WRITTEN.but(argv=("--array=1-3", *WRITTEN.argv))},
        {"written": WRITTEN.but(argv=("--wait", *WRITTEN.argv))},
        {"written": WRITTEN.but(argv=("-Q", *WRITTEN.argv))},
        {"ready": READY.but(argv=("--wrap=x",), script=None)},
    ],
)
def test_where_no_retry_can_be_made_that_is_said(changes: dict[str, Any]) -> None:
    decision = DECIDED._replace(retries=[Retry(READY)])
    assert retrying.why_not(decision) is None
    assert retrying.why_not(decision._replace(**changes)) is not None


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (
            "#!/bin/sh\npython -m distributed.cli.dask_worker tcp://1 --nthreads 1\n",
            "distributed.cli.dask_worker",
        ),
        ("srun dask cuda worker tcp://1\nwait\n", "dask cuda worker"),
        ("if x; then\n  ray start --block \\\n    --address=a\nfi\n# end\n", "ray start"),
        ("ray start --head\nsleep 10\npython train.py\n", None),
        (
            "CMD() {\nprocess_worker_pool.py -a h\n}\nfor i in 1; do\nCMD $i &\ndone\nwait\nexit $i\n",
            "process_worker_pool.py",
        ),
        ("cat << EOF > cmd.sh\nvine_worker -M m \nEOF\nsrun bash cmd.sh\n", "vine_worker"),
        ("python train.py\n# process_worker_pool.py is started elsewhere\n", None),
        ("jupyter lab --no-browser", "jupyter lab"),
        ("jupyter nbconvert --execute train.ipynb", None),
        ("exec /opt/bin/code-server --port 1\n", "code-server"),
        ("python train.py\necho jupyter lab is over\n", None),
        ("python train.py  # not jupyter\n", None),
        ("", None),
    ],
)
def test_a_worker_or_a_server_is_known_by_the_last_command(text: str, program: str | None) -> None:
    assert service(text) == program
