"""Scores a network by playing: lists of validation seeds, paired with the base policy's on the same lists. numpy only.

Validation seeds are those from 7001 on; neither training nor the tables of docs/learned_policy.md use them. All lists
of a cell run side by side, so that a network is asked for dozens of decisions at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.decide.planes.choice import Margins, choose
from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies import Policy
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.sim.batch import simulate
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints, Observation
from adlro.workload.scenario import load_scenario

VALIDATION_SEED = 7001
JOBS = 256
"""Of a list."""

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
    """A policy against the base on the same lists: ratios of means over the lists, less 1.

    Attributes:
        ratio: of mean completion times.
        error: its standard error over the lists.
        p95: of 95th percentiles of the completion time.
        longest_wait: of the longest waits.
        throughput: of jobs ended a second.
    """

    ratio: float
    error: float
    p95: float
    longest_wait: float
    throughput: float

    def __str__(self) -> str:
        return f"{100 * self.ratio:+.2f} ({100 * self.error:.2f}), p95 {100 * self.p95:+.1f}"


class _Played(NamedTuple):
    """What came of some lists: each (lists,)."""

    jct_s: Floats
    p95_s: Floats
    longest_wait_s: Floats
    rate_per_s: Floats


def paired(cell: tuple[str, float, str], act: Act, *, lists: int, seed: int, by_priority: bool = False) -> Score:
    """A policy against the base on the same lists.

    Args:
        cell: scenario, load, what is known of runtimes.
        act: the policy.
        lists, seed: of them.
        by_priority: jobs count by their priority in the mean completion time.
    """
    base, own = _base(cell, lists, seed, by_priority), _play(cell, act, lists, seed, by_priority)
    ratio = own.jct_s.mean() / base.jct_s.mean()
    # Of a ratio of means of pairs (delta method).
    error = float(np.std(own.jct_s - ratio * base.jct_s, ddof=1) / base.jct_s.mean() / np.sqrt(lists))
    others = (float(a.mean() / b.mean()) - 1.0 for a, b in zip(own[1:], base[1:], strict=True))
    return Score(float(ratio) - 1.0, error, *others)


def unlimited_base() -> Policy:
    """The base policy without the limit on waits, which a network that plays does not have either."""
    base = HoldGreedyFixed()
    base.wait_ratio = math.inf
    return base


def with_margins(model: OnnxModel, margins: Margins) -> Act:
    """The model's policy with other margins than its own."""

    def act(observation: Observation) -> Ints:
        planes = model.planes(observation)
        return choose(planes, *model.q(planes), margins)

    return act


def _play(cell: tuple[str, float, str], act: Act, lists: int, seed: int, by_priority: bool) -> _Played:
    """Figures of each list; inf where it got stuck, and a rate of 0."""
    outcome = simulate(_case(*cell, lists, seed).cluster, _arrays(*cell, lists, seed), act)
    submit_s = outcome.jobs.submit_s
    weights = outcome.jobs.priority if by_priority else np.ones_like(outcome.end_s)
    completion_s = outcome.end_s - submit_s
    jct_s = np.nansum(weights * completion_s, axis=1) / np.where(np.isnan(outcome.end_s), 0.0, weights).sum(axis=1)
    rate_per_s = JOBS / (np.nanmax(outcome.end_s, axis=1) - submit_s[:, 0])
    return _Played(
        np.where(outcome.stuck, np.inf, jct_s),
        np.where(outcome.stuck, np.inf, np.nanpercentile(completion_s, 95, axis=1)),
        np.where(outcome.stuck, np.inf, np.nanmax(outcome.start_s - submit_s, axis=1)),
        np.where(outcome.stuck, 0.0, rate_per_s),
    )


@functools.lru_cache(maxsize=64)
def _case(name: str, load: float, runtime: str, lists: int, seed: int) -> Case:
    return Case(load_scenario(name), SHIPPED, load, JOBS, lists, seed, runtime)


@functools.lru_cache(maxsize=64)
def _arrays(name: str, load: float, runtime: str, lists: int, seed: int) -> JobArrays:
    return _case(name, load, runtime, lists, seed).arrays(0, lists)


@functools.lru_cache(maxsize=256)
def _base(cell: tuple[str, float, str], lists: int, seed: int, by_priority: bool) -> _Played:
    return _play(cell, unlimited_base().act, lists, seed, by_priority)
