"""Whether the indexes of ended jobs say what the records say."""

from __future__ import annotations

from typing import Any

from adlro.store import JobStore
from adlro.store.attempts import ended_arguments
from adlro.store.keys import ACTIVE, ENDED, LONGEST_RAN, ran_key


async def check_ended_index(redis: Any) -> None:
    """Each final job is in the index by the time of its end, and in one class of durations if it ran; no other is."""
    store = JobStore(redis)
    ended: dict[int, float] = {}
    classes: dict[int, str] = {}
    async for number, job in store.each(range(1, await store.last_sequence() + 1)):
        assert job is not None
        assert bool(await redis.sismember(ACTIVE, job.job_id)) != job.state.final, job
        if job.state.final:
            end_s, ran = ended_arguments(job)
            ended[number] = float(end_s or "-inf")
            classes |= {number: ran} if ran else {}
    assert {int(number): end_s for number, end_s in await redis.zrange(ENDED, 0, -1, withscores=True)} == ended
    found: dict[int, str] = {}
    for each in range(LONGEST_RAN + 1):
        for member, end_s in await redis.zrange(ran_key(each), 0, -1, withscores=True):
            assert int(member) not in found, f"job-{int(member)} is in two classes"
            assert end_s == ended[int(member)]
            found[int(member)] = str(each)
    assert found == classes
