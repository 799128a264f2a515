"""A pair at random. Arrays only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.sim.observation import Floats, Observation
from services.orchestrator.policies.base import Policy

Words = NDArray[np.uint64]


class Random(Policy):
    """Any pair that fits now, each as likely as the other.

    The score is a hash of the cluster time, the length of the queue, the job's place in it and the GPU's number: the
    same decision has the same outcome in every process, without a generator to keep.
    """

    name = "random"
    description = "any pair that fits now; score: a number from 0 to 1, by a hash of time, queue and pair"

    def preferences(self, observation: Observation) -> Floats:
        """(N, J, G) uniform in [0, 1)."""
        waiting = observation.job_waiting
        place = np.cumsum(waiting, axis=1).astype(np.uint64)  # (N, J) not the row: there may be padding between
        word = _mixed(observation.time_s.view(np.uint64))
        word = _mixed(word ^ waiting.sum(axis=1).astype(np.uint64))
        words = _mixed(word[:, None] ^ place)
        gpu = np.arange(observation.fits_now.shape[2], dtype=np.uint64)
        bits = _mixed(words[:, :, None] ^ gpu)
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(words: Words) -> Words:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on all."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
