"""What policies know of runtimes in a replay. Plain records and arrays.

Kinds (`--runtime`):

- `known`: for each job the best of what was known then: the expectation that its decision was made with, where the
  orchestrator still keeps it; else the user's estimate; else the mean work of the jobs of the same user, application
  and number of GPUs that had ended before it was submitted; else that of the jobs of its type; else the prior of the
  type.
- `group`: as `known`, without decisions and estimates.
- `true`: what the job truly ran. Nobody knew that: it shows what the order of jobs alone is worth.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from adlro.errors import InvalidInput
from adlro.hardware.speeds import SpeedTable
from adlro.lab.compare.history import PastJob, durations_s, estimate_on
from adlro.state.observation import Floats
from adlro.workload.estimates import prior_work_s
from adlro.workload.job_lists import WorkloadJob

KINDS = ("known", "group", "true")
DECISION, ESTIMATE, GROUP, TYPE, PRIOR, TRUE = "decision", "estimate", "group", "type", "prior", "true"
SOURCE_TEXTS: Mapping[str, str] = {
    DECISION: "the expectation that the decision was made with",
    ESTIMATE: "the user's estimate",
    GROUP: "the mean of the user's jobs of the application that had ended by then",
    TYPE: "the mean of the jobs of the type that had ended by then",
    PRIOR: "the prior of the job type",
    TRUE: "the true runtime",
}


def expected_s(
    jobs: Sequence[PastJob],
    gpu_models: Sequence[str],
    speeds: SpeedTable,
    kind: str,
    decided: Mapping[str, Mapping[str, float]],
) -> tuple[Floats, list[str]]:
    """Runtimes as policies expect them.

    Args:
        jobs: J jobs in the order of submission.
        gpu_models: K models.
        speeds: of applications on them.
        kind: one of `KINDS`.
        decided: by job id and GPU model, the runtime that the job's decision expected.

    Returns:
        (J, K) seconds, and the source of each job's.

    Raises:
        InvalidInput: no such kind.
    """
    if kind not in KINDS:
        raise InvalidInput(f"runtime: must be one of {', '.join(KINDS)}, not '{kind}'", field="runtime")
    true_s = durations_s(jobs, gpu_models, speeds)
    if kind == "true":
        return true_s, [TRUE] * len(jobs)
    expected, sources = _of_groups(jobs, gpu_models, speeds)
    if kind == "known":
        for place, job in enumerate(jobs):
            told = {model: seconds for model, seconds in decided.get(job.job_id, {}).items() if seconds > 0}
            if told:
                expected[place], sources[place] = _of_decision(told, job, gpu_models, speeds), DECISION
            elif job.estimate is not None:
                expected[place] = estimate_on(job.estimate, job.asks, gpu_models, speeds)
                sources[place] = ESTIMATE
    return np.maximum(expected, 1e-6), sources


def counted(sources: Sequence[str]) -> dict[str, int]:
    """Number of jobs by source, in the order of `SOURCE_TEXTS`."""
    found = Counter(sources)
    return {source: found[source] for source in SOURCE_TEXTS if found[source]}


def _of_decision(told: Mapping[str, float], job: PastJob, gpu_models: Sequence[str], speeds: SpeedTable) -> Floats:
    """On a model that the decision had no free GPU of: the first told one's, by the speeds."""
    named = next(iter(told))
    other = estimate_on((named, told[named]), job.asks, gpu_models, speeds)
    return np.array([told.get(model, other[place]) for place, model in enumerate(gpu_models)])


def _of_groups(jobs: Sequence[PastJob], gpu_models: Sequence[str], speeds: SpeedTable) -> tuple[Floats, list[str]]:
    """Means over what had ended when each job was submitted."""
    speed = speeds.speeds([job.asks.application for job in jobs], [job.asks.job_type for job in jobs], gpu_models)
    sums: dict[object, tuple[float, int]] = {}
    running: list[tuple[float, int]] = []
    work_s = np.empty(len(jobs))
    sources = []
    for place, job in enumerate(jobs):
        while running and running[0][0] <= job.submit_s:
            ended = jobs[heapq.heappop(running)[1]].asks
            for key in (_group(ended), ended.job_type):
                total, count = sums.get(key, (0.0, 0))
                sums[key] = total + ended.work_s, count + 1
        asks = job.asks
        for source, key in ((GROUP, _group(asks)), (TYPE, asks.job_type)):
            if key in sums:
                total, count = sums[key]
                work_s[place] = total / count
                sources.append(source)
                break
        else:
            work_s[place] = prior_work_s(asks.job_type)
            sources.append(PRIOR)
        if job.measured:  # a failed run says little of the work
            heapq.heappush(running, (job.end_s, place))
    expected: Floats = work_s[:, None] / speed
    return expected, sources


def _group(asks: WorkloadJob) -> tuple[str, str, int]:
    return asks.user, asks.application, asks.gpu_count
