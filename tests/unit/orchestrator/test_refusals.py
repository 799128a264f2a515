"""A launch that is refused, or not answered, concerns its job alone: the session goes on, and the job says why."""

from __future__ import annotations

import pytest

from adlro.errors import AdlroError, Conflict, DeadlineExceeded, InternalError, InvalidInput, LimitExceeded, Unsupported
from adlro.jobs import JobState, PendingReason
from services.orchestrator import launching
from tests.unit.orchestrator.house import House


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "AGAIN_S", 0.01)


async def sessions(house: House) -> int:
    """Each takes a new fencing token."""
    return (await house.orchestrator.status()).fencing_token


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


@pytest.mark.parametrize("error", [Conflict("the GPU is busy", reason="GPU_BUSY"), InternalError("a bug there")])
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

    async def refused() -> bool:
        return (await house.store.get("job-1")).pending_reason is PendingReason.LAUNCH_REFUSED

    await house.until(refused)
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


async def test_one_that_runs_without_an_answer_is_told_by_its_events(house: House) -> None:
    house.cluster.unanswered["job-1"] = 1
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
    await house.cluster.launch("job-9", 1, spec, "volta-0/1", house.cluster.token, house.cluster.incarnation)

    async def stopped() -> bool:
        return "job-9" not in house.cluster.running

    await house.until(stopped)
    assert house.cluster.stops == [("job-9", 1)]
    assert await sessions(house) == 1
