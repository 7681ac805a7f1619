"""Which limits a job has, from what sacctmgr and scontrol print."""

import pytest

from xmem_slurm.cluster import limits
from xmem_slurm.slurm.submission import Submission

PARTITIONS = """\
PartitionName=gpu Default=YES QoS=N/A MaxTime=1
PartitionName=big Default=NO QoS=wide MaxTime=1
"""
OWN = """\
other|a|a||strict||
here|a|a||small|gres/gpu=8,mem=4G|
here|a|a|big|normal||
here|a|b||||gres/gpu:l4=3
"""
EVERY = """\
normal|||
small||gres/gpu:h200=1,gres/gpu:l4=0,cpu=9|gres/gpu:l4=7
strict|DenyOnLimit,OverPartQOS|gres/gpu=1|gres/gpu=2
wide||gres/gpu=4|
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [{"gres/gpu": 8, "gres/gpu:h200": 1, "gres/gpu:l4": 0}]),
        (["--qos=strict"], [{"gres/gpu": 1}]),
        (["--qos=strict", "--partition=big"], [{"gres/gpu": 1}]),
        (["--qos=normal", "--partition=big"], [{"gres/gpu": 4}]),
        (
            ["--partition=big,gpu"],
            [{"gres/gpu": 4}, {"gres/gpu": 8, "gres/gpu:h200": 1, "gres/gpu:l4": 0}],
        ),
        (["--account=b"], [{"gres/gpu:l4": 3}]),
        (["--account=unknown", "--partition=unknown"], [{}]),
    ],
)
def test_the_limits_of_a_job_are_those_of_its_qos_partition_and_association(
    options, expected
) -> None:
    request = Submission((*options, "job.sh"), {}, b"#!/bin/sh\n").request
    assert limits.parse(request, "here", PARTITIONS, OWN, EVERY) == expected


def test_too_many_are_those_that_no_partition_ever_gives() -> None:
    one, four = {"gres/gpu:h200": 1}, {"gres/gpu": 4}
    assert limits.exceeded(2, "h200", [one])
    assert not limits.exceeded(2, "h200", [one, four])
    assert limits.exceeded(5, "h200", [one, four])
    assert limits.exceeded(5, None, [four])
    assert not limits.exceeded(2, None, [one])
    assert not limits.exceeded(99, "h200", [])
