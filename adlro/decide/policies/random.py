"""A pair at random. Arrays only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies.base import Judgement, Policy
from adlro.state.candidate_table import group_members
from adlro.state.observation import Floats, Observation

Words = NDArray[np.uint64]

_OFF_GRID = 0.381966011250105
"""Times are often whole parts of a millisecond; this constant moves their rounding off these."""


class Random(Policy):
    """Any pair that fits now, all equally likely; a set of GPUs for a job of several counts as one.

    The score is a hash of the decision point (how long the first job of the queue has waited, its expected duration,
    the length of the queue, the idle GPUs), of the job's place in the queue and of the GPU's number: the same decision
    has the same outcome in every process, without the state of a generator. The time itself does not count: a list of
    jobs has the same schedule at any start of the clock.
    """

    name = "random"
    description = "any pair that fits now; score: a number from 0 to 1, by a hash of queue, idle GPUs and pair"
    advice = "For tests only: what every policy must beat."

    def weigh(self, observation: Observation) -> Judgement:
        """Uniform in [0, 1) for each GPU; a row has the highest of its group, and chooses that GPU."""
        table, waiting = observation.table, observation.job_waiting
        if not len(table.job):
            return Judgement(np.zeros(0))
        rows, first = np.arange(len(waiting)), np.argmax(waiting, axis=1)
        # In whole milliseconds: the same number in whichever order times were summed.
        waited_s = observation.time_s - observation.job_submit_s[rows, first]
        waited_ms = np.floor(waited_s * 1000.0 + _OFF_GRID).astype(np.int64)
        place = np.cumsum(waiting, axis=1).astype(np.uint64)  # (N, J) not the row: there may be padding between
        gpu = np.arange(observation.gpu_idle.shape[1], dtype=np.uint64)
        word = _mixed(waited_ms.view(np.uint64))
        word = _mixed(word ^ observation.kind_duration_s[rows, first].min(axis=1).view(np.uint64))
        word = _mixed(word ^ waiting.sum(axis=1).astype(np.uint64))
        word = _mixed(word ^ np.where(observation.gpu_idle, _mixed(gpu), np.uint64(0)).sum(axis=1, dtype=np.uint64))
        words: Words = table.of_job(_mixed(word[:, None] ^ place))
        members = group_members(observation)
        bits = _mixed(np.repeat(words, table.size) ^ members.view(np.uint64))
        drawn = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        begins = np.cumsum(table.size) - table.size
        spread = np.flatnonzero(table.spread)
        if len(spread):  # the packed set may have the same first GPU
            bits = _mixed(bits[begins[spread]])
            drawn[begins[spread]] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        highest = np.maximum.reduceat(drawn, begins)
        at = np.flatnonzero(drawn == np.repeat(highest, table.size))
        row = np.repeat(np.arange(len(table.job)), table.size)[at]
        chosen = table.gpu.copy()
        chosen[row[::-1]] = members[at[::-1]]  # on a tie the lower-numbered, written last
        return Judgement(highest, gpu=chosen)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) uniform in [0, 1), the highest of the group's GPUs."""
        return self.weigh(observation).scores


def _mixed(words: Words) -> Words:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on all."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
