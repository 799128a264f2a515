"""Launches what was decided and written down, then acknowledges the events it was decided by. Plain data.

Each moment's launches go out together, in the background, and with them the wake-up that ends a hold; acknowledgements,
on which a virtual clock waits, come after both and keep the order of the moments.

A launch that is refused, or gets no answer, concerns its job alone: the session is told, takes it back, and goes on.
Nothing waits for an answer that is late, but for the first one's deadline; it is asked for again meanwhile. Where it is
not sure whether an attempt runs, it is given up: that is written down, it is stopped, and then only taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adlro.errors import (
    AdlroError,
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Stale,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from adlro.records.jobs import Job
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.ledger.ledger import Entry
from adlro.services.orchestrator.ports import REFUSED_TOKEN, ClusterPort

# Answers by which the cluster has surely not taken a launch; of all others, a bug among them, it may have.
REFUSALS = (
    AlreadyExists,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unauthenticated,
    Unsupported,
)
# How often a launch that gets no answer is asked for.
LAUNCH_TRIES = 3
# Pause before a launch or a stop is asked for again; it doubles up to the other.
AGAIN_S, MOST_AGAIN_S = 0.5, 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """The cluster did not take a launch, or did not say that it did.

    Attributes:
        entry: the job,
        attempt: and its attempt.
        why: for people.
        final: the job itself is why, so another attempt would be refused as well.
        retry_after_s: seconds of cluster time before which another attempt makes no sense.
        taken_back: set when the session has dealt with it.
    """

    entry: Entry
    attempt: int
    why: str
    final: bool = False
    retry_after_s: float = 0.0
    taken_back: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, eq=False)
class Unanswered:
    """The cluster has not said whether it took a launch.

    Attributes:
        entry: the job,
        attempt: and its attempt.
        why: for people.
        given_up: it will be stopped; else it is asked for again.
        written: set when that is written down, or the attempt is not open any more.
    """

    entry: Entry
    attempt: int
    why: str
    given_up: bool = False
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Launches:
    """The launches of one session; a failure that is not one job's own ends the session's group.

    Args:
        cluster: runs jobs.
        acting: what outlives the session.
        token: the fencing token of its lease.
        group: of the session's tasks.
        tell: told what the cluster did not take, and what it does not answer.
    """

    def __init__(
        self,
        cluster: ClusterPort,
        acting: Acting,
        token: int,
        group: asyncio.TaskGroup,
        tell: Callable[[Refused | Unanswered], None],
    ) -> None:
        self._cluster = cluster
        self._acting = acting
        self._token = token
        self._group = group
        self._tell = tell
        self._acknowledged: asyncio.Task[None] | None = None

    def start(self, picks: Sequence[Entry], revision: int, wake_up_s: float | None = None) -> None:
        """Launches in the background, then acknowledges.

        Args:
            picks: what was decided, and is written down.
            revision: of the newest event that was known then; it is acknowledged.
            wake_up_s: cluster time at which to be woken; None: not to be.
        """
        before = self._acknowledged
        self._acknowledged = self._group.create_task(self._launch_all(list(picks), revision, wake_up_s, before))

    def stop(self, job_id: str, attempt: int) -> None:
        """Ends an attempt, in the background, however often the cluster has to be asked."""
        self._group.create_task(self._stop(job_id, attempt, asyncio.Event()))

    async def _stop(self, job_id: str, attempt: int, asked: asyncio.Event) -> None:
        """Ends an attempt; `asked` is set when the cluster has answered, or the first answer is late."""
        pause_s = AGAIN_S
        while True:
            try:
                await self._cluster.stop(job_id, attempt, self._token, self._acting.incarnation)
            except (DeadlineExceeded, Unavailable):  # of a cluster that is away the session hears by its events
                asked.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, MOST_AGAIN_S)
            except Unsupported:  # a cluster that can't end what runs: it ends by itself
                asked.set()
                return
            else:
                asked.set()
                return

    async def _launch_all(
        self, picks: list[Entry], revision: int, wake_up_s: float | None, before: asyncio.Task[None] | None
    ) -> None:
        # In the session's group, since a launch without an answer may outlast the acknowledgement.
        settled = [asyncio.Event() for _ in picks]
        for entry, event in zip(picks, settled, strict=True):
            self._group.create_task(self._launch_one(entry, entry.job, revision, event))
        if wake_up_s is not None:
            await self._cluster.wake_at([wake_up_s])
        for event in settled:
            await event.wait()
        if before is not None:
            await before
        await self._cluster.acknowledge(self._acting.incarnation, revision, self._token)

    async def _launch_one(self, entry: Entry, job: Job, applied: int, settled: asyncio.Event) -> None:
        """Launches what was meant when events up to `applied` were known; `settled` once it is answered, or late."""
        key, incarnation = (job.job_id, job.attempt_count), self._acting.incarnation
        for tries in range(1, LAUNCH_TRIES + 1):
            try:
                # 0: it is accepted; its STARTED event is to come.
                start_revision = await self._cluster.launch(*key, job.spec, job.placement, self._token, incarnation)
                break
            except Stale:
                raise
            except REFUSALS as error:
                if error.reason in REFUSED_TOKEN:
                    raise Stale(str(error)) from error
                await self._take_back(entry, job, error.message, error)
                settled.set()
                return
            except AdlroError as error:
                settled.set()
                why = f"no answer to {tries} of {LAUNCH_TRIES} launches ({error.message})"
                last = tries == LAUNCH_TRIES
                if entry.is_open(job.attempt_count) and not last:
                    self._tell(Unanswered(entry, job.attempt_count, why))
                    await asyncio.sleep(AGAIN_S)
                if not entry.is_open(job.attempt_count):  # events have told what became of it
                    if entry.job.cancel_requested and entry.is_placed(job.attempt_count):
                        self.stop(*key)  # it came when there was nothing to stop yet
                    return
                if last or entry.job.cancel_requested:
                    await self._give_up(entry, job, why)
                    return
        if 0 < start_revision <= applied:
            # It was started before it was meant: the store has lost what it knew of that. Its events will not come
            # again, so nobody would ever hear of its end.
            why = "it was started before, and forgotten since"
            await self._take_back(entry, job, why)
            raise Stale(f"the cluster runs attempt {job.attempt_count} of {job.job_id}: {why}")
        if entry.job.cancel_requested:  # perhaps it came while the launch was on its way, and found nothing to stop
            await self._stop(*key, settled)
        settled.set()

    async def _give_up(self, entry: Entry, job: Job, why: str) -> None:
        """Stops what may run, and takes it back; not what turns out to run before it is stopped."""
        given_up = Unanswered(entry, job.attempt_count, why, given_up=True)
        self._tell(given_up)
        await given_up.written.wait()
        if not entry.is_open(job.attempt_count):
            return
        # The next attempt begins only when this one is over. Where it was running, the event of its end takes it back.
        await self._stop(job.job_id, job.attempt_count, asyncio.Event())
        await self._take_back(entry, job, why)

    async def _take_back(self, entry: Entry, job: Job, why: str, error: AdlroError | None = None) -> None:
        refused = Refused(
            entry,
            job.attempt_count,
            why,
            isinstance(error, InvalidInput | Unsupported),
            (error.retry_after_s or 0.0) if error is not None else 0.0,
        )
        self._tell(refused)
        await refused.taken_back.wait()
