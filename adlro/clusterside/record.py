"""A cluster's record in Redis: incarnation, event log, attempts, wake-ups; survives restarts. No gRPC.

adlro.store.keys has the keys (`cluster_keys`). One script makes each write. Only the process that acquired
the record last writes it: `take` gives it a larger term than any before. Each write of a process follows its previous
one; if that is missing (the store has lost it, or its answer was lost), the script changes nothing, and the next write
has the whole state.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import redis.asyncio as aioredis
from google.protobuf.message import DecodeError

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.kept import Changes, Kept
from adlro.errors import DataLoss, Stale
from adlro.records.events import EventBatch
from adlro.store.keys import cluster_keys
from adlro.v1 import cluster_pb2, cluster_service_pb2, stream_pb2
from adlro.wire import (
    FORMAT,
    attempt_ref_from_proto,
    attempt_ref_to_proto,
    batch_from_proto,
    batch_to_proto,
    check_format,
    cluster_from_proto,
    cluster_to_proto,
    placement_from_proto,
    placement_to_proto,
    spec_from_proto,
    spec_to_proto,
)

_TAKE = """
redis.call('HSET', KEYS[1], 'write', 0)
redis.call('HINCRBY', KEYS[1], 'term', 1)
return {redis.call('HGETALL', KEYS[1]), redis.call('XRANGE', KEYS[2], '-', '+'), redis.call('HVALS', KEYS[3]),
  redis.call('ZRANGE', KEYS[4], 0, -1)}
"""

# ARGV: term, write, whole, first revision kept, time up to which wake-ups are over, then four lists, each after its
# length: fields and values, revisions and batches, jobs and attempts ('' where forgotten), wake-ups.
_WRITE = """
local term, write = unpack(redis.call('HMGET', KEYS[1], 'term', 'write'))
term, write = tonumber(term or 0), tonumber(write or 0)
local own_term, own_write, whole = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
if term > own_term then return 0 end
if whole then
  if term == own_term and write >= own_write then return 2 end
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
elseif term ~= own_term or write ~= own_write - 1 then
  return 2
end
local at = 6
local function pairs_of_list()
  local first, last = at + 1, at + tonumber(ARGV[at]) * 2
  at = last + 1
  return first, last
end
local first, last = pairs_of_list()
for i = first, last, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'write', ARGV[2])
first, last = pairs_of_list()
for i = first, last, 2 do redis.call('XADD', KEYS[2], ARGV[i] .. '-0', 'm', ARGV[i + 1]) end
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[4] .. '-0')
first, last = pairs_of_list()
for i = first, last, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[3], ARGV[i])
  else redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
end
for i = at, #ARGV do redis.call('ZADD', KEYS[4], ARGV[i], ARGV[i]) end
if ARGV[5] ~= '' then redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', ARGV[5]) end
return 1
"""


class Record:
    """One process's hold on the record of its cluster.

    Args:
        redis: a client whose writes are not retried.
        cluster: the cluster's name.
    """

    def __init__(self, redis: aioredis.Redis, cluster: str) -> None:
        client: Any = redis
        self._keys = list(cluster_keys(cluster))
        self._take = client.register_script(_TAKE)
        self._write = client.register_script(_WRITE)
        self._term = 0
        self._writes = 0

    async def take(self, timeout_s: float) -> Kept | None:
        """Makes this process the writer of the record.

        Args:
            timeout_s: for the store's answer, without the time to decode it.

        Returns:
            The previous process's state; None: there was none, or the store has lost it.

        Raises:
            DataLoss: the record can't be read.
            redis.exceptions.RedisError, OSError, TimeoutError: the store does not answer.
        """
        async with asyncio.timeout(timeout_s):
            fields, events, attempts, wake_ups = await self._take(keys=self._keys)
        side = dict(zip(fields[::2], fields[1::2], strict=True))
        self._term, self._writes = int(side[b"term"]), 0
        if b"incarnation" not in side:
            return None
        try:
            return Kept(
                incarnation=side[b"incarnation"].decode(),
                revision=int(side[b"revision"]),
                acknowledged=int(side[b"acknowledged"]),
                batches=[_batch_from_bytes(entry[1]) for _, entry in events],
                cluster=cluster_from_proto(cluster_pb2.Cluster.FromString(side[b"m"])),
                attempts=[_from_bytes(each) for each in attempts],
                lost_gpu_ids=[gpu_id for gpu_id in side[b"lost"].decode().split("\n") if gpu_id],
                token=int(side[b"token"]),
                wake_ups_s=[float(each) for each in wake_ups],
                note=side[b"note"].decode(),
            )
        except (KeyError, ValueError, IndexError, DecodeError) as error:
            raise DataLoss(
                f"the cluster's record in Redis ({self._keys[0]}) can't be read ({error!r}); restore it from a "
                f"backup, or delete {', '.join(self._keys)}: then a new incarnation begins, without the "
                "running attempts",
                reason="CLUSTER_UNREADABLE",
            ) from error

    async def write(self, changes: Changes) -> bool:
        """Writes changes; False: their predecessor is missing, so the whole state must be written.

        Raises:
            Stale: another process has taken the record over.
            redis.exceptions.RedisError, OSError: the result is unknown; the whole state must be written.
        """
        self._writes += 1
        fields: list[Any] = [
            "incarnation", changes.incarnation, "revision", changes.revision, "acknowledged", changes.acknowledged,
            "token", changes.token, "lost", "\n".join(changes.lost_gpu_ids), "note", changes.note,
        ]  # fmt: skip
        if changes.cluster is not None:
            fields += ["m", cluster_to_proto(changes.cluster).SerializeToString()]
        batches = [
            part
            for batch in changes.batches
            for part in (batch.events[-1].revision, batch_to_proto(batch).SerializeToString())
        ]
        attempts = [
            part
            for job_id, attempt in changes.attempts.items()
            for part in (job_id, b"" if attempt is None else _to_bytes(attempt))
        ]
        woken = repr(changes.woken_s) if math.isfinite(changes.woken_s) else ""
        head = [self._term, self._writes, int(changes.whole), changes.first_revision, woken]
        lists = [part for each in (fields, batches, attempts) for part in (len(each) // 2, *each)]
        answer = await self._write(keys=self._keys, args=[*head, *lists, *map(repr, changes.wake_ups_s)])
        if answer == 0:
            raise Stale("another process has taken over this cluster; only one process of a cluster may run")
        return bool(answer == 1)


def _batch_from_bytes(data: bytes) -> EventBatch:
    return batch_from_proto(cluster_service_pb2.WatchEventsResponse.FromString(data))


def _to_bytes(attempt: Attempt) -> bytes:
    message = stream_pb2.AttemptRecord(
        job_id=attempt.job_id,
        attempt=attempt.attempt,
        gpu_id=attempt.gpu_id,
        spec=None if attempt.spec is None else spec_to_proto(attempt.spec),
        start_s=attempt.start_s,
        start_revision=attempt.start_revision,
        runs=attempt.runs,
        end_revision=attempt.end_revision,
        stop_asked=attempt.stop_asked,
        note=attempt.note,
        format=FORMAT,
        placement=placement_to_proto(attempt.placement),
        preempts=map(attempt_ref_to_proto, attempt.preempts),
        remaining_ratio=attempt.remaining_ratio if attempt.remaining_ratio < 1.0 else None,
        resumes=attempt.resumes,
        preempt_asked=attempt.preempt_asked,
    )
    return message.SerializeToString()


def _from_bytes(data: bytes) -> Attempt:
    message = stream_pb2.AttemptRecord.FromString(data)
    check_format(message)
    return Attempt(
        job_id=message.job_id,
        attempt=message.attempt,
        placement=placement_from_proto(message),
        spec=spec_from_proto(message.spec) if message.HasField("spec") else None,
        start_s=message.start_s,
        start_revision=message.start_revision,
        runs=message.runs,
        end_revision=message.end_revision,
        stop_asked=message.stop_asked,
        preempt_asked=message.preempt_asked,
        preempts=tuple(map(attempt_ref_from_proto, message.preempts)),
        remaining_ratio=message.remaining_ratio if message.HasField("remaining_ratio") else 1.0,
        resumes=message.resumes,
        note=message.note,
    )
