"""The actions that a learned policy weighs where jobs of several GPUs count, and the figures that it sees of them.

An action is a row of the candidate table, or a hold, with the job that GPUs are kept free for from then on:

    base      what `hold_gang` does, always the first
    hold      nothing starts
    reserve   GPUs are kept free for another job that fits nowhere; `hold_gang` then starts what it starts beside that
    drop      nothing is kept free any longer; `hold_gang` then starts what it would
    start     another of the candidates with the least costs, refused ones too, beside the reservation of the base; but
              none on GPUs that suit other waiting jobs much better (`MOST_UNSUITED`), unless the queue is long enough

numpy only; the compiled search (adlro/decide/gang_search.py) asks `hold_gang`'s rule up to six times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import GangRule, Surroundings, surroundings_of
from adlro.decide.gang_search import (
    ACTIONS_AT_MOST,
    BASE,
    CALLS_AT_MOST,
    DROPS,
    HOLDS,
    REFUSED,
    RESERVES,
    SLOWNESS,
    STARTS,
    Asked,
    Calls,
    find_actions,
    room_for_asked,
    room_for_calls,
    room_for_queue,
)
from adlro.decide.looked import as_type, looked_at
from adlro.decide.present import kinds_that_hold
from adlro.state.gangs import room_for_outlook
from adlro.state.observation import HOLD, Floats, Gangs, Ints, Observation

__all__ = [
    "ACTIONS_AT_MOST",
    "ACTION_FIGURES",
    "BASE",
    "CLUSTER_FIGURES",
    "DOUBT",
    "DROPS",
    "HOLDS",
    "QUEUE_COUNTS",
    "QUEUE_SIZES",
    "REFUSED",
    "RESERVES",
    "SLOWNESS",
    "STARTS",
    "GangActionFinder",
    "GangActions",
    "doubt_of",
    "no_actions",
]

CLUSTER_FIGURES, ACTION_FIGURES = 19, 32
DOUBT = 18
"""The cluster's figure that tells how little is known of the waiting jobs' runtimes, from 0 to 1 (`doubt_of`)."""

QUEUE_COUNTS = (0, 1, 2)
"""Its figures of how many jobs wait: all, those of several GPUs, and those of them that fit nowhere."""

QUEUE_SIZES = (*QUEUE_COUNTS, 3, 4, 11, 12, 13, 15)
"""Its figures that grow with the queue: waiting jobs, their work, and how long GPUs stay busy in their terms."""

UNKNOWN_SPREAD = 1.5
"""Standard deviation of ln(true / expected) from which on an expectation tells nothing."""


class GangActions(NamedTuple):
    """A actions of one decision, the base's first.

    Attributes:
        kind: (A,) BASE and so on.
        row: (A,) row of the table, or HOLD.
        reserve: (A,) place of the job that GPUs are kept free for from then on, or -1.
        cluster: (CLUSTER_FIGURES,) what the network sees of the cluster and the queue.
        figures: (A, ACTION_FIGURES) what it sees of each action.
        scale_s: the decision's typical duration.
        scores: for each action, the rule's scores (C,) of the table's rows beside its reservation.
    """

    kind: Ints
    row: Ints
    reserve: Ints
    cluster: Floats
    figures: Floats
    scale_s: float
    scores: Sequence[Floats] = ()


def no_actions() -> GangActions:
    """Two actions without figures, to try out a network."""
    figures = np.zeros((2, ACTION_FIGURES))
    two = np.array([BASE, HOLDS])
    return GangActions(two, np.full(2, HOLD), np.full(2, -1), np.zeros(CLUSTER_FIGURES), figures, 1.0)


class _Room(NamedTuple):
    """Memory of the search on a cluster of one size, used again at each decision."""

    around: Surroundings
    best_of_kind: Ints
    calls: Calls
    asked: Asked

    @property
    def size(self) -> tuple[int, int, int]:
        """GPUs, nodes and GPU models."""
        return len(self.best_of_kind), len(self.around.node_idle), len(self.around.model_s)


class GangActionFinder:
    """Finds the actions of decisions of one cluster; one per thread.

    Args:
        rule: of the base.
    """

    def __init__(self, rule: GangRule) -> None:
        self._rule = rule
        self._free = self._rule._replace(rho=np.inf)
        self._lenient = self._free._replace(theta=1e9, s_max=1e9)
        self._room: _Room | None = None

    def find(self, observation: Observation) -> GangActions:
        """The actions of a decision of one cluster, in which jobs of several GPUs wait or run."""
        gangs = observation.gangs
        if gangs is None or len(observation.time_s) != 1:
            raise ValueError("one decision, with jobs of several GPUs, is wanted")
        looked = looked_at(observation)
        gangs = Gangs(*(as_type(column, column.dtype) for column in gangs._replace(reserved=gangs.reserved.copy())))
        (gpus, nodes), models = (looked.gpu_idle.shape[1], looked.node_cores_free.shape[1]), len(observation.gpu_models)
        room = self._room
        if room is None or room.size != (gpus, nodes, models):
            room = self._room = _room_for(gpus, nodes, models)
        free_s = np.sort(looked.gpu_remaining_s[0])
        if free_s[-1] < np.inf:
            able = np.empty((0, looked.kind_duration_s.shape[2]), dtype=np.bool_)
        else:  # some GPU is lost, drained, or padding
            able = kinds_that_hold(observation)[0]
        queue = room_for_queue(looked.job_waiting.shape[1])
        scores = np.empty((CALLS_AT_MOST + 1, len(observation.table.job)))
        cluster, figures = np.zeros(CLUSTER_FIGURES), np.zeros((ACTIONS_AT_MOST, ACTION_FIGURES))
        count, can_run, scale_s = find_actions(
            self._rule,
            self._free,
            self._lenient,
            as_type(observation.gpu_model[0], np.int64),
            room.around,
            looked,
            gangs,
            able,
            free_s,
            queue,
            room.best_of_kind,
            room.calls,
            scores,
            room.asked,
            cluster,
            figures,
        )
        cluster[DOUBT] = doubt_of(queue.able_s[:can_run], queue.spread[:can_run])
        asked = room.asked
        return GangActions(
            asked.kind[:count].copy(),
            asked.row[:count].copy(),
            asked.reserve[:count].copy(),
            cluster,
            figures[:count],
            scale_s,
            [scores[call] for call in asked.call[:count].tolist()],
        )


def _room_for(gpus: int, nodes: int, models: int) -> _Room:
    return _Room(
        surroundings_of(room_for_outlook(gpus, nodes), models),
        np.zeros(gpus, dtype=np.int64),
        room_for_calls(nodes),
        room_for_asked(nodes),
    )


def doubt_of(best_s: Floats, spread: Floats) -> float:
    """How little is known of runtimes, from 0 to 1: what expectations tell of themselves, or their repetitions.

    Where only job types are known, or users ask for round times, many jobs have the same expectation.

    Args:
        best_s: (J,) expected runtimes of the waiting jobs on their best GPUs.
        spread: (J,) the uncertainty that came with them; 0: exact, or not stated.
    """
    if len(best_s) == 0:
        return 0.0
    in_order = np.sort(best_s.astype(np.float32))  # seven digits: equal times may differ in their last bits
    different = 1 + int(np.count_nonzero(in_order[1:] != in_order[:-1]))
    repeated = 1.0 - (different - 1) / (len(best_s) - 1) if len(best_s) > 1 else 0.0
    return max(repeated, min(float(spread.sum()) / len(spread) / UNKNOWN_SPREAD, 1.0))
