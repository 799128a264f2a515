"""A record in memory, in place of Redis: what a test may hold up, lose, or hand to a successor."""

from __future__ import annotations

import asyncio
from copy import deepcopy

from redis.exceptions import ConnectionError as RedisConnectionError

from adlro.clusterside.kept import Changes, Kept
from adlro.errors import Stale


class MemoryRecord:
    """`go` lets writes happen, `away` refuses them, `taken_over` ends the writer."""

    def __init__(self) -> None:
        self.writes: list[Changes] = []
        self.go = asyncio.Event()
        self.go.set()
        self.away = self.lost = self.taken_over = False

    async def write(self, changes: Changes) -> bool:
        await self.go.wait()
        await asyncio.sleep(0)
        if self.taken_over:
            raise Stale("another process has taken over")
        if self.away:
            raise RedisConnectionError("away")
        if self.lost and not changes.whole:
            self.lost = False
            return False
        self.writes.append(changes)
        return True


def kept_of(whole: Changes) -> Kept:
    """What a successor finds where the whole was written."""
    assert whole.whole
    assert whole.cluster is not None
    return Kept(
        incarnation=whole.incarnation,
        revision=whole.revision,
        acknowledged=whole.acknowledged,
        batches=whole.batches,
        cluster=whole.cluster,
        attempts=[deepcopy(each) for each in whole.attempts.values() if each is not None],
        lost_gpu_ids=whole.lost_gpu_ids,
        token=whole.token,
        wake_ups_s=whole.wake_ups_s,
        note=whole.note,
    )
