"""What the outcome of a job that was stopped and went on says of its earlier attempts."""

from __future__ import annotations

from dataclasses import replace

from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobAttempt, JobState
from adlro.records.outcomes import StoppedRun
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from tests.ledgers import job, node

CLUSTER = Cluster("c", (node("a", "v100_sxm2", 16160), node("b", "v100_sxm2", 16160), node("c", "t4", 16160)))


def attempt(number: int, *gpus: str, start_s: float | None, end_s: float, **changes) -> JobAttempt:
    gpu_model = "t4" if gpus[0].startswith("c") else "v100_sxm2"
    return JobAttempt(number, Placement.on(*gpus), gpu_model, start_s=start_s, end_s=end_s, **changes)


def outcome(*attempts: JobAttempt, **changes):
    changes_of = RecordChanges(Ledger(CLUSTER), max_attempts=3)
    made = replace(job(1, **changes), attempts=attempts, placement=attempts[-1].placement)
    entry = changes_of.ledger.enter(made, 1, None)  # type: ignore[arg-type]  # no expectation is needed
    entry.gpus = tuple(changes_of.ledger.layout.gpu_number[gpu_id] for gpu_id in made.placement.gpu_ids)
    ended = replace(made, state=JobState.SUCCEEDED, start_s=attempts[-1].start_s, end_s=attempts[-1].end_s)
    changes_of.end(entry, ended, learn=True)
    (move,) = changes_of.take_moves()
    assert move.outcome is not None
    return move.outcome


def test_each_stopped_attempt_is_told_in_order_and_lost_ones_are_not():
    found = outcome(
        attempt(1, "a/0", start_s=5.0, end_s=15.0, preempted=True),
        attempt(2, "a/0", start_s=20.0, end_s=25.0),  # lost
        attempt(3, "c/0", start_s=30.0, run_s=32.0, end_s=40.0, preempted=True),
        attempt(4, "a/0", start_s=None, end_s=41.0, preempted=True),  # before it began
        attempt(5, "b/0", start_s=50.0, end_s=57.0),
    )
    assert found.runtime_s == 7.0
    assert found.stopped_runs == (StoppedRun("v100_sxm2", 10.0), StoppedRun("t4", 8.0))


def test_a_job_that_was_never_stopped_has_none():
    assert outcome(attempt(1, "a/0", start_s=5.0, end_s=15.0)).stopped_runs == ()


def test_stopped_attempts_of_several_gpus_are_spread_or_not_and_of_lost_gpus_unknown():
    found = outcome(
        attempt(1, "a/0", "a/1", start_s=0.0, end_s=1.0, preempted=True),
        attempt(2, "a/1", "b/0", start_s=2.0, end_s=4.0, preempted=True),
        attempt(3, "a/1", "gone/0", start_s=5.0, end_s=9.0, preempted=True),
        attempt(4, "a/0", "a/1", start_s=10.0, end_s=11.0),
        gpu_count=2,
    )
    assert found.stopped_runs == (
        StoppedRun("v100_sxm2", 1.0),
        StoppedRun("v100_sxm2", 2.0, spread=True),
        StoppedRun("", 4.0),
    )
