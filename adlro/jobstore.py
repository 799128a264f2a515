"""Job records in Redis and the scripts that change them: every change and its stream entry in one atomic step.

ingest creates jobs and requests cancellation; the acting orchestrator moves them on; nobody else writes.
Both call this module; nothing else touches these keys.

    adlro:jobs:sequence      counter; job n is `job-<n>`
    adlro:jobs:revision      counter; one for every change of any job
    adlro:jobs:events        stream; entry `<revision>-0`, field m = JobStreamEntry
    adlro:job:<job_id>       hash; m = Job (without revision), rev, version (of the orchestrator), state
    adlro:jobs:active        set; ids of jobs that are not final
    adlro:jobs:requests      hash; "<user> <request_id>" -> "<job_id> <digest of the payload>"
    adlro:outcomes           stream; field m = OutcomeStreamEntry
    adlro:orchestrator:token, :lease   the acting orchestrator (see services/orchestrator/lease.py)
    adlro:orchestrator:cursor          hash; what of the cluster's events has been applied
    adlro:orchestrator:attained        hash; user -> GPU seconds of his ended attempts, written with the record of each
                                       end: nobody has to read all jobs that ever were

A serialised Job is extended inside the scripts by appending fields, of which protobuf takes the last one
(job_id, cancel_requested).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio as aioredis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from adlro.errors import AlreadyExists, Conflict, NotFound, OutOfRange, Stale
from adlro.jobs import Job, JobSpec, NormalizedJob
from adlro.v1 import job_pb2, stream_pb2
from adlro.wire import job_from_proto, job_to_proto, spec_to_proto

PREFIX = "adlro:"
SEQUENCE = PREFIX + "jobs:sequence"
REVISION = PREFIX + "jobs:revision"
EVENTS = PREFIX + "jobs:events"
JOB = PREFIX + "job:"
ACTIVE = PREFIX + "jobs:active"
REQUESTS = PREFIX + "jobs:requests"
OUTCOMES = PREFIX + "outcomes"
TOKEN = PREFIX + "orchestrator:token"
CURSOR = PREFIX + "orchestrator:cursor"
ATTAINED = PREFIX + "orchestrator:attained"

# How many changes a watcher may be behind. Nobody loses a job by this: records live in hashes, and a follower that
# finds a gap in the revisions reads them anew.
EVENTS_KEPT = 500_000
OUTCOMES_KEPT = 100_000

_LUA_COMMON = """
local function varint(n)
  local s = ''
  while n >= 128 do s = s .. string.char(n % 128 + 128); n = math.floor(n / 128) end
  return s .. string.char(n)
end
local function announce(change, job)
  local rev = redis.call('INCR', 'adlro:jobs:revision')
  -- JobStreamEntry: change = 1 (varint), job = 2 (bytes)
  local entry = '\\8' .. string.char(change) .. '\\18' .. varint(#job) .. job
  redis.call('XADD', 'adlro:jobs:events', 'MAXLEN', '~', EVENTS_KEPT, rev .. '-0', 'm', entry)
  return rev
end
""".replace("EVENTS_KEPT", str(EVENTS_KEPT))

# ARGV, three a job: request key (may be empty), digest, Job without job_id.
# Returns {existing, rev, job_id} a job; of an existing one "job_id digest".
_LUA_CREATE = (
    _LUA_COMMON
    + """
local out = {}
for i = 1, #ARGV, 3 do
  local request, digest, body = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = request ~= '' and redis.call('HGET', 'adlro:jobs:requests', request)
  if known then
    out[#out + 1] = {1, 0, known}
  else
    local id = 'job-' .. redis.call('INCR', 'adlro:jobs:sequence')
    local job = body .. '\\10' .. varint(#id) .. id
    local rev = announce(1, job)
    redis.call('HSET', 'adlro:job:' .. id, 'm', job, 'rev', rev, 'version', 0, 'state', 1)
    redis.call('SADD', 'adlro:jobs:active', id)
    if request ~= '' then redis.call('HSET', 'adlro:jobs:requests', request, id .. ' ' .. digest) end
    out[#out + 1] = {0, rev, id}
  end
end
return out
"""
)

# ARGV: job_id. Returns {status, rev, m}: status 0 not found, 1 final, 2 requested now or before.
_LUA_CANCEL = (
    _LUA_COMMON
    + """
local key = 'adlro:job:' .. ARGV[1]
local found = redis.call('HMGET', key, 'm', 'rev', 'state', 'cancel')
if not found[1] then return {0, 0, ''} end
if tonumber(found[3]) >= 3 then return {1, tonumber(found[2]), found[1]} end
if found[4] then return {2, tonumber(found[2]), found[1]} end
local job = found[1] .. '\\120\\1'
local rev = announce(2, job)
redis.call('HSET', key, 'm', job, 'rev', rev, 'cancel', 1)
return {2, rev, job}
"""
)

# ARGV: token; incarnation (empty: no cursor), cluster revision, cluster time, last event, end of the hold; then seven a
# move: job_id, version, state, Job, outcome, user, his attained service (empty: as before).
# Nothing is written unless all of it can be. Returns the new revisions.
_LUA_MOVE = (
    _LUA_COMMON
    + """
local token = redis.call('GET', 'adlro:orchestrator:token')
if token and tonumber(token) ~= tonumber(ARGV[1]) then
  return redis.error_reply('FENCED token ' .. ARGV[1] .. ' is not the newest, ' .. token .. ' is')
end
local versions = {}
for i = 7, #ARGV, 7 do
  local id = ARGV[i]
  local version = versions[id] or tonumber(redis.call('HGET', 'adlro:job:' .. id, 'version') or -1)
  if version ~= tonumber(ARGV[i + 1]) then
    return redis.error_reply('STALE ' .. id .. ' is at version ' .. version .. ', not ' .. ARGV[i + 1])
  end
  versions[id] = version + 1
end
local out = {}
for i = 7, #ARGV, 7 do
  local id, version, state, job, outcome = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local key = 'adlro:job:' .. id
  if redis.call('HEXISTS', key, 'cancel') == 1 then job = job .. '\\120\\1' end
  local rev = announce(3, job)
  redis.call('HSET', key, 'm', job, 'rev', rev, 'version', version + 1, 'state', state)
  if state >= 3 then redis.call('SREM', 'adlro:jobs:active', id) end
  if outcome ~= '' then redis.call('XADD', 'adlro:outcomes', 'MAXLEN', '~', OUTCOMES_KEPT, '*', 'm', outcome) end
  if ARGV[i + 6] ~= '' then redis.call('HSET', 'adlro:orchestrator:attained', ARGV[i + 5], ARGV[i + 6]) end
  out[#out + 1] = rev
end
if ARGV[2] ~= '' then
  redis.call('HSET', 'adlro:orchestrator:cursor', 'incarnation', ARGV[2], 'revision', ARGV[3], 'time_s', ARGV[4],
    'last_event_s', ARGV[5], 'hold_until_s', ARGV[6])
end
return out
""".replace("OUTCOMES_KEPT", str(OUTCOMES_KEPT))
)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be recorded; `request_id` empty: no protection against a repeated call."""

    spec: JobSpec
    normalized: NormalizedJob
    request_id: str
    created_unix_s: float


@dataclass(frozen=True, slots=True)
class Created:
    """What `create` answers: the job, as it goes over the wire, and whether its request id was known."""

    message: job_pb2.Job
    existing: bool

    @property
    def job(self) -> Job:
        """The job as a plain record."""
        return job_from_proto(self.message)


class JobChange(enum.IntEnum):
    """Who changed a job, and how; numbers as in stream.proto (and in the scripts above)."""

    SUBMITTED = 1
    CANCEL_REQUESTED = 2
    MOVED = 3


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One change of a job."""

    revision: int
    change: JobChange
    job: Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is learned from a job that ended by itself."""

    runtime_s: float
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Move:
    """The orchestrator's next record of a job; `version` is the one it replaces.

    `attained_s`: where an attempt ends with this, what the job's user has had of GPU time, in all his ended attempts.
    """

    job: Job
    version: int
    outcome: Outcome | None = None
    attained_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the cluster's events have been applied, and how things stood then.

    Attributes:
        last_event_s: when a job last joined the queue or ended, or a GPU last changed.
        hold_until_s: until then the policy is not asked, unless something happens; None: it holds nothing.
    """

    incarnation: str
    revision: int
    time_s: float
    last_event_s: float = 0.0
    hold_until_s: float | None = None


class JobStore:
    """Reads and changes job records.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried (adlro.kit.redis.connect).
        blocking: a client of its own for blocking reads (adlro.kit.redis.connect_blocking); needed only for reads
            with a block time.

    Raises:
        redis.exceptions.ConnectionError: from every method while Redis does not answer; nothing is retried here.
    """

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis | None = None) -> None:
        # redis-py's stubs mix sync and async results; Any keeps the awaits readable.
        self._redis: Any = redis
        self._blocking: Any = blocking
        self._create: AsyncScript = self._redis.register_script(_LUA_CREATE)
        self._cancel: AsyncScript = self._redis.register_script(_LUA_CANCEL)
        self._move: AsyncScript = self._redis.register_script(_LUA_MOVE)

    async def create(self, spec: JobSpec, normalized: NormalizedJob, request_id: str, created_unix_s: float) -> Created:
        """Records a job; the same user and request id give the job of the first call.

        Raises:
            AlreadyExists: the request id was used for another payload.
        """
        answer = (await self.create_many([NewJob(spec, normalized, request_id, created_unix_s)]))[0]
        if isinstance(answer, AlreadyExists):
            raise answer
        return answer

    async def create_many(self, jobs: Sequence[NewJob]) -> list[Created | AlreadyExists]:
        """Records jobs in one round trip, each by itself; answers in order."""
        args: list[bytes | str] = []
        made: list[tuple[job_pb2.Job, str]] = []
        for new in jobs:
            job = Job(job_id="", spec=new.spec, normalized=new.normalized, created_unix_s=new.created_unix_s)
            message = job_to_proto(job)
            digest = _digest(message.spec)
            args += [f"{new.spec.user} {new.request_id}" if new.request_id else "", digest, message.SerializeToString()]
            made.append((message, digest))
        answers = cast(list[Any], await self._create(args=args))
        out: list[Created | AlreadyExists] = []
        for new, (message, digest), (existing, revision, value) in zip(jobs, made, answers, strict=True):
            text = value.decode()
            if not existing:
                message.job_id = text
                message.revision = revision
                out.append(Created(message, existing=False))
                continue
            job_id, _, first_digest = text.partition(" ")
            if first_digest != digest:
                out.append(
                    AlreadyExists(
                        f"request_id: {new.request_id!r} was used before, for {job_id} with another payload; "
                        "send a new request_id for a new job, or the same payload to repeat the call",
                        field="request_id",
                        reason="REQUEST_ID_REUSED",
                        metadata={"job_id": job_id},
                    )
                )
                continue
            out.append(Created(job_to_proto(await self.get(job_id)), existing=True))
        return out

    async def request_cancel(self, job_id: str) -> Job:
        """Marks a job to be ended by the orchestrator; repeating it changes nothing.

        Raises:
            NotFound: no such job.
            Conflict: the job is final.
        """
        status, revision, body = await self._cancel(args=[job_id])
        if status == 0:
            raise _not_found(job_id)
        job = _decode(body, revision)
        if status == 1:
            raise Conflict(
                f"{job_id} is {job.state.name} already; only a pending or running job can be cancelled",
                reason="JOB_FINAL",
                metadata={"job_id": job_id, "state": job.state.name},
            )
        return job

    async def move(self, token: int, moves: Sequence[Move], cursor: Cursor | None = None) -> list[int]:
        """Replaces records, announces each change, and notes the cursor: all or nothing. For the acting orchestrator.

        Args:
            token: its fencing token.
            moves: new records in order; several of one job have rising versions.
            cursor: what of the cluster's events is applied with this.

        Returns:
            The revision of each change.

        Raises:
            Stale: another orchestrator has taken over, or a record changed underneath; read everything anew.
        """
        args: list[bytes | str | int] = [token, "", 0, 0, 0, ""]
        if cursor is not None:
            args[1:4] = [cursor.incarnation, cursor.revision, repr(cursor.time_s)]
            args[4:] = [repr(cursor.last_event_s), _text(cursor.hold_until_s)]
        for move in moves:
            outcome = b"" if move.outcome is None else _outcome_entry(move.job, move.outcome)
            body = job_to_proto(dataclasses.replace(move.job, revision=0)).SerializeToString()
            args += [move.job.job_id, move.version, int(move.job.state), body, outcome]
            args += [move.job.spec.user, _text(move.attained_s)]
        try:
            return cast(list[int], await self._move(args=args))
        except ResponseError as error:
            text = str(error)
            if "FENCED" in text or "STALE" in text:
                raise Stale(f"this orchestrator's view is old: {text}") from error
            raise

    async def cursor(self) -> Cursor | None:
        """How far the cluster's events have been applied; None before the first."""
        found = await self._redis.hmget(CURSOR, "incarnation", "revision", "time_s", "last_event_s", "hold_until_s")
        if found[0] is None:
            return None
        incarnation, revision, time_s, last_event_s, hold_until_s = found
        return Cursor(
            incarnation.decode(),
            int(revision),
            float(time_s),
            float(last_event_s or time_s),
            float(hold_until_s) if hold_until_s else None,
        )

    async def attained_s(self) -> dict[str, float]:
        """By user, the GPU seconds of all ended attempts; users without any are not in it."""
        return {user.decode(): float(had_s) for user, had_s in (await self._redis.hgetall(ATTAINED)).items()}

    async def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFound: no such job.
        """
        body, revision = await self._redis.hmget(JOB + job_id, "m", "rev")
        if body is None:
            raise _not_found(job_id)
        return _decode(body, revision)

    async def get_many(self, job_ids: Iterable[str]) -> list[Job | None]:
        """Jobs in the order asked for, None where there is none, in one round trip."""
        pipeline = self._redis.pipeline(transaction=False)
        ids = list(job_ids)
        for job_id in ids:
            pipeline.hmget(JOB + job_id, "m", "rev")
        return [_decode(body, rev) if body is not None else None for body, rev in await pipeline.execute()]

    async def active(self) -> list[tuple[int, Job]]:
        """All jobs that are not final, with the orchestrator's version of each, in order of submission."""
        ids = [f"job-{n}" for n in await self.active_sequences()]
        out: list[tuple[int, Job]] = []
        for start in range(0, len(ids), 1000):
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in ids[start : start + 1000]:
                pipeline.hmget(JOB + job_id, "m", "rev", "version")
            for body, revision, version in await pipeline.execute():
                if body is not None:
                    out.append((int(version), _decode(body, revision)))
        return out

    async def active_sequences(self) -> list[int]:
        """The numbers of all jobs that are not final, rising."""
        return sorted(sequence_of(member.decode()) for member in await self._redis.smembers(ACTIVE))

    async def list_page(self, after_sequence: int, limit: int) -> list[tuple[int, Job]]:
        """Up to `limit` jobs submitted after job number `after_sequence`, in order, with their numbers."""
        last = await self.last_sequence()
        numbers = range(after_sequence + 1, min(last, after_sequence + limit) + 1)
        jobs = await self.get_many(f"job-{n}" for n in numbers) if numbers else []
        return [(n, job) for n, job in zip(numbers, jobs, strict=True) if job is not None]

    async def last_sequence(self) -> int:
        """The number of the newest job; 0 before the first."""
        return int(await self._redis.get(SEQUENCE) or 0)

    async def revision(self) -> int:
        """The newest revision; 0 before the first change."""
        return int(await self._redis.get(REVISION) or 0)

    async def oldest_revision(self) -> int:
        """The oldest change that is still kept; the newest plus one where none is."""
        entries = await self._redis.xrange(EVENTS, count=1)
        return _revision_of(entries[0][0]) if entries else await self.revision() + 1

    async def snapshot(self) -> tuple[int, AsyncIterator[Job]]:
        """A revision and all jobs, each at that revision or later.

        Follow with the changes after the revision, leaving out those that are not newer than the job seen here.
        """
        revision = await self.revision()
        last = await self.last_sequence()

        async def jobs() -> AsyncIterator[Job]:
            for start in range(1, last + 1, 500):
                for job in await self.get_many(f"job-{n}" for n in range(start, min(start + 500, last + 1))):
                    if job is not None:
                        yield job

        return revision, jobs()

    async def read_events(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000
    ) -> list[JobEvent]:
        """Changes after a revision, in order, without a gap; empty when there are none (within `block_ms`).

        Raises:
            OutOfRange: the next change is no longer kept: read the jobs anew.
        """
        entries = await self._read(after_revision, block_ms, count)
        return [_decode_event(revision, body) for revision, body in entries]

    async def read_requests(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000
    ) -> tuple[int, list[JobEvent]]:
        """As `read_events`, but only what ingest wrote (submissions, cancel requests); also the revision to go on from.

        Raises:
            OutOfRange: the next change is no longer kept: read the jobs anew.
        """
        entries = await self._read(after_revision, block_ms, count)
        last = entries[-1][0] if entries else after_revision
        return last, [_decode_event(rev, body) for rev, body in entries if not body.startswith(_MOVED)]

    async def _read(self, after_revision: int, block_ms: int | None, count: int) -> list[tuple[int, bytes]]:
        client = self._redis if block_ms is None else self._blocking
        answer = await client.xread({EVENTS: f"{after_revision}-0"}, count=count, block=block_ms)
        if not answer:
            return []
        pairs = answer[EVENTS.encode()][0] if isinstance(answer, dict) else answer[0][1]  # RESP3 or RESP2
        entries = [(_revision_of(entry_id), fields[b"m"]) for entry_id, fields in pairs]
        for expected, (revision, _) in enumerate(entries, start=after_revision + 1):
            if revision != expected:
                raise OutOfRange(
                    f"the changes after revision {after_revision} are no longer kept (the next one is {revision}); "
                    "take a new snapshot",
                    reason="REVISION_COMPACTED",
                    metadata={"oldest_revision": str(revision)},
                )
        return entries


def _text(number: float | None) -> str:
    return "" if number is None else repr(number)


def _digest(message: job_pb2.JobSpec) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


def sequence_of(job_id: str) -> int:
    """The number in a job id: jobs are ordered by it."""
    return int(job_id.rpartition("-")[2])


def _outcome_entry(job: Job, outcome: Outcome) -> bytes:
    return stream_pb2.OutcomeStreamEntry(
        job_id=job.job_id,
        spec=spec_to_proto(job.spec),
        gpu_id=job.gpu_id,
        gpu_model=job.gpu_model,
        runtime_s=outcome.runtime_s,
        end_s=job.end_s or 0.0,
        succeeded=outcome.succeeded,
    ).SerializeToString()


# How a serialised JobStreamEntry with change = MOVED begins.
_MOVED = b"\x08\x03"


def _decode_event(revision: int, body: bytes) -> JobEvent:
    entry = stream_pb2.JobStreamEntry.FromString(body)
    entry.job.revision = revision
    return JobEvent(revision, JobChange(entry.change), job_from_proto(entry.job))


def _decode(body: bytes, revision: bytes | int) -> Job:
    message = job_pb2.Job.FromString(body)
    message.revision = int(revision)
    return job_from_proto(message)


def _revision_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _not_found(job_id: str) -> NotFound:
    return NotFound(
        f"job_id: there is no job {job_id!r}; `adlro queue --all` or ListJobs shows those there are",
        field="job_id",
        reason="JOB_NOT_FOUND",
        metadata={"job_id": job_id},
    )
