"""The life of an orchestrator: it takes the lease, runs one acting session after another, and tells outages.

No gRPC; the caller passes clients in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

import redis.asyncio as aioredis
import structlog

from adlro.errors import AdlroError, DeadlineExceeded, Stale, Unavailable
from adlro.kit.redis_errors import store_error
from adlro.records.events import ClockMode
from adlro.records.jobs import JobState, PendingReason
from adlro.services.orchestrator.deciding.policy_selection import PolicySelection
from adlro.services.orchestrator.lease import Lease
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.fair_shares import fair_shares_of
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.services.orchestrator.ports import ClusterPort, Predictor
from adlro.services.orchestrator.runtimes.pairs import ExpectedPairs
from adlro.services.orchestrator.runtimes.predictions import ExpectedRuntimes
from adlro.services.orchestrator.session.session import Session, failures
from adlro.store import JobStore, Move
from adlro.store.keys import DRAINED, FAIR_SHARES, QUOTAS

BACKOFF_S = (0.1, 0.2, 0.5)
# Failed sessions in a row after which waiting jobs get the outage of the cluster as their reason, and another instance
# may take the lease.
OUTAGE_SESSIONS = 4
# Redis removes a key within a millisecond or two of its expiry.
LEASE_OUT_S = 0.005
# Seconds after which a session that acted does not count as failed from the start.
GOOD_SESSION_S = 5.0

# Reasons of jobs that wait for something other than the cluster's return, or that name the outage already.
KNOWN_REASONS = (
    PendingReason.LAUNCHING,
    PendingReason.BEGIN_TIME,
    PendingReason.HELD,
    PendingReason.DEPENDENCY,
    PendingReason.CLUSTER_UNAVAILABLE,
)


class Life:
    """What one instance is at present: it acts in a session, tries to, or stands by.

    Args:
        redis: for the drained nodes, quotas and shares.
        store: job records.
        cluster: runs jobs.
        predictor: predicts durations (decompose).
        lease: the lease of the acting instance.
        choosing: the policy settings.
        metrics: counters of this process.
        log: a structlog logger.
        max_attempts: lost attempts after which a job fails.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.

    Attributes:
        session: the present one, ready or not.
        token: the fencing token of the last session.
        holder: who holds the lease.
        problem: why it does not act; empty: it acts.
        stopping: set to end `live`.
        standing_by: whether another instance acts.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        store: JobStore,
        cluster: ClusterPort,
        predictor: Predictor,
        lease: Lease,
        choosing: PolicySelection,
        metrics: OrchestratorMetrics,
        log: structlog.typing.FilteringBoundLogger,
        max_attempts: int,
        min_run_s: float | None,
    ) -> None:
        self._redis: Any = redis
        self._store = store
        self._cluster = cluster
        self._predictions = ExpectedRuntimes(predictor, self._on_prediction_fallback)
        self._pairs = ExpectedPairs(predictor, self._on_prediction_fallback)
        self._lease = lease
        self._choosing = choosing
        self._acting = choosing.acting
        self._metrics = metrics
        self._log = log
        self._max_attempts = max_attempts
        self._min_run_s = min_run_s
        self._outage_told = -1  # the jobs' revision up to which all waiting jobs have the outage as their reason
        self.session: Session | None = None
        self.token = 0
        self.holder = ""
        self.problem = "starting"
        self.stopping = False
        self.standing_by = False

    async def live(self) -> None:
        """Acts or stands by until it is cancelled, whatever fails."""
        failed = 0
        while not self.stopping:
            began = time.monotonic()
            try:
                token = await self._lease.take()
                if token is None:
                    self.holder = await self._lease.holder()
                    self.problem = f"standing by: {self.holder} holds the lease"
                    self.standing_by = True
                    failed = 0
                    # If the holder is dead, this instance takes the lease at the moment it expires.
                    left_s = await self._lease.runs_out_in_s() + LEASE_OUT_S
                    await asyncio.sleep(min(left_s, self._lease.duration_s / 4))
                    continue
                self.token, self.holder = token, self._lease.instance_id
                self.standing_by = False
                self._metrics.fencing_token.set(token)
                await self._load_choices()
                await self._act(token)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # after any error the next session starts from the stored records
                leaves = failures(error)
                # A task group that fails while it is being cancelled loses the cancellation (and before Python 3.13
                # leaves the task's count of cancellations wrong), so `stop` sets a flag.
                if self.stopping:
                    raise asyncio.CancelledError from error
                if any(isinstance(leaf, (KeyboardInterrupt, SystemExit)) for leaf in leaves):
                    raise
                acted = self.ready_session() is not None
                self.session = None
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
                await self.give_up_lease()
                await asyncio.sleep(self._lease.duration_s / 2)

    async def _act(self, token: int) -> None:
        session = Session(
            self._acting,
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
        self.session = session
        self._acting.guard.begin_session()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lease.keep(token), name="keep lease")
            group.create_task(self._note_ready(session), name="note ready")
            group.create_task(session.run(), name="session")

    async def _note_ready(self, session: Session) -> None:
        await session.ready.wait()
        self.problem = ""
        self._metrics.sessions.inc()
        self._log.info(
            "acting",
            token=session.token,
            policy=self._acting.policy.name,
            incarnation=self._acting.incarnation,
            revision=session.applied,
            active_jobs=len(session.ledger.entries),
        )

    async def _load_choices(self) -> None:
        await self._choosing.load()
        drained = await self._redis.hgetall(DRAINED)
        self._acting.drained = {node.decode(): reason.decode() for node, reason in drained.items()}
        quotas, shares = await self._redis.hgetall(QUOTAS), await self._redis.hgetall(FAIR_SHARES)
        self._acting.user_rules = dataclasses.replace(
            self._acting.user_rules,
            quotas=Quotas({user.decode(): int(gpu_count) for user, gpu_count in quotas.items()}),
            fair_shares=fair_shares_of(shares),
        )

    def _report(self, leaves: list[BaseException], failed: int) -> None:
        expected = all(isinstance(leaf, (AdlroError, OSError, aioredis.RedisError, TimeoutError)) for leaf in leaves)
        told = [store_error(leaf, unsure="") or leaf for leaf in leaves]
        text = "; ".join(dict.fromkeys(str(each) or type(each).__name__ for each in told))
        self.problem = text
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
                    told += len(await self._store.move(self.token, moves))
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

    async def give_up_lease(self) -> None:
        """Lets another instance act at once, if Redis answers."""
        with contextlib.suppress(AdlroError, aioredis.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                await self._lease.give_up()

    def refuse_if_standing_by(self) -> None:
        """Refuses a request on a standby, so that the client goes to another replica.

        Raises:
            Unavailable: STANDING_BY: another instance acts; a new connection to the same name may reach it.
        """
        if self.standing_by:
            raise Unavailable(
                f"this orchestrator does not act now: {self.problem}; call that one",
                reason="STANDING_BY",
                retry_after_s=1.0,
                metadata={"lease_holder": self.holder},
            )

    def now_s(self) -> float:
        """The cluster time of the last event."""
        return self.session.now_s if self.session is not None else 0.0

    def ready_session(self) -> Session | None:
        """The present session, if it acts."""
        session = self.session
        return session if session is not None and session.ready.is_set() else None

    def session_or_raise(self) -> Session:
        """The present session.

        Raises:
            Unavailable: this instance is a standby, or does not act now.
        """
        self.refuse_if_standing_by()
        session = self.ready_session()
        if session is None:
            raise Unavailable(f"this orchestrator does not act now: {self.problem}", retry_after_s=1.0)
        return session

    def present_ledger(self) -> Ledger | None:
        """The ledger of the present session, if it acts."""
        session = self.ready_session()
        return None if session is None else session.ledger

    def clock_goes_on(self) -> bool:
        """Whether the cluster's clock waits for nobody."""
        clock = self._acting.clock()
        return clock is not None and clock.mode is not ClockMode.VIRTUAL

    def clock_now_s(self) -> float:
        """The cluster time: of the last event, or of the clock since then."""
        clock = self._acting.clock()
        return self.now_s() if clock is None else max(self.now_s(), clock.time_s)


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
