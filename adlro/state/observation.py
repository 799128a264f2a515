"""What a policy sees at a decision: arrays over a batch of N clusters. numpy only.

The orchestrator builds it with N = 1 (services/orchestrator/ledger); a simulator that runs many clusters builds it
for all of them at once. A policy maps it to one action a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOLD = -1

HOLD_LIMIT_S = 30.0
"""A hold lasts until something happens in the cluster, but no longer than this, or, where nothing has happened for
longer already, as long again: whoever holds for an event that does not come is asked again, ever more rarely."""

HOLD_ROUNDING_MS = 0.0005
"""A hold's end on a whole millisecond, but for rounding errors of sums, is taken to be there, and not one later: lists
have times in whole milliseconds, and are run from wherever a cluster's clock stands."""


def hold_until_s(time_s: float, last_event_s: float) -> float:
    """When a hold that begins now ends, if nothing happens before.

    Args:
        time_s: now, cluster time.
        last_event_s: when a job last arrived or ended, or a GPU last changed.

    Returns:
        A cluster time after now, in whole milliseconds: the same number however times are summed.
    """
    until_s = time_s + max(HOLD_LIMIT_S, time_s - last_event_s)
    return math.ceil(until_s * 1000.0 - HOLD_ROUNDING_MS) / 1000.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One decision point of N clusters with J waiting jobs and G GPUs.

    Jobs stand in the order of submission, GPUs in the order of the cluster's description. A job that no GPU can ever
    hold, and padding where clusters of a batch differ: `job_waiting` False, `fits_now` False.

    Attributes:
        time_s: (N,) cluster time.
        gpu_model: (N, G) number of the GPU's model in `gpu_models`.
        gpu_memory_mib: (N, G) memory of the GPU.
        gpu_node: (N, G) number of its node.
        gpu_idle: (N, G) idle, present and on a node that is not drained.
        gpu_remaining_s: (N, G) expected time until it is idle; 0 where idle, inf where lost or drained.
        gpu_elapsed_s: (N, G) time since the job on it started; 0 where none runs.
        gpu_submit_s: (N, G) `job_submit_s` of the job on it; inf where none runs.
        gpu_cores_held: (N, G) CPU cores of its node that the job on the GPU holds; 0 where none runs.
        gpu_memory_held_mib: (N, G) main memory of its node that this job holds; 0 where none runs.
        node_cores_free: (N, M) CPU cores free on each node.
        node_memory_free_mib: (N, M) main memory free on each node.
        job_waiting: (N, J) a job stands here.
        job_type: (N, J) adlro.records.jobs.JobType.
        job_priority: (N, J) 0..1.
        job_user_service_s: (N, J) GPU time that the job's user has had so far, running attempts included.
        job_submit_s: (N, J) time from which its completion time counts.
        job_cores: (N, J) CPU cores asked for.
        job_memory_mib: (N, J) main memory asked for.
        job_gpu_memory_mib: (N, J) GPU memory asked for.
        job_spread: (N, J) how unsure the expected duration is: standard deviation of ln(true / expected); 0: exact.
        duration_s: (N, J, G) expected duration; inf where the GPU, or its node when empty, is too small.
        fits_now: (N, J, G) the job can start there now.
        hold_allowed: (N,) something runs or will arrive. Where False nothing would ever end a hold: a policy that
            only waits for better must place something that fits.
        gpu_models: names of the models.
    """

    time_s: Floats
    gpu_model: Ints
    gpu_memory_mib: Ints
    gpu_node: Ints
    gpu_idle: Bools
    gpu_remaining_s: Floats
    gpu_elapsed_s: Floats
    gpu_submit_s: Floats
    gpu_cores_held: Ints
    gpu_memory_held_mib: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints
    job_waiting: Bools
    job_type: Ints
    job_priority: Floats
    job_user_service_s: Floats
    job_submit_s: Floats
    job_cores: Ints
    job_memory_mib: Ints
    job_gpu_memory_mib: Ints
    job_spread: Floats
    duration_s: Floats
    fits_now: Bools
    hold_allowed: Bools
    gpu_models: tuple[str, ...]

    @property
    def queue_length(self) -> Ints:
        """(N,) waiting jobs."""
        length: Ints = self.job_waiting.sum(axis=1, dtype=np.int64)
        return length
