"""What receivers are told: fields that stay, ids that are the same for the same event, and nothing of a program."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adlro.records.jobs import JobState
from adlro.records.payloads import EndReason
from adlro.webhooks.events import job_ended, sample_event
from tests.unit.webhooks.samples import SECRET_WORD, ended_job, ended_program


def test_the_document_of_an_ended_job() -> None:
    assert job_ended(ended_job(), "paper", 1_795_817_380.1254).document() == {
        "version": 1,
        "id": job_ended(ended_job(), "", 0.0).event_id,
        "event": "job_ended",
        "cluster": "paper",
        "time": "2026-11-27T22:09:40.125Z",
        "time_unix_s": 1_795_817_380.125,
        "cluster_time_s": 50.0,
        "job": {
            "job_id": "job-17",
            "name": "resnet",
            "user": "ada",
            "state": "succeeded",
            "message": "",
            "exit": None,
            "labels": {"run": "7"},
            "job_type": "machine_learning",
            "application": "",
            "priority": 0.5,
            "gpu_count": 1,
            "gpu_model": "v100_sxm2",
            "gpu_ids": ["volta-0/0"],
            "attempt_count": 1,
            "created_unix_s": 1_700_000_000.0,
            "submit_s": 10.0,
            "start_s": 20.0,
            "end_s": 50.0,
            "jct_s": 40.0,
            "runtime_s": 30.0,
        },
    }


def test_the_same_end_has_the_same_id_and_another_end_another() -> None:
    job = ended_job()
    known = job_ended(job, "paper", 1.0).event_id
    assert job_ended(job, "paper", 2.0).event_id == known
    assert job_ended(replace(job, revision=99), "paper", 1.0).event_id == known
    others = {
        job_ended(other, "paper", 1.0).event_id
        for other in (
            replace(job, job_id="job-18"),
            replace(job, created_unix_s=1.0),
            replace(job, end_s=51.0),
            replace(job, state=JobState.FAILED),
        )
    }
    assert len(others | {known}) == 5
    assert sample_event("ops", "", 1.0).event_id != sample_event("ops", "", 2.0).event_id


@pytest.mark.parametrize("reason", EndReason)
def test_nothing_of_a_program_is_told(reason: EndReason) -> None:
    job = ended_program(reason, code=3)
    assert SECRET_WORD in job.message  # the record has it
    told = job_ended(job, "local", 0.0).document()
    assert SECRET_WORD not in json.dumps(told)
    assert "train.py" not in json.dumps(told)
    assert told["job"]["exit"]["reason"] == reason.name.lower()
    assert told["job"]["message"]


def test_how_a_program_ended_is_told_in_words() -> None:
    def message(reason: EndReason, code: int = 0, signal: int = 0) -> str:
        job = ended_program(reason, code=code, signal=signal)
        return str(job_ended(job, "local", 0.0).subject["job"]["message"])

    assert message(EndReason.EXITED, code=3) == "exit code 3"
    assert message(EndReason.SIGNALLED, signal=9) == "killed by SIGKILL"
    assert message(EndReason.TIME_LIMIT) == "time limit"
    assert "adlro describe job job-17" in message(EndReason.NOT_STARTED)


def test_a_job_that_never_ran_keeps_its_message() -> None:
    job = ended_job(state=JobState.CANCELLED, message="cancelled while it waited", attempts=(), start_s=None)
    assert job_ended(job, "paper", 0.0).subject["job"]["message"] == "cancelled while it waited"
