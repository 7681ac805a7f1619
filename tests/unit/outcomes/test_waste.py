"""GPU hours: what other sources say of jobs, and the sums, equal to a hand count."""

import base64
import gzip
import json

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.outcomes.test_outcomes import OOM, line, written
from xmem_slurm.cli import outcomes
from xmem_slurm.errors import UsageError
from xmem_slurm.outcomes import sources, waste
from xmem_slurm.report import waste as report
from xmem_slurm.site import loading
from xmem_slurm.units import GIB

SITE = loading.load_site(EXAMPLE_SITE)
GPUS = loading.option_gpus(SITE, loading.load_catalogue())


def of_sacct(*rows: str) -> str:
    """Return sacct's answer; jobs that name no folder ran in the same."""
    in_folder = (f"{row}|/home" if row.count("|") > 1 and "|/" not in row else row for row in rows)
    whole = (f"{row}|" if row.count("|") == 9 else row for row in in_folder)
    return "".join(row.replace("|", "\x1f") + "\n" for row in whole)


def summary(*used: int) -> str:
    """What jobstats leaves in AdminComment."""
    nodes = {
        f"n{n}": {"gpu_used_memory": {"0": size}, "gpu_total_memory": {"0": 80 * GIB}}
        for n, size in enumerate(used)
    }
    content = json.dumps({"gpus": len(used), "nodes": nodes}).encode()
    return "JS1:" + base64.b64encode(gzip.compress(content)).decode()


def test_sacct_and_jobstats_say_what_was_taken_of_a_gpu_as_far_as_they_can() -> None:
    found = sources.parse(
        of_sacct(
            "7|7|ada|train|COMPLETED|3600|billing=1,cpu=1,gres/gpu:l4=1,gres/gpu=1||||",
            "7|7|ada|train|COMPLETED|3600|billing=1,cpu=1,gres/gpu:l4=1,gres/gpu=1||",
            "7.batch|7.batch|||COMPLETED|3600||cpu=0,gres/gpumem=2048M,gres/gpuutil=90|",
            "7.0|7.0|||COMPLETED|3600||gres/gpumem=3G|",
            "8|8|ada|two|COMPLETED|60|gres/gpu=2||",
            "8.batch|8.batch|||COMPLETED|60||gres/gpumem=30G|",  # of which of the two?
            "9|9_3|bob|mig|CANCELLED by "
            f"0|60|gres/gpu:h200=2,gres/gpu=2||{summary(5 * GIB, 9 * GIB)}",
            "9.batch|9_3.batch|||CANCELLED|60||gres/gpumem=1G|",  # the summary goes before it
            "10|10|bob|cpu|COMPLETED|60|cpu=1||",
            # a job's name is whatever its user likes
            "11|11|bob|mine\n11|11|bob|x||60|gres/gpu=1||",
            "12|12|bob|x|COMPLETED|x|gres/gpu=1||",
            "13|13|bob|na\u2028me|COMPLETED|60|gres/gpu=1||",
        )
    )
    assert [(each.job, each.gpus, each.used_bytes, each.source) for each in found] == [
        ("7", {"l4": 1}, 3 * GIB, "sacct"),
        ("8", {"": 2}, None, ""),
        ("9_3", {"h200": 2}, 9 * GIB, "jobstats"),
        ("13", {"": 1}, None, ""),
    ]


def test_host_memory_is_counted_by_what_was_asked_for_and_used(tmp_path) -> None:
    """Two hours of 16 GiB for 5 by a control group, an hour of 8 GiB on each of two nodes for 3 by
    sacct, and a job of which sacct did not look at what its steps held."""
    host = {"process": GIB, "step": 5 * GIB, "asked": 16 * GIB}
    records = written(tmp_path, line(job="1", host_memory=host))
    accounted = sources.parse(
        of_sacct(
            "1|1|ada|a|COMPLETED|7200|mem=16G,gres/gpu:l4=1,gres/gpu=1|||/home|",
            "2|2|ada|b|COMPLETED|3600|cpu=2,mem=16384M,node=2,gres/gpu:l4=2,gres/gpu=2|||/home|",
            "2.batch|2.batch|||COMPLETED|3600||gres/gpumem=9G||/home|cpu=9,mem=1024K",
            "2.0|2.0|||COMPLETED|3600||||/home|cpu=9,mem=3G,gres/gpumem=9G",
            "3|3|ada|c|COMPLETED|3600|mem=1T,gres/gpu:l4=1,gres/gpu=1|||/home|",
        )
    )
    sums = waste.summed(waste.spent(accounted, records, SITE, GPUS), SITE)
    assert (sums.host_jobs, sums.host_asked, sums.host_used) == (2, 32 + 16, 10 + 3)
    told = "host memory: 48.0 GiB hours requested, 13.0 (27%) used, by the peaks of 2 of 3 jobs"
    assert told in report.lines(sums, 30)
    assert told in report.page(sums, 30)
    old = written(tmp_path, line(job="4"))
    assert waste.on_hosts(old[0]) == (0, None)


@pytest.mark.parametrize(
    "comment", ["", "JS1:None", "JS1:Short", "JS1:AAAA", "mine JS1:x", f"JS1:{'A' * 100}"]
)
def test_what_is_no_summary_of_jobstats_says_nothing(comment: str) -> None:
    assert sources.of_jobstats(comment) is None


def test_sacct_says_which_jobs_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = of_sacct("7|COMPLETED", "8|FAILED", "9|CANCELLED by 0")
    monkeypatch.setattr(sources.client, "run", lambda *_: answer)
    assert sources.not_completed(30, everybody=True) == {"8", "9"}


def test_torch_s_own_message_says_on_which_gpu_a_job_ran_out() -> None:
    told = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a "
        "total capacity of 21.95"
        " GiB of which 2.31 MiB is free."
    )
    assert sources.ran_out(["epoch 1", told]) == 21.95
    assert sources.ran_out(["no OutOfMemoryError"]) is None


def test_the_sums_are_those_of_a_hand_count(tmp_path) -> None:
    """Four jobs on l4, a100_40 and h200, of 2, 10, 1 and 4 GPU hours; costs by the example site: 1,
    2.5, 4 and 9."""
    records = written(
        tmp_path,
        line(job="1"),  # used 11 GiB, on an l4, where an h200 was asked for
        line(
            job="2",
            predicted={"asked": ["gpu:h200:1"], "given": ["gpu:h200:1"]},
            device={"used": 30 * GIB},
        ),
        line(job="3", **OOM),
    )
    accounted = sources.parse(
        of_sacct(
            "1|1|ada|a|COMPLETED|7200|gres/gpu:l4=1,gres/gpu=1||",
            "2|2|ada|b|COMPLETED|18000|gres/gpu:h200=2,gres/gpu=2||",
            "3|3|ada|a|FAILED|3600|gres/gpu:l4=1,gres/gpu=1||",
            "4|4|ada|c|COMPLETED|14400|gres/gpu:a100_40=1,gres/gpu=1||",
        )
    )
    sums = waste.summed(waste.spent(accounted, records, SITE, GPUS), SITE)
    assert sums.asked == {"a100_40": 4, "h200": 13}
    assert sums.had == {"a100_40": 4, "h200": 10, "l4": 3}
    assert sums.done == {"a100_40": 10, "l4": 2}
    assert sums.unknown == {
        "nothing recorded it, or it used no GPU with torch": 4,
        "ran out of GPU memory": 1,
    }
    assert (sums.jobs, sums.known_jobs) == (4, 2)
    assert (sums.cost_asked, sums.cost_had, sums.cost_done) == (12 * 9, 2 + 90, 2 + 25)
    assert sums.scripts == [("b", 10, 65), ("c", 4, 0), ("a", 3, 0)]
    told = report.lines(sums, 30)
    assert (
        told[0] == "4 jobs with GPUs in 30 days, 17.0 GPU hours; what they used is known for 2 of "
        "them (12.0 hours)"
    )
    assert told[4].split() == ["l4", "0.0", "3.0", "2.0"]
    assert told[5].split() == ["not", "known", "-", "-", "5.0"]
    assert "not known: ran out of GPU memory: 1.0 hours (6%)" in told
    page = report.page(sums, 30)
    assert told[0] in page
    assert report.document(sums, 30)["cost_done"] == 27


def test_where_nothing_is_known_no_figure_says_that_nothing_would_be_enough() -> None:
    accounted = sources.parse(of_sacct("1|1|ada|a|COMPLETED|7200|gres/gpu:l4=1,gres/gpu=1||"))
    told = report.lines(waste.summed(waste.spent(accounted, [], SITE, GPUS), SITE), 30)
    assert [line.split() for line in told[2:4]] == [
        ["l4", "2.0", "2.0", "-"],
        ["not", "known", "-", "-", "2.0"],
    ]
    assert told[4] == "their cost: not known"


def test_of_no_jobs_there_is_no_table() -> None:
    sums = waste.summed(waste.spent([], [], SITE, GPUS), SITE)
    assert report.lines(sums, 30) == ["no jobs with GPUs in 30 days"]


def test_hours_on_a_type_without_a_cost_are_in_no_sum_of_costs(tmp_path) -> None:
    """Else what they would have cost on a type that has one is less than nothing not needed."""
    asked = {"asked": ["gpu:v100:1"], "given": ["gpu:l4:1"]}
    records = written(tmp_path, line(job="1"), line(job="2"), line(job="3", predicted=asked))
    rows = (
        f"{n}|{n}|ada|a|COMPLETED|3600|gres/gpu:{kind}=1||"
        for n, kind in ((1, "l4"), (2, "v100"), (3, "l4"))
    )
    sums = waste.summed(waste.spent(sources.parse(of_sacct(*rows)), records, SITE, GPUS), SITE)
    assert (sums.known_jobs, sums.unpriced, sums.scripts) == (3, 2.0, [("a", 3.0, 0.0)])
    assert (sums.cost_asked, sums.cost_had, sums.cost_done) == (9, 1, 1)
    assert "2.0 hours are left out, on types without a cost there" in report.words(sums, 30)[1]


@pytest.mark.parametrize(
    ("state", "device", "why"),
    [
        ("COMPLETED", {}, ""),
        ("RUNNING", {"ooms": 0}, "has not ended yet"),
        (
            "FAILED",
            {},
            "did not run to its end",
        ),  # a recorder does not see each way in which a Python ends
        ("COMPLETED", {"ooms": 1}, "ran out of GPU memory"),
    ],
)
def test_a_job_that_may_need_more_says_nothing_of_what_would_have_done(
    tmp_path, state: str, device: dict[str, int], why: str
) -> None:
    records = written(tmp_path, line(job="1", device=device))
    accounted = sources.parse(of_sacct(f"1|1|ada|a|{state}|7200|gres/gpu:l4=1,gres/gpu=1||"))
    (spent,) = waste.spent(accounted, records, SITE, GPUS)
    assert (spent.why, bool(spent.done)) == (why, not why)


def test_jobs_without_accounting_have_the_hours_that_their_records_say(tmp_path) -> None:
    (outcome,) = written(tmp_path, line(began=0.0, time=7200.0, array="7_1"))
    job = waste.as_accounted(outcome)
    assert (job.job, job.number, job.seconds, job.gpus, job.state) == (
        "7_1",
        "7",
        7200,
        {"l4": 1},
        "COMPLETED",
    )
    assert (job.name, job.script) == ("the script of job 7_1", "abc")


def test_scripts_of_one_name_are_as_many_as_there_are(tmp_path) -> None:
    """Two users' train.sh, that of another folder, and each command of --wrap; what one used says
    nothing of others."""
    rows = [
        "1|1|ada|train.sh|COMPLETED|3600|gres/gpu:l4=1|||/ada/one",
        "2|2|ada|train.sh|COMPLETED|3600|gres/gpu:l4=1|||/ada/one",
        "3|3|ada|train.sh|COMPLETED|7200|gres/gpu:l4=1|||/ada/other",
        "4|4|bob|train.sh|COMPLETED|3600|gres/gpu:l4=1|||/bob",
        "5|5|ada|wrap|COMPLETED|3600|gres/gpu:l4=1|||/ada/one",
        "6|6|ada|wrap|COMPLETED|3600|gres/gpu:l4=1|||/ada/one",
    ]
    accounted = sources.parse(of_sacct(*rows))
    spent = waste.spent(accounted, [], SITE, GPUS)
    again = waste.to_replay(spent, accounted)
    assert [each.job for each in again] == ["3", "2", "4", "5", "6"]
    replayed = waste.spent(accounted, [], SITE, GPUS, {again[1].script: GIB})
    assert [each.job for each in replayed if each.done] == ["1", "2"]
    assert waste.summed(spent, SITE).scripts == [
        ("train.sh", 2.0, 0),
        ("train.sh", 2.0, 0),
        ("train.sh", 1.0, 0),
        ("wrap", 1.0, 0),
        ("wrap", 1.0, 0),
    ]


def test_of_a_job_that_has_not_started_it_is_said_that_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending = {"sacct": "", "scontrol": "JobId=7 JobName=a\n   JobState=PENDING Reason=Priority\n"}
    monkeypatch.setattr(outcomes.client, "run", lambda words, *_: pending[words[0]])
    with pytest.raises(UsageError, match=r"^job 7: it has not started"):
        outcomes.explain_job("7", as_json=False)
    pending["scontrol"] = ""
    assert not outcomes.explain_job("7", as_json=False)
