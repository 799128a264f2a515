"""Scores a network by playing: lists of validation seeds, paired with the base policy's on the same lists. numpy only.

Validation seeds are those from 7001 on; neither training nor the tables of docs/learned_policy.md use them. All lists
of a cell run side by side, so that a network is asked for dozens of decisions at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adlro.sim.batch import Outcome, simulate
from adlro.sim.job_arrays import JobArrays
from adlro.sim.observation import Floats, Ints, Observation
from adlro.sim.scenario import load_scenario
from adlro.sim.speeds import SHIPPED
from services.orchestrator.evaluate.cases import Case
from services.orchestrator.planes.choice import Margins, choose
from services.orchestrator.planes.model import OnnxModel
from services.orchestrator.policies.hold_greedy import HoldGreedyFixed

VALIDATION_SEED = 7001

CELLS = (
    *((name, load, "true") for name in ("paper", "paper_roomy") for load in (0.6, 0.9, 1.1)),
    ("paper", 0.9, "noise:0.5"),
    ("paper", 1.1, "noise:0.5"),
    ("paper", 0.9, "type"),
    ("paper", 1.1, "type"),
    ("gavel", 0.9, "true"),
)
"""Scenario, load, what is known of runtimes."""

Act = Callable[[Observation], Ints]


@dataclass(frozen=True, slots=True)
class Score:
    """A policy's mean completion time against the base's, less 1, with the standard error over the lists."""

    ratio: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.ratio:+.2f} ({100 * self.error:.2f})"


def mean_jct_s(
    cell: tuple[str, float, str], act: Act, *, lists: int, seed: int, jobs: int = 256, by_priority: bool = False
) -> Floats:
    """(lists,) each list's mean completion time, by priority or of all alike; inf where it got stuck."""
    outcome = _play(cell, act, lists, seed, jobs)
    weights = outcome.jobs.priority if by_priority else np.ones_like(outcome.end_s)
    jct_s = np.nansum(weights * (outcome.end_s - outcome.jobs.submit_s), axis=1)
    return np.where(outcome.stuck, np.inf, jct_s / np.where(np.isnan(outcome.end_s), 0.0, weights).sum(axis=1))


def throughput(cell: tuple[str, float, str], act: Act, *, lists: int, seed: int) -> float:
    """A policy's mean throughput against the base's on the same lists, less 1."""
    return _mean_rate_per_s(_play(cell, act, lists, seed)) / _base_rate_per_s(cell, lists, seed) - 1.0


def paired(cell: tuple[str, float, str], act: Act, *, lists: int, seed: int, by_priority: bool = False) -> Score:
    """A policy against the base on the same lists."""
    base_s = _base_jct_s(cell, lists, seed, by_priority)
    own_s = mean_jct_s(cell, act, lists=lists, seed=seed, by_priority=by_priority)
    ratio = own_s.mean() / base_s.mean()
    # Of a ratio of means of pairs (delta method).
    error = float(np.std(own_s - ratio * base_s, ddof=1) / base_s.mean() / np.sqrt(lists))
    return Score(float(ratio) - 1.0, error)


def with_margins(model: OnnxModel, margins: Margins) -> Act:
    """The model's policy with other margins than its own."""

    def act(observation: Observation) -> Ints:
        planes = model.planes(observation)
        return choose(planes, *model.q(planes), margins)

    return act


def _play(cell: tuple[str, float, str], act: Act, lists: int, seed: int, jobs: int = 256) -> Outcome:
    drawn = *cell, lists, seed, jobs
    return simulate(_case(*drawn).cluster, _arrays(*drawn), act)


def _mean_rate_per_s(outcome: Outcome) -> float:
    """Lists ended a second of their makespan, on average."""
    return float(np.mean(1.0 / (np.nanmax(outcome.end_s, axis=1) - outcome.jobs.submit_s[:, 0])))


@functools.lru_cache(maxsize=64)
def _case(name: str, load: float, runtime: str, lists: int, seed: int, jobs: int) -> Case:
    return Case(load_scenario(name), SHIPPED, load, jobs, lists, seed, runtime)


@functools.lru_cache(maxsize=64)
def _arrays(name: str, load: float, runtime: str, lists: int, seed: int, jobs: int) -> JobArrays:
    return _case(name, load, runtime, lists, seed, jobs).arrays(0, lists)


@functools.lru_cache(maxsize=256)
def _base_jct_s(cell: tuple[str, float, str], lists: int, seed: int, by_priority: bool) -> Floats:
    return mean_jct_s(cell, HoldGreedyFixed().act, lists=lists, seed=seed, by_priority=by_priority)


@functools.lru_cache(maxsize=256)
def _base_rate_per_s(cell: tuple[str, float, str], lists: int, seed: int) -> float:
    return _mean_rate_per_s(_play(cell, HoldGreedyFixed().act, lists, seed))
