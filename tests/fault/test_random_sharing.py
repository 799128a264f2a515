"""Kills at random moments of replays in which jobs share GPUs.

No GPU is given beyond its share, no work is lost or counted twice, and each record has the time beside every other
job: by the physics of the simulated cluster (tests/e2e/shares.py). Which jobs share may differ from an undisturbed
replay: an orchestrator that was restarted asks decompose anew, which has learned of pairs meanwhile.
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
from tests.e2e.shares import check_shared_work, drawn, replayed
from tests.fault.random_kills import FAULTS, Killing, Suites, told_round

ROUNDS = int(os.environ.get("ADLRO_TEST_SHARING_ROUNDS", "2"))
SEED = int(os.environ.get("ADLRO_TEST_SHARING_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * ROUNDS)]

JOBS = 64
# A job that is submitted, taken up, launched, started and ended has changed five times; one with a neighbour once more.
CHANGES = JOBS * 5


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[Suites]:
    options = ("--port", "0", "--cluster", "shared", "--clock", "virtual", "--policy", "share_pairs")
    made_here = Suites(tmp_path / "data", options, {})
    yield made_here
    made_here.end()


async def test_replays_with_shared_gpus_survive_random_kills(suites: Suites) -> None:
    shared = kills = 0
    for number in range(ROUNDS):
        rng, suite = random.Random(f"{SEED}.{number}"), suites.fresh()
        jobs = drawn(rng.uniform(0.9, 1.3), JOBS, rng.randrange(1 << 30))
        moments = sorted((rng.randrange(JOBS, CHANGES), rng.choice(FAULTS)) for _ in range(rng.choice((1, 2, 3))))
        story = f"round {number} of seed {SEED}: {moments}"
        began_s, killing, results = time.monotonic(), Killing(suite, moments), list[ReplayResult]()
        try:
            async with killing.watched(results):
                results.append(await replayed(suite.server, jobs, "share_pairs"))
                beside = check_shared_work(results[0], jobs)
        except BaseException:
            sys.stderr.write(told_round(story, began_s, "failed"))
            raise
        kills += killing.count
        shared += beside
        sys.stderr.write(told_round(story, began_s, f"{beside} jobs had a neighbour, well"))
    assert shared > 5 * ROUNDS
    assert kills >= ROUNDS
