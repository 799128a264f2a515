"""Q-learning: what is paid and learned, by hand and against slow ways."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.errors import InvalidInput
from adlro.lab.learn.dqn import DqnLearner, best_allowed
from adlro.lab.learn.episodes import run_generation
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import QRecipe, q_recipe
from adlro.lab.learn.replay import Inputs, Replay, taken
from adlro.lab.learn.worlds import world_of
from adlro.sim.batch import simulate
from adlro.workload.scenario import load_scenario

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = QRecipe(
    "small",
    randomised=False,
    lists=6,
    jobs=16,
    replay=400,
    batch=32,
    target_every=3,
    epsilon_first=0.5,
    validate_every=2,
)


@pytest.fixture(scope="module")
def world():
    return world_of(load_scenario("paper"), 1.1, "true", np.random.default_rng(4), lists=6, jobs=24)


def generation(world, recipe, epsilon=0.3, seed=1):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    return run_generation(world, PairNetwork(), recipe, PlaneFiller(FIXED.rule()), rng, epsilon, CPU)


def test_decisions_of_a_list_follow_one_another(world):
    ran = generation(world, SMALL)
    following = ran.decisions.following
    assert (following[following >= 0] > np.flatnonzero(following >= 0)).all()
    assert len(set(following[following >= 0])) == (following >= 0).sum()  # each follows one
    starts = (ran.decisions.action >= 0).sum()
    assert starts == world.jobs.job_count.sum()
    assert ran.explored == pytest.approx(0.3, abs=0.1)


def test_the_reward_of_the_paper_is_the_time_that_jobs_spend(world):
    recipe = dataclasses.replace(SMALL, reward="jobs", idle=1e-9)
    ran = generation(world, recipe, epsilon=0.0)
    # Until the last decision that has a next one, by the completion times of the jobs themselves.
    outcome = simulate(world.cluster, world.jobs, HoldGreedyFixed().act)
    assert ran.mean_jct_s == pytest.approx(float(np.mean(outcome.end_s - world.jobs.submit_s)))
    paid_s, begun_s, ended_s = -ran.decisions.reward_s.sum(), [], []
    for number in range(len(world.jobs.job_count)):
        times = decision_times(world, number)
        begun_s.append(times[0])
        ended_s.append(max(time_s for time_s in times if time_s <= world.jobs.submit_s[number].max()))
    spent_s = 0.0
    for number, (first_s, last_s) in enumerate(zip(begun_s, ended_s, strict=True)):
        within = np.clip(outcome.end_s[number], first_s, last_s) - np.clip(world.jobs.submit_s[number], first_s, last_s)
        spent_s += float(within.sum())
    assert paid_s == pytest.approx(spent_s, rel=1e-6)


def decision_times(world, number):
    """When the base decides, in a list that is run alone."""
    times, policy = [], HoldGreedyFixed()

    def act(observation):
        times.append(float(observation.time_s[0]))
        return policy.act(observation)

    alone = world.jobs._replace(**{name: column[number : number + 1] for name, column in world.jobs._asdict().items()})
    simulate(world.cluster, alone, act)
    return times


def test_both_rewards_prefer_the_same(world):
    """Over a list they differ by what no policy changes, but for the mean that is taken off and what still runs."""
    sums = {}
    for reward in ("jobs", "waits"):
        for hold_often in (False, True):
            recipe = dataclasses.replace(SMALL, reward=reward, idle=1e-9, random_hold=0.9 if hold_often else 0.0)
            ran = generation(world, recipe, epsilon=0.5 if hold_often else 0.0)
            sums[reward, hold_often] = ran
    assert sums["jobs", True].mean_jct_s > sums["jobs", False].mean_jct_s
    # The mean over time is taken off: what is left sums to 0.
    for hold_often in (False, True):
        reward_s = sums["waits", hold_often].decisions.reward_s
        assert abs(reward_s.sum()) < 1e-6 * np.abs(reward_s).sum()
    assert np.abs(sums["waits", False].decisions.reward_s).sum() < np.abs(sums["jobs", False].decisions.reward_s).sum()


def test_time_is_discounted_and_not_decisions(world):
    ran = generation(world, SMALL)
    decisions = ran.decisions
    assert ((decisions.discount > 0.0) & (decisions.discount <= 1.0)).all()
    assert (decisions.discount[decisions.following >= 0] == 1.0).any()  # several starts at one moment
    fixed = generation(world, dataclasses.replace(SMALL, discount_per_decision=0.9))
    assert (fixed.decisions.discount == 0.9).all()


def test_targets_are_what_a_slow_way_gives(world):
    decisions = generation(world, SMALL).decisions
    torch.manual_seed(5)
    network = PairNetwork()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for double in (True, False):
        learner = DqnLearner(network, dataclasses.replace(SMALL, double=double), CPU)
        torch.manual_seed(6)
        for parameter in learner.target.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        rows = decisions.usable[::7]
        targets = learner.targets(decisions, rows).numpy()
        for place, row in enumerate(rows):
            after = decisions.following[row]
            inputs = taken(decisions, np.array([after]))
            with torch.no_grad():
                online = [each.numpy() for each in learner.online(*map(torch.from_numpy, inputs[:-1]))]
                target = [each.numpy() for each in learner.target(*map(torch.from_numpy, inputs[:-1]))]
            judge = online if double else target
            allowed = [(judge[0][pair], target[0][pair]) for pair in range(len(inputs.pairs))]
            if decisions.hold_allowed[after] or not allowed:
                allowed.append((judge[1][0], target[1][0]))
            best = max(allowed)[1]
            worth = decisions.reward_s[row] + decisions.discount[row] * best * decisions.scale_s[after]
            assert targets[place] == pytest.approx(worth / decisions.scale_s[row], rel=1e-3, abs=1e-4)


def test_q_of_what_was_done_is_that_of_each_decision_alone(world):
    decisions = generation(world, SMALL).decisions
    torch.manual_seed(5)
    network = PairNetwork()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    learner = DqnLearner(network, SMALL, CPU)
    rows = np.arange(len(decisions.action))[::5]
    action = decisions.action[rows]
    assert (action < 0).any()
    with torch.no_grad():
        q = learner.q_of(taken(decisions, rows), action).numpy()
        for place, row in enumerate(rows):
            q_pairs, q_hold = network(*map(torch.from_numpy, taken(decisions, rows[place : place + 1])[:-1]))
            expected = q_hold[0] if decisions.action[row] < 0 else q_pairs[decisions.action[row]]
            assert q[place] == pytest.approx(float(expected), abs=1e-4)


def test_a_hold_that_is_not_allowed_is_in_no_maximum():
    inputs = Inputs(
        *(np.zeros(0, np.float32),) * 4, np.array([0, 0, 1]), *(np.zeros(0, np.int64),) * 2, np.array([0, 2, 3, 3])
    )
    judged = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0]))
    q = (torch.tensor([5.0, 4.0, -1.0]), torch.tensor([9.0, 0.0, -2.0]))
    allowed = best_allowed(q, judged, inputs, np.array([True, True, True])).tolist()
    assert allowed == [10.0, 20.0, 30.0]
    forbidden = best_allowed(q, judged, inputs, np.array([False, False, False])).tolist()
    assert forbidden == [1.0, 3.0, 30.0]  # nothing fits in the third: it can but hold


def test_a_replay_keeps_the_newest_whole_generations(world):
    decisions = generation(world, SMALL).decisions
    replay = Replay(2 * len(decisions.action) + 1)
    for kept in (1, 2, 2):
        replay.add(decisions)
        assert replay.generations == kept
    tiny = Replay(1)
    tiny.add(decisions)
    assert tiny.generations == 1
    _, rows = tiny.draw(np.random.default_rng(0), 50)
    assert (decisions.following[rows] >= 0).all()


def test_learning_lowers_the_loss_on_what_is_learned_from(world):
    recipe = dataclasses.replace(SMALL, learning_rate=3e-3, target_every=10_000)
    replay = Replay(10_000)
    replay.add(generation(world, recipe).decisions)
    torch.manual_seed(1)
    learner = DqnLearner(PairNetwork(), recipe, CPU)
    rng = np.random.default_rng(2)
    before = learner.learn(replay, rng, 5)
    learner.learn(replay, rng, 80)
    assert learner.learn(replay, rng, 10) < 0.8 * before


@pytest.mark.parametrize("name", ["dqn", "paper"])
def test_recipes_are_whole_and_their_settings_checked(name):
    recipe = q_recipe(name)
    assert recipe.epsilon(0) == recipe.epsilon_first
    assert recipe.epsilon(10**12) == pytest.approx(recipe.epsilon_last)
    for wrong in (
        {"idle": 1.0},
        {"batch": 0},
        {"reward": "fame"},
        {"learning_rate": 0.0},
        {"loads": ()},
        {"epsilon_last": 2.0},
    ):
        with pytest.raises(InvalidInput):
            q_recipe(name, **wrong)
