"""The rules of ClusterService together: launches, stops, events and stored state. Plain: no gRPC.

Nothing here waits or sleeps. Every call first lets the driver report due events, then acts at the present
cluster time, then lets the driver continue.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from adlro.clusterside.attempts import OUTCOMES_KEPT, Attempt, Attempts, check_preemptible
from adlro.clusterside.driver import Driver
from adlro.clusterside.event_log import EVENTS_KEPT, EventLog
from adlro.clusterside.fencing import Fence
from adlro.clusterside.journal import Journal
from adlro.clusterside.kept import Changes, Kept
from adlro.clusterside.timers import Timers
from adlro.clusterside.wake_ups import WakeUps
from adlro.errors import AdlroError, Unsupported
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import (
    ENDS,
    NOT_BLOCKING,
    AttemptState,
    Clock,
    ClusterDescription,
    ClusterEvent,
    EventKind,
)
from adlro.records.jobs import AttemptRef, JobSpec

# So many events, and all that are not acknowledged, survive a restart.
EVENTS_WRITTEN_DOWN = 10_000


@dataclass(frozen=True, slots=True)
class Launched:
    """The answer to a launch: `existing`: this attempt was launched before; 0 for a start to come."""

    existing: bool
    start_s: float
    revision: int
    state: AttemptState


class ClusterSide:
    """A cluster as ClusterService presents it.

    Attributes:
        log: its events.
        fence: checks fencing tokens.
        wake_ups: requested wake-up times.
        attempts: launched attempts.
        event_counts: events by kind.
        journal: stores changes; None: no journal.

    Args:
        driver: starts and ends attempts, and keeps the time.
        timers: wall time and callbacks.
        incarnation: of its event log; empty: a new one.
        events_kept: stored events, beyond unacknowledged ones.
        outcomes_kept: stored ended attempts, beyond unacknowledged ones.
        written_down: events are sent only after a journal has stored them.
    """

    def __init__(
        self,
        driver: Driver,
        timers: Timers,
        *,
        incarnation: str = "",
        events_kept: int = EVENTS_KEPT,
        outcomes_kept: int = OUTCOMES_KEPT,
        written_down: bool = False,
    ) -> None:
        self.driver = driver
        self.journal: Journal | None = None
        self.log = EventLog(incarnation or uuid.uuid4().hex, events_kept, held_back=written_down)
        self.fence = Fence()
        self.wake_ups = WakeUps()
        self.attempts = Attempts(driver.cluster, outcomes_kept)
        self.event_counts: Counter[EventKind] = Counter()
        # Accepted attempts that start when others have ended: the driver does not know them yet.
        self._waiting: dict[str, Attempt] = {}
        self._last_blocking = 0
        self._sent_revision = 0
        self._sent_cluster: Cluster | None = None
        driver.attach(self, timers)

    # ---- what others ask for

    def describe(self) -> ClusterDescription:
        """The cluster and its state, at one moment."""
        now_s = self.driver.present_s()
        return ClusterDescription(
            cluster=self.driver.cluster,
            running=self.attempts.running,
            lost_gpu_ids=self.attempts.lost_gpu_ids,
            clock=self.driver.clock(now_s),
            incarnation=self.log.incarnation,
            revision=self.log.revision,
            oldest_revision=self.log.oldest_revision,
            fencing_token=self.fence.spent,
            capabilities=self.driver.capabilities,
            gpu_conditions=tuple(self.driver.gpu_conditions()),
        )

    def launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        fencing_token: int,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        """Accepts an attempt of a job on all GPUs of a placement, or refuses it and changes nothing.

        With `preempts` it is accepted together with the stops of these attempts, and starts when the last of them has
        ended. A repeated launch gives the first answer, also after the attempt's end.

        Args:
            job_id: the job.
            attempt: its number.
            spec: the job's requirements.
            placement: its GPUs.
            fencing_token: of the caller's lease.
            preempts: running attempts of other jobs that are stopped to make room.
            remaining_ratio: the share of the job's work that is still to be done.
            resumes: an earlier attempt of the job was preempted.

        Raises:
            Unsupported: the cluster has no such placements (`gangs`, `shares` of its capabilities), or no `preemption`.
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN; OLD_ATTEMPT: a later one is known;
                ATTEMPT_ON_OTHER_GPU; JOB_RUNNING; NOT_RUNNING, NOT_PREEMPTIBLE; and the refusals of a job that does not
                fit when those are gone.
            NotFound: no such GPU.
        """
        self._check_offered(placement)
        if preempts:
            self._check_preemption("preempts")
        self.fence.check(fencing_token)
        self.driver.present_s()
        known = self.attempts.known(job_id, attempt, placement)
        if known is not None:
            return Launched(True, known.start_s, known.start_revision, known.state)
        victims = self.attempts.victims(job_id, preempts)
        self.attempts.check(job_id, spec, placement, victims)
        made = Attempt(
            job_id,
            attempt,
            placement,
            spec,
            preempts=tuple(preempts),
            remaining_ratio=remaining_ratio,
            resumes=resumes,
        )
        before = self.attempts.accept(made)
        self._touch()
        try:
            if victims:
                self._waiting[job_id] = made
                self.driver.preempt(made, victims)
            else:
                self.driver.launch(made)
        except AdlroError:
            self._waiting.pop(job_id, None)
            self.attempts.withdraw(made, before)
            raise
        launched = Launched(False, made.start_s, made.start_revision, made.state)
        self.driver.go_on()
        return launched

    def _check_offered(self, placement: Placement) -> None:
        can, name = self.driver.capabilities, self.driver.cluster.name
        if len(placement.gpus) > 1 and not can.gangs:
            raise Unsupported(
                f"placement: cluster '{name}' runs no jobs of several GPUs; ask for one GPU",
                field="placement",
                reason="NO_GANGS",
            )
        if not placement.whole and not can.shares:
            raise Unsupported(
                f"placement: cluster '{name}' gives whole GPUs only; name them with share 1",
                field="placement",
                reason="NO_SHARES",
            )

    def _check_preemption(self, field: str) -> None:
        if not self.driver.capabilities.preemption:
            raise Unsupported(
                f"{field}: cluster '{self.driver.cluster.name}' can't stop a job for another one: it lacks the "
                "capability `preemption`",
                field=field,
                reason="NO_PREEMPTION",
            )

    def stop(self, job_id: str, attempt: int, fencing_token: int, *, preempt: bool = False) -> bool:
        """Stops an attempt (0: the open one); False if it is not open (any more), or its stop is already requested.

        A stop without `preempt` of an attempt that was preempted, and has not ended, makes it end as STOPPED.

        Raises:
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN; with `preempt`: NOT_RUNNING: it has not started;
                NOT_PREEMPTIBLE.
            Unsupported: the cluster can't stop running attempts, or not preempt them.
        """
        self.fence.check(fencing_token)
        if not self.driver.capabilities.stop:
            raise Unsupported(
                f"cluster '{self.driver.cluster.name}' can't stop a running attempt: attempts end by themselves"
            )
        if preempt:
            self._check_preemption("preempt")
        self.driver.present_s()
        known = self.attempts.open_attempt(job_id)
        if known is None or attempt not in (0, known.attempt):
            return False
        if known.stop_asked:
            if preempt or not known.preempt_asked:
                return False
            known.preempt_asked = False
            self.attempts.changed(known)
            self._touch()
            return True
        if preempt:
            check_preemptible(known, field="preempt")
        if self.is_waiting(known):
            self._tell(EventKind.STOPPED, known, "stopped before it started")
        else:
            known.stop_asked, known.preempt_asked = True, preempt
            self.attempts.changed(known)
            self._touch()
            try:
                self.driver.stop(known)
            except AdlroError:
                known.stop_asked = known.preempt_asked = False
                raise
        self.driver.go_on()
        return True

    def acknowledge(self, incarnation: str, revision: int, fencing_token: int) -> None:
        """Acknowledges all events up to a revision; a virtual clock may continue.

        Raises:
            Stale: another incarnation.
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN.
            OutOfRange: no such event yet.
        """
        self.log.check_incarnation(incarnation)
        self.fence.check(fencing_token)
        self.log.acknowledge(revision)
        self.attempts.forget(self.log.acknowledged)
        self.driver.go_on()

    def wake_at(self, times_s: Sequence[float]) -> Clock:
        """Requests WAKE_UP events; all times in the past together give one event now, paused or not.

        Returns:
            The clock at the call: times up to it have passed.
        """
        now_s = self.driver.present_s()
        clock = self.driver.clock(now_s)
        self.wake_ups.add(time_s for time_s in times_s if time_s > now_s)
        if self.wake_ups.new:
            self._touch()
        if min(times_s) <= now_s:
            self.emit([ClusterEvent(0, EventKind.WAKE_UP, now_s)])
        self.driver.go_on()
        return clock

    def close(self) -> None:
        """Ends all followers of the log."""
        self.log.close()

    # ---- what is kept

    def restore(self, kept: Kept) -> None:
        """Restores the journaled state; called before all other methods."""
        self.log.restore(kept.incarnation, kept.batches, kept.revision, kept.acknowledged)
        self.attempts.restore(kept.cluster, kept.attempts, kept.lost_gpu_ids)
        waiting = (each for each in self.attempts.open_attempts if self.attempts.waits_for(each))
        self._waiting = {each.job_id: each for each in waiting}
        self.wake_ups.add(kept.wake_ups_s)
        self.wake_ups.new.clear()
        self.fence = Fence(kept.token)
        self._sent_revision = kept.revision
        events = (event for batch in kept.batches for event in batch.events)
        self._last_blocking = max((event.revision for event in events if event.kind not in NOT_BLOCKING), default=0)

    def collect(self, whole: bool) -> Changes:
        """The changes to journal: those since the last call, or the whole state."""
        log, wake_ups = self.log, self.wake_ups
        first_revision = max(min(log.acknowledged, log.revision - EVENTS_WRITTEN_DOWN), 0) + 1
        after = first_revision - 1 if whole else self._sent_revision
        self._sent_revision = log.revision
        cluster = None if not whole and self.driver.cluster is self._sent_cluster else self.driver.cluster
        self._sent_cluster = self.driver.cluster
        changed = self.attempts.take_changes()
        new_wake_ups, wake_ups.new = wake_ups.new, []
        return Changes(
            whole=whole,
            incarnation=log.incarnation,
            revision=log.revision,
            acknowledged=log.acknowledged,
            token=self.fence.used,
            lost_gpu_ids=self.attempts.lost_gpu_ids,
            note=self.driver.note(),
            first_revision=first_revision,
            cluster=cluster,
            batches=log.after(after),
            attempts=dict(self.attempts.all_known) if whole else changed,
            wake_ups_s=wake_ups.times_s if whole else new_wake_ups,
            woken_s=-math.inf if whole else wake_ups.taken_s,
        )

    def written(self, changes: Changes) -> None:
        """Sends the events of stored changes."""
        self.log.tell(changes.revision)

    async def settled(self) -> None:
        """Returns when all changes until now are journaled, and so survive this process.

        Raises:
            Unavailable: the store does not accept the journal.
        """
        if self.journal is not None:
            await self.journal.settled()

    def _touch(self) -> None:
        if self.journal is not None:
            self.journal.touch()

    # ---- what the driver tells

    @property
    def told_s(self) -> float | None:
        """Cluster time of the newest sent event if there are unsent ones; otherwise None."""
        return self.log.told_s if self.log.told_revision < self.log.revision else None

    @property
    def waits(self) -> bool:
        """Whether an event that may change the orchestrator's decisions is unacknowledged."""
        return self.log.acknowledged < self._last_blocking

    def open_attempts(self) -> Sequence[Attempt]:
        """The open attempts."""
        return self.attempts.open_attempts

    def is_open(self, attempt: Attempt) -> bool:
        """Whether this attempt is open."""
        return self.attempts.open_attempt(attempt.job_id) is attempt

    def is_waiting(self, attempt: Attempt) -> bool:
        """See `Side`."""
        return self._waiting.get(attempt.job_id) is attempt

    def preemptor_of(self, attempt: Attempt) -> Attempt | None:
        """See `Side`."""
        return self.attempts.waiting_for(attempt)

    @property
    def incarnation(self) -> str:
        """Of the event log."""
        return self.log.incarnation

    def knows(self, job_id: str, attempt: int) -> bool:
        """Whether the record has this attempt of a job, or a later one."""
        known = self.attempts.all_known.get(job_id)
        return known is not None and known.attempt >= attempt

    def is_over(self, job_id: str, attempt: int) -> bool:
        """Whether nobody asks for this attempt any more: its end is acknowledged, or the record does not have it."""
        known = self.attempts.all_known.get(job_id)
        if known is None or known.attempt != attempt:
            return True
        return 0 < known.end_revision <= self.log.acknowledged

    def renew_note(self, job_id: str, note: str) -> None:
        """See `Side`."""
        attempt = self.attempts.open_attempt(job_id)
        if attempt is not None:
            attempt.note = note
            self.attempts.changed(attempt)

    def adopt(self, attempt: Attempt) -> bool:
        """See `Side`."""
        if self.knows(attempt.job_id, attempt.attempt) or not self.attempts.adopt(attempt):
            return False
        self._touch()
        return True

    def emit(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        """Appends the events of one moment; returns them with their revisions."""
        numbered = self._append(events)
        if self._waiting:
            self._go_on_with_waiting()
        return numbered

    def change_cluster(self, cluster: Cluster) -> None:
        """Changes nodes and GPUs: open attempts on removed ones are lost, and all watchers get the change."""
        now_s = self.driver.present_s()
        lost = [
            ClusterEvent(0, EventKind.LOST, now_s, each.job_id, each.attempt, each.placement, f"GPU {gone} left")
            for each, gone in self.attempts.outside(cluster)
        ]
        self.driver.cluster = cluster
        self._append([*lost, ClusterEvent(0, EventKind.CLUSTER_CHANGED, now_s)])
        self.attempts.set_cluster(cluster)
        self._go_on_with_waiting()
        self.driver.go_on()

    def _append(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        if not events:
            return events
        numbered = self.log.append(events, self.driver.clock())
        for event in numbered:
            self.event_counts[event.kind] += 1
            if event.kind not in NOT_BLOCKING:
                self._last_blocking = event.revision
            self._note(event)
        self._touch()
        return numbered

    def _tell(self, kind: EventKind, attempt: Attempt, message: str) -> None:
        about = (attempt.job_id, attempt.attempt, attempt.placement, message)
        self.emit([ClusterEvent(0, kind, self.driver.clock().time_s, *about)])

    def _go_on_with_waiting(self) -> None:
        """Has those started for which others have ended; one that has lost a GPU meanwhile is lost."""
        for attempt in list(self._waiting.values()):
            if not self.is_waiting(attempt):  # an event of this loop has dealt with it
                continue
            if not self.is_open(attempt) or attempt.start_revision:
                del self._waiting[attempt.job_id]
            elif gone := self.attempts.lost_gpus_of(attempt):
                del self._waiting[attempt.job_id]
                self._tell(EventKind.LOST, attempt, f"GPU {gone[0]} was lost before the attempt started")
            elif not self.attempts.waits_for(attempt):
                del self._waiting[attempt.job_id]
                try:
                    self.driver.launch(attempt)
                except AdlroError as error:
                    self._tell(EventKind.LOST, attempt, f"it could not be started: {error.message}")

    def _note(self, event: ClusterEvent) -> None:
        """Applies an event to attempts and GPUs."""
        if event.kind in (EventKind.GPU_LOST, EventKind.GPU_BACK):
            self.attempts.set_lost(event.gpu_id, event.kind is EventKind.GPU_LOST)
            return
        attempt = self.attempts.open_attempt(event.job_id)
        if attempt is None:
            return
        if event.kind is EventKind.STARTED:
            attempt.start_s, attempt.start_revision = event.time_s, event.revision
            self.attempts.changed(attempt)
        elif event.kind is EventKind.RUNNING:
            attempt.runs = True
            self.attempts.changed(attempt)
        elif event.kind in ENDS:
            self.attempts.end(attempt, event.revision)
