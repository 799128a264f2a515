"""The attempts that this machine knows: whose each folder is, and which have ended."""

from __future__ import annotations

import asyncio

import structlog

from adlro.services.local.notes import Note, Notes

_log = structlog.get_logger()


class Known:
    """The attempts of this machine.

    Attributes:
        ended_at: by folder, when it ended (Unix time), and its note.

    Args:
        notes: the stored notes.
    """

    def __init__(self, notes: Notes) -> None:
        self.ended_at: dict[str, tuple[float, Note]] = {}
        self._notes = notes
        # Of this incarnation: by job and attempt, by rank.
        self._notes_of: dict[tuple[str, int], dict[int, Note]] = {}

    def get(self, job_id: str, attempt: int) -> tuple[Note, ...]:
        """The notes of an attempt of this incarnation, of each of its programs, by rank; none: it is not known."""
        return tuple(note for _, note in sorted(self._notes_of.get((job_id, attempt), {}).items()))

    def shown(self, job_id: str) -> list[int]:
        """A job's attempts whose output may be shown."""
        return [
            attempt
            for (job, attempt), notes in self._notes_of.items()
            if job == job_id and any(not each.forgotten for each in notes.values())
        ]

    def all_ended(self) -> list[Note]:
        """The notes of all programs that have ended."""
        return [note for _, note in self.ended_at.values()]

    def all(self) -> list[Note]:
        """The notes of all programs of this incarnation, and of those of others that have ended."""
        return [*(note for notes in self._notes_of.values() for note in notes.values()), *self.all_ended()]

    def put(self, note: Note) -> None:
        """Adds a program whose note is stored."""
        self._notes_of.setdefault(note.key, {})[note.rank] = note

    async def store(self, note: Note) -> None:
        """Stores the note of a new program, then adds it.

        Raises:
            OSError: the disk does not accept it.
        """
        await asyncio.to_thread(self._notes.write, note)
        self.put(note)

    def change(self, old: Note, new: Note) -> Note:
        """Replaces a note. One that can't be written is written at the next start."""
        self._take_out(old)
        self.put(new)
        if old.name in self.ended_at:
            self.ended_at[old.name] = self.ended_at[old.name][0], new
        try:
            self._notes.write(new)
        except OSError as error:
            _log.warning("an attempt's note can't be written", attempt=new.name, why=str(error))
        return new

    def drop(self, note: Note) -> None:
        """Removes a note."""
        self._take_out(note)
        self._notes.remove(note.name)

    def _take_out(self, note: Note) -> None:
        notes = self._notes_of.get(note.key, {})
        if notes.get(note.rank) is note:
            del notes[note.rank]
            if not notes:
                del self._notes_of[note.key]
