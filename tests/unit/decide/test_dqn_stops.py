"""The learned policy where running jobs can be stopped for others: the stops are those of `srtf`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.gang_actions import BASE, HOLDS
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.srtf import Srtf
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import Unsupported
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Floats, Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.unit.decide.gang_points import Several
from tests.unit.decide.stop_points import HELD, chosen, stop_point
from tests.unit.decide.test_gang_actions import policy_with, preferring

JOB, GANG = Several(1, 5.0), Several(2, 5.0)
BUSY = [[9.0, 8.0], [20.0, 7.0]]
# A gang that fits, and one beside it that does not.
SEVERAL, PART_IDLE = [GANG, Several(4, 5.0)], [[0.0, 0.0], [90.0, 90.0]]


@pytest.fixture(scope="module")
def shipped() -> Dqn:
    policy = Dqn().load()
    policy.wait_ratio = np.inf
    return policy


@pytest.mark.parametrize("job", [JOB, GANG])
def test_where_nothing_fits_it_stops_what_srtf_stops_and_says_so(shipped: Dqn, job: Several) -> None:
    seen = stop_point([job], BUSY)
    srtf = Srtf()
    srtf.wait_ratio = np.inf
    found = chosen(shipped, seen)
    assert found == chosen(srtf, seen)
    assert found[2]
    assert "srtf" in shipped.judge(seen).notes[0]


def test_where_no_stop_is_allowed_none_is_made(shipped: Dqn) -> None:
    assert chosen(shipped, stop_point([JOB], BUSY, fixed=[0, 1, 2, 3])) == HELD
    assert chosen(shipped, replace(stop_point([JOB], BUSY), preemption=None)) == HELD


def test_of_what_fits_its_networks_choose() -> None:
    seen = stop_point(SEVERAL, PART_IDLE)
    assert chosen(policy_with(preferring(BASE)), seen) == (0, (0, 1), False)
    other = stop_point([Several(2, 50.0), GANG, Several(4, 5.0)], PART_IDLE)
    network, alone = policy_with(None), replace(other, preemption=None)
    assert chosen(network, other)[:2] == chosen(network, alone)[:2]


def test_a_start_of_srtf_goes_before_a_hold() -> None:
    holds = policy_with(preferring(HOLDS))
    seen = stop_point(SEVERAL, PART_IDLE)
    assert chosen(holds, replace(seen, preemption=None)) == HELD
    assert chosen(holds, seen) == (0, (0, 1), False)
    assert "hold" in holds.judge(seen).notes[0]


def test_a_hold_stands_where_few_of_the_running_jobs_can_be_stopped() -> None:
    holds = policy_with(preferring(HOLDS))
    assert chosen(holds, stop_point(SEVERAL, PART_IDLE, fixed=[2])) == HELD
    assert chosen(holds, stop_point(SEVERAL, PART_IDLE, fixed=[2, 3])) == HELD, "as where stops are switched off"


def test_what_started_at_this_instant_does_not_count_among_what_can_be_stopped() -> None:
    """A round of starts would let a hold stand until the next event, though all jobs can be stopped a moment later."""
    holds = policy_with(preferring(HOLDS))
    assert chosen(holds, stop_point(SEVERAL, PART_IDLE, elapsed_s=[0.0, 0.0, 1.0, 0.0])) == (0, (0, 1), False)
    assert chosen(holds, stop_point(SEVERAL, PART_IDLE, elapsed_s=[0.0] * 4)) == HELD, "nothing can be stopped now"
    assert chosen(holds, stop_point(SEVERAL, [[0.0, 0.0], [0.0, 0.0]])) == HELD, "nothing runs"


def test_what_is_kept_free_stays_so_while_nothing_fits(shipped: Dqn) -> None:
    """A service takes a judgement without a reservation as its end."""
    seen = stop_point([Several(4, 5.0), JOB], [[2.0, 3.0], [2.0, 3.0]])
    assert seen.gangs is not None
    seen = replace(seen, gangs=seen.gangs._replace(reserved=np.array([0])))
    judgement = shipped.judge(seen)
    assert not judgement.busy
    assert judgement.reserve is not None
    assert judgement.reserve.tolist() == [0]


def test_without_a_checkpoint_it_stops_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="checkpoint"):
        Dqn(tmp_path / "none.onnx").judge(stop_point([JOB], BUSY))


def _on_lists(policy: Dqn, lists: int) -> list[tuple[Floats, int]]:
    """Per list, when its jobs ended and how often one was stopped."""
    scenario = load_scenario("preemptive")
    drawn = [draw_jobs(scenario, load=1.0, rng=np.random.default_rng(n), count=32) for n in range(lists)]
    simulator = BatchSimulator(scenario.cluster, pack_jobs(drawn, scenario.cluster), preempts=policy.preempts)

    def act(seen: Observation) -> None:
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))

    while len(simulator.active):
        act(simulator.observe())
    outcome = simulator.outcome()
    return [(outcome.end_s[n], int(outcome.stops[n])) for n in range(lists)]


def test_lists_go_the_same_way_alone_and_together(shipped: Dqn) -> None:
    together = _on_lists(shipped, 3)
    assert sum(stops for _, stops in together) > 0
    alone = _on_lists(shipped, 1)[0]
    assert (alone[0] == together[0][0]).all()
    assert alone[1] == together[0][1]


def test_the_lookahead_leaves_it_to_them(shipped: Dqn) -> None:
    policy = DqnLookahead()
    policy.wait_ratio = np.inf
    for seen in (stop_point([JOB], BUSY), stop_point([JOB, JOB], [[0.0, 30.0]])):
        assert chosen(policy, seen) == chosen(shipped, seen)
