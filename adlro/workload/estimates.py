"""A scheduler's knowledge of runtimes before it places a job. numpy only.

Kinds of knowledge (`--runtime`), from complete to none:

- `true`: the job's own work, and its application's speeds.
- `noise:SIGMA`: the true runtime times exp(SIGMA N(0, 1)), one error per job and the same on every GPU model; its
  median is 1. The application's speeds are known.
- `group`: the mean work of the job's (user, application, number of GPUs), and the application's speeds. The mean is the
  exact one of the scenario's population; for a list of another population (a trace), the mean of the list's own jobs.
- `type`: the median work of the job type. The application is not known, so the speeds are the job type's means. The
  median is the scenario's; for a trace, that of its own jobs of the type.
- `none`: the same work for every job, and each GPU model's mean speed over all applications.

A job's number of GPUs is always known. What it loses by being spread is known as well as its speeds are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.hardware.gang_speeds import spread_speeds
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.numeric.draws import standard_normals
from adlro.numeric.exact import exp_array, log_array
from adlro.records.jobs import JobType
from adlro.workload.arrivals import FromTrace
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Group, Scenario, load_scenario, median_work_of

Floats = NDArray[np.float64]

RUNTIME_KINDS = ("true", "noise", "group", "type", "none")
MOST_SIGMA = 10.0

PRIOR_WORK_S: Mapping[JobType, float] = load_scenario("paper").median_work_s
"""Median work if only the job type is known, seconds on the reference GPU: the figures of the scenario `paper`."""


def prior_work_s(job_type: JobType) -> float:
    """`PRIOR_WORK_S` of a job type; the geometric mean of all for an unspecified one."""
    return median_work_of(PRIOR_WORK_S, job_type)


@dataclass(frozen=True, slots=True)
class RuntimeKnowledge:
    """One of `RUNTIME_KINDS`; `sigma` for noise."""

    kind: str
    sigma: float = 0.0

    def __str__(self) -> str:
        return f"noise:{self.sigma:g}" if self.kind == "noise" else self.kind


def parse_runtime(text: str) -> RuntimeKnowledge:
    """`true`, `noise:SIGMA`, `group`, `type` or `none`.

    Raises:
        InvalidInput: any other text.
    """
    kind, colon, figure = text.partition(":")
    if kind in RUNTIME_KINDS and bool(colon) == (kind == "noise"):
        if kind != "noise":
            return RuntimeKnowledge(kind)
        try:
            sigma = float(figure)
        except ValueError:
            sigma = math.nan
        if 0 <= sigma <= MOST_SIGMA:
            return RuntimeKnowledge(kind, sigma)
        raise InvalidInput(
            f"runtime: the sigma of noise must be a number from 0 to {MOST_SIGMA:g}, as in noise:0.5, not '{figure}'",
            field="runtime",
        )
    raise InvalidInput(f"runtime: must be true, noise:SIGMA, group, type or none, not '{text}'", field="runtime")


def expected_s(
    jobs: Sequence[WorkloadJob],
    gpu_models: Sequence[str],
    runtime: str | RuntimeKnowledge,
    scenario: Scenario,
    seed: int,
    *,
    groups: Sequence[Group] | None = None,
    speeds: SpeedTable = SHIPPED,
) -> Floats:
    """Runtimes that a scheduler expects, in seconds.

    Args:
        jobs: J jobs.
        gpu_models: K models.
        runtime: the kind of knowledge.
        scenario: the jobs' scenario.
        seed: seed of the noise; the error of the n-th job depends only on the seed and n.
        groups: the population that the jobs were drawn from; the scenario's own where left out.
        speeds: speeds of the GPU models.

    Returns:
        (J, K), all above 0.

    Raises:
        InvalidInput: no such kind of knowledge, or a GPU model without speeds.
    """
    known = parse_runtime(runtime) if isinstance(runtime, str) else runtime
    speeds.require(gpu_models)
    if not jobs:
        return np.empty((0, len(gpu_models)))
    job_types = [job.job_type for job in jobs]
    match known.kind:
        case "type":
            medians = _medians_s(jobs, scenario)
            work_s = np.array([medians[job_type] for job_type in job_types])
            by_type = {each: [speeds.type_speed(each, model) for model in gpu_models] for each in set(job_types)}
            speed = np.array([by_type[job_type] for job_type in job_types])
        case "none":
            work_s = np.full(len(jobs), _mean_median_s(_medians_s(jobs, scenario), scenario))
            speed = np.array([[speeds.model_speed(model) for model in gpu_models]])
        case _:
            work_s = np.array([job.work_s for job in jobs])
            if known.kind == "noise":
                work_s *= exp_array(known.sigma * standard_normals(np.random.default_rng(seed), len(jobs)))
            elif known.kind == "group":
                work_s = _group_means_s(jobs, scenario, scenario.groups if groups is None else groups)
            speed = speeds.speeds([job.application for job in jobs], job_types, gpu_models)
    expected: Floats = work_s[:, None] / speed
    return expected


def expected_spread_speeds(
    jobs: Sequence[WorkloadJob], gpu_models: Sequence[str], runtime: str | RuntimeKnowledge
) -> Floats:
    """Speeds of spread jobs that a scheduler expects, as shares of their packed speeds (`adlro.hardware.gang_speeds`).

    Args:
        jobs: J jobs.
        gpu_models: K models.
        runtime: the kind of knowledge: with `type` the application is not known, with `none` neither is the job type.

    Returns:
        (J, K) in (0, 1].

    Raises:
        InvalidInput: no such kind of knowledge.
    """
    known = parse_runtime(runtime) if isinstance(runtime, str) else runtime
    applications = ["" if known.kind in ("type", "none") else job.application for job in jobs]
    job_types = [JobType.UNSPECIFIED if known.kind == "none" else job.job_type for job in jobs]
    return spread_speeds(applications, job_types, [job.gpu_count for job in jobs], gpu_models)


def claimed_spread(jobs: Sequence[WorkloadJob], true_s: Floats, expected: Floats) -> Floats:
    """The spread that a well-calibrated predictor would claim for each job.

    The predictor knows its past errors for jobs of the type, not this job's error: the spread is the root mean square
    of ln(true / expected) over the list's jobs of the type and all models.

    Args:
        jobs: J jobs.
        true_s, expected: (J, K) seconds on each model; inf where a job cannot run.

    Returns:
        (J,) from 0.
    """
    spread = np.zeros(len(jobs))
    job_types = np.array([int(job.job_type) for job in jobs])
    known = np.isfinite(true_s) & np.isfinite(expected)
    off = log_array(np.where(known, true_s, 1.0) / np.where(known, expected, 1.0))
    for job_type in np.unique(job_types):
        of_type = job_types == job_type
        spread[of_type] = np.sqrt(np.square(off[of_type]).sum() / max(known[of_type].sum(), 1))
    return spread


def _group_means_s(jobs: Sequence[WorkloadJob], scenario: Scenario, groups: Sequence[Group]) -> Floats:
    means: dict[tuple[str, str], float] = {}
    if not isinstance(scenario.arrivals, FromTrace):
        means = {(each.user, each.application): scenario.work.expected_s(each.mean_work_s) for each in groups}
    own: dict[tuple[str, str, int], list[float]] = {}
    for job in jobs:
        own.setdefault((job.user, job.application, job.gpu_count), []).append(job.work_s)
    of_group: dict[tuple[str, str, int], float] = {}
    for (user, application, gpu_count), works_s in own.items():
        mean_s = means.get((user, application))
        of_group[user, application, gpu_count] = (
            float(np.mean(works_s)) if mean_s is None else mean_s * scenario.work_factor(gpu_count)
        )
    return np.array([of_group[job.user, job.application, job.gpu_count] for job in jobs])


def _medians_s(jobs: Sequence[WorkloadJob], scenario: Scenario) -> Mapping[JobType, float]:
    if not isinstance(scenario.arrivals, FromTrace):
        return scenario.median_work_s
    own: dict[JobType, list[float]] = {}
    for job in jobs:
        own.setdefault(job.job_type, []).append(job.work_s)
    return {job_type: float(np.median(works_s)) for job_type, works_s in own.items()}


def _mean_median_s(medians_s: Mapping[JobType, float], scenario: Scenario) -> float:
    """A typical work: no policy may depend on it, since it is the same for all jobs."""
    shares = np.array([scenario.mix[job_type] for job_type in medians_s])
    if shares.sum() <= 0:  # a trace may have only types that its scenario's mix lacks
        shares = np.ones(len(shares))
    return float(np.average(list(medians_s.values()), weights=shares))
