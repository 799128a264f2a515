"""The states of launches and stops under way, and the acknowledgement of events. No I/O.

The launches of a moment are sent together with the wake-up that ends a hold. The acknowledgement, on which a virtual
clock waits, follows both, and acknowledgements keep the order of the moments. An acknowledgement waits for a late
answer only until the deadline of the first call; where a launch waits for the answers to others, of that after these.

A launch that is refused, or gets no answer, affects only its job. If an answer does not show whether the attempt runs,
the call is repeated; then the attempt is given up: it is recorded as such and stopped, and the job is queued again only
after its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from adlro.errors import Stale
from adlro.records.events import AttemptState
from adlro.records.jobs import Job, JobState
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.preempting import refs
from adlro.services.orchestrator.ports import REFUSED_PAIR, REFUSED_SHARES
from adlro.services.orchestrator.session.core import effects
from adlro.services.orchestrator.session.core.arrivals import Arrivals
from adlro.services.orchestrator.session.core.inputs import (
    Accepted,
    CannotEnd,
    LaunchAnswered,
    LogEnds,
    Refused,
    StopAnswered,
    Unanswered,
)
from adlro.services.orchestrator.session.core.state import SessionState, Steps

# Launch calls without an answer after which an attempt is given up.
LAUNCH_TRIES = 3
# Pause in seconds before a launch or a stop is repeated; it doubles up to the second value.
AGAIN_S, MOST_AGAIN_S = 0.5, 30.0
# Seconds to wait for an attempt's end event after the cluster's answer that it ends it: a program may end slowly.
END_PATIENCE_S = 30.0
# Pauses in cluster time before a refused job is launched again; the last one repeats.
REFUSAL_PAUSES_S = (0.0, 5.0, 15.0, 45.0, 120.0)

Key = tuple[str, int]
"""A job and its attempt."""


@dataclass(frozen=True, slots=True)
class LaunchDue:
    """Reminder: a launch without an answer is due again."""

    key: Key


@dataclass(frozen=True, slots=True)
class StopDue:
    """Reminder: a stop without an answer is due again."""

    number: int


@dataclass(frozen=True, slots=True)
class EndDue:
    """Reminder: an attempt that has ended, or should have, is released if no event up to now reports its end."""

    key: Key


@dataclass(slots=True, eq=False)
class Moment:
    """Applied events; `open_count`: launches and wake-ups that the acknowledgement waits for."""

    revision: int
    open_count: int = 0


@dataclass(slots=True, eq=False)
class Flight:
    """A launch that is under way.

    Attributes:
        entry: the job's ledger entry.
        job: its record when the launch was decided.
        applied: revision of the newest event known at that time.
        moment: the moment that waits for this launch; None: no longer any.
        after: launches, decided at the same moment, whose answers it waits for: of jobs that it stops, and of the one
            whose GPU it shares.
        tries: calls so far.
        why: the reason of the missing answer, for people.
    """

    entry: Entry
    job: Job
    applied: int
    moment: Moment | None
    after: set[Key] = field(default_factory=set)
    tries: int = 1
    why: str = ""

    @property
    def key(self) -> Key:
        """The job and its attempt."""
        return (self.job.job_id, self.job.attempt_count)

    @property
    def is_open(self) -> bool:
        """Whether nothing is known of the attempt yet."""
        return self.entry.is_open(self.job.attempt_count)


@dataclass(slots=True, eq=False)
class Stopping:
    """A stop that is under way.

    Attributes:
        key: the attempt to stop.
        flight: the launch that waits for this stop, if any.
        gives_up: the attempt is given up: its job is queued again after its end.
        tries: calls so far.
        pause_s: pause before the next call.
    """

    key: Key
    flight: Flight | None
    gives_up: bool
    tries: int = 1
    pause_s: float = AGAIN_S


class Launches:
    """The launches of one session.

    Args:
        state: the session's state.
        arrivals: the jobs that join the queue.
    """

    def __init__(self, state: SessionState, arrivals: Arrivals) -> None:
        self.flights: dict[Key, Flight] = {}
        self.stops: dict[int, Stopping] = {}
        self.moments: deque[Moment] = deque()
        self._state = state
        self._arrivals = arrivals
        self._stop_count = 0
        self._stopped_by = 0  # revision up to which the log has the ends of jobs that were stopped for launches
        self._waiting: dict[str, Entry] = {}  # accepted launches that wait for the ends of jobs
        self._over: list[tuple[int, Flight]] = []  # with the revision up to which the log is to be applied first

    @property
    def stops_at_once(self) -> bool:
        """Whether a launch stops others at this moment of a virtual clock.

        The clock waits for its answer, or the events of their ends are still to be applied.
        """
        waits = (flight.entry.victims for flight in self.flights.values() if flight.moment is not None)
        return self._state.virtual and (self._state.applied < self._stopped_by or any(waits))

    def start(self, picks: Sequence[Entry], wake_up_s: float | None = None) -> Steps[None]:
        """Launches decided and recorded attempts; acknowledges the newest applied event.

        Args:
            wake_up_s: cluster time of a wake-up; None: no wake-up.
        """
        state = self._state
        moment = Moment(state.applied, len(picks))
        self.moments.append(moment)
        for entry in picks:
            flight = Flight(entry, entry.job, state.applied, moment)
            self.flights[flight.key] = flight
        for entry in picks:
            yield from self._begin(self.flights[entry.job.job_id, entry.job.attempt_count])
        if wake_up_s is not None:
            moment.open_count += 1
            yield from state.wake([wake_up_s])
            moment.open_count -= 1
        self._acknowledge()

    def stop(self, job_id: str, attempt: int, flight: Flight | None = None, *, gives_up: bool = False) -> None:
        """Stops an attempt; repeats the call until the cluster answers."""
        self._stop_count += 1
        self.stops[self._stop_count] = Stopping((job_id, attempt), flight, gives_up)
        self._stop(self._stop_count)

    # ---- answers

    def launch_answered(self, given: LaunchAnswered) -> Steps[None]:
        """Applies the cluster's answer to a launch, or its absence."""
        flight = self.flights[given.job_id, given.attempt]
        yield from self._answered(flight, given.answer)
        self._launch_after(flight.key)

    def _answered(self, flight: Flight, answer: Accepted | Refused | Unanswered) -> Steps[None]:
        match answer:
            case Refused(why, False) if flight.tries > 1:  # the cluster may have accepted an earlier call
                yield from self._unanswered(flight, f"the last was refused: {why}")
            case Refused(why, final, retry_after_s, others, reason):
                if flight.is_open:
                    ledger = self._state.ledger
                    if reason == REFUSED_PAIR:
                        ledger.refuse_pair(flight.entry)
                    # A part that was written down when the cluster still gave parts.
                    excused = others or (reason == REFUSED_SHARES and not ledger.shares)
                    yield from self.refuse(flight.entry, why, retry_after_s, final=final, excused=excused)
                self._forget(flight)
            case Unanswered(why):
                yield from self._unanswered(flight, why)
            case Accepted() as accepted:
                yield from self._accepted(flight, accepted)

    def stop_answered(self, given: StopAnswered) -> Steps[None]:
        """Applies the cluster's answer to a stop, or its absence."""
        stopping = self.stops[given.number]
        flight = stopping.flight
        if isinstance(given.answer, Unanswered):  # the event stream shows whether the cluster is away
            if flight is not None:
                self._settle(flight)
            self._state.remind(stopping.pause_s, StopDue(given.number))
            stopping.pause_s = min(2.0 * stopping.pause_s, MOST_AGAIN_S)
            return
        del self.stops[given.number]
        cannot_end = isinstance(given.answer, CannotEnd)
        if cannot_end:
            yield from self._tell_it_runs_on(*stopping.key)
        if flight is not None and not stopping.gives_up:
            self._forget(flight)
        elif flight is not None and cannot_end and not flight.entry.job.cancel_requested:
            # An accepted attempt runs to its own end. Another launch call shows whether the cluster has accepted it: a
            # refusal now means that it has not.
            flight.tries = 0
            self._state.remind(END_PATIENCE_S, LaunchDue(flight.key))
        elif flight is not None:
            # The next attempt begins only after this one's end event. A cluster that finds nothing to stop may be
            # ending it after an earlier call: a try of this stop, the user's cancel, or one of an earlier session.
            earlier = stopping.tries > 1 or flight.entry.job.cancel_requested or transitions.is_given_up(flight.job)
            ends = given.answer or earlier
            self._state.remind(END_PATIENCE_S if ends else AGAIN_S, EndDue(flight.key))

    def reminded(self, of: LaunchDue | StopDue | EndDue) -> Steps[None]:
        """Acts on a reminder that is due."""
        match of:
            case LaunchDue(key):
                yield from self._go_on(self.flights[key])
            case StopDue(number):
                self.stops[number].tries += 1
                self._stop(number)
            case EndDue(key):
                flight, revision = self.flights[key], self._state.applied
                if flight.is_open:  # its end event may be in the log, not applied yet
                    newest = yield effects.Newest()
                    assert isinstance(newest, LogEnds)
                    revision = newest.revision
                self._over.append((revision, flight))
                yield from self.take_back()

    # ---- releasing attempts

    def take_back(self) -> Steps[None]:
        """Releases ended attempts whose part of the cluster's log is applied."""
        applied = self._state.applied
        over = [flight for revision, flight in self._over if revision <= applied]
        self._over = [each for each in self._over if each[0] > applied]
        for flight in over:
            if flight.is_open:
                yield from self.refuse(flight.entry, flight.why)
            self._forget(flight)

    def refuse(
        self,
        entry: Entry,
        why: str,
        retry_after_s: float = 0.0,
        *,
        final: bool = False,
        excused: bool = False,
        stops_asked: bool = False,
    ) -> Steps[None]:
        """Lets the job wait, with a pause that grows with each refusal, or fail; releases its GPUs.

        Args:
            excused: the attempt does not count: other jobs are the reason.
            stops_asked: the cluster had accepted it, and stops the jobs that were to make room nevertheless.
        """
        state, job = self._state, entry.job
        state.warn(
            "launch refused",
            job_id=job.job_id,
            attempt=job.attempt_count,
            gpu_ids=str(job.placement),
            why=why,
            final=final,
        )
        present_s = yield from state.wake([0.0])  # other jobs may have waited for its GPUs
        pause_s = REFUSAL_PAUSES_S[min(transitions.refusals_in_a_row(job), len(REFUSAL_PAUSES_S) - 1)]
        retry_s = present_s + max(pause_s, retry_after_s)
        if state.record_changes.refuse(
            entry, why, present_s, retry_s, final=final, excused=excused, stops_asked=stops_asked
        ):
            self._arrivals.wait_until(retry_s, entry)
            yield from state.wake([retry_s])
        state.holding.ask_again()
        yield from state.write()

    def tell_who_waits(self) -> None:
        """Records for whose ends an accepted launch still waits, where that has changed."""
        for entry in list(self._waiting.values()):
            if not entry.is_open(entry.job.attempt_count):
                del self._waiting[entry.job.job_id]
                continue
            job = transitions.waits_for(entry.job, refs(entry.victims))
            if job != entry.job:
                self._state.record(entry, job)

    def _tell_of_stops(self, flight: Flight) -> Steps[None]:
        """The users of jobs that are being stopped are told so, where that takes time."""
        state, entry = self._state, flight.entry
        if not entry.victims or not flight.is_open:
            return
        self._waiting[entry.job.job_id] = entry
        for victim in entry.victims:
            job = transitions.being_stopped(victim.job, entry.job.job_id)
            if victim.job.state is JobState.RUNNING and job != victim.job:
                state.record(victim, job)
        yield from state.write()

    def _unanswered(self, flight: Flight, why: str) -> Steps[None]:
        if self.stops_at_once:
            yield from self._state.wake([0.0])  # the clock does not wait any longer, nor does anybody else
        self._settle(flight)
        flight.why = f"no answer to {flight.tries} of {LAUNCH_TRIES} launches ({why})"
        if not flight.is_open or flight.tries == LAUNCH_TRIES:
            yield from self._go_on(flight)
            return
        state, entry = self._state, flight.entry
        state.record(entry, transitions.unanswered(entry.job, flight.why))
        yield from state.write()
        state.remind(AGAIN_S, LaunchDue(flight.key))

    def _go_on(self, flight: Flight) -> Steps[None]:
        """Repeats a launch that got no answer, after its pause, or gives it up."""
        state, entry = self._state, flight.entry
        if not flight.is_open:  # events have reported its fate
            if entry.job.cancel_requested and entry.is_placed(flight.job.attempt_count):
                self.stop(*flight.key)  # an earlier stop came before the attempt started
            self._forget(flight)
        elif flight.tries == LAUNCH_TRIES or entry.job.cancel_requested:
            state.record(entry, transitions.unanswered(entry.job, flight.why, given_up=True))
            yield from state.write()
            self.stop(*flight.key, flight, gives_up=True)
        else:
            flight.tries += 1
            self._launch(flight)

    def _accepted(self, flight: Flight, accepted: Accepted) -> Steps[None]:
        if 0 < accepted.revision <= flight.applied:
            # The attempt started before this launch: the store has lost its record. Its events will not come again, so
            # nothing would ever report its end.
            why = "it was started before, and forgotten since"
            if flight.is_open:
                yield from self.refuse(flight.entry, why)
            raise Stale(f"the cluster runs attempt {flight.job.attempt_count} of {flight.job.job_id}: {why}")
        if accepted.state is AttemptState.ENDED and not accepted.revision:
            # The attempt ended without a start. Its end event may still be on its way; or it was sent before this
            # launch was decided, to a session whose records the store has lost.
            flight.why = "it ended before, without a start, and was forgotten since"
            self._state.remind(AGAIN_S, EndDue(flight.key))
        elif flight.entry.job.cancel_requested:
            # An earlier stop may have arrived before the launch, and found nothing to stop.
            self.stop(*flight.key, flight)
        else:
            if accepted.state is AttemptState.ACCEPTED:
                yield from self._tell_of_stops(flight)
            elif flight.entry.victims:
                self._stopped_by = max(self._stopped_by, accepted.revision)
            self._forget(flight)

    def _tell_it_runs_on(self, job_id: str, attempt: int) -> Steps[None]:
        """The user is told once that what they cancelled runs on."""
        state, entry = self._state, self._state.ledger.entries.get(job_id)
        if entry is None or not entry.is_placed(attempt) or not entry.job.cancel_requested:
            return
        job = transitions.runs_on(entry.job)
        if job != entry.job:
            state.record(entry, job)
            yield from state.write()

    # ---- bookkeeping

    def _begin(self, flight: Flight) -> Steps[None]:
        """Launches a recorded attempt, or lets it wait for the answers to launches of jobs that it stops."""
        preempts = flight.job.attempts[-1].preempts
        flight.after = {(ref.job_id, ref.attempt) for ref in preempts} & self.flights.keys()
        mate = flight.entry.mate
        if mate is not None and self._state.ledger.is_second(flight.entry):
            first = self.flights.get((mate.job.job_id, mate.job.attempt_count))
            # One of an earlier moment is in trouble, and it may take long to get out of it.
            if first is not None and first.moment is flight.moment:
                flight.after.add(first.key)
        if preempts and flight.job.cancel_requested:
            # By an earlier session, which perhaps sent it: no job is to be stopped for it now. As without an answer.
            flight.tries, flight.why = LAUNCH_TRIES, "its user has cancelled it"
            self._settle(flight)
            yield from self._go_on(flight)
        elif not flight.after:
            self._launch(flight)

    def _launch(self, flight: Flight) -> None:
        job = flight.job
        self._state.note(job.job_id, f"launch {flight.tries} of attempt {job.attempt_count}")
        order = effects.Launch(
            *flight.key, job.spec, job.placement, job.attempts[-1].preempts, job.remaining_ratio, job.resumes
        )
        self._state.effects.launches.append(order)

    def _stop(self, number: int) -> None:
        job_id, attempt = self.stops[number].key
        self._state.note(job_id, f"stop of attempt {attempt}")
        self._state.effects.stops.append(effects.Stop(number, job_id, attempt))

    def _launch_after(self, key: Key) -> None:
        """Launches what waited for an answer. Whichever it was: the cluster refuses to stop what it has not started."""
        for later in [each for each in self.flights.values() if key in each.after]:
            later.after.remove(key)
            if not later.after:
                self._launch(later)

    def _forget(self, flight: Flight) -> None:
        self._settle(flight)
        del self.flights[flight.key]
        self._launch_after(flight.key)

    def _settle(self, flight: Flight) -> None:
        """Ends the acknowledgement's wait for this launch."""
        if flight.moment is not None:
            flight.moment.open_count -= 1
            flight.moment = None
            self._acknowledge()

    def _acknowledge(self) -> None:
        while self.moments and not self.moments[0].open_count:
            self._state.effects.acknowledge = self.moments.popleft().revision
