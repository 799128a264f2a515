"""Looking ahead from observations: what is imagined is the cluster that was seen, and nothing of what is to come."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.decide.rollouts.candidates import find_candidates
from adlro.decide.rollouts.continuation import cost_of
from adlro.decide.rollouts.gated import Gate
from adlro.decide.rollouts.lookahead import FEWEST_SEEN, IN_SERVICE, Lookahead, Seen, _Room
from adlro.lab.evaluate import Request, evaluate
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.dense import durations_s, fits_now

pytestmark = pytest.mark.slow


def simulator(scenario: str, jobs: int, load: float = 1.0, seed: int = 3) -> BatchSimulator:
    drawn = load_scenario(scenario)
    lists = [draw_jobs(drawn, load=load, rng=np.random.default_rng(seed), count=jobs)]
    return BatchSimulator(drawn.cluster, pack_jobs(lists, drawn.cluster))


def test_an_imagined_cluster_goes_the_way_of_the_real_one() -> None:
    # All jobs are there from the beginning, and runtimes are exact: the base's future is the truth.
    real, policy = simulator("batch", 60), HoldGreedyFixed()
    checked, total_s, at = [], [], 0
    while len(real.active):
        observation = real.observe()
        if at % 7 == 0:
            waiting = np.flatnonzero(observation.job_waiting[0])
            room = _Room(observation, 80, FIXED, Gate(ahead=0))
            room.fill(observation, waiting)
            imagined, arrays = room.imagined, room.imagined
            count = find_candidates(
                room.hardware, arrays.machines, arrays.jobs, arrays.course, 0, room.base, room.candidates
            )
            assert count >= 1
            cost_s = cost_of(
                imagined.hardware,
                imagined.machines,
                imagined.jobs,
                imagined.changes,
                imagined.course,
                0,
                room.candidates.job[0],
                room.candidates.gpu[0],
                room.base,
                imagined.hardware,
                imagined.machines,
                imagined.course,
                1,
            )
            checked.append(cost_s)
            total_s.append(float(real.totals[0, 0]))
        real.act(policy.act(observation))
        at += 1
    left_s = real.totals[0, 0] - np.array(total_s)
    assert len(checked) > 5
    np.testing.assert_allclose(checked, left_s, rtol=1e-6)


def test_every_job_is_seen_once() -> None:
    real, policy, seen = simulator("paper", 120), HoldGreedyFixed(), Seen(16)
    while len(real.active):
        observation = real.observe()
        seen.look(observation, 0)
        seen.look(observation, 0)
        real.act(policy.act(observation))
    assert seen.count == 120


def test_little_seen_little_said() -> None:
    lookahead, policy = Lookahead(), HoldGreedyFixed()
    real = simulator("paper", FEWEST_SEEN - 1)
    while len(real.active):
        observation = real.observe()
        # Whatever is wished for is done: nothing is known of what will come.
        job, gpu = (int(each) for each in np.argwhere(fits_now(observation)[0])[-1])
        assert lookahead.choose(observation, (job, gpu)) == (job, gpu)
        real.act(policy.act(observation))


def test_a_bad_incumbent_is_left_and_a_good_one_is_kept() -> None:
    real, policy, lookahead = simulator("paper", 200, load=1.1), HoldGreedyFixed(), Lookahead(seed=1)
    left = {"worst": 0, "base": 0}
    asked = {"worst": 0, "base": 0}
    while len(real.active) and asked["base"] < 60:
        observation = real.observe()
        job, gpu = (int(each) for each in policy.act(observation)[0])
        base = (job, gpu)
        fits = fits_now(observation)[0]
        longest = np.where(fits, durations_s(observation)[0], -np.inf)
        job, gpu = (int(each) for each in np.unravel_index(int(longest.argmax()), longest.shape))
        worst = (job, gpu)
        kinds = {"base": base, "worst": worst} if observation.job_waiting[0].sum() > 4 else {}
        for kind, action in kinds.items():
            asked[kind] += 1
            found = lookahead.choose(observation, action)
            left[kind] += found != action
            assert found == (HOLD, HOLD) or fits[found]
        if not kinds:
            lookahead.choose(observation, base)
        real.act(policy.act(observation))
    assert asked["base"] == 60
    assert left["worst"] > 25
    assert left["base"] < 20


def test_work_is_bounded_whatever_waits() -> None:
    """A queue of hundreds would take seconds: there the incumbent's action stands."""
    real, policy, lookahead = simulator("batch", 300), HoldGreedyFixed(), Lookahead(seed=1)
    took, waited, left = [], [], 0
    while len(real.active):
        observation = real.observe()
        job, gpu = (int(each) for each in np.argwhere(fits_now(observation)[0])[-1])
        before = 0 if lookahead._room is None else int(lookahead._room.base.work[0])
        left += lookahead.choose(observation, (job, gpu)) != (job, gpu)
        assert lookahead._room is not None  # the first, which the longest queue fits in, stays
        took.append(int(lookahead._room.base.work[0]) - before)
        waited.append(int(observation.job_waiting[0].sum()))
        real.act(policy.act(observation))
    assert max(waited) > 200
    assert max(took) < 2 * IN_SERVICE.most_work
    assert max(np.array(took)[np.array(waited) > 100]) < 0.1 * IN_SERVICE.most_work
    assert left > 20


def test_an_evaluation_gives_each_list_to_an_object_of_its_own() -> None:
    def jct_s(lists: int) -> list[float]:
        request = Request(policies=("dqn_lookahead",), loads=(0.9,), lists=lists, jobs=40, seed=5)
        found = evaluate(request, processes=1, time_decisions=False)
        return [float(each) for each in found.figures["dqn_lookahead", 0].metrics[:, 0]]

    assert jct_s(2)[0] == jct_s(1)[0]
