"""A job's record through its life."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adlro.placement import Placement
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.payloads import EndReason, ExitStatus
from adlro.services.orchestrator.ledger import transitions
from adlro.v1 import job_pb2
from adlro.wire import job_from_proto, job_to_proto
from tests.ledgers import job

MAX = 2


def took_s(before: Job, after: Job) -> float:
    ended = transitions.ended_attempt(before, after)
    return 0.0 if ended is None else ended.took_s


def running() -> Job:
    taken = transitions.taken_up(job(1), 3.0, PendingReason.RESOURCES, "waits")
    return transitions.started(transitions.launching(taken, Placement.on("volta-0/0"), "v100_sxm2"), 5.0)


def test_a_life_without_trouble() -> None:
    done = transitions.succeeded(running(), 9.0)
    assert (done.state, done.pending_reason, done.jct_s) == (JobState.SUCCEEDED, PendingReason.NONE, 6.0)
    attempt = done.attempts[0]
    assert (attempt.gpu_id, attempt.start_s, attempt.end_s, attempt.outcome) == ("volta-0/0", 5.0, 9.0, "succeeded")


def test_an_intent_is_still_pending_and_has_a_reason() -> None:
    intent = transitions.launching(job(1), Placement.on("volta-0/0"), "v100_sxm2")
    assert (intent.state, intent.pending_reason, intent.attempt_count) == (
        JobState.PENDING,
        PendingReason.LAUNCHING,
        1,
    )


def test_a_failure_says_why() -> None:
    failed = transitions.failed(running(), 9.0, "time limit of 4 s reached")
    assert (failed.state, failed.message) == (JobState.FAILED, "time limit of 4 s reached")


def test_a_failure_says_how_the_program_ended_once() -> None:
    three = ExitStatus(EndReason.EXITED, code=3)
    failed = transitions.failed(running(), 9.0, "", three)
    assert (failed.message, failed.attempts[0].outcome) == ("exit code 3", "failed: exit code 3")
    assert failed.attempts[0].exit == three
    assert transitions.failed(running(), 9.0, "exit code 3", three).message == "exit code 3"
    killed = ExitStatus(EndReason.SIGNALLED, signal=9)
    overdue = transitions.failed(running(), 9.0, "time limit of 4 s reached", killed)
    assert overdue.message == "time limit of 4 s reached (killed by SIGKILL)"
    at_limit = ExitStatus(EndReason.TIME_LIMIT, detail="time limit of 4 s reached")
    assert transitions.failed(running(), 9.0, "time limit of 4 s reached", at_limit).message == at_limit.text
    assert at_limit.text == "time limit of 4 s reached"
    assert transitions.failed(running(), 9.0, "").attempts[0].outcome == "failed"


def test_each_end_keeps_the_exit_status() -> None:
    exit_status = ExitStatus(EndReason.EXITED, peak_memory_mib=7)
    for ended in (
        transitions.succeeded(running(), 9.0, exit_status),
        transitions.stopped(running(), 9.0, exit_status),
        transitions.lost(running(), 9.0, "", MAX, exit_status=exit_status),
    ):
        assert ended.attempts[0].exit == exit_status
    gone = transitions.lost(running(), 9.0, "", MAX, exit_status=ExitStatus(EndReason.NODE_LOST))
    assert gone.attempts[0].outcome == "lost: node lost"
    again = transitions.launching(gone, Placement.on("volta-0/1"), "v100_sxm2")
    assert again.attempts[1].exit is None


def test_a_runtime_counts_from_the_start_of_the_program() -> None:
    assert transitions.succeeded(running(), 9.0).runtime_s == 4.0
    program = transitions.program_runs(running(), 7.5)
    assert program.state is JobState.RUNNING
    assert program.start_s == 5.0
    done = transitions.succeeded(program, 9.0)
    assert done.attempts[0].run_s == 7.5
    assert done.runtime_s == 1.5
    assert took_s(program, done) == 4.0, "the GPU was held from the start on"
    assert transitions.program_runs(running(), 1.0).attempts[0].run_s == 5.0, "not before the start"
    assert transitions.succeeded(program, 6.0).runtime_s == 0.0
    assert job(1).runtime_s is None


def test_a_lost_attempt_waits_for_another_one_and_keeps_its_place() -> None:
    again = transitions.lost(running(), 7.0, "volta-0/0 was lost", MAX)
    assert (again.state, again.gpu_id, again.start_s, again.submit_s) == (JobState.PENDING, "", None, 3.0)
    assert again.pending_reason is not PendingReason.NONE
    assert again.attempts[0].outcome == "lost: volta-0/0 was lost"
    assert transitions.launching(again, Placement.on("volta-0/1"), "v100_sxm2").attempts[1].attempt == 2


def test_too_many_lost_attempts_fail_with_the_reason() -> None:
    second = transitions.started(
        transitions.launching(transitions.lost(running(), 7.0, "x", MAX), Placement.on("volta-0/1"), "v100_sxm2"), 8.0
    )
    failed = transitions.lost(second, 9.0, "volta-0/1 was lost", MAX)
    assert failed.state is JobState.FAILED
    assert "attempt 2 of at most 2" in failed.message


def test_a_lost_attempt_of_a_job_to_be_cancelled_is_its_end() -> None:
    assert transitions.lost(replace(running(), cancel_requested=True), 7.0, "x", MAX).state is JobState.CANCELLED


def test_who_stopped_it_is_told() -> None:
    asked = transitions.stopped(replace(running(), cancel_requested=True), 7.0)
    other = transitions.stopped(running(), 7.0)
    assert asked.state is other.state is JobState.CANCELLED
    assert asked.message == "cancelled on request"
    assert "not through ADLRO" in other.message


def test_an_attempt_took_time_from_its_start_to_its_end_and_only_once() -> None:
    waits = job(1)
    intended = transitions.launching(waits, Placement.on("volta-0/0"), "v100_sxm2")
    runs = transitions.started(intended, 10.0)
    for ended in (
        transitions.succeeded(runs, 12.5),
        transitions.failed(runs, 12.5, "why"),
        transitions.stopped(runs, 12.5),
        transitions.lost(runs, 12.5, "why", 3),
    ):
        assert took_s(runs, ended) == 2.5
        assert took_s(ended, ended) == 0.0
    again = transitions.lost(runs, 12.5, "why", 3)
    assert took_s(again, transitions.cancelled_while_waiting(again, 20.0)) == 0.0
    assert took_s(again, transitions.launching(again, Placement.on("volta-0/0"), "v100_sxm2")) == 0.0
    assert took_s(intended, transitions.refused(intended, 12.5, "no", 3)) == 0.0
    assert took_s(waits, waits) == 0.0
    forgotten = transitions.forgotten(again, Placement.on("volta-0/0"), "v100_sxm2", 13.0, 14.0, 3)
    assert took_s(again, forgotten) == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("succeeded", "failed", "stopped", "lost", "excused", "refused", "forgotten", "cancelled")),
            st.booleans(),
            st.floats(0.0, 100.0),
            st.floats(0.0, 100.0),
        ),
        min_size=1,
    )
)
def test_nothing_ends_before_it_began_whatever_times_it_is_given(
    courses: list[tuple[str, bool, float, float]],
) -> None:
    """An orchestrator may find out about a loss at an event that is older than the attempt's start."""
    record = transitions.taken_up(job(1), 0.0, PendingReason.RESOURCES, "waits")
    for how, starts, start_s, end_s in courses:
        if how == "forgotten":
            record = transitions.forgotten(record, Placement.on("volta-0/0"), "v100_sxm2", start_s, end_s, 100)
            continue
        if how == "cancelled":
            record = transitions.cancelled_while_waiting(record, end_s)
        else:
            record = transitions.launching(record, Placement.on("volta-0/0"), "v100_sxm2")
            record = transitions.started(record, start_s) if starts else record
        match how:
            case "succeeded":
                record = transitions.succeeded(record, end_s)
            case "failed":
                record = transitions.failed(record, end_s, "x")
            case "stopped":
                record = transitions.stopped(record, end_s)
            case "refused":
                record = transitions.refused(record, end_s, "x", 100)
            case "lost" | "excused":
                record = transitions.lost(record, end_s, "x", 100, excused=how == "excused")
        if record.state.final:
            break
    for attempt in record.attempts:
        assert attempt.end_s is not None
        assert attempt.start_s is None or attempt.start_s <= attempt.end_s
    if record.state.final and record.attempts:
        assert record.end_s is not None
        assert record.end_s >= (record.attempts[-1].end_s or 0.0)
        if how != "cancelled":
            assert record.end_s == record.attempts[-1].end_s


def test_attempts_lost_to_restarts_of_the_cluster_are_not_counted() -> None:
    record = running()
    for _ in range(MAX + 3):
        record = transitions.lost(record, 7.0, "the cluster was restarted", MAX, excused=True)
        assert record.state is JobState.PENDING
        record = transitions.started(transitions.launching(record, Placement.on("volta-0/0"), "v100_sxm2"), 7.0)
    record = transitions.lost(record, 8.0, "volta-0/0 was lost", MAX)
    assert record.state is JobState.PENDING
    record = transitions.started(transitions.launching(record, Placement.on("volta-0/0"), "v100_sxm2"), 8.0)
    failed = transitions.lost(record, 9.0, "volta-0/0 was lost", MAX)
    assert failed.state is JobState.FAILED
    assert failed.message == (
        "attempt 2 of at most 2 was lost: volta-0/0 was lost "
        "(those lost to restarts of the cluster, 5, are not counted)"
    )
    assert [attempt.excused for attempt in failed.attempts] == [True] * 5 + [False] * 2


def test_a_record_of_an_older_version_has_no_attempt_that_is_excused() -> None:
    """Such a record lacks the field; an excused attempt comes back as it was written."""
    again = transitions.lost(running(), 7.0, "the cluster was restarted", MAX, excused=True)
    message = job_to_proto(again)
    assert job_from_proto(job_pb2.Job.FromString(message.SerializeToString())) == again
    message.attempts[0].ClearField("excused")
    old = job_from_proto(job_pb2.Job.FromString(message.SerializeToString()))
    assert old.attempts == (replace(again.attempts[0], excused=False),)


# ---- neighbours


def beside(job: Job, *neighbours: tuple[str, float]) -> Job:
    for application, time_s in neighbours:
        job = transitions.was_beside(job, NeighbourTime(ApplicationSize(application), time_s))
    return job


def told(job: Job, attempt: int = -1) -> list[tuple[str, float]]:
    return [(each.neighbour.application, each.time_s) for each in job.attempts[attempt].neighbours]


def test_times_beside_neighbours_of_one_kind_are_added_up() -> None:
    shared = beside(running(), ("a", 1.0), ("b", 2.0), ("a", 4.0))
    assert told(shared) == [("a", 5.0), ("b", 2.0)]
    sizes = transitions.was_beside(shared, NeighbourTime(ApplicationSize("a", "32"), 8.0))
    assert [each.time_s for each in sizes.attempts[-1].neighbours] == [5.0, 2.0, 8.0]
    assert job_from_proto(job_pb2.Job.FromString(job_to_proto(sizes).SerializeToString())) == sizes


def test_beyond_so_many_kinds_of_neighbours_all_others_count_as_one() -> None:
    many = beside(running(), *((f"a{number}", 1.0) for number in range(64)))
    assert len(told(many)) == 64
    more = beside(many, ("b", 2.0), ("a3", 5.0), ("c", 4.0))
    assert told(more) == [*((f"a{n}", 6.0 if n == 3 else 1.0) for n in range(64)), ("", 6.0)]
    without_a_name = beside(running(), ("", 1.0), *((f"a{number}", 1.0) for number in range(70)))
    assert len(told(without_a_name)) == 64
    assert told(without_a_name)[0] == ("", 8.0)


def test_neighbours_stay_with_the_attempt_that_had_them() -> None:
    shared = beside(running(), ("a", 1.0))
    for ended in (
        transitions.succeeded(shared, 9.0),
        transitions.failed(shared, 9.0, "no"),
        transitions.stopped(shared, 9.0),
        transitions.lost(shared, 9.0, "no", MAX),
        transitions.preempted(shared, 9.0, "for job-2", 0.5),
        transitions.refused(shared, 9.0, "no", MAX),
    ):
        assert told(ended) == [("a", 1.0)]
    again = transitions.preempted(shared, 9.0, "", 0.5)
    second = beside(
        transitions.started(transitions.launching(again, Placement.on("volta-0/1"), "v100_sxm2"), 10.0), ("b", 2.0)
    )
    assert [told(second, attempt) for attempt in (0, 1)] == [[("a", 1.0)], [("b", 2.0)]]


def test_who_left_before_the_program_ran_was_no_neighbour_of_it() -> None:
    shared = beside(running(), ("a", 1.0))
    program = transitions.program_runs(shared, 7.5)
    assert told(program) == []
    assert program.attempts[-1].runs_from_s == 7.5
    assert running().attempts[-1].runs_from_s == 5.0
    assert told(beside(program, ("b", 2.0))) == [("b", 2.0)]
