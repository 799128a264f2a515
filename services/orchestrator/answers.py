"""Answers about jobs and decisions: why a job waits or runs where it does, when it is expected to start. No gRPC."""

from __future__ import annotations

from adlro.errors import Conflict, NotFound
from adlro.kit.identity import current_caller
from adlro.placement import NOWHERE
from adlro.records.decisions import Decision, DecisionBasis
from adlro.records.jobs import JobState
from adlro.records.redaction import explanation_without_others, jobs_named_by
from adlro.records.waiting import WaitingExplanation
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.explain.explanations import explain_waiting
from adlro.services.orchestrator.forecasts.explaining import Explaining
from adlro.services.orchestrator.forecasts.forecasting import Forecasting
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.life import Life
from adlro.store import JobStore, not_found
from adlro.store.decisions import DecisionStore


class Answers:
    """Answers of the acting instance.

    Args:
        life: knows the present session.
        acting: the policy, and the newest decisions.
        store: job records.
        stored: the decisions in the store; None: there are none.
        forecasting: expected starts.
        thread: works out the reasons of decisions.
    """

    def __init__(
        self,
        life: Life,
        acting: Acting,
        store: JobStore,
        stored: DecisionStore | None,
        forecasting: Forecasting,
        thread: SideThread,
    ) -> None:
        self._life = life
        self._acting = acting
        self._store = store
        self._stored = stored
        self._waits = Explaining(forecasting)
        self._thread = thread

    def close(self) -> None:
        """Ends its thread."""
        self._waits.close()

    async def job(self, job_id: str) -> Decision:
        """The reason why a job waits, or its newest decision.

        Raises:
            NotFound: no such job, or its decision is no longer stored.
            Unavailable: STANDING_BY: another instance decides.
        """
        self._life.refuse_if_standing_by()
        session = self._life.ready_session()
        if session is not None:
            look = self._acting.guard.look
            waiting = await explain_waiting(session.ledger, self._acting.policy, look, session.now_s, job_id)
            if waiting is not None:
                return await self._thread.run(waiting.explained)
        entry = None if session is None else session.ledger.entries.get(job_id)
        paused = entry is not None and entry.phase is Phase.PAUSED
        decision = None if paused else self._acting.decisions.of_job(job_id)
        if decision is not None:
            return await self._thread.run(decision.explained)
        job = await self._store.get(job_id)
        if job.state is JobState.PENDING:
            return Decision(
                decision_id="",
                job_id=job_id,
                placement=NOWHERE,
                policy=self._acting.policy.name,
                time_s=self._life.now_s(),
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

    async def decision(self, decision_id: str) -> Decision:
        """A decision with its reasons; of one that another process made, what is stored of it.

        Raises:
            NotFound: unknown, or no longer stored.
            Unavailable: STANDING_BY: another instance decides.
        """
        self._life.refuse_if_standing_by()
        made = self._acting.decisions.find(decision_id)
        if made is not None:
            return await self._thread.run(made.explained)
        stored = None if self._stored is None else await self._stored.get(decision_id)
        if stored is None:
            raise NotFound(
                f"decision_id: {decision_id!r} is not known; the newest decisions are kept, and their ids are in "
                "the answers of WatchDecisions and ListDecisions",
                field="decision_id",
            )
        return stored

    async def waiting(self, job_id: str) -> WaitingExplanation:
        """Why a job waits, what its user could change, and when it is expected to start.

        A submitter is told of his own jobs only, and of no other user's.

        Raises:
            NotFound: no such job, or the caller may not see it.
            Conflict: NOT_WAITING: it runs, or has ended.
            Unavailable: STANDING_BY: another instance decides.
        """
        self._life.refuse_if_standing_by()
        session = self._life.ready_session()
        entry = None if session is None else session.ledger.entries.get(job_id)
        job = await self._store.get(job_id) if entry is None else entry.job
        caller = current_caller()
        sees_all = caller is None or caller.sees_all
        if caller is not None and not sees_all and job.spec.user != caller.user:
            raise not_found(job_id)
        if job.state is not JobState.PENDING:
            raise Conflict(
                f"job_id: {job_id} does not wait: it is {job.state.name.lower()}; "
                f"adlro describe job {job_id} tells more",
                field="job_id",
                reason="NOT_WAITING",
                metadata={"job_id": job_id, "state": job.state.name},
            )
        ledger = None if session is None else session.ledger
        rule = self._acting.policy.precedence
        told = await self._waits.explained(ledger, job, self._life.clock_now_s, rule)
        if sees_all or caller is None:
            return told
        own = await self._store.owned(caller.user, jobs_named_by(told))
        return explanation_without_others(told, own.__contains__)
