"""An orchestrator: its life as the acting instance or a standby, and what it is asked and told meanwhile.

No gRPC; the caller passes clients in. One Redis key of its own: the drained nodes.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import redis.asyncio as aioredis
import structlog

from adlro.errors import Conflict, NotFound, Unavailable
from adlro.kit.identity import current_caller
from adlro.records.capacity import ClusterCapacity
from adlro.records.jobs import JobReservation
from adlro.records.status import EventLag, OrchestratorStatus
from adlro.services.orchestrator.answers import Answers
from adlro.services.orchestrator.deciding.policy_selection import Choices, PolicySelection
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.explain.reservations import held_reservation
from adlro.services.orchestrator.figures import LedgerFigures, figures_of, gpu_views
from adlro.services.orchestrator.forecasts.forecasting import Forecasting
from adlro.services.orchestrator.lease import Lease
from adlro.services.orchestrator.ledger.capacity import capacity_of
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.life import Life
from adlro.services.orchestrator.metrics import OrchestratorMetrics, View
from adlro.services.orchestrator.ports import ClusterPort, Predictor
from adlro.services.orchestrator.session.session import Session
from adlro.store import JobStore
from adlro.store.decisions import DecisionStore
from adlro.store.keys import DRAINED


class Orchestrator:
    """One instance: acts while it holds the lease, stands by otherwise.

    Args:
        redis: for records, lease, policy and drains.
        store: job records.
        cluster: runs jobs.
        predictor: predicts durations (decompose).
        lease: the lease of the acting instance.
        choices: the policy settings.
        max_attempts: lost attempts after which a job fails.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        decisions_kept: size of the decision log.
        stored: the decisions in the store; None: there are none.
        metrics: counters of this process.
        log: a structlog logger.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        store: JobStore,
        cluster: ClusterPort,
        predictor: Predictor,
        lease: Lease,
        *,
        choices: Choices,
        max_attempts: int,
        decisions_kept: int,
        metrics: OrchestratorMetrics,
        log: structlog.typing.FilteringBoundLogger,
        min_run_s: float | None = None,
        stored: DecisionStore | None = None,
    ) -> None:
        self._redis: Any = redis
        self._lease = lease
        self._min_run_s = min_run_s
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self.explaining = SideThread("explain decisions")
        self.forecasting = Forecasting(redis, log)
        self.choosing = PolicySelection(redis, choices, decisions_kept, metrics, log)
        self.acting = self.choosing.acting
        self.life = Life(redis, store, cluster, predictor, lease, self.choosing, metrics, log, max_attempts, min_run_s)
        self.answers = Answers(self.life, self.acting, store, stored, self.forecasting, self.explaining)
        metrics.acting.set_function(lambda: self.life.ready_session() is not None)
        metrics.queue_length.set_function(lambda: s.ledger.waiting_count if (s := self.life.ready_session()) else 0)
        metrics.running.set_function(lambda: s.ledger.count(Phase.PLACED) if (s := self.life.ready_session()) else 0)

    # ---- life

    async def run(self) -> None:
        """Runs until `stop`."""
        self._task = asyncio.current_task()
        await self.choosing.look_for_checkpoint()
        following = asyncio.create_task(self.choosing.follow_checkpoint(), name="follow checkpoint")
        forecasting = asyncio.create_task(
            self.forecasting.run(self.life.present_ledger, self.life.clock_now_s, self.life.clock_goes_on),
            name="forecasts",
        )
        try:
            await self.life.live()
        finally:
            following.cancel()
            forecasting.cancel()
            self.forecasting.close()
            self.answers.close()
            self.choosing.close()
            self.explaining.close()
            await self.life.give_up_lease()

    async def stop(self) -> None:
        """Stops placing jobs, and lets another instance act at once."""
        self.life.stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    # ---- requests

    async def status(self) -> OrchestratorStatus:
        """The orchestrator's status."""
        session = self.life.ready_session()
        decides, basis = self.acting.deciding
        count = session.ledger.count if session else (lambda phase: 0)
        return OrchestratorStatus(
            acting=session is not None,
            instance_id=self._lease.instance_id,
            lease_holder=self.life.holder,
            fencing_token=self.life.token,
            policy=self.acting.policy.name,
            cluster_connected=session is not None,
            cluster_incarnation=self.acting.incarnation,
            cluster_revision=session.applied if session else 0,
            cluster_time_s=0.0 if self.life.standing_by else self.acting.told_s,
            queue_length=session.ledger.waiting_count if session else 0,
            waiting_for_begin_time_count=count(Phase.BEGIN),
            running_count=count(Phase.PLACED),
            decision_count=self.acting.decisions.count,
            drained_node_ids=tuple(sorted(self.acting.drained)),
            drain_reasons={node_id: reason for node_id, reason in self.acting.drained.items() if reason},
            problem=self.life.problem,
            policy_version=self.acting.policy.version,
            policy_problem=self.choosing.problem,
            fallbacks=dict(self.acting.guard.counts),
            shadow=self.acting.shadow.status,
            wait_ratio=ratio if math.isfinite(ratio := self.acting.policy.wait_ratio) else 0.0,
            checkpoints_loaded_count=self.choosing.checkpoint.loaded,
            checkpoints_refused_count=self.choosing.checkpoint.refused,
            deciding_policy=decides,
            deciding_basis=basis,
            unreadable_job_count=session.unreadable_count if session else 0,
            reservations=() if (held := self._reservation(session)) is None else (held,),
            decisions_by_basis=dict(self.acting.guard.decisions_of(self.acting.policy)) if session else {},
            preemption=self._min_run_s is not None,
            preemption_min_run_s=self._min_run_s or 0.0,
            event_lag=session.event_lag() if session else None,
            **(figures_of(session.ledger) if session else LedgerFigures()),
        )

    @staticmethod
    def _reservation(session: Session | None) -> JobReservation | None:
        return None if session is None else held_reservation(session.ledger, session.now_s)

    def capacity(self) -> ClusterCapacity:
        """What is free now, by GPU model.

        Raises:
            Unavailable: this instance is a standby, or does not act now; a submitter is not told why, since the reason
                may name a job.
        """
        caller = current_caller()
        if self.life.ready_session() is None and caller is not None and not caller.sees_all:
            self.life.refuse_if_standing_by()
            raise Unavailable("this orchestrator does not act now; try again in a moment", retry_after_s=1.0)
        return capacity_of(self.life.session_or_raise().ledger.occupancy)

    def view(self) -> View:
        """The state that metrics export; a standby exports only its policy."""
        session = self.life.ready_session()
        if session is None:
            return View(self.acting.policy.name, (), 0.0, 0.0, EventLag(0, 0.0, 0))
        clock = self.acting.clock()
        now_s = session.now_s if clock is None else clock.time_s
        submitted_s = [entry.job.submit_s for entry in session.ledger.queued(0, 1) if entry.job.submit_s is not None]
        waited_s = max(now_s - submitted_s[0], 0.0) if submitted_s else 0.0
        return View(self.acting.policy.name, gpu_views(session.ledger), now_s, waited_s, session.event_lag())

    async def set_policy(self, name: str) -> str:
        """Changes the acting policy; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        before = await self.choosing.set_policy(name)
        self._log.info("policy set", policy=name, before=before)
        await self.life.session_or_raise().kick()
        return before

    async def set_shadow(self, name: str) -> str:
        """Changes the shadow policy, empty for none; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
            Unavailable: this instance is a standby.
        """
        self.life.session_or_raise()
        before = await self.choosing.set_shadow(name)
        self._log.info("shadow policy set", policy=name, before=before)
        return before

    async def drain(self, node_id: str, reason: str) -> list[str]:
        """Drains a node: no job starts there any more; returns the jobs that still run there.

        Raises:
            NotFound: no such node.
        """
        self._check_node(self.life.session_or_raise(), node_id)
        await self._redis.hset(DRAINED, node_id, reason)
        self.acting.drained[node_id] = reason
        session = await self._use_drains()
        layout = session.ledger.layout
        on_node = np.flatnonzero(layout.gpu_node == layout.node_ids.index(node_id)).tolist()
        return [entry.job.job_id for entry in session.ledger.holders(on_node)]

    async def undrain(self, node_id: str) -> None:
        """Lets jobs start on a node again.

        Raises:
            NotFound: no such node.
            Conflict: the node is not drained.
        """
        self._check_node(self.life.session_or_raise(), node_id)
        if node_id not in self.acting.drained:
            raise Conflict(f"node_id: {node_id} is not drained", field="node_id")
        await self._redis.hdel(DRAINED, node_id)
        self.acting.drained.pop(node_id, None)
        await self._use_drains()

    async def _use_drains(self) -> Session:
        """Passes the drains to the present session, which may be newer than the one at the request."""
        session = self.life.session_or_raise()
        await session.drain(self.acting.drained)
        return session

    @staticmethod
    def _check_node(session: Session, node_id: str) -> None:
        if node_id not in session.ledger.layout.node_ids:
            known = ", ".join(session.ledger.layout.node_ids)
            raise NotFound(f"node_id: there is no node {node_id!r}; the nodes are {known}", field="node_id")
