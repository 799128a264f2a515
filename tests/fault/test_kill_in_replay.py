"""`kill -9` of each process in the middle of a replay through the running services (docs/guarantees.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.workload.scenario import load_cluster
from adlro.workload.traces import read_swf
from tests.e2e.records import mean_jct_s
from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite, wait_until
from tests.fault.followers import JobFollower
from tests.fault.replaying import check, kill, replay, wait_until_back
from tests.unit.workload.paper_rules import PaperRun, fcfs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

JOBS = 300
# As many must have ended before the kill, and as many must be left.
ENDED_BEFORE = 100
LEFT_AFTER = 100


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    running = start_suite(
        tmp_path_factory.mktemp("killed") / "data", "--port", "0", "--clock", "virtual", "--policy", "fcfs"
    )
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


@pytest.fixture(scope="module")
def trace(shared_data: Path) -> Path:
    return shared_data / "traces" / "lublin_256.swf"


@pytest.fixture(scope="module")
def undisturbed_mean_jct_s(trace: Path) -> float:
    """What a program of its own, without services, gets for the same jobs."""
    workload, _ = read_swf(trace, limit=JOBS)
    return PaperRun(load_cluster("paper"), workload, fcfs).run()[0]


@pytest.mark.parametrize("name", ["ingest", "decompose", "orchestrator", "valkey", "simcluster"])
async def test_a_replay_survives_kill_9_of(
    suite: RunningSuite, trace: Path, undisturbed_mean_jct_s: float, name: str
) -> None:
    async def kill_in_the_middle(watched: JobFollower) -> None:
        await watched.until(lambda: len(watched.final) >= ENDED_BEFORE, f"{ENDED_BEFORE} jobs to end")
        assert len(watched.final) <= JOBS - LEFT_AFTER, "the kill would come too late to matter"
        pid = kill(suite, name)
        await wait_until_back(suite, name, pid)

    done = await replay(suite, trace, JOBS, kill_in_the_middle)
    check(done, JOBS)
    # What ran was adopted, or ran on; and time stood still meanwhile, so nobody can tell from the result.
    assert len(done.cluster_log.logs) == 1
    assert done.report["jobs"]["several_attempts"] == 0
    assert mean_jct_s(list(done.jobs.values())) == pytest.approx(undisturbed_mean_jct_s, rel=1e-9)


def test_what_is_killed_while_it_starts_is_started_again_at_once(suite: RunningSuite) -> None:
    backs = suite.text.count("decompose is back")
    first_pid = kill(suite, "decompose")
    wait_until(lambda: suite.pids["decompose"] not in (first_pid, None), 60.0, "decompose to be started again")
    second_pid = kill(suite, "decompose")
    assert second_pid != first_pid
    assert suite.text.count("decompose is back") == backs, "it was killed too late to matter"
    wait_until(lambda: suite.pids["decompose"] not in (first_pid, second_pid), 60.0, "decompose to be started again")
    wait_until(lambda: suite.text.count("decompose is back") == backs + 1, 60.0, "decompose to be back")
