"""The Gymnasium environments: conformance, episodes that add up, masks."""

import math
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.table import PAIR_PLANES
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.lab.learn.env import PlacementEnv, PlacementVectorEnv, RewardWeights, draw_lists
from adlro.sim.batch import simulate
from adlro.workload.scenario import load_scenario


@pytest.fixture(scope="module")
def lists():
    return draw_lists(seed=7, lists=4, jobs=32)


def first_allowed(mask):
    return np.int64(np.argmax(mask))


def test_the_environment_passes_gymnasiums_own_checks(lists):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(PlacementEnv(jobs=lists, window=8), skip_render_check=True)


def test_an_episode_s_rewards_add_up_to_its_completion_times(lists):
    env = PlacementEnv(jobs=lists, window=8, weights=RewardWeights(idle=0.5))
    _, info = env.reset(options={"list": 2})
    parts, done = np.zeros(4), False
    while not done:
        _, _, done, truncated, info = env.step(first_allowed(info["action_mask"]))
        parts += info["reward_parts"]
        assert not truncated
    jct_s = env.simulator.outcome().end_s[0, :32] - lists.submit_s[2, :32]
    assert parts[0] == pytest.approx(jct_s.sum(), rel=1e-9)
    assert parts[1] == pytest.approx((jct_s * lists.priority[2, :32]).sum(), rel=1e-9)
    assert 0 <= parts[3] <= parts[2]


def test_an_agent_sees_what_the_policy_that_ships_sees(lists):
    """Who does what the plane `base_choice` says does what the heuristic does, to the last bit."""
    says = [plane.name for plane in PAIR_PLANES].index("base_choice")
    base = HoldGreedyFixed()
    base.wait_ratio = math.inf
    alone = simulate(load_scenario("paper").cluster, lists, base.act)
    env = PlacementEnv(jobs=lists, window=32)
    seen = 0
    for number in range(4):
        observation, info = env.reset(options={"list": number})
        done = False
        while not done:
            direct = PlaneFiller(FIXED.rule()).fill(env.simulator.observe())
            np.testing.assert_array_equal(observation["jobs"], direct.jobs[0])
            np.testing.assert_array_equal(observation["gpus"], direct.gpus[0])
            wanted = observation["pairs"][says].reshape(-1)
            action = np.int64(wanted.argmax() if wanted.any() else len(wanted))
            assert info["action_mask"][action]
            assert info["action_mask"][:-1].sum() == len(direct.pairs)
            observation, _, done, _, info = env.step(action)
            seen += 1
        np.testing.assert_array_equal(env.simulator.outcome().end_s[0], alone.end_s[number])
    assert seen > 100


def test_a_masked_action_starts_nothing(lists):
    env = PlacementEnv(jobs=lists, window=8)
    observation, _ = env.reset(seed=3)
    masked = np.int64(np.argmin(observation["mask"]))
    _, _, _, _, info = env.step(masked)
    assert info["masked_actions"] == 1
    assert (env.simulator.outcome().attempts == 0).all()


def test_the_vector_environment_goes_as_single_ones_do(lists):
    vector = PlacementVectorEnv(3, jobs=lists, window=8)
    observations, info = vector.reset(seed=11)
    numbers = vector.lists_begun.copy()
    singles = [PlacementEnv(jobs=lists, window=8) for _ in range(3)]
    for env, number in zip(singles, numbers, strict=True):
        env.reset(options={"list": int(number)})
    ended = np.zeros(3, dtype=bool)
    for _ in range(40):
        actions = info["action_mask"].argmax(axis=1)
        observations, rewards, terminated, truncated, info = vector.step(actions)
        for n, env in enumerate(singles):
            if ended[n]:
                continue
            seen, reward, done, _, _ = env.step(actions[n])
            assert reward == rewards[n]
            assert done == terminated[n]
            ended[n] = done
            if not done:
                assert all((seen[name] == observations[name][n]).all() for name in seen)
        assert vector.observation_space.contains(observations)
        assert not truncated.any()
    assert ended.any()


def test_the_environments_are_gymnasiums():
    assert issubclass(PlacementEnv, gymnasium.Env)
    assert issubclass(PlacementVectorEnv, gymnasium.vector.VectorEnv)


@pytest.mark.parametrize("idle", [0.0, 1.0, -0.1, float("nan")])
def test_lambda_is_between_0_and_1(idle):
    with pytest.raises(ValueError, match="lambda"):
        RewardWeights(idle=idle)


def test_no_episode_can_be_quit_for_free():
    """All jobs are there at once: nothing will end a hold, and a masked action starts the first possible pair."""
    lists = draw_lists(seed=3, lists=1, jobs=8)
    lists.submit_s[0, :8] = 0.0
    env = PlacementEnv(jobs=lists, window=4)
    observation, _ = env.reset(seed=0)
    assert observation["mask"][-1] == 0
    hold = len(observation["mask"]) - 1
    total, steps, done, truncated = 0.0, 0, False, False
    while not (done or truncated):
        _, reward, done, truncated, info = env.step(np.int64(hold))
        total, steps = total + reward, steps + 1
    assert done
    assert not truncated
    assert total < 0
    assert info["masked_actions"] >= 1
    vector = PlacementVectorEnv(2, jobs=lists, window=4)
    vector.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, stuck, _ = vector.step(np.full(2, hold))
        assert not stuck.any()
    assert terminated.all()


@pytest.mark.parametrize("action", [-1, -300, 10**6])
def test_an_action_that_is_none_is_refused(lists, action):
    env, vector = PlacementEnv(jobs=lists, window=8), PlacementVectorEnv(2, jobs=lists, window=8)
    env.reset(seed=0)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="actions are 0 to 128"):
        env.step(np.int64(action))
    with pytest.raises(ValueError, match="actions are 0 to 128"):
        vector.step(np.array([0, action]))


def test_each_cluster_has_an_action_of_its_own(lists):
    vector = PlacementVectorEnv(3, jobs=lists, window=8)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="3 actions are wanted"):
        vector.step(np.array([5]))


def test_lists_are_drawn_for_the_cluster_that_is_given():
    gavel = load_scenario("gavel").cluster
    env = PlacementEnv(gavel, window=4)
    env.reset(seed=0)
    assert env.simulator.gpu_models == gavel.gpu_models
    assert env.simulator.outcome().jobs.duration_s.shape[2] == len(gavel.gpu_models)
