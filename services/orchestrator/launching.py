"""Launches what was decided and written down, then acknowledges the events it was decided by. Plain data.

Each moment's launches go out together, in the background, and with them the wake-up that ends a hold; acknowledgements,
on which a virtual clock waits, come after both and keep the order of the moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adlro.errors import AdlroError, DeadlineExceeded, Stale, Unavailable
from adlro.jobs import Job
from services.orchestrator.acting import Acting
from services.orchestrator.ledger import Entry
from services.orchestrator.ports import REFUSED_TOKEN, ClusterPort

# Launches that got no answer in time, after which the attempt counts as refused.
LATE_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster did not take a launch."""

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
        refuse: told what the cluster did not take.
    """

    def __init__(
        self,
        cluster: ClusterPort,
        acting: Acting,
        token: int,
        group: asyncio.TaskGroup,
        refuse: Callable[[Refused], None],
    ) -> None:
        self._cluster = cluster
        self._acting = acting
        self._token = token
        self._group = group
        self._refuse = refuse
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

    async def _launch_all(
        self, picks: list[Entry], revision: int, wake_up_s: float | None, before: asyncio.Task[None] | None
    ) -> None:
        async with asyncio.TaskGroup() as group:
            launches = [group.create_task(self._launch_one(entry, entry.job, revision)) for entry in picks]
            if wake_up_s is not None:
                group.create_task(self._cluster.wake_at([wake_up_s]))
        if before is not None:
            await before
        if all(launch.result() for launch in launches):  # else the session ends, and the next one acknowledges
            await self._cluster.acknowledge(self._acting.incarnation, revision, self._token)

    async def _launch_one(self, entry: Entry, job: Job, applied: int) -> bool:
        """Launches what was meant when events up to `applied` were known; False where the cluster does not take it."""
        key = (job.job_id, job.attempt_count)
        incarnation = self._acting.incarnation
        try:
            start_revision = await self._cluster.launch(*key, job.spec, job.gpu_id, self._token, incarnation)
        except (Stale, Unavailable):
            raise
        except AdlroError as error:
            if error.reason in REFUSED_TOKEN:
                raise Stale(str(error)) from error
            if isinstance(error, DeadlineExceeded):
                self._acting.late[key] = self._acting.late.get(key, 0) + 1
                if self._acting.late[key] < LATE_LAUNCHES:
                    raise
            self._acting.late.pop(key, None)
            self._refuse(Refused(entry, job.attempt_count, error.message))
            return False
        self._acting.late.pop(key, None)
        if start_revision <= applied:
            # It was started before it was meant: the store has lost what it knew of that. Its events will not come
            # again, so nobody would ever hear of its end.
            self._refuse(Refused(entry, job.attempt_count, "it was started before, and forgotten since"))
            return False
        if entry.job.cancel_requested:  # perhaps it came while the launch was on its way, and found nothing to stop
            await self._cluster.stop(*key, self._token, incarnation)
        return True
