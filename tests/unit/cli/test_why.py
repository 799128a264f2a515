"""`adlro why` against a suite that answers with set figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from adlro.cli.places import at_of
from adlro.cli.why import expected_text, record_text
from adlro.records.jobs import JobSpec, JobType, PendingReason
from adlro.records.waiting import ExpectedStart, WaitingExplanation
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]


def test_why_tells_reason_place_interval_and_change(suite: FakeSuite, adlro: Run) -> None:
    job = suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    suite.change(job.job_id, message="waits for a GPU with 8 cores")
    text = " ".join(adlro("why", "job-1").stdout.split())
    assert "waits for a GPU with 8 cores" in text
    assert "37 of 640" in text
    assert "15 busy, 1 idle, and their nodes lack cores or memory" in text
    assert "in 3m 0s to 9m 0s, most likely in 5m 0s, " in text
    assert "(83% of the last 200 such forecasts came in)" in text
    assert "ask for 4 cores: 1 GPU fits now" in text


def test_why_as_a_document(suite: FakeSuite, adlro: Run) -> None:
    suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    told = json.loads(adlro("why", "job-1", "-o", "json").stdout)["explanation"]
    assert told["expected_start"] == {
        "low_s": 280.0, "median_s": 400.0, "high_s": 640.0, "made_s": 99.5, "finished_count": 200, "came_in_ratio": 0.83
    }  # fmt: skip
    assert told["obstacles"] == {"busy": 15, "node_full": 1}
    assert told["changes"][0]["kind"] == "cpu_cores"


def test_describe_shows_the_expected_start_of_a_job_that_waits(suite: FakeSuite, adlro: Run) -> None:
    suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    assert "Expected start" in adlro("describe", "job", "job-1").stdout
    assert json.loads(adlro("describe", "job", "job-1", "-o", "json").stdout)["waiting"]["queue_place"] == 37


def test_why_of_an_unknown_job(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("why", "job-7")
    assert (result.exit_code, result.stderr) == (1, "error: there is no job job-7\n")


def test_what_cannot_be_said_is_said_so() -> None:
    told = WaitingExplanation("job-1", 5.0, PendingReason.NO_FITTING_GPU, "", 1, 1, no_expected_start="no GPU fits it")
    assert expected_text(told, at_of(None)) == "not known: no GPU fits it"
    assert "none of this cluster has finished" in record_text(ExpectedStart(1.0, 2.0, 3.0, 0.5, 0, 0.0))
