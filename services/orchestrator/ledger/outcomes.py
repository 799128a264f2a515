"""What an outcome says of a job's earlier attempts. Plain records only."""

from __future__ import annotations

from adlro.records.jobs import Job, JobAttempt
from adlro.records.outcomes import StoppedRun
from adlro.services.orchestrator.ledger.ledger import Ledger


def stopped_runs(ledger: Ledger, job: Job) -> tuple[StoppedRun, ...]:
    """The attempts of a job that were preempted after their start, in order.

    Lost attempts are left out: what they did was done again. The GPU model is empty where nobody knows whether several
    GPUs were on more nodes than needed, since one has left the cluster.
    """
    return tuple([_run(ledger, job, each) for each in job.attempts if each.preempted and each.start_s is not None])


def _run(ledger: Ledger, job: Job, attempt: JobAttempt) -> StoppedRun:
    began_s = attempt.runs_from_s
    assert began_s is not None
    runtime_s = max(0.0, (attempt.end_s or began_s) - began_s)
    if len(attempt.placement.gpus) <= 1:
        return StoppedRun(attempt.gpu_model, runtime_s, neighbours=attempt.neighbours)
    number_of = ledger.layout.gpu_number
    gpus = [number_of[gpu_id] for gpu_id in attempt.placement.gpu_ids if gpu_id in number_of]
    if len(gpus) < len(attempt.placement.gpus):
        return StoppedRun("", runtime_s)
    return StoppedRun(attempt.gpu_model, runtime_s, ledger.is_spread(job.spec, gpus))
