"""A client of a running decompose for evaluations: job records and outcomes through its store, predictions over gRPC.

Outcomes reach decompose as in service: `adlro.store` writes each record of a job, and its outcome, in one script, and
decompose follows the stream. After each outcome the client polls until decompose's memory has grown, so that results do
not depend on its speed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from adlro.client.health import wait_until_serving
from adlro.errors import AdlroError, Conflict, DeadlineExceeded, InvalidInput, Unavailable
from adlro.kit.credentials import Credentials
from adlro.kit.redis import connect, redacted, wait_until_up
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobSpec, NormalizedJob
from adlro.services.orchestrator.clients import DecomposeClient
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ports import Predicted
from adlro.store import JobStore, Move, NewJob, Outcome
from adlro.store.keys import ATTAINED, CLUSTERS, EVALUATION, EVENTS, OF_JOBS, OUTCOMES
from adlro.wire import cluster_to_proto

START_TIMEOUT_S = 10.0
"""Limit for its first answer, in seconds."""
ANSWER_TIMEOUT_S = 60.0
"""Limit for one call, in seconds. In service it is 2 s, with a fallback; here the run would fail."""
LEARN_TIMEOUT_S = 30.0
"""Limit until the memory has learned a written outcome, in seconds."""
FORGET_TIMEOUT_S = 10.0
"""Limit until decompose notices that its stream of outcomes is gone, in seconds: it checks after half a second without
entries."""
_STORE_TIMEOUT_S = 5.0
_CREATE_COUNT = 500
_TOKEN = 0
"""No other process acts on this store, so there is no lease."""
_NOT_READ = "CLUSTERS_NOT_READ"
"""decompose's reason while it does not know yet whether a cluster has a GPU model outside the speed table."""
_ONE_SECOND = Outcome(runtime_s=1.0, succeeded=True)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


class RunningDecompose:
    """One decompose and its store; use it with `async with`.

    Args:
        address: decompose's, `host:port`.
        redis_url: its store. It must have no jobs: this client writes job records there, which any reader would trust.
        what_happened: called after a missing answer; returns details, for people.
        outlives_list: it continues after the list, so it must forget the learned jobs.
        answer_timeout_s, learn_timeout_s, forget_timeout_s: limits in seconds.
    """

    def __init__(
        self,
        address: str,
        redis_url: str,
        what_happened: Callable[[], str] = str,
        *,
        outlives_list: bool = True,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        learn_timeout_s: float = LEARN_TIMEOUT_S,
        forget_timeout_s: float = FORGET_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._redis_url = redis_url
        self._what_happened = what_happened
        self._outlives_list = outlives_list
        self._answer_timeout_s = answer_timeout_s
        self._learn_timeout_s = learn_timeout_s
        self._forget_timeout_s = forget_timeout_s
        self._models: tuple[str, ...] = ()
        self._memory_revision = 0
        self._learned_from: JobSpec | None = None  # one of the list's jobs, once the list has begun
        self._client: DecomposeClient
        self._redis: aioredis.Redis
        self._store: JobStore
        self._taken = False

    async def __aenter__(self) -> RunningDecompose:
        self._client = DecomposeClient(self.address, self._answer_timeout_s, Credentials.from_environment())
        self._redis = connect(self._redis_url)
        self._store = JobStore(self._redis)
        try:
            await wait_until_serving(self.address, START_TIMEOUT_S)
            await self._take_store()
        except DeadlineExceeded as error:
            await self._close()
            raise Unavailable(
                f"decompose: {error.message}; is a decompose running there?{self._more()}", field="decompose"
            ) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            try:
                if error is None and self._outlives_list and self._learned_from is not None:
                    # Otherwise it might notice in the middle of the next list.
                    await self._forget(self._learned_from, self._memory_revision)
            finally:
                await self._empty_store()
        except (RedisError, OSError):
            if error is None:
                raise self._store_away() from None
        finally:
            await self._close()

    async def begin(self, cluster: Cluster, specs: Sequence[JobSpec]) -> list[str]:
        """Records the submissions of a list, before an empty memory; returns the jobs' ids, in order.

        Raises:
            Conflict: it keeps earlier jobs in its memory.
            Unavailable, DeadlineExceeded: it does not answer, or does not learn.
            InvalidInput: it does not know a GPU model of the cluster.
        """
        self._models = tuple(cluster.gpu_models)
        try:
            await self._redis.hset(CLUSTERS, cluster.name, cluster_to_proto(cluster).SerializeToString())
            await self._until_models_known(specs[0])
            # A new process has an empty memory unless it has a file, and then it has counted the file's jobs.
            if await self._revision(specs[0]):
                await self._make_it_forget(specs[0])
            self._learned_from = specs[0]
            self._memory_revision = await self._revision(specs[0])
            created: list[str] = []
            for start in range(0, len(specs), _CREATE_COUNT):
                new = [NewJob(spec, NormalizedJob(), "", 0.0) for spec in specs[start : start + _CREATE_COUNT]]
                for answer in await self._store.create_many(new):
                    if isinstance(answer, AdlroError):
                        raise answer
                    created.append(answer.message.job_id)
            return created
        except (RedisError, OSError) as error:
            raise self._store_away() from error

    async def learn(self, moves: Sequence[Move]) -> None:
        """Writes records; returns once the memory has learned their last outcome."""
        try:
            await self._store.move(_TOKEN, moves)
        except (RedisError, OSError) as error:
            raise self._store_away() from error
        # A job without duration has no outcome, and is left out.
        outcomes = [move for move in moves if move.outcome is not None and move.outcome.runtime_s > 0]
        if outcomes:
            self._memory_revision += len(outcomes)
            await self._until_revision(
                outcomes[-1].job.spec, self._memory_revision, self._learn_timeout_s, self._not_learned
            )

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        """The predicted runtime of each job on each model."""
        try:
            return await self._client.predict(specs, gpu_models)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"decompose at {self.address} did not answer within {self._answer_timeout_s:g} s{self._more()}"
            ) from error
        except Unavailable as error:
            if error.reason == _NOT_READ:
                raise
            raise Unavailable(
                f"decompose at {self.address} does not answer: {error.message}{self._more()}", reason=error.reason
            ) from error

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        """No speeds: in an evaluation no GPU is slower than its model."""
        return {}

    # ---- helpers

    async def _until_models_known(self, spec: JobSpec) -> None:
        """Waits until decompose has read the cluster's description, which it does every second."""
        end_s = time.monotonic() + self._forget_timeout_s
        while True:
            try:
                await self.predict([spec], self._models)
                return
            except (InvalidInput, Unavailable) as error:
                not_yet = isinstance(error, InvalidInput) or error.reason == _NOT_READ
                if not not_yet or time.monotonic() > end_s:
                    raise
                await asyncio.sleep(0.1)

    async def _make_it_forget(self, spec: JobSpec) -> None:
        """Removes the stream of outcomes, and with it the learned jobs.

        It first writes one outcome, whatever decompose has learned: decompose notices only the removal of a stream that
        it has read, and the outcome's arrival shows that it reads this store.
        """
        revision = await self._revision(spec)
        job_id = (await self._store.create(spec, NormalizedJob(), "", 0.0)).message.job_id
        job = Job(job_id, spec)
        started = transitions.started(transitions.launching(job, Placement.on("gpu"), self._models[0]), 0.0)
        move = Move(transitions.succeeded(started, 1.0), 0, _ONE_SECOND)
        await self._store.move(_TOKEN, [move])
        await self._until_revision(spec, revision + 1, self._learn_timeout_s, self._not_learned)
        await self._forget(spec, revision + 1)

    async def _forget(self, spec: JobSpec, revision: int) -> None:
        await self._empty_store(keep_mark=True)
        await self._until_revision(spec, revision + 1, self._forget_timeout_s, self._not_forgotten)

    async def _until_revision(
        self, spec: JobSpec, wanted: int, timeout_s: float, problem: Callable[[], AdlroError]
    ) -> None:
        end_s = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while await self._revision(spec) < wanted:
            if time.monotonic() > end_s:
                raise problem()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _revision(self, spec: JobSpec) -> int:
        return (await self.predict([spec], self._models)).memory_revision

    async def _take_store(self) -> None:
        """Checks that no other process uses the store."""
        try:
            await wait_until_up(self._redis, _STORE_TIMEOUT_S)
            if not await self._redis.set(EVALUATION, "taken", nx=True):
                raise Conflict(
                    f"redis_url: another evaluation uses {redacted(self._redis_url)}, or was killed there; if none "
                    "uses it any more, empty that database (FLUSHDB)",
                    field="redis_url",
                )
            self._taken = True
            if await self._redis.exists(EVENTS, OUTCOMES, ATTAINED):
                await self._redis.delete(EVALUATION)
                self._taken = False
                raise Conflict(
                    f"redis_url: {redacted(self._redis_url)} holds jobs. An evaluation writes jobs and outcomes of its "
                    "own there, so it needs an empty database, such as redis://HOST:PORT/1, and a decompose that was "
                    "started on it; or leave --decompose and --redis-url out, and it starts both itself",
                    field="redis_url",
                )
        except (RedisError, OSError, Unavailable) as error:
            raise self._store_away() from error

    async def _empty_store(self, *, keep_mark: bool = False) -> None:
        """Removes all written keys: the store had no others."""
        if not self._taken:
            return
        keys = [key async for key in self._redis.scan_iter(match=OF_JOBS, count=1000)]
        keys += [OUTCOMES.encode(), ATTAINED.encode(), *([] if keep_mark else [CLUSTERS.encode(), EVALUATION.encode()])]
        for start in range(0, len(keys), _CREATE_COUNT):
            await self._redis.delete(*keys[start : start + _CREATE_COUNT])
        self._taken = keep_mark

    async def _close(self) -> None:
        await self._client.close()
        await self._redis.aclose()

    def _more(self) -> str:
        text = self._what_happened()
        return f". {text}" if text else ""

    def _store_away(self) -> Unavailable:
        return Unavailable(f"redis_url: the store at {redacted(self._redis_url)} does not answer{self._more()}")

    def _not_learned(self) -> AdlroError:
        return DeadlineExceeded(
            f"decompose at {self.address} did not learn from an ended job within {self._learn_timeout_s:g} s; does it "
            f"follow the store at {redacted(self._redis_url)}, and does its log report skipped entries?"
            f"{self._more()}"
        )

    def _not_forgotten(self) -> AdlroError:
        return Conflict(
            f"decompose: the one at {self.address} keeps its memory, although its stream of outcomes is gone; each "
            "list must start with an empty memory: start it without ADLRO_DECOMPOSE_MEMORY_PATH",
            field="decompose",
        )
