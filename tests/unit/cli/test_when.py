"""Moments as users write them, and the wall-clock times of cluster times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from adlro.cli.times import WallClock, iso_text, moments, time_text, wall_clock
from adlro.cli.when import read_when
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job, JobSpec, JobType

NOW = datetime(2026, 11, 27, 14, 5, 9).astimezone().timestamp()
REAL = ClusterDescription(
    Cluster("c", ()), (), (), Clock(ClockMode.REAL, 1.0, False, 10_000.0), "i", 1, 1, capabilities=Capabilities()
)
SIMULATED = replace(REAL, capabilities=Capabilities(virtual_clock=True))
VIRTUAL = replace(REAL, clock=Clock(ClockMode.VIRTUAL, 0.0, False, 10_000.0))
PAUSED = replace(REAL, clock=Clock(ClockMode.REAL, 1.0, True, 10_000.0))


def local(*parts: int) -> float:
    return datetime(*parts).astimezone().timestamp()  # type: ignore[arg-type]  # year, month, day, ...


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("2026-11-01", local(2026, 11, 1)),
        ("2026-11-01T10:00", local(2026, 11, 1, 10)),
        ("2026-11-01 10:00:05", local(2026, 11, 1, 10, 0, 5)),
        ("2026-11-01T10:00Z", datetime(2026, 11, 1, 10, tzinfo=UTC).timestamp()),
        ("2026-11-01T10:00+02:00", datetime(2026, 11, 1, 8, tzinfo=UTC).timestamp()),
        ("14:00", local(2026, 11, 27, 14)),
        ("9:30:15", local(2026, 11, 27, 9, 30, 15)),
        ("today", local(2026, 11, 27)),
        ("yesterday", local(2026, 11, 26)),
    ],
)
def test_wall_times(text: str, unix_s: float) -> None:
    assert read_when(text, NOW).unix_s == unix_s


@pytest.mark.parametrize(
    ("text", "time_s"), [("3600s", 3600.0), ("90", 90.0), ("1h30m", 5400.0), ("1-12:00:00", 129_600.0), ("2d", 172_800)]
)
def test_times_of_the_clusters_clock(text: str, time_s: float) -> None:
    assert read_when(text, NOW).time_s == time_s


def test_times_from_now_on_any_clock() -> None:
    for cluster in (REAL, VIRTUAL, PAUSED):
        assert read_when("now-2h", NOW).cluster_s(lambda c=cluster: c.clock, "--since") == 2800.0  # type: ignore[misc]
        assert read_when("now + 10m", NOW).cluster_s(lambda c=cluster: c.clock, "--since") == 10_600.0  # type: ignore[misc]
        assert read_when("now-9d", NOW).cluster_s(lambda c=cluster: c.clock, "--since") == 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-11", "2026-13-01", "25:00", "14:61", "now-", "now-x", "2026-11-01T", "-5", "now2h"]
)
def test_no_time_names_the_forms(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"now-2h, today, 14:00|no duration"):
        read_when(text, NOW)


@pytest.mark.parametrize(("cluster", "told"), [(VIRTUAL, "virtual"), (PAUSED, "paused")])
def test_a_wall_time_needs_a_real_clock(cluster: ClusterDescription, told: str) -> None:
    with pytest.raises(InvalidInput, match=f"--since.*{told}.*3600s"):
        read_when("14:00", NOW).cluster_s(lambda: cluster.clock, "--since")


def test_the_wall_clock_of_a_cluster() -> None:
    wall = wall_clock(REAL, NOW)
    assert wall == WallClock(NOW - 10_000.0)
    assert wall.unix_s(10_000.0) == NOW
    assert wall.unix_s(None) is wall.unix_s(float("inf")) is wall.unix_s(1e12) is None
    assert wall_clock(None) is wall_clock(VIRTUAL) is wall_clock(PAUSED) is None
    assert wall_clock(replace(REAL, clock=Clock(ClockMode.SCALED, 10.0, False, 1.0))) is None


def test_a_simulated_clock_tells_only_of_jobs_whose_submission_fits() -> None:
    wall = wall_clock(SIMULATED, NOW)
    assert wall is not None
    job = Job("job-1", JobSpec("n", "u", JobType.SIMULATION), submit_s=9000.0, created_unix_s=NOW - 1000.5)
    assert wall.tells(job)
    assert not wall.tells(replace(job, created_unix_s=NOW - 5000.0)), "the clock was paused, scaled or virtual since"
    assert not wall.tells(replace(job, spec=replace(job.spec, begin_time_s=1.0))), "it counts from its begin time"
    assert not wall.tells(replace(job, submit_s=None))
    real = wall_clock(REAL, NOW)
    assert real is not None
    assert real.tells(replace(job, created_unix_s=NOW - 5000.0)), "the orchestrator was away"


def test_wall_times_of_a_column_have_one_form() -> None:
    today = local(2026, 11, 27, 9, 5, 7)
    assert moments([today, None], now_unix_s=NOW) == ["09:05:07", "-"]
    assert moments([today, today - 86_400], now_unix_s=NOW) == ["27 Nov 09:05", "26 Nov 09:05"]
    assert moments([today, local(2025, 1, 2, 3, 4)], now_unix_s=NOW) == ["2026-11-27 09:05", "2025-01-02 03:04"]
    (iso,) = moments([today], iso=True, now_unix_s=NOW)
    assert datetime.fromisoformat(iso).timestamp() == today
    assert datetime.fromisoformat(iso).tzinfo is not None
    assert moments([1e300, float("nan")], now_unix_s=NOW) == ["-", "-"]
    assert iso_text(None) is None


def test_a_time_by_itself_is_told_in_both_times() -> None:
    wall = WallClock(NOW - 10_000.0)
    assert time_text(10_000.0, wall) == "27 Nov 2026 14:05:09 (2h 46m of cluster time)"
    assert time_text(10_000.0, None) == "2h 46m of cluster time"
    assert time_text(10_000.0, wall, iso=True).startswith("2026-11-27T14:05:09")
    assert time_text(None, wall) == "-"
