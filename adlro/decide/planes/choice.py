"""From a network's answers to actions: the best allowed one, if it exceeds the base's by the margin. numpy only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adlro.decide.looked import as_type
from adlro.decide.planes.layout import Float32s, Planes
from adlro.decide.planes.table import CLUSTER_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.numeric.compiled import compiled, fixed
from adlro.state.observation import HOLD, Bools, Floats, Ints

MOSTLY_IDLE = 0.5
"""Share of busy GPUs below which `Margins.idle` applies."""

_WAITED = [plane.name for plane in JOB_PLANES].index("waited_scale")
_SLOWDOWN = [plane.name for plane in PAIR_PLANES].index("slowdown")
_UTILIZATION = [plane.name for plane in CLUSTER_PLANES].index("utilization")


@dataclass(frozen=True, slots=True)
class Margins:
    """The margins by which an action's Q must exceed that of the base's choice to replace it; 0: the highest Q wins.

    Estimates are noisy, and the highest of several noisy ones is mostly too high. A hold is the most dangerous: its
    cost shows late, and a policy that overestimates its value a little holds for ever.

    Q estimates the mean completion time. Passing over the same job repeatedly costs the mean little, and the 95th
    percentile much: `age` allows it only for larger gains.

    Keeping a fast GPU for later jobs pays if many arrive. No plane shows how many; if most GPUs are idle, probably
    fewer arrive than in most worlds of the training. `idle` is the margin for that.

    Attributes:
        start: for a pair.
        hold: for a hold where the base would start a job.
        age: for a pair of another job than the base's, added to `start`, for each unit of that job's plane
            `waited_scale`.
        idle: for a pair of the base's job on a GPU where it takes longer than on the base's, added to `start`, times
            the share of GPUs by which fewer than `MOSTLY_IDLE` are busy.
    """

    start: float = 0.0
    hold: float = 0.0
    age: float = 0.0
    idle: float = 0.0


def choose(planes: Planes, q_pairs: Float32s, q_hold: Float32s, margins: Margins) -> Ints:
    """The chosen actions.

    Args:
        planes: of N decisions.
        q_pairs: (P,) Q of the pairs.
        q_hold: (N,) Q of holding.
        margins: the gate's margins.

    Returns:
        (N, 2) the job's place in the observation and the GPU's number, or (HOLD, HOLD). On a tie the base's choice,
        then the earlier submitted job, then the lower-numbered GPU. If no hold is allowed, a pair that fits starts,
        whatever the margins.
    """
    return actions_of(planes, best_of(planes, q_pairs, q_hold, margins))


def actions_of(planes: Planes, index: Ints) -> Ints:
    """(N, 2) actions in an observation's form, of (N,) pairs; -1: hold."""
    actions = np.full((len(index), 2), HOLD, dtype=np.int64)
    if len(index) == 1:  # five times as fast as the code below
        if (pair := int(index[0])) >= 0:
            actions[0] = planes.pair_queue[pair], planes.pair_gpu[pair]
        return actions
    starts = np.flatnonzero(index >= 0)
    actions[starts, 0] = planes.pair_queue[index[starts]]
    actions[starts, 1] = planes.pair_gpu[index[starts]]
    return actions


def less_margins(planes: Planes, q_pairs: Floats, margins: Margins) -> Floats:
    """(P,) Q of the pairs, less each pair's margin; the base's own choice has none.

    Args:
        planes: of N decisions.
        q_pairs: (P,) Q of the pairs.
        margins: the gate's margins.
    """
    less = q_pairs - float(margins.start)
    if len(planes.base) == 1:  # twice as fast as the code below
        if (base := int(planes.base[0])) >= 0:
            job = int(planes.pair_job[base])
            if margins.age:
                less -= margins.age * float(planes.jobs[0, job, _WAITED]) * (planes.pair_job != job)
            if margins.idle and (idle := MOSTLY_IDLE - float(planes.cluster[0, _UTILIZATION])) > 0.0:
                slower = planes.pairs[:, _SLOWDOWN] > planes.pairs[base, _SLOWDOWN]
                less -= margins.idle * idle * ((planes.pair_job == job) & slower)
            less[base] = q_pairs[base]
        return less
    starts = np.flatnonzero(planes.base >= 0)
    bases, of_start = planes.base[starts], np.full(len(planes.base), -1)
    of_start[starts] = np.arange(len(starts))
    pairs = np.flatnonzero(of_start[planes.pair_cluster] >= 0)
    n = of_start[planes.pair_cluster[pairs]]
    own = planes.pair_job[pairs] == planes.pair_job[bases][n]
    if margins.age:
        waited = planes.jobs[starts, planes.pair_job[bases] % planes.jobs.shape[1], _WAITED]
        less[pairs] -= (margins.age * waited.astype(np.float64))[n] * ~own
    if margins.idle:
        idle = np.maximum(MOSTLY_IDLE - planes.cluster[starts, _UTILIZATION].astype(np.float64), 0.0)
        slower = planes.pairs[pairs, _SLOWDOWN] > planes.pairs[bases, _SLOWDOWN][n]
        less[pairs] -= (margins.idle * idle)[n] * (own & slower)
    less[bases] = q_pairs[bases]
    return less


def best_of(planes: Planes, q_pairs: Float32s, q_hold: Float32s, margins: Margins) -> Ints:
    """(N,) the pairs that `choose` selects, of P; -1: hold."""
    index = np.empty(len(planes.base), dtype=np.int64)
    _compiled_best_of()(
        as_type(planes.first_pair, np.int64),
        as_type(planes.base, np.int64),
        as_type(planes.hold_allowed, np.bool_),
        less_margins(planes, as_type(q_pairs, np.float64), margins),
        as_type(q_hold, np.float64),
        float(margins.hold),
        index,
    )
    return index


@functools.cache
def _compiled_best_of() -> Callable[..., None]:
    """For one decision, numba's dispatch on the types of the arrays would take longer than the choice."""
    ints, floats = np.zeros(0, dtype=np.int64), np.zeros(0)
    return fixed(_best_of, ints, ints, np.zeros(0, dtype=np.bool_), floats, floats, 0.0, ints)


@compiled
def _best_of(
    first_pair: Ints,
    base: Ints,
    hold_allowed: Bools,
    scores: Floats,
    q_hold: Floats,
    hold: float,
    index: Ints,
) -> None:
    for n in range(base.shape[0]):
        best_pair = base[n]
        best = scores[best_pair] if best_pair >= 0 else q_hold[n]
        if best_pair < 0 and not hold_allowed[n]:
            best = -np.inf
        if best != best:
            best = -np.inf  # nan never wins
        for pair in range(first_pair[n], first_pair[n + 1]):
            if pair != base[n] and scores[pair] > best:
                best, best_pair = scores[pair], pair
        if base[n] >= 0 and hold_allowed[n] and q_hold[n] - hold > best:
            best_pair = -1
        index[n] = best_pair
