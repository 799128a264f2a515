"""The orchestrator's main loop: takes the lease, runs one acting session after another, and answers requests.

No gRPC; the caller passes clients in. One Redis key of its own: the drained nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any

import numpy as np
import redis.asyncio as aioredis
import structlog

from adlro.errors import AdlroError, Conflict, DeadlineExceeded, NotFound, Stale, Unavailable
from adlro.kit.identity import current_caller
from adlro.kit.redis_errors import store_error
from adlro.placement import NOWHERE
from adlro.records.capacity import ClusterCapacity
from adlro.records.decisions import Decision, DecisionBasis
from adlro.records.events import ClockMode
from adlro.records.jobs import JobReservation, JobState, PendingReason
from adlro.records.redaction import explanation_without_others, jobs_named_by
from adlro.records.status import EventLag, OrchestratorStatus
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.deciding.policy_selection import Choices, PolicySelection
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.explain.explanations import explain_waiting
from adlro.services.orchestrator.explain.reservations import held_reservation
from adlro.services.orchestrator.figures import LedgerFigures, figures_of
from adlro.services.orchestrator.forecasts.explaining import Explaining
from adlro.services.orchestrator.forecasts.forecasting import Forecasting
from adlro.services.orchestrator.lease import Lease
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.capacity import capacity_of
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.metrics import GpuReading, OrchestratorMetrics, View
from adlro.services.orchestrator.ports import ClusterPort, Predictor
from adlro.services.orchestrator.runtimes.pairs import ExpectedPairs
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from adlro.services.orchestrator.session.session import Session, failures
from adlro.store import JobStore, Move, not_found
from adlro.store.decisions import DecisionStore
from adlro.store.keys import DRAINED

BACKOFF_S = (0.1, 0.2, 0.5)
# Failed sessions in a row after which waiting jobs get the outage of the cluster as their reason, and another instance
# may take the lease.
OUTAGE_SESSIONS = 4
# Redis removes a key within a millisecond or two of its expiry.
LEASE_OUT_S = 0.005
# Seconds after which a session that acted does not count as failed from the start.
GOOD_SESSION_S = 5.0

# Reasons of jobs that wait for something other than the cluster's return, or that name the outage already.
KNOWN_REASONS = (PendingReason.LAUNCHING, PendingReason.BEGIN_TIME, PendingReason.CLUSTER_UNAVAILABLE)


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
        self._store = store
        self._cluster = cluster
        self._predictions = ExpectedRuntimes(predictor, self._on_prediction_fallback)
        self._pairs = ExpectedPairs(predictor, self._on_prediction_fallback)
        self._lease = lease
        self._max_attempts = max_attempts
        self._min_run_s = min_run_s
        self._metrics = metrics
        self._log = log
        self._session: Session | None = None
        self._token = 0
        self._holder = ""
        self._problem = "starting"
        self._stopping = False
        self._standing_by = False
        self._outage_told = -1  # the jobs' revision up to which all waiting jobs have the outage as their reason
        self._life: asyncio.Task[None] | None = None
        self._stored = stored
        self.explaining = SideThread("explain decisions")
        self.forecasting = Forecasting(redis, log)
        self._waits = Explaining(self.forecasting)
        self.choosing = PolicySelection(redis, choices, decisions_kept, metrics, log)
        self.acting = self.choosing.acting
        metrics.acting.set_function(lambda: self._ready_session() is not None)
        metrics.queue_length.set_function(lambda: s.ledger.waiting_count if (s := self._ready_session()) else 0)
        metrics.running.set_function(lambda: s.ledger.count(Phase.PLACED) if (s := self._ready_session()) else 0)

    # ---- life

    async def run(self) -> None:
        """Runs until `stop`."""
        self._life = asyncio.current_task()
        await self.choosing.look_for_checkpoint()
        following = asyncio.create_task(self.choosing.follow_checkpoint(), name="follow checkpoint")
        forecasting = asyncio.create_task(
            self.forecasting.run(self._present_ledger, self._clock_now_s, self._clock_goes_on), name="forecasts"
        )
        try:
            await self._live()
        finally:
            following.cancel()
            forecasting.cancel()
            self.forecasting.close()
            self._waits.close()
            self.choosing.close()
            self.explaining.close()
            await self._give_up_lease()

    async def stop(self) -> None:
        """Stops placing jobs, and lets another instance act at once."""
        self._stopping = True
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life], timeout=1.0)

    async def _give_up_lease(self) -> None:
        with contextlib.suppress(AdlroError, aioredis.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                await self._lease.give_up()

    async def _live(self) -> None:
        failed = 0
        while not self._stopping:
            began = time.monotonic()
            try:
                token = await self._lease.take()
                if token is None:
                    self._holder = await self._lease.holder()
                    self._problem = f"standing by: {self._holder} holds the lease"
                    self._standing_by = True
                    failed = 0
                    # If the holder is dead, this instance takes the lease at the moment it expires.
                    left_s = await self._lease.runs_out_in_s() + LEASE_OUT_S
                    await asyncio.sleep(min(left_s, self._lease.duration_s / 4))
                    continue
                self._token, self._holder = token, self._lease.instance_id
                self._standing_by = False
                self._metrics.fencing_token.set(token)
                await self._load_choices()
                await self._act(token)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # after any error the next session starts from the stored records
                leaves = failures(error)
                # A task group that fails while it is being cancelled loses the cancellation (and before Python 3.13
                # leaves the task's count of cancellations wrong), so `stop` sets a flag.
                if self._stopping:
                    raise asyncio.CancelledError from error
                if any(isinstance(leaf, (KeyboardInterrupt, SystemExit)) for leaf in leaves):
                    raise
                acted = self._ready_session() is not None
                self._session = None
                _forget_cancellations()
                failed = 1 if acted and time.monotonic() - began > GOOD_SESSION_S else failed + 1
                self._report(leaves, failed)
                unavailable = any(isinstance(leaf, Unavailable | DeadlineExceeded) for leaf in leaves)
                # Their tracebacks reference the session with all loaded records, while the next session loads the same.
                del leaves
                if failed < OUTAGE_SESSIONS:
                    await asyncio.sleep(BACKOFF_S[failed - 1])
                    continue
                if unavailable:
                    await self._tell_outage()
                # Another instance may reach the cluster.
                await self._give_up_lease()
                await asyncio.sleep(self._lease.duration_s / 2)

    async def _act(self, token: int) -> None:
        session = Session(
            self.acting,
            self._store,
            self._cluster,
            self._predictions,
            token,
            self._max_attempts,
            self._log,
            self._metrics.observe_decision,
            self._min_run_s,
            self._pairs,
        )
        self._session = session
        self.acting.guard.begin_session()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lease.keep(token), name="keep lease")
            group.create_task(self._note_ready(session), name="note ready")
            group.create_task(session.run(), name="session")

    async def _note_ready(self, session: Session) -> None:
        await session.ready.wait()
        self._problem = ""
        self._metrics.sessions.inc()
        self._log.info(
            "acting",
            token=session.token,
            policy=self.acting.policy.name,
            incarnation=self.acting.incarnation,
            revision=session.applied,
            active_jobs=len(session.ledger.entries),
        )

    async def _load_choices(self) -> None:
        await self.choosing.load()
        drained = await self._redis.hgetall(DRAINED)
        self.acting.drained = {node.decode(): reason.decode() for node, reason in drained.items()}

    def _report(self, leaves: list[BaseException], failed: int) -> None:
        expected = all(isinstance(leaf, (AdlroError, OSError, aioredis.RedisError, TimeoutError)) for leaf in leaves)
        told = [store_error(leaf, unsure="") or leaf for leaf in leaves]
        text = "; ".join(dict.fromkeys(str(each) or type(each).__name__ for each in told))
        self._problem = text
        self._metrics.failed_sessions.labels(_cause(leaves)).inc()
        if any(isinstance(leaf, Stale) for leaf in leaves):
            self._log.warning("session ended, starting anew", problem=text)
        elif expected:
            if failed in (1, 5) or failed % 30 == 0:
                self._log.warning("session ended, trying again", problem=text, failed_in_a_row=failed)
        else:
            self._log.error("session ended by an internal error, starting anew", problem=text, exc_info=leaves[0])

    async def _tell_outage(self) -> None:
        """Sets the reason of waiting jobs to the cluster's outage, unless they have it already."""
        try:
            told = await self._store.revision()
            if told == self._outage_told:
                return
            text = "the cluster does not answer; the job will be placed when it answers"
            async for page in self._store.active_pages():
                moves = [
                    Move(transitions.waiting(job, PendingReason.CLUSTER_UNAVAILABLE, text), version)
                    for version, job in page.jobs
                    if job.state is JobState.PENDING and job.pending_reason not in KNOWN_REASONS
                ]
                if moves:
                    told += len(await self._store.move(self._token, moves))
        except (AdlroError, aioredis.RedisError, OSError) as error:
            self._log.info("could not record the outage", problem=str(error))
        else:
            # Lower than the store's revision if another writer has changed a job meanwhile: then this runs once more.
            self._outage_told = told

    def _on_prediction_fallback(self, error: AdlroError) -> None:
        self._metrics.prediction_fallbacks.inc()
        self._log.warning(
            "decompose does not answer; its earlier predictions, or declared runtimes, are used instead",
            problem=str(error),
        )

    # ---- requests

    async def status(self) -> OrchestratorStatus:
        """The orchestrator's status."""
        session = self._ready_session()
        decides, basis = self.acting.deciding
        count = session.ledger.count if session else (lambda phase: 0)
        return OrchestratorStatus(
            acting=session is not None,
            instance_id=self._lease.instance_id,
            lease_holder=self._holder,
            fencing_token=self._token,
            policy=self.acting.policy.name,
            cluster_connected=session is not None,
            cluster_incarnation=self.acting.incarnation,
            cluster_revision=session.applied if session else 0,
            cluster_time_s=0.0 if self._standing_by else self.acting.told_s,
            queue_length=session.ledger.waiting_count if session else 0,
            waiting_for_begin_time_count=count(Phase.BEGIN),
            running_count=count(Phase.PLACED),
            decision_count=self.acting.decisions.count,
            drained_node_ids=tuple(sorted(self.acting.drained)),
            drain_reasons={node_id: reason for node_id, reason in self.acting.drained.items() if reason},
            problem=self._problem,
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
        if self._ready_session() is None and caller is not None and not caller.sees_all:
            self.refuse_if_standing_by()
            raise Unavailable("this orchestrator does not act now; try again in a moment", retry_after_s=1.0)
        return capacity_of(self._session_or_raise().ledger.occupancy)

    def view(self) -> View:
        """The state that metrics export; a standby exports only its policy."""
        session = self._ready_session()
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
        self._session_or_raise()
        before = await self.choosing.set_policy(name)
        self._log.info("policy set", policy=name, before=before)
        await self._session_or_raise().kick()
        return before

    async def set_shadow(self, name: str) -> str:
        """Changes the shadow policy, empty for none; returns the previous one.

        Raises:
            InvalidInput: unknown policy.
            Unavailable: this instance is a standby.
        """
        self._session_or_raise()
        before = await self.choosing.set_shadow(name)
        self._log.info("shadow policy set", policy=name, before=before)
        return before

    async def drain(self, node_id: str, reason: str) -> list[str]:
        """Drains a node: no job starts there any more; returns the jobs that still run there.

        Raises:
            NotFound: no such node.
        """
        self._check_node(self._session_or_raise(), node_id)
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
        self._check_node(self._session_or_raise(), node_id)
        if node_id not in self.acting.drained:
            raise Conflict(f"node_id: {node_id} is not drained", field="node_id")
        await self._redis.hdel(DRAINED, node_id)
        self.acting.drained.pop(node_id, None)
        await self._use_drains()

    async def _use_drains(self) -> Session:
        """Passes the drains to the present session, which may be newer than the one at the request."""
        session = self._session_or_raise()
        await session.drain(self.acting.drained)
        return session

    async def explain_job(self, job_id: str) -> Decision:
        """The reason why a job waits, or its newest decision.

        Raises:
            NotFound: no such job, or its decision is no longer stored.
            Unavailable: STANDING_BY: another instance decides.
        """
        self.refuse_if_standing_by()
        session = self._ready_session()
        if session is not None:
            look = self.acting.guard.look
            waiting = await explain_waiting(session.ledger, self.acting.policy, look, session.now_s, job_id)
            if waiting is not None:
                return await self.explaining.run(waiting.explained)
        entry = None if session is None else session.ledger.entries.get(job_id)
        paused = entry is not None and entry.phase is Phase.PAUSED
        decision = None if paused else self.acting.decisions.of_job(job_id)
        if decision is not None:
            return await self.explaining.run(decision.explained)
        job = await self._store.get(job_id)
        if job.state is JobState.PENDING:
            return Decision(
                decision_id="",
                job_id=job_id,
                placement=NOWHERE,
                policy=self.acting.policy.name,
                time_s=self._now_s(),
                queue_length=0,
                candidates=(),
                masked=(),
                summary=job.message,
                decision_us=0.0,
                attempt=0,
                basis=DecisionBasis.POLICY,
            )
        if self._stored is not None and not paused:
            stored = await self._stored.newest_of_job(job_id)
            if stored is not None:
                return stored
        raise NotFound(
            f"job_id: no decision about {job_id} is kept among the newest: too many decisions followed it; "
            "ListDecisions with job_id in its filter looks through all that are stored",
            field="job_id",
        )

    async def explain_decision(self, decision_id: str) -> Decision:
        """A decision with its reasons; of one that another process made, what is stored of it.

        Raises:
            NotFound: unknown, or no longer stored.
            Unavailable: STANDING_BY: another instance decides.
        """
        self.refuse_if_standing_by()
        made = self.acting.decisions.find(decision_id)
        if made is not None:
            return await self.explaining.run(made.explained)
        stored = None if self._stored is None else await self._stored.get(decision_id)
        if stored is None:
            raise NotFound(
                f"decision_id: {decision_id!r} is not known; the newest decisions are kept, and their ids are in "
                "the answers of WatchDecisions and ListDecisions",
                field="decision_id",
            )
        return stored

    async def explain_waiting(self, job_id: str) -> WaitingExplanation:
        """Why a job waits, what its user could change, and when it is expected to start.

        A submitter is told of his own jobs only, and of no other user's.

        Raises:
            NotFound: no such job, or the caller may not see it.
            Conflict: NOT_WAITING: it runs, or has ended.
            Unavailable: STANDING_BY: another instance decides.
        """
        self.refuse_if_standing_by()
        session = self._ready_session()
        entry = None if session is None else session.ledger.entries.get(job_id)
        job = await self._store.get(job_id) if entry is None else entry.job
        caller = current_caller()
        sees_all = caller is None or caller.sees_all
        if caller is not None and not sees_all and job.spec.user != caller.user:
            raise not_found(job_id)
        if job.state is not JobState.PENDING:
            raise Conflict(
                f"job_id: {job_id} does not wait: it is {job.state.name.lower()}; adlro describe {job_id} tells more",
                field="job_id",
                reason="NOT_WAITING",
                metadata={"job_id": job_id, "state": job.state.name},
            )
        ledger = None if session is None else session.ledger
        told = await self._waits.explained(ledger, job, self._clock_now_s)
        if sees_all or caller is None:
            return told
        own = await self._store.owned(caller.user, jobs_named_by(told))
        return explanation_without_others(told, own.__contains__)

    def _present_ledger(self) -> Ledger | None:
        session = self._ready_session()
        return None if session is None else session.ledger

    def _clock_goes_on(self) -> bool:
        """Whether the cluster's clock waits for nobody."""
        clock = self.acting.clock()
        return clock is not None and clock.mode is not ClockMode.VIRTUAL

    def _clock_now_s(self) -> float:
        """The cluster time: of the last event, or of the clock since then."""
        clock = self.acting.clock()
        return self._now_s() if clock is None else max(self._now_s(), clock.time_s)

    def refuse_if_standing_by(self) -> None:
        """Refuses a request on a standby, so that the client goes to another replica.

        Raises:
            Unavailable: STANDING_BY: another instance acts; a new connection to the same name may reach it.
        """
        if self._standing_by:
            raise Unavailable(
                f"this orchestrator does not act now: {self._problem}; call that one",
                reason="STANDING_BY",
                retry_after_s=1.0,
                metadata={"lease_holder": self._holder},
            )

    def _now_s(self) -> float:
        return self._session.now_s if self._session is not None else 0.0

    def _ready_session(self) -> Session | None:
        session = self._session
        return session if session is not None and session.ready.is_set() else None

    def _session_or_raise(self) -> Session:
        self.refuse_if_standing_by()
        session = self._ready_session()
        if session is None:
            raise Unavailable(f"this orchestrator does not act now: {self._problem}", retry_after_s=1.0)
        return session

    @staticmethod
    def _check_node(session: Session, node_id: str) -> None:
        if node_id not in session.ledger.layout.node_ids:
            known = ", ".join(session.ledger.layout.node_ids)
            raise NotFound(f"node_id: there is no node {node_id!r}; the nodes are {known}", field="node_id")


def gpu_views(ledger: Ledger) -> list[GpuReading]:
    """Each GPU in the ledger."""
    layout, occupancy = ledger.layout, ledger.occupancy
    return [
        GpuReading(
            gpu_id,
            layout.node_ids[layout.gpu_node[gpu]],
            layout.model_of(gpu),
            bool(occupancy.holder[gpu]),
            bool(occupancy.lost[gpu]),
            bool(occupancy.drained[layout.gpu_node[gpu]]),
        )
        for gpu, gpu_id in enumerate(layout.gpu_ids)
    ]


def _forget_cancellations() -> None:
    """Corrects this task's count of cancellations, which a failed task group leaves too high before Python 3.13.

    Before 3.11.3 such a task takes an expired timeout for a cancellation, which would end the orchestrator.
    """
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()


def _cause(leaves: list[BaseException]) -> str:
    """The cause of a session's failure, as named in its metric."""
    if any(isinstance(leaf, Stale) for leaf in leaves):
        return "superseded"
    if any(isinstance(leaf, (aioredis.RedisError, OSError, TimeoutError)) for leaf in leaves):
        return "redis"  # the cluster's client raises nothing but AdlroErrors
    return "cluster" if all(isinstance(leaf, AdlroError) for leaf in leaves) else "bug"
