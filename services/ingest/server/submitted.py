"""The results of the jobs of one SubmitJobs stream, in an answer that any client can receive."""

from __future__ import annotations

import asyncio
from collections import deque

from adlro.errors import AdlroError
from adlro.kit.status import to_code
from adlro.records.submitting import Rejection, SubmittedJobs
from adlro.store import Created

# Of one stream: with 10,000 jobs of which each is refused the answer has 2.3 MB, and a client of gRPC takes 4 MiB.
MAX_JOBS = 10_000
# Jobs that are being written: so many, and so many bytes of requests; the stream's client waits beyond this.
_IN_FLIGHT = 1024
_IN_FLIGHT_BYTES = 2 << 20
# The words of a refusal. When those together reach the first number, each later one is cut to the last.
_WORDS_BYTES = 1 << 20
_WORDS_OF_ONE_BYTES, _FEW_WORDS_BYTES = 1024, 96


class SubmissionAnswers:
    """The jobs of a stream in its order; jobs in writing come last."""

    def __init__(self) -> None:
        self._job_ids: list[str] = []
        self._rejected: list[Rejection] = []
        self._in_flight: deque[tuple[asyncio.Future[Created] | AdlroError, int]] = deque()
        self._in_flight_bytes = 0
        self._words_bytes = 0

    def __len__(self) -> int:
        return len(self._job_ids) + len(self._in_flight)

    @property
    def submitted(self) -> SubmittedJobs:
        """The results so far."""
        return SubmittedJobs(tuple(self._job_ids), tuple(self._rejected))

    @property
    def accepted_count(self) -> int:
        """The recorded jobs among the results so far."""
        return len(self._job_ids) - len(self._rejected)

    async def add(self, result: asyncio.Future[Created] | AdlroError, size_bytes: int) -> None:
        """Adds a job, with the size of its request in bytes; waits while too many are being written."""
        self._in_flight.append((result, size_bytes))
        self._in_flight_bytes += size_bytes
        while len(self._in_flight) > _IN_FLIGHT or self._in_flight_bytes > _IN_FLIGHT_BYTES:
            await self._decide_oldest()
        while self._in_flight and _decided(self._in_flight[0][0]):
            await self._decide_oldest()

    async def decided(self) -> None:
        """Returns when each job is recorded or refused.

        Raises:
            Exception: the error of a failed write that is no refusal of a job, after the results of all others.
        """
        failure: Exception | None = None
        while self._in_flight:
            try:
                await self._decide_oldest()
            except Exception as error:  # of one group of writes; others may have come through
                failure = failure or error
        if failure is not None:
            raise failure

    async def _decide_oldest(self) -> None:
        result, size_bytes = self._in_flight.popleft()
        self._in_flight_bytes -= size_bytes
        try:
            if isinstance(result, AdlroError):
                raise result
            # The id only: a hundred thousand records would be a gigabyte.
            self._job_ids.append((await result).message.job_id)
        except AdlroError as error:
            self._rejected.append(Rejection(len(self._job_ids), to_code(error).name, self._words(error)))
            self._job_ids.append("")

    def _words(self, error: AdlroError) -> str:
        most = _WORDS_OF_ONE_BYTES if self._words_bytes < _WORDS_BYTES else _FEW_WORDS_BYTES
        words = error.message.encode()
        if len(words) > most:
            words = words[: most - 3].decode("utf-8", "ignore").encode() + b"..."
        self._words_bytes += len(words)
        return words.decode()


def _decided(result: asyncio.Future[Created] | AdlroError) -> bool:
    return isinstance(result, AdlroError) or result.done()
