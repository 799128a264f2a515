"""Kills of whatever comes, whenever it comes, all through one replay: the seeds say what and when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite
from tests.fault.followers import JobFollower
from tests.fault.replaying import check, kill, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

JOBS = 300
KILLS = 8
# A job that is submitted, taken up, launched, started and ended has changed five times.
LAST_KILL_AT = JOBS * 4
PROCESSES = ("ingest", "decompose", "orchestrator", "simcluster", "valkey")


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[RunningSuite]:
    running = start_suite(tmp_path / "data", "--port", "0", "--clock", "virtual", "--policy", "fcfs")
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


@pytest.mark.parametrize("seed", [1])
async def test_a_replay_survives_random_kills(suite: RunningSuite, shared_data: Path, seed: int) -> None:
    rng = random.Random(seed)
    # Each at least once, the rest as it comes; from the first submissions to the last starts.
    names = [*PROCESSES, *rng.choices(PROCESSES, k=KILLS - len(PROCESSES))]
    rng.shuffle(names)
    moments = sorted(rng.sample(range(1, LAST_KILL_AT), KILLS))
    killed: dict[int, str] = {}

    async def kill_now_and_then(watched: JobFollower) -> None:
        def reached(moment: int) -> bool:
            return len(watched.changes) >= moment

        for moment, name in zip(moments, names, strict=True):
            await watched.until(partial(reached, moment), f"change {moment}")
            if suite.pids[name] not in (None, *killed):  # else it is down already
                killed[kill(suite, name)] = name

    done = await replay(suite, shared_data / "traces" / "lublin_256.swf", JOBS, kill_now_and_then)
    check(done, JOBS)
    assert len(killed) > KILLS // 2
    assert suite.text.count("restarting it in") == len(killed)
    assert len(done.cluster_log.logs) == 1, "however often the cluster was killed"
    assert max(job.attempt_count for job in done.jobs.values()) == 1, "what runs is no matter of who is killed"
