"""Kills at random moments of replays in which jobs are stopped for others: nothing of the result may change.

Time is virtual, so each attempt of an undisturbed replay starts and ends at known times (tests/e2e/stops.py); a stop
that is lost, made twice or counted twice shows.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.cli.replaying import ReplayResult
from tests.e2e.stops import ALLOWED, check_as_simulated, drawn, replayed
from tests.fault.random_kills import FAULTS, Killing, Suites, told_round
from tests.policies import made

ROUNDS = int(os.environ.get("ADLRO_TEST_PREEMPTION_ROUNDS", "4"))
SEED = int(os.environ.get("ADLRO_TEST_PREEMPTION_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * ROUNDS)]

JOBS = 48
# A job that is submitted, taken up, launched, started and ended has changed five times; a stopped one more often.
CHANGES = JOBS * 5


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[Suites]:
    made_here = Suites(tmp_path / "data", ("--port", "0", "--clock", "virtual", "--policy", "srtf"), ALLOWED)
    yield made_here
    made_here.end()


async def test_replays_with_stops_survive_random_kills(suites: Suites) -> None:
    stops = kills = 0
    for number in range(ROUNDS):
        rng, suite = random.Random(f"{SEED}.{number}"), suites.fresh()
        policy, scenario = rng.choice(("srtf", "srtf", "las_preemptive")), rng.choice(("preemptive", "preemptive_240s"))
        jobs = drawn(scenario, rng.uniform(0.9, 1.2), JOBS, rng.randrange(1 << 30))
        moments = sorted((rng.randrange(JOBS, CHANGES), rng.choice(FAULTS)) for _ in range(rng.choice((1, 2, 3))))
        story = f"round {number} of seed {SEED}, {policy} on {scenario}: {moments}"
        began_s, killing, results = time.monotonic(), Killing(suite, moments), list[ReplayResult]()
        try:
            async with killing.watched(results):
                results.append(await replayed(suite.server, jobs, policy))
                stopped = check_as_simulated(results[0], jobs, made(policy))
        except BaseException:
            sys.stderr.write(told_round(story, began_s, "failed"))
            raise
        kills += killing.count
        stops += stopped
        sys.stderr.write(told_round(story, began_s, f"{stopped} stops, well"))
    assert stops > 3 * ROUNDS
    assert kills >= ROUNDS
