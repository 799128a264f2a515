"""Launches what was decided and written down, then acknowledges the events it was decided by. Plain data.

Each moment's launches go out together, in the background, and with them the wake-up that ends a hold; acknowledgements,
on which a virtual clock waits, come after both and keep the order of the moments.

A launch that is refused, or gets no answer, concerns its job alone: the session is told, takes it back, and goes on.
Nothing waits for an answer that is late, but for the first one's deadline; it is asked for again meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adlro.errors import AdlroError, DeadlineExceeded, InvalidInput, Stale, Unavailable, Unsupported
from adlro.jobs import Job, JobState
from services.orchestrator.acting import Acting
from services.orchestrator.ledger import Entry, Phase
from services.orchestrator.ports import REFUSED_TOKEN, ClusterPort

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
    """The cluster has not said yet whether it took a launch, which is asked for again.

    Attributes:
        entry: the job,
        attempt: and its attempt.
        why: for people.
    """

    entry: Entry
    attempt: int
    why: str


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
        self._group.create_task(self._stop(job_id, attempt))

    async def _stop(self, job_id: str, attempt: int) -> None:
        pause_s = AGAIN_S
        while True:
            with contextlib.suppress(DeadlineExceeded):
                return await self._cluster.stop(job_id, attempt, self._token, self._acting.incarnation)
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, MOST_AGAIN_S)

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
                start_revision = await self._cluster.launch(*key, job.spec, job.gpu_id, self._token, incarnation)
                break
            except Stale:
                raise
            except (DeadlineExceeded, Unavailable) as error:
                settled.set()
                if not _is_open(entry, job):
                    return  # events have told what became of it
                why = f"no answer to {tries} of {LAUNCH_TRIES} launches ({error.message})"
                self._tell(Unanswered(entry, job.attempt_count, why))
                if tries == LAUNCH_TRIES:
                    await self._stop(*key)  # the next attempt begins only when this one is over
                    await self._take_back(entry, job, why, error)
                    return
                await asyncio.sleep(AGAIN_S)
            except AdlroError as error:
                if error.reason in REFUSED_TOKEN:
                    raise Stale(str(error)) from error
                await self._take_back(entry, job, error.message, error)
                settled.set()
                return
        if start_revision <= applied:
            # It was started before it was meant: the store has lost what it knew of that. Its events will not come
            # again, so nobody would ever hear of its end.
            why = "it was started before, and forgotten since"
            await self._take_back(entry, job, why)
            raise Stale(f"the cluster runs attempt {job.attempt_count} of {job.job_id}: {why}")
        if entry.job.cancel_requested:  # perhaps it came while the launch was on its way, and found nothing to stop
            await self._stop(*key)
        settled.set()

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


def _is_open(entry: Entry, job: Job) -> bool:
    """Nothing is known of the attempt yet: neither that it runs, nor that it has ended."""
    placed = entry.phase is Phase.PLACED and entry.job.attempt_count == job.attempt_count
    return placed and entry.job.state is JobState.PENDING
