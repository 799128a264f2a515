"""How a network does against the base policy, on job lists that neither training nor the evaluation draws. numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adlro.lab.learn.playing import unlimited_base
from adlro.lab.learn.worlds import World, world_of
from adlro.numeric.exact import log_array
from adlro.sim.batch import simulate
from adlro.state.observation import Floats, Ints, Observation
from adlro.workload.scenario import load_scenario

VALIDATION_ENTROPY = 0x0AD1_0A11
"""Of the seeds of validation lists; those of training and evaluation begin with a small number."""

SETTINGS = (("paper", 0.6), ("paper", 0.9), ("paper", 1.1), ("paper_roomy", 0.9))


@dataclass(frozen=True, slots=True)
class Score:
    """Mean job completion time against the base policy's on the same lists.

    Attributes:
        gain: mean over the lists of ln(base / network): 0.01 is 1 % below the base.
        error: its standard error.
        worst: gain in the worst of the settings.
        stuck: lists with jobs that were never started.
    """

    gain: float
    error: float
    worst: float
    stuck: int

    @property
    def certain_gain(self) -> float:
        """By which checkpoints are compared."""
        return -math.inf if self.stuck else self.gain


class Validation:
    """Lists and what the base does with them.

    Args:
        lists, jobs: of each of `SETTINGS`.
    """

    def __init__(self, lists: int = 32, jobs: int = 192) -> None:
        self._worlds: list[World] = []
        for number, (name, load) in enumerate(SETTINGS):
            rng = np.random.default_rng((VALIDATION_ENTROPY, number))
            self._worlds.append(world_of(load_scenario(name), load, "true", rng, lists=lists, jobs=jobs))
        self._base = [_mean_jct_s(world, unlimited_base().act)[0] for world in self._worlds]

    def score(self, act: Callable[[Observation], Ints]) -> Score:
        """Of a policy."""
        gains, stuck = [], 0
        for world, base_s in zip(self._worlds, self._base, strict=True):
            jct_s, never = _mean_jct_s(world, act)
            stuck += never
            gains.append(log_array(base_s / jct_s))
        means = np.array([each.mean() for each in gains])
        variances = np.array([each.var(ddof=1) / len(each) for each in gains])
        error = math.sqrt(float(variances.sum())) / len(gains)
        return Score(float(means.mean()), error, float(means.min()), stuck)


def _mean_jct_s(world: World, act: Callable[[Observation], Ints]) -> tuple[Floats, int]:
    """(L,) of each list, and lists that got stuck."""
    outcome = simulate(world.cluster, world.jobs, act)
    mean_s: Floats = np.nanmean(outcome.end_s - world.jobs.submit_s, axis=1)
    return mean_s, int(outcome.stuck.sum())
