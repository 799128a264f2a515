"""The duration of a job's work on a GPU model, and its end. Arrays and plain records only.

Duration = work / speed; the cluster enforces time limits (adlro/sim/simulator.py). Work that a job does not state is
drawn by a stable hash, the same in every process and at every attempt:

- with an expected runtime: that, converted to the reference GPU, times exp(0.3 N(0, 1)) by the job id: estimates are
  wrong, equally often on both sides. An estimate on a GPU model without speeds counts as on the reference GPU;
- without: the scenario's rule: the job type's median x exp(0.8 N) by (user, application) x exp(0.4 N) by the job id,
  within the scenario's limits, so that jobs of one user and application are alike here too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from adlro.hardware.speeds import REFERENCE_GPU_MODEL, SHIPPED, SpeedTable
from adlro.numeric.exact import exp
from adlro.numeric.normal import quantile
from adlro.records.events import EventKind
from adlro.records.jobs import JobSpec
from adlro.workload.scenario import Scenario, median_work_of

ESTIMATE_SIGMA = 0.3
"""Spread of true work around a user's estimate (standard deviation of its logarithm). Assumed."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The end of an undisturbed run: FINISHED or FAILED after `duration_s` at the model's speed."""

    duration_s: float
    kind: EventKind
    message: str


def plan_run(
    job_id: str, spec: JobSpec, gpu_model: str, scenario: Scenario, speeds: SpeedTable = SHIPPED
) -> PlannedRun:
    """Plans a job's run on a GPU model.

    Raises:
        InvalidInput: the GPU model has no known speeds.
    """
    run_s = work_s(job_id, spec, scenario, speeds) / speeds.speed(spec.application, spec.job_type, gpu_model)
    ratio = spec.simulated_work.fails_at_ratio if spec.simulated_work is not None else None
    if ratio is None:
        return PlannedRun(run_s, EventKind.FINISHED, "")
    message = f"failed after {ratio:.0%} of its work, as simulated_work.fails_at_ratio asks"
    return PlannedRun(run_s * ratio, EventKind.FAILED, message)


def work_s(job_id: str, spec: JobSpec, scenario: Scenario, speeds: SpeedTable = SHIPPED) -> float:
    """A job's work in seconds on the reference GPU."""
    if spec.simulated_work is not None:
        return spec.simulated_work.work_s
    if spec.expected_runtime is not None:
        expected = spec.expected_runtime
        known = expected.gpu_model if expected.gpu_model in speeds.gpu_models else REFERENCE_GPU_MODEL
        on_reference_s = expected.runtime_s * speeds.speed(spec.application, spec.job_type, known)
        return on_reference_s * exp(ESTIMATE_SIGMA * stable_normal("work", job_id))
    group = scenario.sigma_group * stable_normal("group", spec.user, spec.application)
    own = scenario.sigma_job * stable_normal("work", job_id)
    drawn = median_work_of(scenario.median_work_s, spec.job_type) * exp(group + own)
    return min(max(drawn, scenario.min_work_s), scenario.max_work_s)


def stable_uniform(*key: str) -> float:
    """A number in (0, 1) by a hash of the key: the same in every process."""
    digest = hashlib.blake2b("\0".join(key).encode(), digest_size=8).digest()
    # A float has 53 bits; the half excludes 0 and 1.
    return ((int.from_bytes(digest, "big") >> 11) + 0.5) / 2**53


def stable_normal(*key: str) -> float:
    """A standard normal number by a hash of the key."""
    return quantile(stable_uniform(*key))
