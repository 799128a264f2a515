"""The output of attempts: who may see which, and when there is more of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from adlro.clusterside.driver import Side
from adlro.clusterside.log_follower import NO_RANK
from adlro.errors import NotFound
from adlro.records.payloads import LogChunk, LogStream
from adlro.services.local.known import Known
from adlro.services.local.notes import Note
from adlro.services.local.runners import Runner

# Between two looks at a log that is followed.
LOOK_S = 0.05
_STREAMS = {LogStream.STDOUT: "stdout", LogStream.STDERR: "stderr"}


class Logs:
    """Reads the output of attempts; `adlro.clusterside.driver.Driver` describes each method.

    Args:
        known: the attempts.
        runners: by kind, what has their output.
        side: which attempts are open.
    """

    def __init__(self, known: Known, runners: Mapping[str, Runner], side: Side) -> None:
        self._known = known
        self._runners = runners
        self._side = side

    def newest_attempt(self, job_id: str) -> int:
        """See Driver."""
        accepted = [each.attempt for each in self._side.open_attempts() if each.job_id == job_id]
        return max((*self._known.shown(job_id), *accepted), default=0)

    async def read(
        self, job_id: str, attempt: int, rank: int, stream: LogStream, offset: int, most_bytes: int
    ) -> LogChunk:
        """See Driver."""
        note = self._shown(job_id, attempt, rank)
        if note is None:
            return LogChunk(0, b"", 0)
        # First: what is read afterwards is then all that there will be.
        has_ended = note.name in self._known.ended_at
        read = self._runners[note.kind].read_log
        try:
            piece = await asyncio.to_thread(read, note.name, _STREAMS[stream], offset, most_bytes)
        except NotFound:
            if has_ended:
                raise
            return LogChunk(0, b"", 0)  # it is about to be written down
        end = piece.offset + len(piece.data)
        return LogChunk(piece.offset, piece.data, piece.size, has_ended and end >= piece.size)

    async def grown(self, job_id: str, attempt: int, rank: int, stream: LogStream, size: int) -> None:
        """See Driver."""
        while True:
            await asyncio.sleep(LOOK_S)
            note = self._shown(job_id, attempt, rank)
            if note is None:
                continue
            if note.name in self._known.ended_at:
                return
            if self._runners[note.kind].log_size(note.name, _STREAMS[stream]) > size:
                return

    def _shown(self, job_id: str, attempt: int, rank: int) -> Note | None:
        """The note of a program whose output may be shown; None: it will be there soon.

        Raises:
            NotFound: there is none.
        """
        known = self._known.get(job_id, attempt)
        notes = [each for each in known if not each.forgotten]
        found = next((each for each in notes if each.rank == rank), None)
        if found is not None:
            return found
        if notes and rank >= notes[0].program_count:
            raise NotFound(
                f"attempt {attempt} of {job_id} has {count_text(notes[0].program_count)}; there is no rank {rank}",
                field="rank",
                reason=NO_RANK,
            )
        is_open = any((each.job_id, each.attempt) == (job_id, attempt) for each in self._side.open_attempts())
        if is_open and all(each.rank != rank for each in known):
            return None  # its programs are written down one after the other
        raise NotFound(f"there is no output of attempt {attempt} of {job_id}")


def count_text(program_count: int) -> str:
    """How many programs an attempt has, for people."""
    return "one program, rank 0" if program_count == 1 else f"{program_count} programs, ranks 0 to {program_count - 1}"
