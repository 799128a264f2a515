"""A slow start says that it goes on; one that stands still says nothing."""

from __future__ import annotations

import json
import time

import pytest

from adlro.kit import start_report
from adlro.kit.start_report import StartReport


def test_one_that_works_says_so_again_and_again(capfd: pytest.CaptureFixture[str]) -> None:
    report = StartReport("ingest", interval_s=0.01, work_s=0.02)
    end_s = time.monotonic() + 30
    said: list[str] = []
    while len(said) < 3 and time.monotonic() < end_s:
        sum(range(10_000))  # work
        said += capfd.readouterr().err.splitlines()
    report.end()
    lines = [json.loads(line) for line in said]
    assert len(lines) >= 3
    assert {(line["service"], line["event"], line["level"]) for line in lines} == {("ingest", "starting", "info")}
    assert lines[-1]["cpu_s"] > 0


def test_one_that_stands_still_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    report = StartReport("ingest", interval_s=0.01, work_s=1000.0)
    time.sleep(0.1)
    report.end()
    assert capfd.readouterr().err == ""


def test_a_process_reports_once_and_no_more_when_it_has_started() -> None:
    start_report.begin("ingest")
    first = start_report._running
    start_report.begin("ingest")
    assert start_report._running is first is not None
    start_report.end()
    start_report.end()
    assert start_report._running is None
    assert not first._thread.is_alive()
