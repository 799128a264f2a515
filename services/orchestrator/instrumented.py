"""The store and the cluster with counters: they count confirmed writes and answers, not attempts.

Plain records; the caller passes the metrics in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import redis.asyncio as aioredis

from adlro.errors import AdlroError, DeadlineExceeded, Stale, Unavailable
from adlro.placement import Placement
from adlro.records.events import Clock, ClusterDescription, EventBatch
from adlro.records.jobs import AttemptRef, Job, JobSpec, JobState
from adlro.services.orchestrator.ledger.transitions import launching_message, preempted_message
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.services.orchestrator.ports import REFUSED_TOKEN, ClusterPort, Launched
from adlro.store import Cursor, JobStore, Move, Unreadable


class InstrumentedStore(JobStore):
    """A JobStore that counts the written moves.

    Args:
        redis: see JobStore.
        blocking: see JobStore.
        metrics: counters.
    """

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis | None, metrics: OrchestratorMetrics) -> None:
        super().__init__(redis, blocking)
        self.unreadable = Unreadable(metrics.unreadable.inc)
        self._metrics = metrics

    async def move(self, token: int, moves: Sequence[Move], cursor: Cursor | None = None) -> list[int]:
        """See JobStore.move."""
        revisions = await super().move(token, moves, cursor)
        for move in moves:
            self._count(move.job)
        return revisions

    def _count(self, job: Job) -> None:
        metrics, job_type = self._metrics, job.spec.job_type.label
        last = job.attempts[-1] if job.attempts else None
        if last is not None and last.preempted and job.message == preempted_message(job):  # written once per attempt
            metrics.preempted.labels(last.gpu_model).inc()
        if job.state.final:
            metrics.ended.labels(job_type, job.state.name.lower()).inc()
            if job.state is JobState.SUCCEEDED and job.end_s is not None and job.submit_s is not None:
                metrics.jct_s.labels(job_type).observe(job.end_s - job.submit_s)
        elif job.state is JobState.RUNNING:  # written once per attempt
            if len(job.attempts) == 1 and job.start_s is not None and job.submit_s is not None:
                metrics.waiting_s.labels(job_type).observe(job.start_s - job.submit_s)
        elif last is not None and job.message == launching_message(job.placement, last.preempts):  # likewise
            metrics.placements.labels(job.gpu_model).inc()
            if job.attempt_count > 1 and not job.attempts[-2].preempted:
                metrics.repeated_placements.inc()


class InstrumentedCluster:
    """A cluster that counts the answers to launches; all other calls pass through.

    Args:
        cluster: the cluster.
        metrics: counters.
    """

    def __init__(self, cluster: ClusterPort, metrics: OrchestratorMetrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    async def describe(self) -> ClusterDescription:
        """See ClusterPort."""
        return await self._cluster.describe()

    async def launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        token: int,
        incarnation: str,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        """See ClusterPort."""
        began_s = time.perf_counter()
        result = "accepted"
        try:
            return await self._cluster.launch(
                job_id,
                attempt,
                spec,
                placement,
                token,
                incarnation,
                preempts=preempts,
                remaining_ratio=remaining_ratio,
                resumes=resumes,
            )
        except AdlroError as error:
            if error.reason in REFUSED_TOKEN:
                result = "stale_token"
            else:
                result = "unanswered" if isinstance(error, Stale | Unavailable | DeadlineExceeded) else "refused"
            raise
        except BaseException:
            result = "unanswered"
            raise
        finally:
            self._metrics.launches.labels(result).inc()
            if result != "unanswered":
                self._metrics.launch_s.observe(time.perf_counter() - began_s)

    async def stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        """See ClusterPort."""
        return await self._cluster.stop(job_id, attempt, token, incarnation)

    async def acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        """See ClusterPort."""
        await self._cluster.acknowledge(incarnation, revision, token)

    async def wake_at(self, times_s: Sequence[float]) -> Clock:
        """See ClusterPort."""
        return await self._cluster.wake_at(times_s)

    async def advance_to(self, time_s: float) -> Clock:
        """See ClusterPort."""
        return await self._cluster.advance_to(time_s)

    def events(self, incarnation: str, after_revision: int) -> AsyncIterator[EventBatch]:
        """See ClusterPort."""
        return self._cluster.events(incarnation, after_revision)
