"""Reads from a running suite what a comparison needs, through `adlro.client`; hands on plain records.

`read_jobs` alone knows how jobs are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from adlro.client import AsyncClient
from adlro.errors import AdlroError, InvalidInput, PermissionDenied, Unavailable, Unsupported
from adlro.hardware.speeds import REFERENCE_GPU_MODEL, SpeedRow, SpeedTable
from adlro.records.cluster import Cluster
from adlro.records.decisions import Decision, DecisionView
from adlro.records.events import ClusterDescription
from adlro.records.jobs import Job, JobState
from adlro.records.status import OrchestratorStatus

MOST_DECISIONS = 2000
"""The newest jobs whose decisions are read."""
MOST_LISTED = 10_000
"""The newest decisions among which theirs are looked for: each takes the orchestrator some time."""
_PREDICTED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Suite:
    """What a suite says.

    Attributes:
        jobs: all that were read, in the order of submission.
        cluster: its nodes and GPUs.
        status: of the orchestrator.
        shares: two jobs may share a GPU of the cluster.
        lost_gpu_ids: GPUs that are lost now.
        now_s: cluster time of the reading.
        decided: by job id and GPU model, the runtime that the decision of its (only) placement expected, chosen first.
        policies: number of read decisions by the policy that was set.
        versions: number of them by that policy and its version: of its weights, or of its code.
        notes: for people.
    """

    jobs: tuple[Job, ...]
    cluster: Cluster
    status: OrchestratorStatus
    shares: bool = False
    lost_gpu_ids: tuple[str, ...] = ()
    now_s: float = 0.0
    decided: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    policies: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


async def read_suite(client: AsyncClient, *, decisions: bool) -> Suite:
    """Reads a suite.

    Args:
        client: of the suite.
        decisions: also reads decisions that the orchestrator still keeps.
    """
    status = await client.status()
    jobs = await read_jobs(client)
    notes: list[str] = []
    described: ClusterDescription | None = None
    try:
        described = await client.describe_cluster()
    except (Unavailable, PermissionDenied, Unsupported) as error:
        notes.append(f"the cluster does not say whether GPUs are shared, nor which are lost: {error.message}")
    can = described.capabilities if described is not None else None
    # Without its answer, by what has happened.
    shared = any(attempt.neighbours for job in jobs for attempt in job.attempts)
    found = await _read_decisions(client, jobs) if decisions else {}
    return Suite(
        jobs,
        await client.cluster(),
        status,
        can.shares if can is not None else shared,
        described.lost_gpu_ids if described is not None else (),
        described.clock.time_s if described is not None else status.cluster_time_s,
        {job_id: told for job_id, each in found.items() if (told := expected_of(each))},
        Counter(each.policy for each in found.values()),
        Counter((each.policy, each.policy_version) for each in found.values() if each.policy_version),
        tuple(notes),
    )


async def read_jobs(client: AsyncClient) -> tuple[Job, ...]:
    """All jobs: those before a window teach what was known in it, and fill the cluster as it begins."""
    return tuple([job async for job in client.list(page_size=1000)])


def expected_of(decision: Decision) -> dict[str, float]:
    """By GPU model the runtime that a decision expected, packed, the chosen model first; empty for a second attempt."""
    if decision.attempt != 1 or not decision.placement.gpus:
        return {}
    found: dict[str, float] = {}
    for candidate in decision.candidates:
        if not candidate.spread and candidate.expected_runtime_s > 0:
            found.setdefault(candidate.gpu_model, candidate.expected_runtime_s)
    return found


async def _read_decisions(client: AsyncClient, jobs: Sequence[Job]) -> dict[str, Decision]:
    """The last decision of each of the newest jobs that ran, from the list of all: it is gone through once.

    To ask for each job would make the orchestrator look through that list for each.
    """
    ran = [job for job in jobs if job.state is JobState.SUCCEEDED and job.start_s is not None]
    ran.sort(key=lambda job: job.start_s or 0.0, reverse=True)
    left = {job.job_id for job in ran[:MOST_DECISIONS]}
    found: dict[str, Decision] = {}
    decisions, listed = client.decisions(view=DecisionView.FULL), 0
    while left and listed < MOST_LISTED and (decision := await anext(decisions, None)) is not None:
        listed += 1
        if decision.job_id in left:
            left.remove(decision.job_id)
            found[decision.job_id] = decision
    return found


async def predicted_speeds(client: AsyncClient, suite: Suite, speeds: SpeedTable) -> SpeedTable:
    """The table, with speeds of the cluster's GPU models that it lacks, as decompose's predictions have them.

    A job's speed on a model is the ratio of its predicted runtimes there and on the first model that the table has, or,
    where it has none, on the cluster's first.

    Raises:
        InvalidInput: decompose has no predictions for such a model.
    """
    models = suite.cluster.gpu_models
    missing = [model for model in models if model not in speeds.gpu_models]
    if not missing:
        return speeds
    base = next((model for model in models if model not in missing), models[0])
    kinds = {(job.spec.application, job.spec.job_type): job for job in suite.jobs}
    rows = []
    chosen = list(kinds.items())
    for first in range(0, len(chosen), _PREDICTED_AT_ONCE):
        part = chosen[first : first + _PREDICTED_AT_ONCE]
        specs = [replace(job.spec, gpu_count=1, expected_runtime=None, gpu_models=()) for _, job in part]
        try:
            predictions = await client.predict(specs, models, max_evidence=1)
        except AdlroError as error:
            raise InvalidInput(
                f"speeds: nothing says how fast {', '.join(missing)} is: {error.message}. Name a cluster file with "
                "speeds (--speeds)",
                field="speeds",
            ) from error
        for ((application, job_type), _), told in zip(part, predictions, strict=True):
            median_s = {each.gpu_model: each.median_s for each in told if not each.gpu_id}
            of_base = 1.0
            if base in speeds.gpu_models:
                of_base = speeds.speed(application, job_type, base)
            row = {
                model: of_base * median_s[base] / median_s[model]
                for model in missing
                if model in median_s and base in median_s
            }
            rows.append(SpeedRow(application, job_type, row, "predicted"))
    return speeds.extended(rows)


def reference_note(missing: Sequence[str]) -> str:
    """What must be said of predicted speeds."""
    return (
        f"the speeds of {', '.join(missing)} relative to {REFERENCE_GPU_MODEL} are in no table: taken from what "
        "decompose predicts today"
    )
