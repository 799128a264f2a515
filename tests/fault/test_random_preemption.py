"""Kills at random moments of replays in which jobs are stopped for others: nothing of the result may change.

Time is virtual, so each attempt of an undisturbed replay starts and ends at known times (tests/e2e/stops.py); a stop
that is lost, made twice or counted twice shows.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite
from tests.e2e.stops import ALLOWED, check_as_simulated, drawn, replayed
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.replaying import kill
from tests.policies import made

ROUNDS = int(os.environ.get("ADLRO_TEST_PREEMPTION_ROUNDS", "4"))
SEED = int(os.environ.get("ADLRO_TEST_PREEMPTION_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * ROUNDS)]

JOBS = 48
# A job that is submitted, taken up, launched, started and ended has changed five times; a stopped one more often.
CHANGES = JOBS * 5
FAULTS = (("orchestrator",), ("simcluster",), ("orchestrator", "simcluster"), ("valkey",), ("orchestrator", "valkey"))
# After more kills than this, `adlro up` waits long before it starts a service again.
MOST_KILLS = 8
# The follower of the cluster's log begins at its first event, of which a cluster keeps 10,000.
ROUNDS_ON_DATA = 25


class Suites:
    """A suite, and another one on the same data after many kills, or on new data after many rounds."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self.running = self._start()

    def _start(self) -> RunningSuite:
        data = self._folder / str(self._number // ROUNDS_ON_DATA)
        return start_suite(data, "--port", "0", "--clock", "virtual", "--policy", "srtf", **ALLOWED)

    def end(self) -> None:
        assert self.running.end() == 0, self.running.text
        assert marked_pids(self.running.mark) == []

    def fresh(self) -> RunningSuite:
        """A suite that starts its services at once after a kill."""
        new = self._number // ROUNDS_ON_DATA != (self._number + 1) // ROUNDS_ON_DATA
        self._number += 1
        if new or self.running.text.count("restarting it in") > MOST_KILLS:
            self.end()
            self.running = self._start()
        return self.running


@pytest.fixture
def suites(tmp_path: Path) -> Iterator[Suites]:
    made_here = Suites(tmp_path / "data")
    yield made_here
    made_here.end()


async def kill_at(suite: RunningSuite, watched: JobFollower, moments: Sequence[tuple[int, Sequence[str]]]) -> int:
    """Kills processes after so many changes of jobs; how many."""
    killed: set[int] = set()
    begin = len(watched.changes)

    def reached(moment: int) -> bool:
        return len(watched.changes) >= begin + moment

    for moment, names in moments:
        await watched.until(partial(reached, moment), f"change {moment}", 300.0)
        for name in names:
            if suite.pids[name] not in (None, *killed):  # else it is down already
                killed.add(kill(suite, name))
    return len(killed)


def _has_seen(watched: JobFollower, revision: int) -> bool:
    return watched.revision >= revision


async def test_replays_with_stops_survive_random_kills(suites: Suites) -> None:
    stops = kills = 0
    for number in range(ROUNDS):
        rng, suite = random.Random(f"{SEED}.{number}"), suites.fresh()
        policy, scenario = rng.choice(("srtf", "srtf", "las_preemptive")), rng.choice(("preemptive", "preemptive_240s"))
        jobs = drawn(scenario, rng.uniform(0.9, 1.2), JOBS, rng.randrange(1 << 30))
        moments = sorted((rng.randrange(JOBS, CHANGES), rng.choice(FAULTS)) for _ in range(rng.choice((1, 2, 3))))
        story = f"round {number} of seed {SEED}, {policy} on {scenario}: {moments}"
        began_s = time.monotonic()
        try:
            async with (
                JobFollower(suite.server) as watched,
                ClusterFollower(suite.status["addresses"]["simcluster"]) as cluster_log,
            ):
                killing = asyncio.create_task(kill_at(suite, watched, moments))
                result = await replayed(suite.server, jobs, policy)
                kills += await killing
                stopped = check_as_simulated(result, jobs, made(policy))
                stops += stopped
                newest = max(job.revision for job in result.jobs)
                await watched.until(partial(_has_seen, watched, newest), f"revision {newest}")
                await cluster_log.catch_up()
                verdict.check_changes(watched)
                mine = {job.job_id: job for job in result.jobs}
                verdict.check_attempts(mine.values())
                verdict.check_cluster_log(cluster_log, mine)
        except BaseException:
            sys.stderr.write(f"{story}; failed after {time.monotonic() - began_s:.1f} s\n")
            raise
        sys.stderr.write(f"{story}; {stopped} stops, well after {time.monotonic() - began_s:.1f} s\n")
    assert stops > 3 * ROUNDS
    assert kills >= ROUNDS
