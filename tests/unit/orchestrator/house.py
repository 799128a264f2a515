"""An orchestrator with a real Redis and a cluster in memory; it can be killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import redis.asyncio as aioredis
import structlog
from prometheus_client import CollectorRegistry

from adlro.errors import Unavailable
from adlro.kit.redis import connect, connect_blocking, connect_in_thread
from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobType, NormalizedJob, PendingReason, SimulatedWork
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.deciding.policy_selection import Choices
from adlro.services.orchestrator.instrumented import InstrumentedCluster, InstrumentedStore
from adlro.services.orchestrator.lease import Lease
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.services.orchestrator.orchestrator import Orchestrator
from adlro.services.orchestrator.ports import Predicted, PredictedPairs
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import Asking, RuntimesPredicted
from tests.ledgers import MODELS
from tests.unit.orchestrator.fake_cluster import FakeCluster

PATIENCE_S = 60.0
"""Bounds a hang; a busy machine takes its time."""
NO_CHECKPOINT = Path("/nowhere/dqn.onnx")


async def answered(course: Asking, predictions: ExpectedRuntimes, models: Sequence[str] = MODELS) -> bool:
    """Answers a course of questions about runtimes to its end."""
    answer = None
    while True:
        try:
            question = course.send(answer)
        except StopIteration as end:
            return bool(end.value)
        answer = RuntimesPredicted(await predictions.ask(question.specs, models), predictions.standing)


class Declared:
    """A predictor that believes what is declared, on every model."""

    def __init__(self) -> None:
        self.away = False
        self.kept, self.revision = 0.8, 1

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        if self.away:
            raise Unavailable("decompose does not answer")
        rows = [spec.expected_runtime.runtime_s if spec.expected_runtime else 1.0 for spec in specs]
        return Predicted(np.repeat(np.array(rows, dtype=float)[:, None], len(gpu_models), axis=1), 1)

    async def pairs(self, kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> PredictedPairs:
        if self.away:
            raise Unavailable("decompose does not answer")
        shape = len(kinds), len(kinds), len(gpu_models)
        return PredictedPairs(np.full(shape, self.kept), np.zeros(shape), self.revision)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        if self.away:
            raise Unavailable("decompose does not answer")
        return {}


class House:
    """One Redis, one cluster, and an orchestrator that can be killed and started again."""

    def __init__(self, url: str, cluster: Cluster, predictor: Declared | None = None) -> None:
        self.redis: aioredis.Redis = connect(url)
        self.blocking: aioredis.Redis = connect_blocking(url)
        self.of_thread = connect_in_thread(url, 1.0)
        self.registry = CollectorRegistry()
        self.metrics = OrchestratorMetrics(self.registry)
        self.store = InstrumentedStore(self.redis, self.blocking, self.metrics)
        self.cluster = FakeCluster(cluster)
        self.predictor = predictor or Declared()
        self.lives = 0
        self.life: asyncio.Task[None] | None = None
        self.orchestrator: Orchestrator
        self.lease: Lease

    def start(
        self,
        policy: str = "",
        max_attempts: int = 50,
        lease_s: float = 3.0,
        choices: Choices | None = None,
        min_run_s: float | None = None,
    ) -> None:
        """Begins a life of the orchestrator.

        Args:
            lease_s: a machine that stands still for longer loses the lease, and the session begins anew.
        """
        if not policy and not self.lives:
            policy = "sjf"  # until another one is set
        self.lives += 1
        self.lease = Lease(self.redis, self.of_thread, f"instance-{self.lives}", lease_s)
        self.orchestrator = Orchestrator(
            self.redis,
            self.store,
            InstrumentedCluster(self.cluster, self.metrics),
            self.predictor,
            self.lease,
            choices=choices or Choices(policy, checkpoint=NO_CHECKPOINT),
            max_attempts=max_attempts,
            decisions_kept=100,
            metrics=self.metrics,
            log=structlog.get_logger(),
            min_run_s=min_run_s,
        )
        self.life = asyncio.create_task(self.orchestrator.run())

    async def kill(self) -> None:
        """Breaks the orchestrator off where it stands."""
        await self.orchestrator.stop()
        assert self.life is not None
        # `stop` waits for a second at most, which one round of the event loop may take on a busy machine.
        await asyncio.wait([self.life], timeout=30.0)
        assert self.life.done()

    async def close(self) -> None:
        await self.kill()
        await self.redis.aclose()
        await self.blocking.aclose()
        self.of_thread.close()

    async def pause(self) -> None:
        await self.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, True, 0.0))

    async def until_taken_up(self) -> None:
        async def all_taken_up() -> bool:
            return all(job.pending_reason is not PendingReason.SUBMITTED for _, job in await self.store.active())

        await self.until(all_taken_up)

    async def submit(self, work_s: float, **spec: object) -> Job:
        fields: dict[str, object] = {
            "name": "j",
            "user": "ann",
            "job_type": JobType.SIMULATION,
            "simulated_work": SimulatedWork(work_s),
            "expected_runtime": ExpectedRuntime("v100_sxm2", work_s),
        }
        job_spec = JobSpec(**{**fields, **spec})  # type: ignore[arg-type]
        return (await self.store.create(job_spec, NormalizedJob(), "", 0.0)).job

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # noqa: ASYNC110 - the condition lies in Redis
                await asyncio.sleep(0.01)

    async def until_final(self, count: int) -> list[Job]:
        async def final() -> bool:
            jobs = [job for _, job in await self.store.list_page(0, count)]
            return len(jobs) == count and all(job.state.final for job in jobs)

        await self.until(final)
        return [job for _, job in await self.store.list_page(0, count)]

    async def until_acting(self) -> None:
        async def acting() -> bool:
            return (await self.orchestrator.status()).acting

        await self.until(acting)

    async def history(self) -> dict[str, list[Job]]:
        """Every record of each job, in order."""
        seen: dict[str, list[Job]] = {}
        for event in await self.store.read_events(0, count=100_000):
            seen.setdefault(event.job.job_id, []).append(event.job)
        return seen
