"""Attempts that run although the cluster's record does not have them open: they are ended, or the orchestrator decides.

Until a stray has ended, nothing is placed on its GPU, and no later attempt of its job begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

import structlog

from adlro.clusterside.attempts import Attempt
from adlro.errors import Conflict
from adlro.records.payloads import EndReason
from adlro.services.local.conditions import Conditions
from adlro.services.local.notes import Note
from adlro.services.local.runners import Runner, until_done

_log = structlog.get_logger()
_LOOK_S = 0.1


class Strays:
    """The strays of this machine.

    Args:
        runners: by kind, what runs them.
        conditions: take their GPUs out.
        gpu_ids: of the cluster.
        spawn: runs a background task of a name.
        ended: called when one has ended.
    """

    def __init__(
        self,
        runners: Mapping[str, Runner],
        conditions: Conditions,
        gpu_ids: Collection[str],
        spawn: Callable[[Coroutine[None, None, None], str], object],
        ended: Callable[[Note], None],
    ) -> None:
        self._runners = runners
        self._conditions = conditions
        self._gpu_ids = gpu_ids
        self._spawn = spawn
        self._ended = ended
        # By folder, as they were launched.
        self._notes: dict[str, Note] = {}
        self._stopped: list[asyncio.Event] = []

    def add(self, note: Note) -> None:
        """Adds one on which the orchestrator decides."""
        self._notes[note.name] = note

    def remove(self, name: str) -> None:
        """One has ended; others are passed over."""
        self._notes.pop(name, None)

    def end(self, note: Note) -> None:
        """Adds one, and ends it."""
        self.add(note)
        stopped = asyncio.Event()
        self._stopped.append(stopped)
        self._spawn(self._end(note, stopped), f"end {note.name}")

    def end_all(self, notes: Sequence[Note]) -> None:
        """Adds several, and ends them."""
        for each in notes:
            self.end(each)

    async def stopped(self) -> None:
        """Returns when the stops of all that are to end are written down: whoever takes them up begins none."""
        for each in self._stopped:
            await each.wait()

    async def make_way(self, attempt: Attempt) -> None:
        """Returns when no older attempt of a job runs any more, and no stray on its GPUs.

        Raises:
            Conflict: the attempt's stop was asked for meanwhile.
        """
        while stray := next((each for each in self._notes.values() if _is_in_the_way(each, attempt)), None):
            if attempt.stop_asked:
                raise Conflict(
                    f"it waited for the end of attempt {stray.attempt} of {stray.job_id}", reason="STOPPED_BEFORE"
                )
            await asyncio.sleep(_LOOK_S)

    async def _end(self, note: Note, stopped: asyncio.Event) -> None:
        source = f"ending {note.name}"
        _log.warning("an attempt runs that has ended by the cluster's record; it is stopped", attempt=note.name)
        gpu_ids = [each for each in note.gpu_ids if each in self._gpu_ids]
        text = f"attempt {note.attempt} of {note.job_id} is being ended: the cluster has given it up"
        for gpu_id in gpu_ids:
            self._conditions.set(gpu_id, source, text)
        runner = self._runners[note.kind]
        await until_done(lambda: runner.stop(note.name, EndReason.STOPPED, "the cluster has given it up"))
        stopped.set()
        await until_done(lambda: runner.ended(note.name))
        self._ended(note)
        for gpu_id in gpu_ids:
            self._conditions.set(gpu_id, source, "")


def _is_in_the_way(stray: Note, attempt: Attempt) -> bool:
    if stray.job_id == attempt.job_id and stray.attempt < attempt.attempt:
        return True
    # Without GPUs: its note is lost, and so are their names.
    return not stray.gpu_ids or not set(stray.gpu_ids).isdisjoint(attempt.placement.gpu_ids)
