"""`--watch` on a table: again and again until Ctrl-C, in place on a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from adlro.cli.listing import watching
from adlro.records.jobs import JobSpec, JobType
from adlro.terminal import PlainConsole
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]


class Sleeps:
    """Notes each sleep, and is interrupted in the second one."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, time_s: float) -> None:
        self.times_s.append(time_s)
        if len(self.times_s) == 2:
            raise KeyboardInterrupt


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    made = Sleeps()
    monkeypatch.setattr("adlro.cli.listing.watching.time.sleep", made)
    return made


@pytest.mark.parametrize(
    ("options", "every_s"),
    [
        (["--watch"], 2.0),
        (["-w", "5"], 5.0),
        (["--watch", "500ms"], 0.5),
        (["--watch=1m"], 60.0),
        (["-w", "-n", "1"], 2),
    ],
)
def test_without_a_terminal_each_table_has_its_time(
    suite: FakeSuite, adlro: Run, sleeps: Sleeps, options: list[str], every_s: float
) -> None:
    suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    result = adlro("queue", *options)
    assert result.exit_code == 130
    assert sleeps.times_s == [every_s, every_s]
    assert result.stdout.count("job-1") == result.stdout.count("JOB") == 2
    assert result.stdout.count("0 running, 1 waiting") == 2


def test_with_json_each_document_is_a_line(suite: FakeSuite, adlro: Run, sleeps: Sleeps) -> None:
    suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    result = adlro("queue", "--watch", "-o", "json")
    assert result.exit_code == 130
    assert [json.loads(line)["jobs"][0]["job_id"] for line in result.stdout.splitlines()] == ["job-1", "job-1"]


def test_on_a_terminal_the_table_is_drawn_in_place(
    suite: FakeSuite, adlro: Run, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.add(JobSpec("train", "ada", JobType.MACHINE_LEARNING))
    console = PlainConsole(force_terminal=True, width=80, height=20, file=io.StringIO())
    monkeypatch.setattr(watching, "stdout", lambda: console)
    assert adlro("queue", "--watch").exit_code == 130
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "Ctrl-C ends it" in text
    assert "\x1b[1A" in text, "the second table is drawn over the first"
    assert text.endswith("\x1b[?25h"), "the cursor is back"


def test_nothing_to_show_is_said_and_watched_on(suite: FakeSuite, adlro: Run, sleeps: Sleeps) -> None:
    result = adlro("queue", "--watch")
    assert result.exit_code == 130
    assert result.stdout.count("No jobs. adlro submit --help") == 2


@pytest.mark.parametrize("command", ["status", "policy"])
def test_status_and_policies_are_watched_too(suite: FakeSuite, adlro: Run, sleeps: Sleeps, command: str) -> None:
    result = adlro(command, "--watch", "5")
    assert (result.exit_code, sleeps.times_s) == (130, [5.0, 5.0])
    head, below = {"status": ("SERVICE", "preemption  off"), "policy": ("FOR WHAT", "JCT: job completion")}[command]
    assert result.stdout.count(head) == result.stdout.count(below) == 2
    sleeps.times_s.clear()
    assert len(adlro(command, "-w", "-o", "json").stdout.splitlines()) == 2


def test_a_suite_that_is_away_for_a_while_is_watched_on(suite: FakeSuite, adlro: Run, sleeps: Sleeps) -> None:
    suite.fail("GetStatus", None, grpc.StatusCode.UNAVAILABLE)
    first, second = map(json.loads, adlro("status", "--watch", "-o", "json").stdout.splitlines())
    assert (first["problem"], bool(second["problem"])) == ("", True)
