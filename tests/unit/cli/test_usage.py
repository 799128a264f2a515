"""`adlro usage`: GPU time by user, model, type and week, by hand; and the learned policy's gain in a sentence."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli import gain as gain_module
from adlro.cli.gain import Gain, compared, gain_of, gain_text
from adlro.cli.times import WallClock
from adlro.cli.usage_figures import WEEK_S, Key, Weeks, usage_rows
from adlro.errors import Conflict, InvalidInput
from adlro.placement import GpuShare, Placement
from adlro.records.events import Capabilities, Clock, ClockMode
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.status import OfferedPolicy
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

ONE, FOUR = Placement.on("a/0"), Placement.on("a/0", "a/1", "b/0", "b/1")
HALF = Placement((GpuShare("a/0", 0.5),))


def job(number: int, user: str, *attempts: JobAttempt, **fields: Any) -> Job:
    spec = JobSpec("n", user, JobType.MACHINE_LEARNING, application="bert")
    known = {"state": JobState.SUCCEEDED, "submit_s": 0.0} | fields
    return Job(f"job-{number}", spec, attempts=attempts, start_s=attempts[-1].start_s if attempts else None, **known)


def attempt(placement: Placement, start_s: float, end_s: float | None, model: str = "v100") -> JobAttempt:
    return JobAttempt(1, placement, model, start_s, end_s)


JOBS = [
    job(1, "ada", attempt(FOUR, 100.0, 1000.0), end_s=1000.0),  # 3600 GPU seconds
    job(2, "ada", attempt(ONE, 0.0, 400.0), attempt(ONE, 500.0, 900.0, "p100"), end_s=900.0, state=JobState.FAILED),
    job(3, "bob", attempt(HALF, 200.0, None), state=JobState.RUNNING),  # until 2000: 900
    job(4, "bob", state=JobState.CANCELLED, end_s=50.0),
    job(5, "eve", state=JobState.PENDING),
]


def test_each_attempt_counts_with_all_its_gpus_and_shares() -> None:
    rows, total = usage_rows(JOBS, [Key.USER], 0.0, 2000.0)
    ada, bob = rows
    assert (ada.names, ada.job_count, ada.gpu_time_s, ada.ended_count, ada.failed_count) == (
        {Key.USER: "ada"}, 2, 4400.0, 2, 1,
    )  # fmt: skip
    assert ada.mean_wait_s == 50.0, "of the first starts, 100 s and 0 s"
    assert (bob.job_count, bob.gpu_time_s, bob.ended_count, bob.mean_wait_s) == (2, 900.0, 1, 200.0)
    assert (total.job_count, total.gpu_time_s, total.ended_count, total.failed_count) == (4, 5300.0, 3, 1)
    assert total.mean_gpus == 5300.0 / 2000.0
    assert total.gpu_hours == 5300.0 / 3600.0


def test_a_job_counts_where_it_ran_and_its_end_where_it_ended() -> None:
    rows, _ = usage_rows(JOBS, [Key.MODEL], 0.0, 2000.0)
    found = {row.names[Key.MODEL]: row for row in rows}
    assert (found["v100"].gpu_time_s, found["v100"].job_count, found["v100"].failed_count) == (4900.0, 3, 0)
    assert (found["p100"].gpu_time_s, found["p100"].failed_count, found["p100"].mean_wait_s) == (400.0, 1, None)
    assert (found[""].job_count, found[""].gpu_time_s, found[""].ended_count) == (1, 0.0, 1)


def test_only_what_lies_in_the_range_counts() -> None:
    rows, total = usage_rows(JOBS, [Key.USER, Key.TYPE], 300.0, 600.0)
    assert [(row.names[Key.USER], row.gpu_time_s) for row in rows] == [
        ("ada", 4 * 300.0 + 100.0 + 100.0),
        ("bob", 150.0),
    ]
    assert (total.ended_count, total.mean_wait_s) == (0, None)
    assert rows[0].names[Key.TYPE] == "machine_learning"


def test_weeks_of_the_clusters_clock() -> None:
    weeks = Weeks.of(0.5 * WEEK_S, 11.5 * WEEK_S, None)
    assert (weeks.names[0], weeks.names[-1]) == ("week 0", "week 11")
    long = job(1, "ada", attempt(FOUR, 0.5 * WEEK_S, 2.25 * WEEK_S), end_s=2.25 * WEEK_S)
    late = job(2, "ada", attempt(ONE, 10 * WEEK_S, 11 * WEEK_S), end_s=11 * WEEK_S)
    rows, total = usage_rows([late, long], [Key.WEEK], 0.5 * WEEK_S, 11.5 * WEEK_S, weeks)
    assert [(row.names[Key.WEEK], row.gpu_time_s / WEEK_S) for row in rows] == [
        ("week 0", 2.0), ("week 1", 4.0), ("week 2", 1.0), ("week 10", 1.0),
    ]  # fmt: skip
    assert [row.ended_count for row in rows] == [0, 0, 1, 1]
    assert total.job_count == 2


def test_weeks_of_the_calendar_begin_on_monday() -> None:
    wall = WallClock(datetime(2026, 11, 25, 12).astimezone().timestamp())  # a Wednesday
    weeks = Weeks.of(0.0, 12 * 86_400.0, wall)
    assert weeks.names == ("2026-W48", "2026-W49", "2026-W50")
    assert weeks.begins_s[1] == datetime(2026, 11, 30).astimezone().timestamp() - wall.offset_s
    assert weeks.name(0.0) == "2026-W48"
    assert weeks.name(weeks.begins_s[1]) == "2026-W49"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 1e7), st.floats(0, 1e7), st.sampled_from([ONE, FOUR, HALF])),
        max_size=12,
    ),
    st.lists(st.sampled_from(list(Key)), max_size=3, unique=True),
)
def test_rows_add_up_to_the_total(runs: list[tuple[str, float, float, Placement]], by: list[Key]) -> None:
    jobs = [
        job(number, user, attempt(where, begin, begin + length, f"m{number % 2}"), end_s=begin + length)
        for number, (user, begin, length, where) in enumerate(runs)
    ]
    rows, total = usage_rows(jobs, by, 1e6, 9e6, Weeks.of(1e6, 9e6, None))
    assert math.fsum(row.gpu_time_s for row in rows) == pytest.approx(total.gpu_time_s)
    assert sum(row.ended_count for row in rows) == total.ended_count
    assert all(row.gpu_time_s >= 0.0 for row in rows)
    if Key.WEEK not in by:
        assert sum(row.job_count for row in rows) == total.job_count


@pytest.fixture
def used(suite: FakeSuite) -> FakeSuite:
    suite.capabilities = Capabilities(stop=True)
    suite.clock = Clock(ClockMode.REAL, 1.0, False, 2000.0)
    for each in JOBS:
        suite.add(each.spec)
        fields = {name: getattr(each, name) for name in ("state", "submit_s", "start_s", "end_s", "attempts")}
        suite.change(each.job_id, pending_reason=PendingReason.NONE, message="", **fields)
    return suite


def test_usage_of_a_suite(used: FakeSuite, adlro: Run) -> None:
    result = adlro("usage")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "USER JOBS GPU HOURS MEAN GPUS MEAN WAIT ENDED FAILED",
        "ada 2 1.22 2.20 50s 2 1",
        "bob 2 0.25 0.45 3m 20s 1 0",
        "total 4 1.47 2.65 1m 40s 3 1",
    ]
    assert "GPU hours of all attempts" in result.stderr
    assert "(0.0 s of cluster time) to" in " ".join(result.stderr.split())
    found = json.loads(adlro("usage", "--by", "model,type", "--until", "now", "-o", "json").stdout)
    assert found["by"] == ["model", "type"]
    assert found["usage"][0]["model"] == "v100"
    assert found["total"]["gpu_hours"] == pytest.approx(5300 / 3600)
    assert datetime.fromisoformat(found["to"]).timestamp() == pytest.approx(time.time(), abs=30)
    rows = adlro("usage", "--by", "week", "--by", "user", "-o", "csv").stdout.splitlines()
    assert rows[0].startswith("user,model,type,application,week,job_count,gpu_hours")
    assert "ada" in adlro("usage", "--user", "ada").stdout
    assert "total" not in adlro("usage", "--user", "ada").stdout


def test_usage_of_nothing_and_wrong_keys(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("usage")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No jobs ran yet" in result.stderr
    wrong = adlro("usage", "--by", "modle")
    assert wrong.exit_code == 2
    assert "did you mean model" in " ".join(wrong.stderr.split())


# ---- the learned policy's gain


def offered(acting: str) -> list[OfferedPolicy]:
    return [
        OfferedPolicy(name, "", name == acting, version="1" if name.startswith("dqn") else "")
        for name in ("fcfs", "sjf", "dqn", "dqn_lookahead")
    ]


def test_who_is_compared() -> None:
    assert compared(offered("dqn"), "fcfs") == ("dqn", "fcfs")
    assert compared(offered("dqn_lookahead"), "fcfs") == ("dqn_lookahead", "fcfs")
    assert compared(offered("fcfs"), "fcfs") == ("dqn", "dqn")
    with pytest.raises(Conflict, match=r"ran under sjf.*--baseline sjf"):
        compared(offered("sjf"), "fcfs")
    with pytest.raises(InvalidInput, match="--baseline"):
        compared(offered("dqn"), "dqn")
    with pytest.raises(Conflict, match="no learned policy"):
        compared([replace(each, version="") for each in offered("fcfs")], "fcfs")


def comparison(acted: str, other: str, ratio: float, interval: list[float] | None, refused: str = "") -> dict[str, Any]:
    return {
        "acted": acted,
        "jobs": {"measured": 210},
        "policies": [{"policy": acted, "mean_jct_s": 100.0}, {"policy": other, "mean_jct_s": 100.0 * ratio}],
        "paired": [{"policy": other, "baseline": acted, "mean_jct_ratio": ratio,
                    "mean_jct_ratio_ci95": interval or [None, None]}],
        "interval": {"refused": refused or None},
    }  # fmt: skip


def figures(found: Gain) -> list[float | None]:
    return [found.saved_ratio, found.low_ratio, found.high_ratio]


def test_the_gain_is_told_the_same_whoever_acted() -> None:
    learned_acted = gain_of(comparison("dqn", "fcfs", 1.25, [1.1, 1.6]), "dqn", "fcfs")
    assert (learned_acted.mean_jct_s, learned_acted.baseline_mean_jct_s) == (100.0, 125.0)
    assert figures(learned_acted) == pytest.approx([0.2, 1 - 1 / 1.1, 0.375])
    baseline_acted = gain_of(comparison("fcfs", "dqn", 0.8, [0.7, 0.95]), "dqn", "fcfs")
    assert figures(baseline_acted) == pytest.approx([0.2, 0.05, 0.3])
    assert gain_text(baseline_acted) == (
        "gain: jobs take 20.0 % less time on average under dqn, from submission to end: 80.0 s under dqn, 1m 40s under "
        "fcfs (95 % interval: 5.0 % shorter to 30.0 % shorter; the 210 finished jobs of the range, replayed in the "
        "simulator under both)"
    )


def test_a_gain_that_is_none_is_not_told_as_one() -> None:
    text = gain_text(gain_of(comparison("fcfs", "dqn", 0.98, [0.9, 1.1]), "dqn", "fcfs"))
    assert "do not tell dqn and fcfs apart" in text
    assert "95 % interval: 10.0 % longer to 10.0 % shorter" in text
    worse = gain_text(gain_of(comparison("fcfs", "dqn", 1.3, [1.2, 1.5]), "dqn", "fcfs"))
    assert "30.0 % more time" in worse
    refused = gain_text(
        gain_of(comparison("fcfs", "dqn", 0.9, None, "too few finished jobs: 50 of 200"), "dqn", "fcfs")
    )
    assert "no interval: too few finished jobs" in refused


def test_the_comparison_runs_in_a_process_with_the_range(
    used: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A program in the place of the laboratory, which notes its arguments; the real one runs in tests/e2e.
    document = json.dumps(comparison("sjf", "dqn", 0.5, [0.4, 0.6]))
    fake = tmp_path / "fake.py"
    fake.write_text(f"import sys; open({str(tmp_path / 'args')!r}, 'w').write(repr(sys.argv[1:])); print({document!r})")
    monkeypatch.setattr(gain_module, "MODULE", "fake")
    monkeypatch.setattr(gain_module, "import_path", lambda: {"PYTHONPATH": str(tmp_path)})
    monkeypatch.setattr("adlro.client.Client.policies", lambda _: tuple(offered("sjf")))
    result = adlro("usage", "--since", "500s", "--gain", "--baseline", "sjf")
    assert result.exit_code == 0, result.output
    assert "gain: jobs take 50.0 % less time on average under dqn" in result.stdout
    assert (tmp_path / "args").read_text() == repr(["dqn", "-o", "json", "--since", "500.0"])
    fake.write_text("import sys; sys.exit(4)")
    assert adlro("usage", "--gain", "--baseline", "sjf").exit_code == 4
