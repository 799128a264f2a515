"""A launch that is refused, or not answered, concerns its job alone: the session goes on, and the job says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adlro.errors import (
    AdlroError,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unavailable,
    Unsupported,
)
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.ports import Launched
from adlro.services.orchestrator.session.core import launches
from tests.unit.orchestrator.house import House


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "AGAIN_S", 0.01)
    monkeypatch.setattr(launches, "END_PATIENCE_S", 0.5)


async def sessions(house: House) -> int:
    """Each takes a new fencing token."""
    return (await house.orchestrator.status()).fencing_token


async def until_refused(house: House, job_id: str) -> None:
    """It waits for its next launch."""

    async def refused() -> bool:
        return (await house.store.get(job_id)).pending_reason is PendingReason.LAUNCH_REFUSED

    await house.until(refused)


@pytest.mark.parametrize(
    "error", [InvalidInput("payload.image: there is no image 'x'"), Unsupported("it runs no containers")]
)
async def test_a_refusal_that_names_the_job_fails_it_at_once_and_no_other(house: House, error: AdlroError) -> None:
    house.cluster.refused["job-2"] = [error]
    house.start("fcfs")
    for _ in range(5):
        await house.submit(2.0)
    done = await house.until_final(5)
    assert [job.state for job in done] == [JobState.SUCCEEDED, JobState.FAILED] + 3 * [JobState.SUCCEEDED]
    assert done[1].message == f"attempt 1 was refused by the cluster: {error.message}"
    assert done[1].attempt_count == 1
    assert await sessions(house) == 1


@pytest.mark.parametrize("error", [Conflict("the GPU is busy", reason="GPU_BUSY"), NotFound("no such GPU")])
async def test_any_other_refusal_is_tried_again_after_growing_pauses(house: House, error: AdlroError) -> None:
    house.cluster.refused["job-1"] = [error] * 4
    house.start("fcfs", max_attempts=5)
    await house.submit(2.0)
    await house.submit(2.0)
    done = await house.until_final(2)
    assert [job.state for job in done] == [JobState.SUCCEEDED] * 2
    ends_s = [each.end_s for each in done[0].attempts[:-1]]
    assert ends_s == [0.0, 0.0, 5.0, 20.0]
    assert done[0].start_s == 65.0
    assert done[1].jct_s == 2.0
    assert await sessions(house) == 1
    told = [job for job in (await house.history())["job-1"] if job.pending_reason is PendingReason.LAUNCH_REFUSED]
    assert told[-1].message == (
        f"attempt 4 was refused by the cluster: {error.message}; the next one is at 65 s of cluster time"
    )


async def test_a_cluster_that_says_when_is_asked_then(house: House) -> None:
    house.cluster.refused["job-1"] = [LimitExceeded("too many launches", retry_after_s=7.0)]
    house.start("fcfs")
    await house.submit(2.0)
    (done,) = await house.until_final(1)
    assert done.start_s == 7.0


async def test_who_was_refused_often_enough_has_failed(house: House) -> None:
    house.cluster.refused["job-1"] = [Conflict("no room on its disk")] * 9
    house.start("fcfs", max_attempts=3)
    await house.submit(2.0)
    (done,) = await house.until_final(1)
    assert done.state is JobState.FAILED
    assert done.message == "attempt 3 of at most 3 was lost: refused by the cluster: no room on its disk"


async def test_its_gpu_is_for_others_while_it_waits(house: House) -> None:
    """All GPUs but one are taken for long; the one whose launch is refused stands first in the queue."""
    house.cluster.refused["job-6"] = [Conflict("not now")] * 3
    house.start("fcfs")
    for _ in range(5):
        await house.submit(1000.0)
    await house.submit(1.0)
    await house.submit(1.0)

    async def both() -> bool:
        jobs = await house.store.get_many(["job-6", "job-7"])
        return all(job is not None and job.state.final for job in jobs)

    await house.until(both)
    refused, other = await house.store.get_many(["job-6", "job-7"])
    assert refused is not None
    assert other is not None
    assert other.start_s is not None
    assert refused.start_s is not None
    assert other.start_s < refused.start_s


async def test_one_that_waits_for_its_next_launch_can_be_cancelled(house: House) -> None:
    house.cluster.refused["job-1"] = [Conflict("not now")] * 9
    house.start("fcfs", max_attempts=9)
    await house.until_acting()
    await house.pause()
    await house.submit(2.0)

    await until_refused(house, "job-1")
    await house.store.request_cancel("job-1")
    (done,) = await house.until_final(1)
    assert done.state is JobState.CANCELLED
    assert not house.cluster.running


async def test_a_launch_without_an_answer_holds_up_nobody_and_is_asked_for_again(house: House) -> None:
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 2
    house.start("fcfs")
    for _ in range(4):
        await house.submit(2.0)
    done = await house.until_final(4)
    assert [job.state for job in done] == [JobState.SUCCEEDED] * 4
    assert [job.attempt_count for job in done] == [1] * 4
    assert await sessions(house) == 1
    assert any("no answer to 2 of 3 launches" in job.message for job in (await house.history())["job-1"])


async def test_one_that_is_never_answered_is_stopped_before_it_is_launched_again(house: House) -> None:
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    house.start("fcfs")
    await house.submit(2.0)
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 2
    assert "no answer to 3 of 3 launches (no answer in 10 s)" in done.attempts[0].outcome
    assert house.cluster.stops == [("job-1", 1)]
    assert await sessions(house) == 1


@pytest.mark.parametrize(
    "error", [DeadlineExceeded("no answer in 10 s"), InternalError("a bug there"), Unavailable("its node is away")]
)
async def test_one_that_runs_without_an_answer_is_told_by_its_events(house: House, error: AdlroError) -> None:
    """Whatever it is that the cluster answers after it has started the job."""
    house.cluster.unanswered["job-1"] = 1
    house.cluster.error = error
    house.start("fcfs")
    await house.submit(2.0)
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 1
    assert not house.cluster.stops
    assert await sessions(house) == 1


async def test_what_starts_after_it_was_given_up_is_stopped(house: House) -> None:
    house.start("fcfs")
    await house.until_acting()
    await house.pause()
    spec = (await house.submit(5.0)).spec

    async def runs() -> bool:
        return "job-1" in house.cluster.running

    await house.until(runs)
    on = Placement.on("volta-0/1")
    await house.cluster.launch("job-9", 1, spec, on, house.cluster.token, house.cluster.incarnation)

    async def stopped() -> bool:
        return "job-9" not in house.cluster.running

    await house.until(stopped)
    assert house.cluster.stops == [("job-9", 1)]
    assert await sessions(house) == 1


async def carried_out_as_it_is_given_up(house: House, deaf: int = 0) -> Job:
    """Two launches of the job are lost; the third is carried out, but by then nobody waits for its answer."""
    cluster = house.cluster
    cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    cluster.deaf = deaf
    house.start("fcfs")
    await house.until_acting()
    stop = cluster.stop

    async def starts_first(job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        job = await house.store.get(job_id)
        if attempt == 1 and not cluster.known:
            assert job.attempts[0].outcome.startswith("given up: no answer to 3 of 3 launches")
            await cluster.launch(job_id, attempt, job.spec, job.placement, token, incarnation)
            await asyncio.sleep(0.2)  # the session hears of the start
        return await stop(job_id, attempt, token, incarnation)

    cluster.stop = starts_first  # type: ignore[method-assign]
    await house.submit(2.0)
    (done,) = await house.until_final(1)
    return done


@pytest.mark.parametrize("deaf", [0, 2])
async def test_one_that_runs_just_as_it_is_given_up_is_not_cancelled_but_runs_again(house: House, deaf: int) -> None:
    await house.pause()
    waiting = asyncio.create_task(carried_out_as_it_is_given_up(house, deaf))

    async def stopped() -> bool:
        return ("job-1", 1) in house.cluster.stops

    await house.until(stopped)
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    done = await waiting
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 2
    assert "no answer to 3 of 3 launches" in done.attempts[0].outcome
    assert await sessions(house) == 1


async def test_a_cancel_that_comes_before_a_late_answer_is_not_lost(house: House) -> None:
    house.cluster.unanswered["job-1"] = 1
    house.cluster.slow.clear()
    house.start("fcfs")
    await house.until_acting()
    await house.pause()
    await house.submit(50.0)

    async def runs() -> bool:
        return (await house.store.get("job-1")).state is JobState.RUNNING

    await house.until(runs)
    stop = house.cluster.stop

    async def finds_nothing(*_: object) -> bool:
        house.cluster.stop = stop  # type: ignore[method-assign]
        return False

    house.cluster.stop = finds_nothing  # type: ignore[method-assign,assignment]
    await house.store.request_cancel("job-1")

    async def asked() -> bool:
        return house.cluster.stop == stop

    await house.until(asked)
    house.cluster.slow.set()
    (done,) = await house.until_final(1)
    assert done.state is JobState.CANCELLED


async def test_the_clock_does_not_wait_for_a_stop_without_an_answer(house: House) -> None:
    """A cancelled job's stop is never answered: what else there is goes on."""
    house.start("fcfs")
    await house.until_acting()

    async def no_answer(*_: object) -> None:
        raise DeadlineExceeded("no answer in 10 s")

    house.cluster.stop = no_answer  # type: ignore[method-assign,assignment]
    launch = house.cluster.launch

    async def cancelled_meanwhile(job_id: str, *rest: Any) -> Launched:
        if job_id == "job-1":
            await house.store.request_cancel("job-1")
            await asyncio.sleep(0.1)
        return await launch(job_id, *rest)

    house.cluster.launch = cancelled_meanwhile  # type: ignore[method-assign,assignment]
    await house.submit(1000.0)
    await house.submit(2.0)

    async def other_ends() -> bool:
        return (await house.store.get("job-2")).state is JobState.SUCCEEDED

    await house.until(other_ends)
    assert await sessions(house) == 1


async def test_a_node_that_is_away_uses_up_attempts_and_ends_no_session(house: House) -> None:
    """The cluster answers UNAVAILABLE for what concerns the node: launches and stops."""
    house.cluster.refused["job-1"] = [Unavailable("its node is away")] * 6
    house.cluster.error = Unavailable("its node is away")
    house.cluster.deaf = 2
    house.start("fcfs", max_attempts=2)
    await house.submit(2.0)
    await house.submit(2.0)
    done = await house.until_final(2)
    assert [job.state for job in done] == [JobState.FAILED, JobState.SUCCEEDED]
    assert "its node is away" in done[0].message
    assert await sessions(house) == 1


async def test_telling_of_no_answer_counts_no_placement(house: House) -> None:
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    house.start("fcfs")
    await house.submit(2.0)
    await house.until_final(1)
    placed = house.registry.get_sample_value("adlro_orchestrator_placements_total", {"gpu_model": "v100_sxm2"})
    again = house.registry.get_sample_value("adlro_orchestrator_repeated_placements_total")
    assert (placed, again) == (2.0, 1.0)


async def test_after_a_restart_a_refused_job_is_launched_again(house: House) -> None:
    house.cluster.refused["job-1"] = [Conflict("not now")] * 2
    house.start("fcfs", max_attempts=9)
    await house.until_acting()
    await house.pause()
    await house.submit(2.0)

    await until_refused(house, "job-1")
    status = await house.orchestrator.status()
    assert (status.queue_length, status.waiting_for_begin_time_count) == (1, 0)
    assert "not now" in (await house.orchestrator.explain_job("job-1")).summary
    await house.kill()
    house.start("fcfs", max_attempts=9)
    await house.until_acting()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 3
