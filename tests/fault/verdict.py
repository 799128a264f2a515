"""What must hold after any fault, judged from what the followers saw and what the services say."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adlro.client import AsyncClient
from adlro.records.events import ENDS, ClusterEvent, EventKind
from adlro.records.jobs import Job, JobState, PendingReason
from tests.fault.followers import ClusterFollower, JobFollower

# A pending job runs, goes on waiting, or is cancelled; a running one ends, or waits again after it was lost.
NEXT_STATES = {
    JobState.PENDING: {JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED},
    JobState.RUNNING: {JobState.RUNNING, JobState.PENDING, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED},
}


def check_changes(follower: JobFollower) -> None:
    """Every change came once and in order, and each job took a course that is possible."""
    assert follower.snapshots == 1, "a new snapshot was needed: changes were missed"
    revisions = [event.revision for event in follower.changes]
    assert revisions == list(range(follower.first_revision + 1, follower.first_revision + 1 + len(revisions)))
    known: dict[str, Job] = {}
    newest_s = 0.0
    for event in follower.changes:
        job = event.job
        assert job is not None
        assert job.revision == event.revision
        assert (job.pending_reason is not PendingReason.NONE) == (job.state is JobState.PENDING), job
        assert job.message or job.state is JobState.SUCCEEDED, f"{job.job_id} is {job.state.name} without a word"
        before = known.get(job.job_id)
        if before is None:
            assert (job.state, job.pending_reason) == (JobState.PENDING, PendingReason.SUBMITTED)
        else:
            assert job.state in NEXT_STATES.get(before.state, set()), (
                f"{job.job_id} went from {before.state.name} to {job.state.name} at {event.revision}"
            )
            assert job.spec == before.spec
            ended = tuple(attempt for attempt in before.attempts if attempt.outcome)
            assert job.attempts[: len(ended)] == ended, f"a past attempt of {job.job_id} changed"
            assert len(before.attempts) <= len(job.attempts) <= len(before.attempts) + 1
            if job.state is not before.state and job.state is not JobState.PENDING:
                time_s = job.start_s if job.state is JobState.RUNNING else job.end_s
                assert time_s is not None
                assert time_s >= newest_s, f"cluster time went back with {job.job_id}, at {event.revision}"
                newest_s = time_s
        known[job.job_id] = job


def check_attempts(jobs: Iterable[Job]) -> None:
    """Each job ended well by its last attempt, the others were lost, and each began when the one before was over."""
    for job in jobs:
        assert job.state is JobState.SUCCEEDED, f"{job.job_id}: {job.state.name}, {job.message}"
        assert [attempt.attempt for attempt in job.attempts] == list(range(1, job.attempt_count + 1))
        *lost, last = job.attempts
        assert last.outcome == "succeeded"
        assert (last.start_s, last.end_s) == (job.start_s, job.end_s)
        over_s = 0.0
        for attempt in lost:
            assert attempt.outcome.startswith(("lost:", "refused", "preempted")), attempt
            assert attempt.end_s is not None
            begin_s = attempt.end_s if attempt.start_s is None else attempt.start_s
            assert over_s <= begin_s <= attempt.end_s, attempt
            over_s = attempt.end_s
        assert last.start_s is not None
        assert last.start_s >= over_s, f"attempts of {job.job_id} overlap"
        assert last.end_s is not None
        assert last.end_s >= last.start_s, f"{job.job_id} ended before it began"


def check_no_two_at_once(
    follower: ClusterFollower,
) -> tuple[dict[tuple[str, int], ClusterEvent], dict[tuple[str, int], ClusterEvent]]:
    """On the cluster no job had two attempts at once, and no GPU more than its share.

    Returns:
        The starts and the ends by (job, attempt).
    """
    newest: dict[str, int] = defaultdict(int)
    started: dict[tuple[str, int], ClusterEvent] = {}
    ended: dict[tuple[str, int], ClusterEvent] = {}
    for log in follower.logs.values():
        running: dict[str, ClusterEvent] = {}
        assert [event.revision for event in log] == list(range(log[0].revision, log[0].revision + len(log)))
        for event in log:
            attempt = (event.job_id, event.attempt)
            if event.kind is EventKind.STARTED:
                assert event.job_id not in running, f"{event.job_id} ran twice at {event.time_s} s"
                for each in event.placement.gpus:
                    parts = (part for other in running.values() for part in other.placement.gpus)
                    there = [part.share for part in parts if part.gpu_id == each.gpu_id]
                    assert each.share + sum(there) <= 1.0, f"{event.job_id} beside {there} on {each.gpu_id}"
                assert event.attempt > newest[event.job_id], f"attempt {attempt} was started twice"
                newest[event.job_id] = event.attempt
                running[event.job_id] = started[attempt] = event
            elif event.kind in ENDS:
                assert running.pop(event.job_id).attempt == event.attempt
                ended[attempt] = event
    return started, ended


def check_cluster_log(follower: ClusterFollower, jobs: Mapping[str, Job]) -> None:
    """No job had two attempts at once, no GPU more than its share, and nothing ran that the records do not know."""
    started, ended = check_no_two_at_once(follower)
    recorded = {(job.job_id, each.attempt): each for job in jobs.values() for each in job.attempts}
    of_these = {attempt: event for attempt, event in started.items() if attempt[0] in jobs}
    assert not of_these.keys() - recorded.keys(), "the cluster ran what no record knows"
    for key, event in of_these.items():
        assert recorded[key].placement == event.placement
        assert recorded[key].start_s in (None, event.time_s)
    for job in jobs.values():
        final = ended.get((job.job_id, job.attempt_count))
        if len(follower.logs) == 1:  # of an incarnation that was killed, the last events were seen by nobody
            assert (job.job_id, job.attempt_count) in started
            assert final is not None
        if final is not None and job.state is JobState.SUCCEEDED:
            assert (final.kind, final.time_s) == (EventKind.FINISHED, job.end_s)


async def check_views(server: str, follower: JobFollower, rows: Sequence[Mapping[str, Any]]) -> None:
    """GetJob, ListJobs and `queue -o json` say of each job what the follower's last change of it says."""
    async with AsyncClient(server) as client:
        listed = {job.job_id: job async for job in client.list()}
        got = await asyncio.gather(*(client.get(job_id) for job_id in follower.latest))
    for job in got:
        last = follower.latest[job.job_id]
        assert job == last, f"GetJob and the watch differ about {job.job_id}"
        assert listed[job.job_id] == last, f"ListJobs and the watch differ about {job.job_id}"
    told = {row["job_id"]: row for row in rows}
    for job_id, job in follower.latest.items():
        row = told[job_id]
        assert row["state"] == job.state.name.lower()
        for name in ("submit_s", "start_s", "end_s", "gpu_id", "gpu_model", "attempt_count", "revision"):
            assert row[name] == getattr(job, name), f"queue and watch differ about {name} of {job_id}"
