"""The core of a session: a state machine from inputs and their times to effects.

A job's state changes only at an event of the cluster, in order: a new job or another policy only requests a wake-up
from the cluster. A round of decisions that was cut short goes on after the events that came meanwhile, or without any.
Each event batch leads to one write (ends, intents to launch, and the revision up to which the cluster's log is
applied), then the launches, then the acknowledgement. The core awaits nothing, has no clock, and draws no random
numbers: the same inputs give the same effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adlro.decide.policies.base import Policy
from adlro.errors import Stale
from adlro.records.decisions import DecisionBasis
from adlro.records.events import NOT_BLOCKING, Clock, ClusterEvent, EventBatch, EventKind
from adlro.records.jobs import JobState
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.runtimes.predictions import Standing
from adlro.services.orchestrator.runtimes.refresh import RuntimeRefresh
from adlro.services.orchestrator.session.core import inputs
from adlro.services.orchestrator.session.core.arrivals import Arrivals
from adlro.services.orchestrator.session.core.effects import Effects, StopNow
from adlro.services.orchestrator.session.core.invariants import check
from adlro.services.orchestrator.session.core.launches import EndDue, LaunchDue, Launches, StopDue
from adlro.services.orchestrator.session.core.reasons import Reasons
from adlro.services.orchestrator.session.core.round import Round
from adlro.services.orchestrator.session.core.state import SessionState, Steps
from adlro.services.orchestrator.session.holding import Holding
from adlro.services.orchestrator.session.reconcile import Reconciled

# Events that may change a policy's decision end a hold. So does a job that joins the queue.
# A stop for another job is none: the policy asked for it. How long nothing has happened goes on, as in the simulator.
ENDS_HOLD = frozenset(EventKind) - NOT_BLOCKING - {EventKind.WAKE_UP, EventKind.PREEMPTED}


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Reminder: the last round was cut short, and the events that came meanwhile are applied."""


class Core:
    """One acting session, without its surroundings. The first input is `Begun`.

    Args:
        found: the reconciled records; the core changes them from now on.
        described: revision of the cluster's newest event when it was described.
        incarnation: the cluster's incarnation.
        token: the fencing token of the session's lease.
        clock: the cluster's clock.
        holding: whether a hold is in force.
        policy: the acting policy; `basis`: the basis of its last decision.
        decided: number of decisions by earlier sessions of this process.
        predictor: the state of the runtime predictor; `caught_up`: the oldest generation of its predictions here.
        learns_first: ended attempts are written in a script of their own before the decisions, so that a predictor can
            learn from them first. A service saves that script.
    """

    def __init__(
        self,
        found: Reconciled,
        described: int,
        incarnation: str,
        token: int,
        clock: Clock,
        holding: Holding,
        policy: Policy,
        basis: DecisionBasis = DecisionBasis.POLICY,
        *,
        decided: int = 0,
        predictor: Standing | None = None,
        caught_up: int | None = None,
        learns_first: bool = False,
    ) -> None:
        state = SessionState(
            found.record_changes,
            holding,
            incarnation,
            token,
            found.applied,
            found.now_s,
            clock,
            policy,
            basis,
            (found.reserved_job_id, found.reserved_since_s),
        )
        self._state = state
        self._found: Reconciled | None = found
        self._described = described
        self._vanished = found.vanished
        self._strays: list[tuple[str, int]] = []
        self._stopped: list[Entry] = []
        self._expectations = RuntimeRefresh(lambda: state.now, predictor or Standing(), caught_up)
        self._arrivals = Arrivals(state)
        self._launches = Launches(state, self._arrivals)
        self._round = Round(state, decided)
        self._reasons = Reasons(state)
        self._learns_first = learns_first
        self._round_due = False
        self._course: Steps[None] | None = None  # the course of steps that waits for the answer to its request
        self._begin_of: dict[type, Callable[[Any], Steps[None]]] = {
            inputs.Begun: self._begin,
            EventBatch: self._apply,
            inputs.Arrived: self._take_up,
            inputs.CancelRequested: self._cancel,
            inputs.Requested: self._ask,
            inputs.LaunchAnswered: self._launches.launch_answered,
            inputs.StopAnswered: self._launches.stop_answered,
            inputs.Reminded: self._remind,
            inputs.Quiet: lambda _: state.write(),
        }

    @property
    def ledger(self) -> Ledger:
        """The jobs on the GPUs and in the queue."""
        return self._state.ledger

    @property
    def applied(self) -> int:
        """Revision up to which the cluster's events are applied."""
        return self._state.applied

    @property
    def now_s(self) -> float:
        """Cluster time of `applied`."""
        return self._state.now_s

    def story(self, job_id: str) -> list[tuple[float, str]]:
        """A job's story: (cluster time, what happened), oldest first, as far as it is stored."""
        return self._state.story.of(job_id)

    def validate(self) -> None:
        """Checks that the parts of the state agree; for tests, after each step.

        Raises:
            AssertionError: on the first contradiction.
        """
        check(self._state, self._arrivals, self._launches, between=self._course is None)

    def step(self, given: inputs.Input, now: float) -> Effects:
        """Processes one input.

        Args:
            given: an event, or the answer to the request of the last step.
            now: seconds of a monotonic wall clock.

        Raises:
            Stale: the session is over; the next one starts from the stored records.
        """
        state = self._state
        state.now = now
        if isinstance(given, inputs.ANY_TIME):
            self._note(given)
            return state.take_effects()
        answer = None
        if isinstance(given, inputs.ANSWERS):
            answer = given
        else:
            assert self._course is None, "a request waits for its answer"
            self._course = self._begin_of[type(given)](given)
        assert self._course is not None, "an answer to no request"
        try:
            request = self._course.send(answer)  # type: ignore[arg-type]  # None begins it
        except StopIteration:
            self._course = request = None
        effects = state.take_effects()
        effects.request = request
        return effects

    # ---- at any time

    def _note(self, given: inputs.AnyTime) -> None:
        match given:
            case inputs.PolicyChanged(policy, basis):
                if policy.name != self._state.policy.name:
                    self.ledger.end_reservation()  # the policy that wanted it no longer decides
                self._state.policy, self._state.basis = policy, basis
            case inputs.Drained(nodes):
                self.ledger.set_drained(nodes)
            case inputs.SpeedsChanged(speed_of):
                self._expectations.gpu_speeds = speed_of
            case inputs.PairsChanged(pairs):
                self.ledger.set_pairs(pairs)
            case inputs.UserRulesChanged(rules):
                self.ledger.set_user_rules(rules)
                self._state.holding.ask_again()
            case inputs.AskAgain():
                self._state.holding.ask_again()

    # ---- the beginning

    def _begin(self, _: inputs.Begun) -> Steps[None]:
        state, found = self._state, self._found
        assert found is not None, "a session begins once"
        self._found = None
        self._lose_vanished()
        if not found.same:
            yield from state.write(state.cursor, always=True)
        # Their records are final, or on a later attempt: these attempts must not hold a GPU.
        for stray in found.unclaimed.values():
            state.warn("stopping an attempt without a record", job_id=stray.job_id, attempt=stray.attempt)
            yield StopNow(stray.job_id, stray.attempt)
        begins_s = self._arrivals.wait_for_begins(found.begins)
        self._reasons.refresh_later(0.0)
        yield from state.wake({0.0, *begins_s})
        # Launches that an earlier session has recorded and perhaps not sent; then events that it has applied and
        # perhaps not acknowledged. A virtual clock moves on at the acknowledgement, so the wake-ups come first.
        yield from self._launches.start(found.relaunch)

    # ---- jobs come and go

    def _take_up(self, given: inputs.Arrived) -> Steps[None]:
        self._expectations.heard(given.predictor)
        yield from self._arrivals.take_up(given.jobs)

    def _cancel(self, given: inputs.CancelRequested) -> Steps[None]:
        entry = self.ledger.entries.get(given.job_id)
        if entry is None:
            return
        entry.job = transitions.cancel_requested(entry.job)
        self._state.note(given.job_id, "its end is asked for")
        if entry.phase is Phase.PLACED:
            self._launches.stop(given.job_id, entry.job.attempt_count)
        else:
            yield from self._arrivals.cancel(given.job_id)

    def _ask(self, given: inputs.Requested) -> Steps[None]:
        if given.job_id in self.ledger.entries:
            yield from self._arrivals.ask(given.job_id, given.requests)

    def _remind(self, given: inputs.Reminded) -> Steps[None]:
        if isinstance(given.of, LaunchDue | StopDue | EndDue):
            yield from self._launches.reminded(given.of)
        elif isinstance(given.of, RoundDue):
            self._round_due = False
            yield from self._decide()
        else:
            yield from self._reasons.refresh()

    # ---- the cluster's events

    def _apply(self, batch: EventBatch) -> Steps[None]:
        state = self._state
        state.use_clock(batch.clock)
        events = [event for event in batch.events if event.revision > state.applied]
        if not events:
            return
        for event in events:
            if event.kind in ENDS_HOLD:
                state.holding.happened(event.time_s)
            elif event.kind is EventKind.PREEMPTED:
                # A stop at once follows its decision, and no hold is in force. A later one frees GPUs during one.
                state.holding.ask_again()
            elif event.kind is EventKind.WAKE_UP:
                state.holding.woken(event.time_s)
            self._apply_event(event)
        state.applied = events[-1].revision
        state.now_s = max(state.now_s, events[-1].time_s)
        self._stop_strays()
        stopped, self._stopped = self._stopped, []
        for entry in stopped:
            yield from self._launches.refuse(entry, entry.job.attempts[-1].outcome, stops_asked=True)
        yield from self._launches.take_back()
        self._lose_vanished()
        self._launches.tell_who_waits()
        if all(event.kind in NOT_BLOCKING for event in events):
            return  # written with the next batch, or at `Quiet`
        if self._learns_first:
            yield from state.write()
        yield from self._decide()

    def _decide(self) -> Steps[None]:
        """Lets jobs join the queue, decides, and launches."""
        state = self._state
        fresh, begun = yield from self._arrivals.join_queue()
        if (yield from self._expectations.bring_up_to_date(self.ledger, begun, virtual=state.virtual)):
            state.holding.ask_again()  # by the new predictions a hold may no longer pay
        self._expectations.use_gpu_speeds(self.ledger)
        # Where a launch stops others at this moment, no round begins before they are in the queue. Their ends, a
        # refusal and a missing answer lead to another round.
        picks = [] if self._launches.stops_at_once else (yield from self._round.decide())
        yield from self._reasons.tell([entry for entry in fresh if entry.phase is Phase.QUEUED])
        yield from self._reasons.tell_reservation()
        yield from state.write(state.cursor)
        wake_up_s = state.holding.next_wake_up_s(state.now_s)
        if any(entry.victims for entry in picks) and not state.virtual:
            wake_up_s = 0.0  # the round is over; others may start now, while the stopped jobs end
        elif self._round.is_cut and not self._round_due:
            self._round_due = True
            state.remind(0.0, RoundDue())
        yield from self._launches.start(picks, wake_up_s)
        if self.ledger.queue_length:
            self._reasons.refresh_later()

    def _apply_event(self, event: ClusterEvent) -> None:
        if event.kind in (EventKind.GPU_LOST, EventKind.GPU_BACK):
            if event.revision > self._described:  # the description includes older ones
                self.ledger.set_lost({event.gpu_id: event.message}, event.kind is EventKind.GPU_LOST)
            return
        if event.kind is EventKind.CLUSTER_CHANGED:
            if event.revision > self._described:
                raise Stale("nodes or GPUs of the cluster joined or left; the next session begins with those it has")
            return
        entry = self.ledger.entries.get(event.job_id)
        if entry is None or not entry.is_placed(event.attempt):
            if event.kind is EventKind.STARTED and event.revision > self._described:
                self._strays.append((event.job_id, event.attempt))
            return  # an event of an attempt that was given up
        record_changes, job = self._state.record_changes, entry.job
        match event.kind:
            case EventKind.STARTED:
                if job.state is JobState.PENDING:
                    record_changes.record(entry, transitions.started(job, event.time_s))
                    self.ledger.runs_since(entry, event.time_s)
            case EventKind.RUNNING:
                if job.state is JobState.RUNNING and job.attempts[-1].run_s is None:
                    running = transitions.program_runs(job, event.time_s)
                    record_changes.record(entry, running)
                    self.ledger.program_runs(entry, running.attempts[-1].run_s or event.time_s)
            case EventKind.FINISHED:
                record_changes.end(entry, transitions.succeeded(job, event.time_s, event.exit), learn=True)
                self._expectations.ended()
            case EventKind.FAILED:
                failed = transitions.failed(job, event.time_s, event.message, event.exit)
                record_changes.end(entry, failed, learn=True)
            case EventKind.STOPPED if transitions.is_given_up(job) and not job.cancel_requested:
                self._stopped.append(entry)  # stopped by this orchestrator, whose launch had no answer
            case EventKind.STOPPED:
                record_changes.end(entry, transitions.stopped(job, event.time_s, event.exit), learn=False)
            case EventKind.PREEMPTED:
                record_changes.preempt(entry, event.time_s, event.message, event.remaining_ratio, event.exit)
            case EventKind.LOST:
                why = event.message or ("" if event.exit is not None else "its GPU was lost")
                record_changes.lose(entry, why, event.time_s, exit_status=event.exit)

    def _stop_strays(self) -> None:
        """Stops attempts that started after they were given up: they hold GPUs that the ledger counts as idle."""
        strays, self._strays = self._strays, []
        for job_id, attempt in strays:
            self._state.warn("stopping an attempt that was given up", job_id=job_id, attempt=attempt)
            self._launches.stop(job_id, attempt)

    def _lose_vanished(self) -> None:
        """Loses attempts that no longer run, and whose end event came while their records were unreadable."""
        if self._state.applied < self._described:
            return
        vanished, self._vanished = self._vanished, []
        for entry, attempt in vanished:
            if entry.is_placed(attempt):
                self._state.holding.ask_again()
                gone = any(each not in self.ledger.layout.gpu_number for each in entry.job.placement.gpu_ids)
                why = "its GPU left the cluster" if gone else "it ended while its record could not be read"
                self._state.record_changes.lose(entry, why, self._state.now_s, excused=True)
