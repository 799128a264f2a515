"""A policy of one's own: small jobs first, so that many users see something happen.

    adlro evaluate --policy-file examples/own_policy.py:SmallFirst --policies fcfs,sjf --load 0.9 --seeds 20
    adlro up --policy-file examples/own_policy.py:SmallFirst --policy small_first

docs/own_policy.md says what it may read, and how it is tested and switched on.
"""

import numpy as np

from adlro.decide.policies import Policy
from adlro.state.observation import Floats, Observation


class SmallFirst(Policy):
    """The smallest job first, on the GPU where it ends first."""

    name = "small_first"
    description = "the smallest job first; score: -(1000 x GPUs + CPU cores), less a part of 1 for its duration"
    advice = "For a class that shares a cluster: small trials start at once, large jobs wait."

    def preferences(self, observation: Observation) -> Floats:
        """(C,) one number for each possible start, higher is better; -inf would refuse it."""
        table = observation.table
        gpus = np.ones(observation.job_cores.shape) if observation.gangs is None else observation.gangs.gpu_count
        size = table.of_job(1000.0 * gpus + observation.job_cores)  # from places of the queue to rows of the table
        return -size - table.duration_s / (1.0 + table.duration_s)
