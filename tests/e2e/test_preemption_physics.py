"""Jobs that are stopped and go on: the same through the running suite in virtual time and through the simulator.

As tests/e2e/test_one_physics.py, with an owner who allows stops.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.running_suite import RunningSuite, start_suite
from tests.e2e.stops import ALLOWED, CLUSTER, check_as_simulated, drawn, replayed
from tests.picky_jobs import picky
from tests.policies import made

pytestmark = pytest.mark.slow

LISTS = (("preemptive", 0.9, 64, 21), ("preemptive", 1.1, 96, 22), ("preemptive_240s", 1.0, 64, 23))
"""(scenario, load, jobs, seed)."""


@pytest.fixture(scope="module")
def stopping_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """A suite whose owner lets jobs be stopped at any time."""
    folder = tmp_path_factory.mktemp("stopping")
    suite = start_suite(folder, "--port", "0", "--clock", "virtual", "--policy", "srtf", **ALLOWED)
    try:
        yield suite
    finally:
        code = suite.end()
    assert code == 0, suite.text
    assert suite.error_lines() == []


@pytest.mark.parametrize("policy", ["srtf", "las_preemptive", "hold_gang", "dqn"])
@pytest.mark.parametrize("drawn_from", LISTS, ids=lambda each: f"{each[0]}, load {each[1]}")
async def test_every_attempt_starts_and_ends_when_and_where_the_simulator_says(
    stopping_suite: RunningSuite, drawn_from: tuple[str, float, int, int], policy: str
) -> None:
    jobs, decides = drawn(*drawn_from), made(policy)
    result = await replayed(stopping_suite.server, jobs, policy)
    assert (check_as_simulated(result, jobs, decides) > 0) == decides.preempts


@pytest.mark.parametrize(("share", "seed"), [(0.1, 25), (0.9, 28)])
@pytest.mark.parametrize("policy", ["srtf", "dqn"])
async def test_so_does_every_attempt_where_a_part_of_the_jobs_may_be_stopped(
    stopping_suite: RunningSuite, policy: str, share: float, seed: int
) -> None:
    jobs, decides = drawn("preemptive", 1.1, 96, seed, share), made(policy)
    result = await replayed(stopping_suite.server, jobs, policy)
    assert check_as_simulated(result, jobs, decides) > 0


@pytest.mark.parametrize("policy", ["srtf", "las_preemptive"])
async def test_so_do_exclusive_jobs_and_jobs_that_choose_nodes(stopping_suite: RunningSuite, policy: str) -> None:
    jobs, decides = picky(drawn("preemptive", 0.8, 64, 24), CLUSTER, np.random.default_rng(24)), made(policy)
    result = await replayed(stopping_suite.server, jobs, policy)
    assert check_as_simulated(result, jobs, decides) > 0
    assert any(job.spec.exclusive and len(job.attempts) > 1 for job in result.jobs), "an exclusive job was stopped"
