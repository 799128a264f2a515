"""Names of enumerations, and jobs in one line: what `print` shows."""

from __future__ import annotations

import json
import pickle

import pytest

from adlro.errors import InvalidInput
from adlro.placement import Placement
from adlro.records.events import ClockMode
from adlro.records.jobs import Job, JobSpec, JobState, JobType, PendingReason
from adlro.records.payloads import LogStream


def test_a_name_is_written_as_the_command_writes_it() -> None:
    assert str(JobState.RUNNING) == f"{JobState.RUNNING}" == "running"
    assert str(JobType.MACHINE_LEARNING) == JobType.MACHINE_LEARNING.label == "machine_learning"
    assert [JobState("failed"), LogStream("STDERR"), ClockMode("virtual")] == [
        JobState.FAILED,
        LogStream.STDERR,
        ClockMode.VIRTUAL,
    ]


def test_the_numbers_of_the_contracts_stay() -> None:
    assert (int(JobState.RUNNING), JobState(2), f"{JobState.RUNNING:d}") == (2, JobState.RUNNING, "2")
    assert json.dumps([JobState.RUNNING]) == "[2]"
    assert pickle.loads(pickle.dumps(JobState.RUNNING)) is JobState.RUNNING


@pytest.mark.parametrize("value", ["ruining", "", None, 77, 1.5, []])
def test_what_is_no_member_is_refused_with_the_names(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^state: .* is none of pending, running, succeeded, failed, cancelled"):
        JobState.of(value, "state")
    with pytest.raises(ValueError, match="is not a valid JobState"):
        JobState(value)


SPEC = JobSpec("resnet", "ada", JobType.MACHINE_LEARNING)


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (Job("job-1", SPEC, pending_reason=PendingReason.RESOURCES), "job-1 pending (resources): resnet, of ada"),
        (
            Job("job-2", SPEC, JobState.RUNNING, PendingReason.NONE, placement=Placement.on("v-0/0", "v-0/1")),
            "job-2 running on v-0/0, v-0/1: resnet, of ada",
        ),
        (
            Job("job-3", SPEC, JobState.RUNNING, placement=Placement.on(*(f"v-0/{each}" for each in range(6)))),
            "job-3 running on v-0/0, v-0/1, v-0/2, v-0/3 and 2 more: resnet, of ada",
        ),
        (
            Job("job-4", SPEC, JobState.FAILED, PendingReason.NONE, message="exit code 3"),
            "job-4 failed: resnet, of ada (exit code 3)",
        ),
        (
            Job("job-5", JobSpec("\x1b[2J", "ada"), JobState.SUCCEEDED),
            "job-5 succeeded: \\x1b[2J, of ada",
        ),
    ],
)
def test_a_job_is_one_line(job: Job, line: str) -> None:
    assert str(job) == line
    assert repr(job) == f"<Job {line}>"
