"""The programs of an attempt together: they begin at once or not at all, and the first that fails ends the others.

An attempt of one program is the same without a gate. All that is known lies in the programs' folders, their notes and
the gate, so a service that was killed at any point is followed by one that does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from adlro.attempt.records import AttemptView, Stage
from adlro.records.payloads import EndReason
from adlro.services.local.ends import PEER_ENDED, ProgramEnd, decisive
from adlro.services.local.gates import Gates
from adlro.services.local.notes import PROCESS, Note
from adlro.services.local.runners import Runner, until_done

# Whoever supervised a program may just have been killed, which ended its peers: that end is waited for so long.
_LOST_S = 10.0


class Programs:
    """The programs of attempts.

    Args:
        runners: by kind, what runs them.
        gates: of attempts of several programs.
        ended: called when one has ended; without a view its folder is gone.
    """

    def __init__(
        self, runners: Mapping[str, Runner], gates: Gates, ended: Callable[[Note, AttemptView | None], None]
    ) -> None:
        self._runners = runners
        self._gates = gates
        self._ended = ended

    async def begin(self, notes: Sequence[Note], wanted: Callable[[], bool]) -> bool:
        """Opens the gate of an attempt when all of its programs are prepared; returns when they were let go.

        Args:
            notes: of all of its programs that there are.
            wanted: whether the attempt is to begin still.

        Returns:
            All of them run, or have run.
        """
        if len(notes) < notes[0].program_count:
            return False
        name = notes[0].attempt_name
        if len(notes) > 1 and not self._gates.is_open(name):
            prepared = await asyncio.gather(*(self._until(each, "prepared") for each in notes))
            if any(view is None or view.exit is not None for view in prepared) or not wanted():
                return False
            await until_done(partial(asyncio.to_thread, self._gates.open, name))
        begun = await asyncio.gather(*(self._until(each, "begun") for each in notes))
        return all(view is not None and has_run(view) for view in begun)

    async def ended(self, notes: Sequence[Note], grace_s: Callable[[], float | None]) -> list[ProgramEnd]:
        """Returns the ends of an attempt's programs when nothing of them runs any more.

        Args:
            notes: of all of its programs that there are. The first one that does not succeed ends the others.
            grace_s: that these have; None: the payload's.
        """
        ends: list[ProgramEnd] = []
        tasks = {asyncio.create_task(self._end_of(each), name=f"end of {each.name}"): each for each in notes}
        ending = False
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    ends.append(task.result())
                    del tasks[task]
                if tasks and not ending and not all(each.succeeded for each in ends):
                    ending = True
                    await self._end_peers(tasks, ends, grace_s())
        finally:
            for task in tasks:
                task.cancel()
        return ends

    async def stop(
        self,
        notes: Sequence[Note],
        reason: EndReason = EndReason.STOPPED,
        detail: str = "",
        grace_s: float | None = None,
    ) -> None:
        """Has the stop of programs written down, however long the disk does not take it."""
        stops = (partial(self._runners[each.kind].stop, each.name, reason, detail, grace_s) for each in notes)
        await asyncio.gather(*map(until_done, stops))

    async def _end_peers(
        self, tasks: Mapping[asyncio.Task[ProgramEnd], Note], ends: Sequence[ProgramEnd], grace_s: float | None
    ) -> None:
        # The connections of a program that goes with its supervisor break, and its peers fail before its own end is
        # told. Once its stop was written down, nobody could say any more that it was lost.
        alone = [task for task, note in tasks.items() if await self._is_unsupervised(note)]
        if alone:
            await asyncio.wait(alone, timeout=_LOST_S)
        known = [*ends, *(task.result() for task in tasks if task.done())]
        first = decisive(known).told
        why = "its folder is gone" if first is None else first.text
        left = [note for task, note in tasks.items() if not task.done()]
        await self.stop(left, detail=f"{PEER_ENDED}{why}", grace_s=grace_s)

    async def _is_unsupervised(self, note: Note) -> bool:
        if note.kind != PROCESS:  # containers have no supervisor of ours
            return False
        view = await until_done(partial(asyncio.to_thread, self._runners[note.kind].look, note.name))
        return view is not None and view.stage is Stage.RUNNING and not view.supervised

    async def _end_of(self, note: Note) -> ProgramEnd:
        runner = self._runners[note.kind]
        await until_done(partial(runner.ended, note.name))
        view = await until_done(partial(asyncio.to_thread, runner.look, note.name))
        self._ended(note, view)
        return ProgramEnd(note, view)

    async def _until(self, note: Note, state: str) -> AttemptView | None:
        runner = self._runners[note.kind]
        return await until_done(partial(runner.prepared if state == "prepared" else runner.begun, note.name))


def has_run(view: AttemptView) -> bool:
    """Whether a program has run, or runs."""
    return view.began is not None and (view.exit is None or view.exit.reason is not EndReason.NOT_STARTED)
