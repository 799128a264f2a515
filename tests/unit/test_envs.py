"""`gymnasium.make("adlro/Placement-v0")`: registered by an import, conformant, with options that say what is wrong."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import adlro.envs
from adlro.errors import InvalidInput
from adlro.lab.learn.env import PlacementEnv, draw_lists
from adlro.workload.scenario import load_scenario
from examples.learn_placement import learn

SMALL: dict[str, Any] = {"jobs": 16, "lists": 3}


def made(**options: Any) -> PlacementEnv:
    env = gymnasium.make(adlro.envs.PLACEMENT, **{**SMALL, **options}).unwrapped
    assert isinstance(env, PlacementEnv)
    return env


@pytest.mark.parametrize("options", [{}, {"scenario": "gavel", "load": 0.6, "window": 8}, {"cluster": "paper_roomy"}])
def test_what_is_made_passes_gymnasiums_own_checks(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made(**options), skip_render_check=True)


def test_the_lists_are_those_of_the_options() -> None:
    env = made(scenario="surge", load=0.7, seed=5)
    expected = draw_lists(5, 3, scenario="surge", load=0.7, jobs=16)
    alone = PlacementEnv(load_scenario("surge").cluster, expected)
    for each in (env, alone):
        each.reset(options={"list": 2})
    np.testing.assert_array_equal(env.simulator.time_s, alone.simulator.time_s)
    np.testing.assert_array_equal(env.step(np.int64(0))[0]["jobs"], alone.step(np.int64(0))[0]["jobs"])


def test_rewards_follow_the_options() -> None:
    def total(**options: Any) -> float:
        env, reward = made(**options), 0.0
        _, info = env.reset(options={"list": 1})
        done = False
        while not done:
            _, gained, done, _, info = env.step(np.int64(info["action_mask"].argmax()))
            reward += gained
        return reward

    assert total(idle=0.9, feasible_idle_only=False) < total(idle=0.1, feasible_idle_only=False)
    assert total(by_priority=True) > total()


def test_many_clusters_in_one_step() -> None:
    env = gymnasium.make_vec(adlro.envs.PLACEMENT, num_envs=3, **SMALL)
    _, info = env.reset(seed=1)
    actions = info["action_mask"].argmax(axis=1)
    _, rewards, ended, _, _ = env.step(actions)
    assert rewards.shape == ended.shape == (3,)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scenario": "gangs"}, "scenario: 'gangs' is not one of paper, .* an action gives a job one GPU"),
        ({"scenario": "papre"}, "scenario: 'papre' is not one of paper"),
        ({"load": 0}, "load: must be a number above 0, not 0"),
        ({"load": float("nan")}, "load: must be a number above 0"),
        ({"jobs": 0}, "jobs: must be at least 1"),
        ({"lists": 0}, "lists: must be at least 1"),
        ({"window": 0}, "window: must be at least 1"),
        ({"seed": -1}, "seed: must be a whole number from 0"),
        ({"idle": 1.0}, "idle: must be above 0 and below 1"),
        ({"cluster": "nowhere"}, "'nowhere' is neither a scenario"),
        ({"laod": 0.9}, "laod: no such option; there are scenario, load, jobs"),
    ],
)
def test_impossible_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        made(**options)


@pytest.mark.slow
def test_a_name_with_the_module_needs_no_import() -> None:
    code = (
        "import gymnasium, sys\n"
        "env = gymnasium.make('adlro.envs:adlro/Placement-v0', jobs=4, lists=1)\n"
        "print(env.reset(seed=0)[1]['action_mask'].sum() > 0, 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False"]


@pytest.mark.slow
def test_the_example_learns() -> None:
    before_s, after_s = learn(generations=3, candidates=12)
    assert after_s < 0.95 * before_s
