"""The score of a network on validation lists, paired with the base policy on the same lists. numpy only.

All recipes use this score, in training and for the choice of margins. There were two scores. This one chose the
included network, and is better founded: its ratios are of mean completion times, as in the tables of
docs/learned_policy.md (the other averaged logarithms of each list's ratio, in which a short list counts as much as a
long one); it also plays with guessed runtimes and on the cluster of `gavel`; it includes the tail and the throughput.
The included network's figures are unchanged: lists, cells and sums are the same. New is the error of the mean of the
cells: cells have lists drawn from the same seeds, so it is computed over the lists, and not over the cells as if those
were independent.

Validation seeds are those from 7001 on; neither training nor the tables of docs/learned_policy.md use them. All lists
of a cell run in parallel, so that a network judges dozens of decisions at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.decide.planes.choice import Margins, choose
from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies import Policy
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.errors import InvalidInput
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.sim.batch import simulate
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints, Observation
from adlro.workload.scenario import load_scenario

VALIDATION_SEED = 7001
JOBS = 256
"""Number of jobs of a list."""

Cell = tuple[str, float, str]
"""Scenario, load, knowledge of runtimes."""

CELLS: tuple[Cell, ...] = (
    *((name, load, "true") for name in ("paper", "paper_roomy") for load in (0.6, 0.9, 1.1)),
    ("paper", 0.9, "noise:0.5"),
    ("paper", 1.1, "noise:0.5"),
    ("paper", 0.9, "type"),
    ("paper", 1.1, "type"),
    ("gavel", 0.9, "true"),
)
LISTS = 100
"""Number of lists of a cell for the choice of a network for service. With fewer, limits are not tested: the errors of
tails and throughput exceed them (the included policy breaks two of them on 16 lists, and none on 100)."""
THROUGHPUT_CELLS: tuple[Cell, ...] = (("paper", 0.9, "true"), ("paper", 1.1, "true"))
THROUGHPUT_TIMES = 3
"""Multiple of the lists in other cells."""
LEAST_THROUGHPUT = -0.01
"""Limit relative to the base, in each of those cells: the cost of holds first shows in throughput."""
MOST_P95 = 0.02
"""Limit relative to the base, in each cell."""
IDLE_CELLS: tuple[Cell, ...] = (("paper", 0.3, "true"), ("paper_roomy", 0.3, "true"))
MOST_MEAN = 0.001
"""Limit relative to the base, in each of those cells."""

Act = Callable[[Observation], Ints]


class CellScore(NamedTuple):
    """A policy relative to the base on the same lists of a cell: ratios of means over the lists, minus 1.

    Attributes:
        ratio: ratio of mean completion times.
        off: (lists,) each list's deviation from that ratio; its errors are those of a ratio of means of pairs (delta
            method).
        p95: ratio of 95th percentiles of the completion time.
        throughput: ratio of jobs ended per second.
    """

    ratio: float
    off: Floats
    p95: float
    throughput: float

    @property
    def error(self) -> float:
        """The ratio's standard error."""
        return _error(self.off)

    def __str__(self) -> str:
        return f"{100 * self.ratio:+.2f} ({100 * self.error:.2f}), p95 {100 * self.p95:+.1f}"


@dataclass(frozen=True, slots=True)
class Score:
    """A policy relative to the base.

    Attributes:
        gain: reduction of its mean completion time, mean of the cells: 0.01 is 1 % below the base; -inf if jobs were
            never started.
        error: its standard error.
        worst: gain of the worst cell.
        p95: highest ratio of a cell's 95th percentiles, minus 1.
        throughput: least ratio, minus 1, if limits are tested.
        breaks_limits: whether it breaks a limit, if these are tested.
        cells: the cells in words.
    """

    gain: float
    error: float
    worst: float
    p95: float
    throughput: float
    breaks_limits: bool
    cells: dict[str, str]

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key, the lowest is the best: scores within the limits first, then by gain."""
        return self.breaks_limits, -self.gain

    @property
    def half_width(self) -> float:
        """Half the width of the gain's 95 % interval."""
        return 1.96 * self.error

    def __str__(self) -> str:
        broken = ", breaks a limit" if self.breaks_limits else ""
        return f"{100 * self.gain:+.2f} % (± {100 * self.half_width:.2f}) against hold_greedy_fixed{broken}"


class Validation:
    """The validation lists; the base's results on them are cached.

    Args:
        lists: number of lists of each cell.
        by_priority: jobs are weighted by their priority in mean completion times.
        cells: cells in place of `CELLS`.
        limits: tests the limits; if left out, with `LISTS` and more.

    Raises:
        InvalidInput: fewer than two lists: one allows no error.
    """

    def __init__(
        self,
        lists: int = LISTS,
        *,
        by_priority: bool = False,
        cells: Sequence[Cell] = CELLS,
        limits: bool | None = None,
    ) -> None:
        if lists < 2:
            raise InvalidInput(f"validation_lists must be at least 2, not {lists}", field="validation_lists")
        self._lists, self._by_priority, self._cells = lists, by_priority, cells
        self._limits = lists >= LISTS if limits is None else limits

    def score(self, act: Act) -> Score:
        """The score of a policy."""
        found = {cell: self._paired(cell, act) for cell in self._cells}
        ratios = [score.ratio for score in found.values()]
        p95, throughput = max(score.p95 for score in found.values()), 0.0
        if self._limits:
            more = THROUGHPUT_TIMES * self._lists
            throughput = min(paired(cell, act, lists=more).throughput for cell in THROUGHPUT_CELLS)
        return Score(
            gain=0.0 - math.fsum(ratios) / len(ratios),
            error=_error(np.mean([score.off for score in found.values()], axis=0)),
            worst=0.0 - max(ratios),
            p95=p95,
            throughput=throughput,
            breaks_limits=self._limits and (p95 > MOST_P95 or throughput < LEAST_THROUGHPUT),
            cells=_in_words(found),
        )

    def with_low_load(self, act: Act, score: Score) -> Score:
        """The same policy's score with the limit at low load, if limits are tested."""
        if not self._limits:
            return score
        found = {cell: self._paired(cell, act) for cell in IDLE_CELLS}
        breaks = score.breaks_limits or any(each.ratio > MOST_MEAN for each in found.values())
        return dataclasses.replace(score, breaks_limits=breaks, cells={**_in_words(found), **score.cells})

    def _paired(self, cell: Cell, act: Act) -> CellScore:
        return paired(cell, act, lists=self._lists, by_priority=self._by_priority)


def paired(cell: Cell, act: Act, *, lists: int, by_priority: bool = False) -> CellScore:
    """A policy relative to the base on the same lists of a cell.

    Args:
        cell: scenario, load, knowledge of runtimes.
        act: the policy.
        lists: number of lists.
        by_priority: jobs are weighted by their priority in the mean completion time.
    """
    base, own = _base(cell, lists, by_priority), _play(cell, act, lists, by_priority)
    ratio, p95, throughput = (float(a.mean() / b.mean()) for a, b in zip(own, base, strict=True))
    stuck = not math.isfinite(ratio)
    off = np.full(lists, np.nan) if stuck else (own.jct_s - ratio * base.jct_s) / base.jct_s.mean()
    return CellScore(ratio - 1.0, off, p95 - 1.0, throughput - 1.0)


def unlimited_base() -> Policy:
    """The base policy without the limit on waits; a playing network has none either."""
    base = HoldGreedyFixed()
    base.wait_ratio = math.inf
    return base


def with_margins(model: OnnxModel, margins: Margins) -> Act:
    """The model's policy with other margins than its own."""

    def act(observation: Observation) -> Ints:
        planes = model.planes(observation)
        return choose(planes, *model.q(planes), margins)

    return act


class _Played(NamedTuple):
    """The results of some lists: each (lists,)."""

    jct_s: Floats
    p95_s: Floats
    rate_per_s: Floats


def _error(off: Floats) -> float:
    return float(np.std(off, ddof=1) / math.sqrt(len(off)))


def _in_words(found: dict[Cell, CellScore]) -> dict[str, str]:
    return {f"{name} {load:g} {known}": str(score) for (name, load, known), score in found.items()}


def _play(cell: Cell, act: Act, lists: int, by_priority: bool) -> _Played:
    """Figures of each list; inf for a stuck one, and a rate of 0."""
    outcome = simulate(_case(*cell, lists).cluster, _arrays(*cell, lists), act)
    submit_s = outcome.jobs.submit_s
    end_s = np.where(outcome.stuck[:, None], submit_s, outcome.end_s)
    weights = outcome.jobs.priority if by_priority else np.ones_like(end_s)
    jct_s = (weights * (end_s - submit_s)).sum(axis=1) / weights.sum(axis=1)
    rate_per_s = JOBS / (end_s.max(axis=1) - submit_s[:, 0])
    return _Played(
        np.where(outcome.stuck, np.inf, jct_s),
        np.where(outcome.stuck, np.inf, np.percentile(end_s - submit_s, 95, axis=1)),
        np.where(outcome.stuck, 0.0, rate_per_s),
    )


@functools.lru_cache(maxsize=64)
def _case(name: str, load: float, runtime: str, lists: int) -> Case:
    return Case(load_scenario(name), SHIPPED, load, JOBS, lists, VALIDATION_SEED, runtime)


@functools.lru_cache(maxsize=64)
def _arrays(name: str, load: float, runtime: str, lists: int) -> JobArrays:
    return _case(name, load, runtime, lists).arrays(0, lists)


@functools.lru_cache(maxsize=256)
def _base(cell: Cell, lists: int, by_priority: bool) -> _Played:
    return _play(cell, unlimited_base().act, lists, by_priority)
