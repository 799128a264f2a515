"""Sessions against a real Redis and a cluster in memory: exact, and nothing lost whenever one is broken off."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from adlro.errors import (
    AdlroError,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
)
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobState, PendingReason
from adlro.services.orchestrator.orchestrator import Orchestrator
from adlro.store import Move
from adlro.store.keys import TOKEN
from tests.unit.orchestrator.house import House


def fcfs_ends(jobs: Sequence[tuple[float, float]], gpus: int) -> list[float]:
    """What FCFS on identical GPUs gives: (submit, work) in order of submission to the times of their ends."""
    free = [0.0] * gpus
    ends = []
    before = 0.0
    for submit_s, work_s in jobs:
        before = max(heapq.heappop(free), submit_s, before)
        ends.append(before + work_s)
        heapq.heappush(free, ends[-1])
    return ends


async def test_a_replay_in_virtual_time_is_exact(house: House) -> None:
    draw = random.Random(1)
    jobs = [(submit, draw.uniform(0.5, 20)) for submit in sorted(draw.uniform(1, 60) for _ in range(60))]
    await house.pause()
    house.start("fcfs")
    for submit_s, work_s in jobs:
        await house.submit(work_s, begin_time_s=submit_s)

    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    done = await house.until_final(len(jobs))
    assert [job.end_s for job in done] == pytest.approx(fcfs_ends(jobs, 5))
    assert [job.submit_s for job in done] == [submit_s for submit_s, _ in jobs]
    assert all(job.attempt_count == 1 for job in done)


async def test_every_record_on_the_way_is_told_in_order(house: House) -> None:
    house.start()
    await house.submit(3.0)
    (done,) = await house.until_final(1)
    states = [(job.state, job.pending_reason) for job in (await house.history())["job-1"]]
    assert states == [
        (JobState.PENDING, PendingReason.SUBMITTED),
        (JobState.PENDING, PendingReason.LAUNCHING),
        (JobState.RUNNING, PendingReason.NONE),
        (JobState.SUCCEEDED, PendingReason.NONE),
    ]
    assert done.jct_s == 3.0


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_killed_and_when_every_job_ends_once(house: House, seed: int) -> None:
    draw = random.Random(seed)
    house.start("sjf")
    for _ in range(40):
        await house.submit(draw.uniform(0.5, 5.0), begin_time_s=draw.uniform(0, 10))
    for _ in range(8):
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        match draw.choice(["orchestrator", "cluster", "gpu", "decompose"]):
            case "orchestrator":
                await house.kill()
                house.start()
            case "cluster":
                house.cluster.restart()
            case "gpu":
                house.cluster.lose("volta-0/1")
            case "decompose":
                house.predictor.away = not house.predictor.away
    done = await house.until_final(40)
    assert {job.state for job in done} == {JobState.SUCCEEDED}
    # FakeCluster refuses two attempts of one job at a time; here: each ran to its end exactly once, attempts count up.
    for job in done:
        assert [each.attempt for each in job.attempts] == list(range(1, job.attempt_count + 1))
        assert [each.outcome == "succeeded" for each in job.attempts] == [False] * (job.attempt_count - 1) + [True]
    for records in (await house.history()).values():
        assert sum(record.state.final for record in records) == 1
        assert records[-1].state.final
        times = [record.end_s for record in records if record.end_s is not None]
        assert times == sorted(times)
    assert not house.cluster.running


async def test_cluster_time_never_goes_back(house: House) -> None:
    house.start()
    await house.submit(100.0)
    await house.until_final(1)
    house.cluster.restart()
    await house.submit(1.0)
    second = (await house.until_final(2))[1]
    assert second.submit_s is not None
    assert second.submit_s >= 100.0


async def test_vanished_jobs_run_again_as_another_attempt(house: House) -> None:
    house.start()
    await house.pause()
    await house.submit(5.0)

    async def running() -> bool:
        return (await house.store.get("job-1")).state is JobState.RUNNING

    await house.until(running)
    house.cluster.restart()

    async def second() -> bool:
        return (await house.store.get("job-1")).attempt_count == 2

    await house.until(second)
    assert house.cluster.clock.paused, "the clock goes on as it was set before the restart"
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    (done,) = await house.until_final(1)
    assert [each.outcome for each in done.attempts] == ["lost: the cluster was restarted", "succeeded"]


async def test_an_attempt_that_is_accepted_waits_for_its_start_to_be_told(house: House) -> None:
    house.cluster.start_later = True
    house.start()
    await house.submit(5.0)

    async def accepted() -> bool:
        return bool(house.cluster.accepted) and house.cluster.acknowledged == house.cluster.revision

    await house.until(accepted)
    waiting = await house.store.get("job-1")
    assert (waiting.state, waiting.pending_reason) == (JobState.PENDING, PendingReason.LAUNCHING)
    # Neither another session nor the answer to a repeated launch makes it run.
    await house.kill()
    house.start()
    await house.until_acting()
    assert (await house.store.get("job-1")).state is JobState.PENDING
    house.cluster.start_accepted()

    async def started() -> bool:  # it may have ended by then
        return (await house.store.get("job-1")).start_s is not None

    await house.until(started)
    house.cluster.go_on()
    (done,) = await house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert house.cluster.launches == [("job-1", 1, done.gpu_id)]


async def test_nodes_that_join_and_leave_are_taken_up_by_another_session(house: House) -> None:
    whole = house.cluster.cluster
    house.cluster.cluster = replace(whole, nodes=whole.nodes[:1])
    few = sum(1 for _ in house.cluster.cluster.gpus())
    jobs = few + 1
    await house.pause()
    house.start()
    for _ in range(jobs):
        await house.submit(5.0)

    async def as_many_run(count: int) -> bool:
        return sum(job.state is JobState.RUNNING for _, job in await house.store.active()) == count

    await house.until(lambda: as_many_run(few))
    house.cluster.change(whole)
    await house.until(lambda: as_many_run(jobs))
    # The first node leaves: what ran there runs again on another one, and nobody's attempts are used up.
    house.cluster.change(replace(whole, nodes=whole.nodes[1:]))
    rest = sum(1 for node in whole.nodes[1:] for _ in node.gpus)
    await house.until(lambda: as_many_run(min(rest, jobs)))
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    done = await house.until_final(jobs)
    assert {job.state for job in done} == {JobState.SUCCEEDED}
    assert {attempt.gpu_id.partition("/")[0] for job in done for attempt in job.attempts[1:]} <= {
        "turing-0",
        "radeon-0",
    }
    assert sum(job.attempt_count for job in done) == jobs + few


async def test_a_job_that_ended_before_its_node_left_is_not_run_again(house: House) -> None:
    whole = house.cluster.cluster
    await house.pause()
    house.start()
    await house.submit(5.0)

    async def runs() -> bool:
        return (await house.store.get("job-1")).state is JobState.RUNNING

    await house.until(runs)
    node_id = (await house.store.get("job-1")).gpu_id.partition("/")[0]
    await house.kill()
    # Nobody hears of its end before its node leaves.
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    house.cluster.acknowledged = house.cluster.revision
    house.cluster.go_on()
    assert not house.cluster.running
    house.cluster.change(replace(whole, nodes=tuple(node for node in whole.nodes if node.node_id != node_id)))
    house.start()
    (done,) = await house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert len(house.cluster.launches) == 1


async def test_restarts_of_the_cluster_are_no_jobs_failure(house: House) -> None:
    house.start(max_attempts=1)
    await house.pause()
    await house.submit(5.0)
    for attempt in range(1, 5):

        async def running(attempt: int = attempt) -> bool:
            job = await house.store.get("job-1")
            return job.state is JobState.RUNNING and job.attempt_count == attempt

        await house.until(running)
        if attempt < 4:
            house.cluster.restart()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, house.cluster.clock.time_s))
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert [each.excused for each in done.attempts] == [True, True, True, False]


async def test_an_attempt_ends_no_earlier_than_it_began_after_a_restart_at_another_time(house: House) -> None:
    """A start is written without the cursor, which then is older; and the new cluster's clock begins at 0."""
    house.start()
    await house.submit(1.0)
    await house.until_final(1)
    house.cluster.clock = Clock(ClockMode.VIRTUAL, 0.0, True, 50.0)
    spec = (await house.submit(5.0)).spec

    async def running() -> bool:
        return (await house.store.get("job-2")).state is JobState.RUNNING

    await house.until(running)
    await house.kill()
    cursor = await house.store.cursor()
    assert cursor is not None
    token, (version, record) = house.cluster.token, (await house.store.active())[0]
    later = replace(record, start_s=70.0, attempts=(replace(record.attempts[0], start_s=70.0),))
    await house.store.move(token, [Move(later, version)])
    house.cluster.restart()
    house.start()

    async def second() -> bool:
        job = await house.store.get("job-2")
        return job.attempt_count == 2 and job.state is JobState.RUNNING

    await house.until(second)
    first, again = (await house.store.get("job-2")).attempts
    assert (first.start_s, first.end_s) == (70.0, 70.0)
    assert again.start_s is not None
    assert again.start_s >= 70.0
    assert cursor.time_s < 70.0
    assert spec == record.spec


async def test_what_a_status_tells_of_cluster_time_never_goes_back(house: House) -> None:
    """Not between sessions, in which the last event applied is older than what was told, and not in an outage."""
    house.cluster.clock = Clock(
        ClockMode.REAL, 1.0, False, 100.0
    )  # it only says so: this cluster's time is set by hand
    house.start(lease_s=0.5)
    told = []
    for life in range(4):
        await house.until_acting()
        told.append((await house.orchestrator.status()).cluster_time_s)
        house.cluster.clock = replace(house.cluster.clock, time_s=100.0 + 10 * life)
        await house.cluster.wake_at([0.0])

        async def told_now(now_s: float = 100.0 + 10 * life) -> bool:
            told.append((await house.orchestrator.status()).cluster_time_s)
            return told[-1] >= now_s

        await house.until(told_now)
        before = (await house.orchestrator.status()).fencing_token
        house.cluster.restart()
        house.cluster.clock = replace(house.cluster.clock, time_s=100.0 + 10 * life)

        async def acts_anew(before: int = before) -> bool:
            status = await house.orchestrator.status()
            told.append(status.cluster_time_s)
            return status.acting and status.fencing_token > before

        await house.until(acts_anew)
    assert told == sorted(told)
    assert told[-1] == 130.0


async def test_a_lost_counter_of_fencing_tokens_is_recovered_at_once(house: House) -> None:
    house.start()
    await house.until_acting()
    await house.kill()
    house.cluster.token = 5000  # of many sessions
    await house.redis.delete(TOKEN)
    house.start()
    await house.submit(1.0)
    (done,) = await house.until_final(1)
    assert done.attempt_count == 1
    assert (await house.orchestrator.status()).fencing_token == house.cluster.token == 5001


async def test_too_many_lost_attempts_fail_the_job_with_the_reason(house: House) -> None:
    house.start(max_attempts=2)
    await house.pause()
    await house.submit(5.0)
    for attempt in (1, 2):

        async def running(attempt: int = attempt) -> bool:
            job = await house.store.get("job-1")
            return job.state is JobState.RUNNING and job.attempt_count == attempt

        await house.until(running)
        house.cluster.lose((await house.store.get("job-1")).gpu_id)
    (failed,) = await house.until_final(1)
    assert failed.state is JobState.FAILED
    assert "attempt 2 of at most 2" in failed.message


async def test_cancelling_while_waiting_and_while_running(house: House) -> None:
    house.start()
    await house.pause()
    for _ in range(7):
        await house.submit(5.0)

    async def five_run() -> bool:
        jobs = [job for _, job in await house.store.active()]
        return sum(job.state is JobState.RUNNING for job in jobs) == 5

    await house.until(five_run)
    await house.store.request_cancel("job-1")
    await house.store.request_cancel("job-7")

    async def both() -> bool:
        jobs = await house.store.get_many(["job-1", "job-7"])
        return all(job is not None and job.state is JobState.CANCELLED for job in jobs)

    await house.until(both)

    async def the_sixth_runs() -> bool:
        return (await house.store.get("job-6")).state is JobState.RUNNING

    await house.until(the_sixth_runs)
    assert len(house.cluster.running) == 5


async def test_one_acts_the_other_stands_by_and_takes_over(house: House, redis_url: str, cluster: Cluster) -> None:
    other = House(redis_url, cluster)
    other.cluster = house.cluster
    try:
        house.start()
        await house.until_acting()
        first_token = (await house.orchestrator.status()).fencing_token
        other.lives = 10
        other.start()

        async def stands_by() -> bool:
            status = await other.orchestrator.status()
            assert not status.acting
            return "standing by: instance-1 holds the lease" in status.problem

        await other.until(stands_by)
        await house.kill()
        await other.until_acting()
        assert (await other.orchestrator.status()).fencing_token > first_token
        await other.submit(2.0)
        await other.until_final(1)
    finally:
        await other.close()


async def test_sessions_that_fail_leave_no_cancellation_behind(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.11.3 a timeout in the loop would be taken for an order to end, and nothing placed ever again."""
    counts = []
    act = Orchestrator._act

    async def fails(orchestrator: Orchestrator, token: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        if len(counts) > 6:
            await act(orchestrator, token)

        async def lose_redis() -> None:
            raise OSError("connection lost")

        async with asyncio.TaskGroup() as group:
            group.create_task(lose_redis())
            group.create_task(asyncio.sleep(60))

    monkeypatch.setattr(Orchestrator, "_act", fails)
    house.start(lease_s=0.5)
    await house.submit(3.0)
    await house.until_final(1)
    assert counts == [0] * len(counts)


async def test_a_refused_launch_is_another_attempt_not_a_lost_job(house: House) -> None:
    house.cluster.refuse = "the GPU burns"
    house.start(max_attempts=3)
    await house.submit(2.0)
    (failed,) = await house.until_final(1)
    assert failed.state is JobState.FAILED
    assert "the GPU burns" in failed.message
    assert failed.attempt_count == 3


async def test_waiting_jobs_say_why_and_decisions_are_explained(house: House) -> None:
    house.start("sjf")
    await house.pause()
    for work_s in range(1, 7):
        await house.submit(float(work_s))
    await house.submit(1.0, gpu_memory_mib=99999)

    async def explained() -> bool:
        jobs = await house.store.get_many(["job-6", "job-7"])
        return [job.pending_reason for job in jobs if job] == [PendingReason.RESOURCES, PendingReason.NO_FITTING_GPU]

    await house.until(explained)
    decision = await house.orchestrator.explain_job("job-1")
    assert decision.gpu_id == "volta-0/0"
    assert decision.candidates[0].gpu_id == "volta-0/0"
    assert decision.candidates[0].score == -1.0
    waits = await house.orchestrator.explain_job("job-6")
    assert waits.gpu_id == ""
    assert not waits.candidates
    assert any("busy with job-" in each.reason for each in waits.masked)
    with pytest.raises(NotFound):
        await house.orchestrator.explain_job("job-99")


async def test_policy_and_drains_outlive_the_process(house: House) -> None:
    house.start()
    await house.until_acting()
    assert await house.orchestrator.set_policy("fcfs") == "sjf"
    with pytest.raises(InvalidInput, match="there is no policy 'best'; there are fcfs"):
        await house.orchestrator.set_policy("best")
    with pytest.raises(NotFound, match="the nodes are volta-0, turing-0, radeon-0"):
        await house.orchestrator.drain("nowhere", "")
    await house.orchestrator.drain("volta-0", "maintenance")
    await house.kill()
    house.start()
    await house.until_acting()
    status = await house.orchestrator.status()
    assert (status.policy, status.drained_node_ids) == ("fcfs", ("volta-0",))
    await house.submit(1.0)
    (done,) = await house.until_final(1)
    assert done.gpu_id == "turing-0/0"
    await house.orchestrator.undrain("volta-0")
    await house.submit(1.0)
    assert (await house.until_final(2))[1].gpu_id == "volta-0/0"


async def test_a_cancel_that_races_a_relaunch_is_not_lost(house: House) -> None:
    """The intent is written, the launch got no answer, the user cancels: the job must not run on."""
    house.cluster.lose_replies = 1
    await house.pause()
    house.start()
    await house.submit(5.0)

    async def launched() -> bool:
        return house.cluster.lose_replies == 0  # the intent is written before

    await house.until(launched)
    assert (await house.store.get("job-1")).pending_reason is PendingReason.LAUNCHING
    await house.kill()
    await house.store.request_cancel("job-1")
    house.start()
    (done,) = await house.until_final(1)
    assert done.state is JobState.CANCELLED
    assert not house.cluster.running


@pytest.mark.parametrize("error", [InternalError("a bug there"), LimitExceeded("too many"), DeadlineExceeded("late")])
async def test_one_job_that_cannot_be_launched_holds_up_no_other(house: House, error: AdlroError) -> None:
    house.cluster.poisoned = ("job-1", error)
    house.start("fcfs", max_attempts=2, lease_s=0.5)
    for _ in range(3):
        await house.submit(2.0)
    done = await house.until_final(3)
    assert [job.state for job in done] == [JobState.FAILED, JobState.SUCCEEDED, JobState.SUCCEEDED]
    assert error.message in done[0].message


async def test_an_impossible_head_blocks_nobody(house: House) -> None:
    house.start("fcfs")
    await house.submit(1.0, gpu_memory_mib=99999)
    await house.submit(1.0)

    async def second_ends() -> bool:
        return (await house.store.get("job-2")).state is JobState.SUCCEEDED

    await house.until(second_ends)
    assert (await house.store.get("job-1")).pending_reason is PendingReason.NO_FITTING_GPU


@pytest.mark.parametrize("runs", [True, False])
async def test_an_attempt_that_the_store_has_forgotten_is_followed_by_another_one(house: House, runs: bool) -> None:
    """As after Redis came back without its last changes, when that attempt still runs, or its end is past."""
    if runs:
        house.start("fcfs")
        await house.until_acting()
        await house.kill()
    spec = (await house.submit(5.0)).spec
    key = ("job-1", 1)
    token, incarnation = house.cluster.token, house.cluster.incarnation
    await house.cluster.launch(*key, spec, Placement.on("volta-0/0"), token, incarnation)
    if not runs:
        await house.cluster.stop(*key, token, incarnation)
    house.start("fcfs")
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    first, second = done.attempts
    assert "forg" in first.outcome
    assert second.outcome == "succeeded"


async def test_an_attempt_that_no_record_stands_for_is_stopped(house: House) -> None:
    """Otherwise it holds a GPU that the ledger believes idle, and job after job is refused there."""
    house.start("fcfs")
    await house.until_acting()
    await house.kill()
    spec = (await house.submit(1000.0, name="stray")).spec
    await house.store.request_cancel("job-1")
    on = Placement.on("volta-0/0")
    await house.cluster.launch("job-1", 7, spec, on, house.cluster.token, house.cluster.incarnation)
    house.start()
    await house.submit(1.0)
    done = await house.until_final(2)
    assert done[1].state is JobState.SUCCEEDED
    assert done[1].attempt_count == 1
    assert not house.cluster.running


async def test_the_clock_waits_for_a_refused_launch(house: House) -> None:
    """The job is placed again at the same moment of cluster time, not at the next event."""
    house.cluster.refuse, house.cluster.refusals = "not now", 1
    house.start("fcfs")
    await house.submit(1.0, begin_time_s=1.0)
    await house.submit(1.0, begin_time_s=2.0)
    done = await house.until_final(2)
    assert [job.start_s for job in done] == [1.0, 2.0]
    assert done[0].attempt_count == 2


async def test_a_submission_counts_from_the_clusters_present(house: House) -> None:
    """Not from its last event, which may be long ago, and not from a begin time that has passed."""
    house.start()
    await house.until_acting()
    house.cluster.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 200.0)
    await house.submit(1.0, begin_time_s=50.0)
    await house.submit(1.0)
    done = await house.until_final(2)
    assert [job.submit_s for job in done] == [200.0, done[1].submit_s]
    assert done[1].submit_s is not None
    assert done[1].submit_s >= 200.0
