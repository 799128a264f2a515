"""The Gymnasium environments: conformance, episodes that add up, masks."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from adlro.sim.batch import simulate
from adlro.sim.observation import HOLD
from adlro.sim.scenario import load_scenario
from services.orchestrator.learn.env import PlacementEnv, PlacementVectorEnv, RewardWeights, draw_lists


@pytest.fixture(scope="module")
def lists():
    return draw_lists(seed=7, lists=4, jobs=32)


def first_allowed(mask):
    return np.int64(np.argmax(mask))


def test_the_environment_passes_gymnasiums_own_checks(lists):
    with warnings.catch_warnings():
        # Its advice on unbounded and unnormalised observations: the planes are raw by intent.
        warnings.filterwarnings("ignore", message=".*(A Box observation space|not normalized).*")
        check_env(PlacementEnv(jobs=lists, window=8), skip_render_check=True)


def test_an_episode_s_rewards_add_up_to_its_completion_times(lists):
    env = PlacementEnv(jobs=lists, window=8, weights=RewardWeights(idle=0.5))
    _, info = env.reset(options={"list": 2})
    parts, done = np.zeros(4), False
    while not done:
        _, _, done, truncated, info = env.step(first_allowed(info["action_mask"]))
        parts += info["reward_parts"]
        assert not truncated
    course = env._simulator.course
    jct_s = course.job_end_s[0, :32] - lists.submit_s[2, :32]
    assert parts[0] == pytest.approx(jct_s.sum(), rel=1e-9)
    assert parts[1] == pytest.approx((jct_s * lists.priority[2, :32]).sum(), rel=1e-9)
    assert 0 <= parts[3] <= parts[2]


def test_the_window_and_the_whole_queue_go_the_same_way_where_the_window_holds_the_queue(lists):
    """The shortest job on its first fitting GPU, once through each of the two ways in."""

    def shortest_first(observation):
        actions = np.full((len(observation.time_s), 2), HOLD)
        for row, fits in enumerate(observation.fits_now):
            best_s = observation.duration_s[row].min(axis=1)
            job = min(np.flatnonzero(fits.any(axis=1)), key=lambda j: (best_s[j], j))
            actions[row] = job, np.argmax(fits[job])
        return actions

    whole = simulate(load_scenario("paper").cluster, lists, shortest_first)
    env = PlacementEnv(jobs=lists, window=32)
    for number in range(4):
        _, info = env.reset(options={"list": number})
        done = False
        while not done:
            _, _, done, _, info = env.step(first_allowed(info["action_mask"]))
        assert (env._simulator.course.job_end_s[0] == whole.end_s[number]).all()


def test_the_longest_waiting_job_is_always_in_the_window(lists):
    env = PlacementEnv(jobs=lists, window=2)
    _, info = env.reset(seed=1)
    done, full = False, 0
    rng = np.random.default_rng(0)
    while not done:
        course = env._simulator.course
        if course.waiting_count[0] > 2:
            full += 1
            assert course.waiting[0, 0] in course.window[0, :2]
        allowed = np.flatnonzero(info["action_mask"])
        _, _, done, truncated, info = env.step(rng.choice(allowed))
        done = done or truncated
    assert full > 5


def test_a_masked_action_starts_nothing(lists):
    env = PlacementEnv(jobs=lists, window=8)
    observation, _ = env.reset(seed=3)
    masked = np.int64(np.argmin(observation["mask"]))
    _, _, _, _, info = env.step(masked)
    assert info["masked_actions"] == 1
    assert env._simulator.machines.launch_count[0] == 0


def test_the_vector_environment_goes_as_single_ones_do(lists):
    vector = PlacementVectorEnv(3, jobs=lists, window=8)
    observations, info = vector.reset(seed=11)
    numbers = vector._simulator.course.list_of.copy()
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
    hold = env._simulator.hold_action
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


def test_lists_are_drawn_for_the_cluster_that_is_given():
    gavel = load_scenario("gavel").cluster
    env = PlacementEnv(gavel, window=4)
    env.reset(seed=0)
    assert env._simulator.gpu_models == gavel.gpu_models
    assert env._simulator.jobs.duration_s.shape[2] == len(gavel.gpu_models)
