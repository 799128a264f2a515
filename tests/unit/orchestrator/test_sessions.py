"""Sessions: exact, and nothing lost whenever one is broken off.

What the core decides is shown on the core; what needs a lease, a store that fails, or callers, against a real Redis.
"""

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
from adlro.services.orchestrator.life import Life
from adlro.store import Move
from adlro.store.keys import TOKEN
from tests.unit.orchestrator.core_house import CoreHouse
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


@pytest.mark.parametrize(("min_run_s", "told"), [(None, (False, 0.0)), (0.0, (True, 0.0)), (60.0, (True, 60.0))])
async def test_status_tells_whether_jobs_may_be_stopped_for_others(
    house: House, min_run_s: float | None, told: tuple[bool, float]
) -> None:
    house.start(min_run_s=min_run_s)
    status = await house.orchestrator.status()
    assert (status.preemption, status.preemption_min_run_s) == told


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


def test_every_record_on_the_way_is_told_in_order(core_house: CoreHouse) -> None:
    core_house.start()
    core_house.submit(3.0)
    (done,) = core_house.until_final(1)
    states = [(job.state, job.pending_reason) for job in core_house.store.history["job-1"]]
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


def test_cluster_time_never_goes_back(core_house: CoreHouse) -> None:
    core_house.start()
    core_house.submit(100.0)
    core_house.until_final(1)
    core_house.cluster.restart()
    core_house.submit(1.0)
    second = core_house.until_final(2)[1]
    assert second.submit_s is not None
    assert second.submit_s >= 100.0


def test_vanished_jobs_run_again_as_another_attempt(core_house: CoreHouse) -> None:
    core_house.start()
    core_house.pause()
    core_house.submit(5.0)
    core_house.until_state("job-1", JobState.RUNNING)
    core_house.cluster.restart()
    core_house.until(lambda: core_house.store.get("job-1").attempt_count == 2)
    assert core_house.cluster.clock.paused, "the clock goes on as it was set before the restart"
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert [each.outcome for each in done.attempts] == ["lost: the cluster was restarted", "succeeded"]


def test_an_attempt_that_is_accepted_waits_for_its_start_to_be_told(core_house: CoreHouse) -> None:
    cluster = core_house.cluster
    cluster.start_later = True
    core_house.start()
    core_house.submit(5.0)
    core_house.until(lambda: bool(cluster.accepted) and cluster.acknowledged == cluster.revision)
    waiting = core_house.store.get("job-1")
    assert (waiting.state, waiting.pending_reason) == (JobState.PENDING, PendingReason.LAUNCHING)
    # Neither another session nor the answer to a repeated launch makes it run.
    core_house.kill()
    core_house.start()
    core_house.settle()
    assert core_house.store.get("job-1").state is JobState.PENDING
    cluster.start_accepted()
    core_house.until(lambda: core_house.store.get("job-1").start_s is not None)  # it may have ended by then
    cluster.go_on()
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert cluster.launches == [("job-1", 1, done.gpu_id)]


def test_nodes_that_join_and_leave_are_taken_up_by_another_session(core_house: CoreHouse) -> None:
    whole = core_house.cluster.cluster
    core_house.cluster.cluster = replace(whole, nodes=whole.nodes[:1])
    few = sum(1 for _ in core_house.cluster.cluster.gpus())
    jobs = few + 1
    core_house.pause()
    core_house.start()
    for _ in range(jobs):
        core_house.submit(5.0)

    def until_as_many_run(count: int) -> None:
        core_house.until(lambda: sum(job.state is JobState.RUNNING for job in core_house.store.active) == count)

    until_as_many_run(few)
    core_house.cluster.change(whole)
    until_as_many_run(jobs)
    # The first node leaves: what ran there runs again on another one, and nobody's attempts are used up.
    core_house.cluster.change(replace(whole, nodes=whole.nodes[1:]))
    rest = sum(1 for node in whole.nodes[1:] for _ in node.gpus)
    until_as_many_run(min(rest, jobs))
    core_house.resume()
    done = core_house.until_final(jobs)
    assert {job.state for job in done} == {JobState.SUCCEEDED}
    assert {attempt.gpu_id.partition("/")[0] for job in done for attempt in job.attempts[1:]} <= {
        "turing-0",
        "radeon-0",
    }
    assert sum(job.attempt_count for job in done) == jobs + few


def test_a_job_that_ended_before_its_node_left_is_not_run_again(core_house: CoreHouse) -> None:
    cluster, whole = core_house.cluster, core_house.cluster.cluster
    core_house.pause()
    core_house.start()
    core_house.submit(5.0)
    node_id = core_house.until_state("job-1", JobState.RUNNING).gpu_id.partition("/")[0]
    core_house.kill()
    # Nobody hears of its end before its node leaves.
    core_house.resume()
    cluster.acknowledged = cluster.revision
    cluster.go_on()
    assert not cluster.running
    cluster.change(replace(whole, nodes=tuple(node for node in whole.nodes if node.node_id != node_id)))
    core_house.start()
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert len(cluster.launches) == 1


def test_restarts_of_the_cluster_are_no_jobs_failure(core_house: CoreHouse) -> None:
    core_house.start(max_attempts=1)
    core_house.pause()
    core_house.submit(5.0)
    for attempt in range(1, 5):
        core_house.until_state("job-1", JobState.RUNNING, attempt)
        if attempt < 4:
            core_house.cluster.restart()
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert [each.excused for each in done.attempts] == [True, True, True, False]


def test_an_attempt_ends_no_earlier_than_it_began_after_a_restart_at_another_time(core_house: CoreHouse) -> None:
    """A start is written without the cursor, which then is older; and the new cluster's clock begins at 0."""
    core_house.start()
    core_house.submit(1.0)
    core_house.until_final(1)
    core_house.cluster.clock = Clock(ClockMode.VIRTUAL, 0.0, True, 50.0)
    spec = core_house.submit(5.0).spec
    record = core_house.until_state("job-2", JobState.RUNNING)
    core_house.kill()
    cursor, (version, _) = core_house.store.cursor, core_house.store.records["job-2"]
    assert cursor is not None
    later = replace(record, start_s=70.0, attempts=(replace(record.attempts[0], start_s=70.0),))
    core_house.store.move([Move(later, version)], None)
    core_house.cluster.restart()
    core_house.start()
    first, again = core_house.until_state("job-2", JobState.RUNNING, 2).attempts
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


def test_too_many_lost_attempts_fail_the_job_with_the_reason(core_house: CoreHouse) -> None:
    core_house.start(max_attempts=2)
    core_house.pause()
    core_house.submit(5.0)
    for attempt in (1, 2):
        core_house.cluster.lose(core_house.until_state("job-1", JobState.RUNNING, attempt).gpu_id)
    (failed,) = core_house.until_final(1)
    assert failed.state is JobState.FAILED
    assert "attempt 2 of at most 2" in failed.message


def test_cancelling_while_waiting_and_while_running(core_house: CoreHouse) -> None:
    core_house.start()
    core_house.pause()
    for _ in range(7):
        core_house.submit(5.0)
    core_house.until(lambda: sum(job.state is JobState.RUNNING for job in core_house.store.active) == 5)
    core_house.cancel("job-1")
    core_house.cancel("job-7")
    core_house.until(lambda: core_house.store.final_count == 2)
    assert [core_house.store.get(job_id).state for job_id in ("job-1", "job-7")] == [JobState.CANCELLED] * 2
    core_house.until_state("job-6", JobState.RUNNING)
    assert len(core_house.cluster.running) == 5


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
    act = Life._act

    async def fails(life: Life, token: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        if len(counts) > 6:
            await act(life, token)

        async def lose_redis() -> None:
            raise OSError("connection lost")

        async with asyncio.TaskGroup() as group:
            group.create_task(lose_redis())
            group.create_task(asyncio.sleep(60))

    monkeypatch.setattr(Life, "_act", fails)
    house.start(lease_s=0.5)
    await house.submit(3.0)
    await house.until_final(1)
    assert counts == [0] * len(counts)


def test_a_refused_launch_is_another_attempt_not_a_lost_job(core_house: CoreHouse) -> None:
    core_house.cluster.refuse = "the GPU burns"
    core_house.start(max_attempts=3)
    core_house.submit(2.0)
    (failed,) = core_house.until_final(1)
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
    decision = await house.orchestrator.answers.job("job-1")
    assert decision.gpu_id == "volta-0/0"
    assert decision.candidates[0].gpu_id == "volta-0/0"
    assert decision.candidates[0].score == -1.0
    waits = await house.orchestrator.answers.job("job-6")
    assert waits.gpu_id == ""
    assert not waits.candidates
    assert any("busy with job-" in each.reason for each in waits.masked)
    with pytest.raises(NotFound):
        await house.orchestrator.answers.job("job-99")


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


def test_a_cancel_that_races_a_relaunch_is_not_lost(core_house: CoreHouse) -> None:
    """The intent is written, the launch got no answer, the user cancels: the job must not run on."""
    core_house.cluster.lose_replies = 1
    core_house.pause()
    core_house.start()
    core_house.submit(5.0)
    core_house.until(lambda: core_house.cluster.lose_replies == 0)  # the intent is written before
    assert core_house.store.get("job-1").pending_reason is PendingReason.LAUNCHING
    core_house.kill()
    core_house.cancel("job-1")
    core_house.start()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.CANCELLED
    assert not core_house.cluster.running


@pytest.mark.parametrize("error", [InternalError("a bug there"), LimitExceeded("too many"), DeadlineExceeded("late")])
def test_one_job_that_cannot_be_launched_holds_up_no_other(core_house: CoreHouse, error: AdlroError) -> None:
    core_house.cluster.poisoned = ("job-1", error)
    core_house.start("fcfs", max_attempts=2)
    for _ in range(3):
        core_house.submit(2.0)
    done = core_house.until_final(3)
    assert [job.state for job in done] == [JobState.FAILED, JobState.SUCCEEDED, JobState.SUCCEEDED]
    assert error.message in done[0].message
    assert len(core_house.lives) == 1


def test_an_impossible_head_blocks_nobody(core_house: CoreHouse) -> None:
    core_house.start("fcfs")
    core_house.submit(1.0, gpu_memory_mib=99999)
    core_house.submit(1.0)
    core_house.until_state("job-2", JobState.SUCCEEDED)
    assert core_house.store.get("job-1").pending_reason is PendingReason.NO_FITTING_GPU


@pytest.mark.parametrize("runs", [True, False])
def test_an_attempt_that_the_store_has_forgotten_is_followed_by_another_one(core_house: CoreHouse, runs: bool) -> None:
    """As after Redis came back without its last changes, when that attempt still runs, or its end is past."""
    if runs:
        core_house.start("fcfs")
        core_house.settle()
        core_house.kill()
    spec = core_house.submit(5.0).spec
    key, cluster = ("job-1", 1), core_house.cluster
    cluster.on_launch(*key, spec, Placement.on("volta-0/0"), cluster.token, cluster.incarnation)
    if not runs:
        cluster.on_stop(*key, cluster.token, cluster.incarnation)
    core_house.start("fcfs")
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    first, second = done.attempts
    assert "forg" in first.outcome
    assert second.outcome == "succeeded"


def test_an_attempt_that_no_record_stands_for_is_stopped(core_house: CoreHouse) -> None:
    """Otherwise it holds a GPU that the ledger believes idle, and job after job is refused there."""
    core_house.start("fcfs")
    core_house.settle()
    core_house.kill()
    cluster, spec = core_house.cluster, core_house.submit(1000.0, name="stray").spec
    core_house.cancel("job-1")
    cluster.on_launch("job-1", 7, spec, Placement.on("volta-0/0"), cluster.token, cluster.incarnation)
    core_house.start()
    core_house.submit(1.0)
    done = core_house.until_final(2)
    assert done[1].state is JobState.SUCCEEDED
    assert done[1].attempt_count == 1
    assert not cluster.running


def test_the_clock_waits_for_a_refused_launch(core_house: CoreHouse) -> None:
    """The job is placed again at the same moment of cluster time, not at the next event."""
    core_house.cluster.refuse, core_house.cluster.refusals = "not now", 1
    core_house.start("fcfs")
    core_house.submit(1.0, begin_time_s=1.0)
    core_house.submit(1.0, begin_time_s=2.0)
    done = core_house.until_final(2)
    assert [job.start_s for job in done] == [1.0, 2.0]
    assert done[0].attempt_count == 2


def test_a_submission_counts_from_the_clusters_present(core_house: CoreHouse) -> None:
    """Not from its last event, which may be long ago, and not from a begin time that has passed."""
    core_house.start()
    core_house.settle()
    core_house.cluster.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 200.0)
    core_house.submit(1.0, begin_time_s=50.0)
    core_house.submit(1.0)
    done = core_house.until_final(2)
    assert [job.submit_s for job in done] == [200.0, done[1].submit_s]
    assert done[1].submit_s is not None
    assert done[1].submit_s >= 200.0
