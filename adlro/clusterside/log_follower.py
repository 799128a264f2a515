"""Reads a log stream of an attempt piece by piece, and follows it. Plain: no gRPC and no Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from adlro.clusterside.driver import Driver
from adlro.errors import NotFound, Unavailable
from adlro.records.payloads import LogChunk, LogStream

CHUNK_BYTES = 256 << 10
NO_RANK = "NO_RANK"


class LogFollower:
    """A reader of one stream.

    Attributes:
        attempt: that is read.

    Args:
        driver: reads the stored output.
        job_id: the job.
        attempt: its attempt; 0: the newest one with output.
        stream: of its output.
        closing: set when the service ends.
        rank: of the program, where the attempt has several.

    Raises:
        NotFound: no attempt of the job has output here.
    """

    def __init__(
        self, driver: Driver, job_id: str, attempt: int, stream: LogStream, closing: asyncio.Event, rank: int = 0
    ) -> None:
        self._driver = driver
        self._closing = closing
        self._job_id = job_id
        self._stream = stream
        self._rank = rank
        self.attempt = attempt or driver.newest_attempt(job_id) or 1

    async def chunks(self, offset: int | None, tail_bytes: int, *, follow: bool) -> AsyncIterator[LogChunk]:
        """The pieces of the stream, in order.

        Args:
            offset: of the first byte; None: `tail_bytes` before the present end.
            tail_bytes: without an offset; 0: from the first stored byte.
            follow: until the attempt has ended; otherwise until the present end.

        Raises:
            Unsupported: the cluster stores no output.
            NotFound: no such attempt, or its output is deleted.
            Unavailable: the service ends; another one has the rest.
        """
        begin = offset if offset is not None else -tail_bytes if tail_bytes else 0
        until: int | None = None
        while True:
            chunk = await self._read(begin)
            if until is None and not follow:
                until = chunk.size
            yield chunk
            begin = chunk.offset + len(chunk.data)
            if chunk.end or (until is not None and begin >= until):
                return
            if not chunk.data:
                await self._wait(begin)
            if self._closing.is_set():
                raise Unavailable("the cluster's service ends; read on at the next offset", retry_after_s=1.0)

    async def _wait(self, size: int) -> None:
        """Returns when the stream may be longer, or the service ends."""
        grown = asyncio.ensure_future(
            self._driver.log_grown(self._job_id, self.attempt, self._stream, size, self._rank)
        )
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([grown, closing], return_when=asyncio.FIRST_COMPLETED)
            if grown.done():
                grown.result()
        finally:
            grown.cancel()
            closing.cancel()

    async def _read(self, offset: int) -> LogChunk:
        try:
            return await self._driver.read_log(
                self._job_id, self.attempt, self._stream, offset, CHUNK_BYTES, self._rank
            )
        except NotFound as error:
            if error.reason == NO_RANK:
                raise
            raise NotFound(
                f"there is no output of attempt {self.attempt} of {self._job_id} on this cluster (any more)",
                field="job_id",
                reason="NO_OUTPUT",
            ) from None
