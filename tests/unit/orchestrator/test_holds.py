"""Sessions with policies that hold: asked again when the hold ends and only then, as an event-queue oracle says."""

from __future__ import annotations

import random
from typing import ClassVar

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.errors import Unavailable
from adlro.records.events import Clock, ClockMode
from adlro.state.observation import Floats, Observation, hold_until_s
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.house import House

GPUS = 5
Listed = tuple[float, float]  # submission, work


class Patient(Policy):
    """Starts a job once it has waited long enough, or where nothing would end a hold: in order of submission."""

    name = "patient"
    description = "for tests"
    patience_s: ClassVar[float] = 25.0
    asked_s: ClassVar[list[float]] = []

    def preferences(self, observation: Observation) -> Floats:
        self.asked_s.append(float(observation.time_s[0]))
        waited_s = observation.time_s[:, None] - observation.job_submit_s
        ready = (waited_s >= self.patience_s) | ~observation.hold_allowed[:, None]
        scores = np.where(ready, -observation.job_submit_s, -np.inf)
        return observation.table.of_job(scores)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> type[Patient]:
    monkeypatch.setitem(POLICIES, "patient", Patient)
    monkeypatch.setattr(Patient, "asked_s", [])
    return Patient


def oracle(jobs: list[Listed]) -> list[float]:
    """The ends under `Patient`: at an instant ends, then arrivals, then starts; asked at events and ends of holds."""
    to_come = sorted((submit_s, number) for number, (submit_s, _) in enumerate(jobs))
    waiting: list[int] = []
    running: dict[int, float] = {}
    ends = [0.0] * len(jobs)
    hold_s: float | None = None
    while to_come or waiting or running:
        times = [submit_s for submit_s, _ in to_come[:1]] + list(running.values())
        now_s = min([*times, *([] if hold_s is None else [hold_s])])
        if times and min(times) <= now_s:
            last_event_s = now_s
        running = {number: end_s for number, end_s in running.items() if end_s > now_s}
        while to_come and to_come[0][0] <= now_s:
            waiting.append(to_come.pop(0)[1])
        hold_s = None
        while waiting and len(running) < GPUS:
            first = waiting[0]
            if now_s - jobs[first][0] < Patient.patience_s and (running or to_come):
                hold_s = hold_until_s(now_s, last_event_s)
                break
            waiting.pop(0)
            running[first] = ends[first] = now_s + jobs[first][1]
    return ends


def some_jobs(seed: int, count: int = 40) -> list[Listed]:
    """Times on eighths of a second, which floats hold exactly at any origin."""
    draw = random.Random(seed)
    submits = sorted(draw.randrange(8, 8 * 400) / 8 for _ in range(count))
    return [(submit_s, draw.choice((draw.randrange(8, 400), draw.randrange(400, 2000))) / 8) for submit_s in submits]


def replay(house: CoreHouse, jobs: list[Listed], origin_s: float, lives: int = 1) -> list[float]:
    """The ends, counted from the origin."""
    house.cluster.on_set_clock(Clock(ClockMode.VIRTUAL, 0.0, True, origin_s))
    house.start("patient")
    for submit_s, work_s in jobs:
        house.submit(work_s, begin_time_s=origin_s + submit_s)
    house.settle()
    house.resume()
    draw = random.Random(lives)
    for _ in range(1, lives):
        for _ in range(draw.randrange(2, 60)):
            house.advance()
        house.kill()
        house.start("patient")
    done = house.until_final(len(jobs))
    assert all(job.attempt_count == 1 for job in done)
    return [(job.end_s or 0.0) - origin_s for job in done]


def test_a_held_job_is_asked_about_again_when_the_hold_ends(core_house: CoreHouse, patient: type[Patient]) -> None:
    """The second waits from 8 s; nothing happens until the hold's end at 38 s."""
    ends = replay(core_house, [(5.0, 500.0), (8.0, 2.0), (700.0, 1.0)], 0.0)
    # The third is known to come, so the first is held too: from 5 s, then from 8 s until 38 s, when it has waited.
    assert ends == [538.0, 40.0, 701.0]
    # At 38 s once for each of the two.
    assert patient.asked_s == [5.0, 8.0, 38.0, 38.0, 700.0]


def test_a_wake_up_for_a_hold_that_is_over_is_no_reason_to_ask(core_house: CoreHouse, patient: type[Patient]) -> None:
    """The first is held until 31 s, then from 20 s until 50 s: at 31 s it has waited long enough, and nobody asks."""
    ends = replay(core_house, [(1.0, 10.0), (20.0, 10.0), (1000.0, 10.0)], 0.0)
    assert 31.0 not in patient.asked_s
    assert ends == [60.0, 60.0, 1010.0]


def test_nothing_is_held_where_nothing_runs_or_is_known_to_come(core_house: CoreHouse) -> None:
    core_house.start("patient")
    core_house.submit(5.0)
    (done,) = core_house.until_final(1)
    assert done.jct_s == 5.0


@pytest.mark.parametrize("origin_s", [0.0, 1_700_000.0])
@pytest.mark.parametrize("seed", range(3))
def test_holds_end_as_the_oracle_says_whatever_the_clock_shows(
    core_house: CoreHouse, seed: int, origin_s: float
) -> None:
    jobs = some_jobs(seed)
    assert replay(core_house, jobs, origin_s) == oracle(jobs)


@pytest.mark.parametrize("origin_s", [17.0, 1_700_003.0])
@pytest.mark.parametrize("seed", range(2))
def test_times_in_milliseconds_go_the_same_way_from_any_origin(
    core_house: CoreHouse, seed: int, origin_s: float
) -> None:
    """Thousandths are no binary fractions: a hold's end may not slip to the next millisecond by rounding."""
    draw = random.Random(seed)
    jobs = [(round(draw.uniform(1, 400), 3), round(draw.uniform(1, 120), 3)) for _ in range(40)]
    jobs.sort()
    assert replay(core_house, jobs, origin_s) == pytest.approx(oracle(jobs), rel=0, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_holds_end_as_the_oracle_says_whoever_is_killed(core_house: CoreHouse, seed: int) -> None:
    jobs = some_jobs(seed, 120)
    assert replay(core_house, jobs, 0.0, lives=8) == oracle(jobs)


def test_a_new_session_goes_on_with_the_hold(core_house: CoreHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is held until 66.5 s, since the first ended; the session ends at 56.5 s, at a wake-up for nothing."""
    cluster, go_on, check = core_house.cluster, core_house.cluster.go_on, core_house.cluster.check_not_away
    broken: list[int] = []

    def go_on_and_break() -> None:
        go_on()
        if cluster.clock.time_s == 56.5 and not broken:
            broken.append(cluster.revision)
            cluster.away = True

    def once_while_away() -> None:
        try:
            check()
        finally:
            cluster.away = False

    monkeypatch.setattr(cluster, "go_on", go_on_and_break)
    monkeypatch.setattr(cluster, "check_not_away", once_while_away)
    assert replay(core_house, [(1.0, 10.0), (26.5, 10.0), (1000.0, 10.0)], 0.0) == [36.5, 76.5, 1010.0]
    assert broken
    assert [type(failure) for failure in core_house.failures] == [Unavailable]


def test_a_hold_does_not_outlive_its_policy(core_house: CoreHouse) -> None:
    core_house.pause()
    core_house.start("patient")
    core_house.submit(5.0, begin_time_s=1e6)
    core_house.submit(5.0)
    core_house.settle()
    assert not core_house.cluster.running
    core_house.set_policy("fcfs")
    core_house.until(lambda: "job-2" in core_house.cluster.running)
    assert core_house.cluster.clock.time_s == 0.0


async def test_another_policy_at_the_start_is_not_bound_by_the_hold(house: House) -> None:
    await house.pause()
    house.start("patient")
    await house.submit(5.0, begin_time_s=1e6)
    await house.submit(5.0)
    await house.until_taken_up()
    await house.kill()
    house.start("fcfs")

    async def runs() -> bool:
        return "job-2" in house.cluster.running

    await house.until(runs)
    assert house.cluster.clock.time_s == 0.0
