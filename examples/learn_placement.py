"""Learns to place jobs in ADLRO's Gymnasium environment, in a quarter of a minute on one core, with numpy alone.

The learner is small: a weight for each plane of a (job, GPU) pair; the pair with the greatest weighted sum starts, or
none (a hold) if all sums are below 0. The cross-entropy method finds the weights: draw many, keep the best, draw around
those. It begins at 0, where the first job goes to the first GPU on which it fits. The planes that tell what ADLRO's own
heuristic would do are left out: nothing is copied.

    pip install '.[train]'
    python examples/learn_placement.py
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import adlro.envs
from adlro.decide.planes.table import PAIR_PLANES

JOBS = 48
PLANES = [number for number, plane in enumerate(PAIR_PLANES) if plane.group != "base"]


def mean_jct_s(env: gymnasium.Env[Any, Any], weights: NDArray[np.float64], lists: range) -> float:
    """The mean job completion time over some lists, in seconds."""
    totals = []
    for number in lists:
        observation, info = env.reset(options={"list": number})
        total_s, done = 0.0, False
        while not done:
            scores = np.tensordot(weights, observation["pairs"][PLANES], axes=1).ravel()
            scores = np.append(scores, 0.0)  # the last action is a hold
            action = int(np.where(info["action_mask"], scores, -np.inf).argmax())
            observation, _, done, _, info = env.step(action)
            total_s += info["reward_parts"][0]  # its sum is the sum of all completion times
        totals.append(total_s)
    return float(np.mean(totals)) / JOBS


def learn(generations: int, candidates: int, seed: int = 0) -> tuple[float, float]:
    """Mean completion times on lists that were not used to learn: before, and after."""
    env = gymnasium.make(adlro.envs.PLACEMENT, scenario="paper", load=0.9, jobs=JOBS, lists=24, seed=seed).unwrapped
    train, test = range(4), range(4, 24)
    rng = np.random.default_rng(seed)
    mean, spread = np.zeros(len(PLANES)), np.full(len(PLANES), 1.0)
    before_s = mean_jct_s(env, mean, test)
    for generation in range(generations):
        drawn = mean + spread * rng.normal(size=(candidates, len(PLANES)))
        costs_s = np.array([mean_jct_s(env, weights, train) for weights in drawn])
        best = drawn[costs_s.argsort()[: max(2, candidates // 5)]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.05
        print(f"generation {generation + 1}: best {costs_s.min():.1f} s, mean {costs_s.mean():.1f} s")
    return before_s, mean_jct_s(env, mean, test)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=20)
    asked = parser.parse_args()
    first_s, last_s = learn(asked.generations, asked.candidates)
    print(f"mean completion time on 20 other lists: {first_s:.1f} s before, {last_s:.1f} s after")
