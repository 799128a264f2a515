"""Running jobs that are stopped for others: which may be, what they have had, and what is left of them. Plain data.

A job is stopped only if both its user (`JobSpec.preemptible`) and the cluster's owner allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.records.jobs import AttemptRef, Job, JobState
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.transitions import is_given_up
from adlro.state.machines import expected_rest_s
from adlro.state.observation import Bools, Floats

LEAST_SHARE = 0.01
"""What is left of a stopped job at least, where the cluster does not report it: by its expected end it may have been
over, and it was not."""


@dataclass(slots=True)
class StopRules:
    """Which running jobs may be stopped for another one.

    Attributes:
        min_run_s: a job is not stopped before its program has run so long; None: no job is ever stopped.
        starts_at_once: the cluster starts what it accepts at the time of the launch, as on a virtual clock: a placed
            job counts as running before the cluster reports its start.
    """

    min_run_s: float | None = None
    starts_at_once: bool = False

    def may_stop(self, entry: Entry, time_s: float) -> bool:
        """Whether a placed job may be stopped at a cluster time.

        It may not while it starts or restores, by what is expected; while it waits itself for others to stop; and if
        its end is asked for already.
        """
        job = entry.job
        if self.min_run_s is None or job.spec.preemptible is None or not entry.gpus:
            return False
        if entry.stopped_for or entry.victims or job.cancel_requested or is_given_up(job):
            return False
        if job.state is not JobState.RUNNING and not self.starts_at_once:
            return False
        run_s = job.attempts[-1].run_s if job.attempts else None
        ran_s = time_s - (entry.since_s if run_s is None else run_s)
        return time_s >= entry.since_s + entry.restart_s and ran_s >= self.min_run_s


@dataclass(slots=True)
class GpuFigures:
    """What an observation says of the jobs on GPUs: (G,) each, as in `adlro.state.observation.Preemption`."""

    stoppable: Bools
    restart_s: Floats
    attained_s: Floats


def gpu_figures(
    rules: StopRules, entries: Iterable[Entry], seconds: Sequence[Entry], elapsed_s: Floats, time_s: float
) -> GpuFigures:
    """The figures of the GPUs.

    Args:
        rules: which jobs may be stopped.
        entries: the placed jobs that are preemptible.
        seconds: the second jobs on shared GPUs, preemptible or not.
        elapsed_s: (G,) GPU time of the present attempt of the (first) job on each GPU; 0 where none runs.
        time_s: the present cluster time.
    """
    # Lists: so many single numbers are set in less time there than in arrays.
    count, had_s = len(elapsed_s), elapsed_s.tolist()
    stoppable, restart_s = [False] * count, [0.0] * count
    second = {id(entry) for entry in seconds}
    for entry in entries:
        if id(entry) in second:
            continue
        may, before_s = rules.may_stop(entry, time_s), attained_s(entry.job) if entry.job.attempt_count > 1 else 0.0
        for gpu in entry.held:
            stoppable[gpu], restart_s[gpu] = may, entry.restart_cost_s
            had_s[gpu] += before_s
    for entry in seconds:
        gpu = entry.held[0]
        stoppable[gpu] = stoppable[gpu] and rules.may_stop(entry, time_s)
        restart_s[gpu] += entry.restart_cost_s
        had_s[gpu] += attained_s(entry.job) + (time_s - entry.since_s)
    return GpuFigures(np.array(stoppable), np.array(restart_s), np.array(had_s))


def attained_s(job: Job) -> float:
    """GPU time of a job's ended attempts, in seconds."""
    if not job.attempts:  # true of nearly all waiting jobs
        return 0.0
    return sum(
        (each.end_s - each.start_s) * len(each.placement.gpus)
        for each in job.attempts
        if each.start_s is not None and each.end_s is not None
    )


def share_left(entry: Entry, time_s: float, whole_s: float) -> float:
    """The share of its work that a job which is stopped now has left, by what is expected of it.

    Its program has worked since its start, its restart, if any, excepted; `lost_s` of that is to be done again, though
    never more than the attempt has done. Of a job that outlasts its expected end as much is left as any policy expects
    (`expected_rest_s`), and LEAST_SHARE at least.

    Args:
        entry: a placed job.
        time_s: cluster time of the stop.
        whole_s: expected duration of all its work on its GPUs.
    """
    job, costs = entry.job, entry.job.spec.preemptible
    if costs is None or not whole_s > 0.0:
        return job.remaining_ratio
    left_s = expected_rest_s(time_s, entry.since_s, entry.expected_end_s) * entry.told
    return min(job.remaining_ratio, max((left_s + costs.lost_s) / whole_s, LEAST_SHARE))


def refs(entries: Sequence[Entry]) -> tuple[AttemptRef, ...]:
    """The present attempts of placed jobs."""
    return tuple(AttemptRef(entry.job.job_id, entry.job.attempt_count) for entry in entries)
