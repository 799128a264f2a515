"""Pieces of a job's log, written to our own stdout or stderr."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TextIO

from adlro.records.payloads import LogChunk
from adlro.text import visible

# What a terminal obeys and a log needs.
_KEPT = "\n\r\t"


class LogWriter:
    """Writes one stream of a job's output.

    A pipe or a file gets its bytes as they are. A terminal gets text: escape sequences and other hidden characters are
    written out, since whoever writes to a log could otherwise control the reader's terminal.

    Args:
        target: our stdout or stderr.
        name: of the job's stream, for notes.
        note: shows a text to the user.
        raw: a terminal gets the bytes, too.
    """

    def __init__(self, target: TextIO, name: str, note: Callable[[str], None], *, raw: bool = False) -> None:
        self.name = name
        self._target = target
        self._note = note
        self._as_text = target.isatty() and not raw
        # A character may lie in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._next_offset: int | None = 0

    def begin_at(self, offset: int | None) -> None:
        """Says where the next piece is expected; None: anywhere."""
        self._next_offset = offset

    def write(self, chunk: LogChunk) -> None:
        """Writes a piece, and a note where bytes before it are missing."""
        if self._next_offset is not None and chunk.offset > self._next_offset:
            count = chunk.offset - self._next_offset
            self._note(f"{count} bytes of {self.name} are not there any more: the job's log limit was reached")
        self._next_offset = chunk.offset + len(chunk.data)
        if chunk.data:
            self._put(chunk.data)

    def end(self) -> None:
        """Writes what is left of a character that never became whole."""
        if self._as_text:
            self._put(b"", final=True)
        self._decoder.reset()

    def _put(self, data: bytes, *, final: bool = False) -> None:
        if self._as_text:
            text = visible(self._decoder.decode(data, final), _KEPT)
            data = text.encode(self._target.encoding or "utf-8", "backslashreplace")
        # Texts that were written before stand in the buffer above.
        self._target.flush()
        self._target.buffer.write(data)
        self._target.buffer.flush()
