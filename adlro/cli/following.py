"""Follows a job and its output until its end, through outages. Used by `adlro run` and `adlro logs --follow`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from adlro.cli.log_writer import LogWriter
from adlro.errors import AdlroError, Conflict, NotFound, Unsupported
from adlro.records.jobs import Job
from adlro.records.payloads import LogStream

if TYPE_CHECKING:
    from adlro.client import AsyncClient

PATIENCE_S = 300.0
"""How long a service may be away while a job is followed: longer than a restart of the suite."""

# Reason of ingest's error for an attempt that ended before it started.
_NEVER_STARTED = "NEVER_STARTED"
# And of the cluster's, where an attempt has fewer programs.
_NO_RANK = "NO_RANK"
# How long output that was written before a job's end may take to come, without any new byte.
_QUIET_S = 10.0
# Between two looks for the output of an attempt that has none yet.
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


class JobFollower:
    """Follows one job.

    Args:
        client: reads the job and its output.
        job_id: the job.
        writers: of the streams that are shown.
        on_job: is called with the job now, and after each change.
        note: shows a text to the user.
        rank: of the program that is read, where the job has several.
    """

    def __init__(
        self,
        client: AsyncClient,
        job_id: str,
        writers: Mapping[LogStream, LogWriter],
        on_job: Callable[[Job], None],
        note: Callable[[str], None],
        rank: int = 0,
    ) -> None:
        self._client = client
        self._rank = rank
        self._job_id = job_id
        self._writers = writers
        self._on_job = on_job
        self._note = note
        self._last_byte_s = 0.0
        # The attempt that is read, its readers, and whether it has ended.
        self._attempt = 0
        self._readers: list[asyncio.Task[None]] = []
        self._ended = False
        self._without_output = False
        # What a reader could not write to: our own stdout may be closed.
        self._broken: OSError | None = None
        self._main: asyncio.Task[object] | None = None

    async def run(self, first_attempt: int = 1, offsets: Mapping[LogStream, int] | None = None) -> Job:
        """Shows the output of each attempt in turn, until the job has ended.

        Args:
            first_attempt: attempts before it are left out.
            offsets: where to begin in the first attempt's streams.

        Returns:
            The job at its end.

        Raises:
            NotFound: there is no such job.
            OSError: our stdout or stderr can't be written to.
            Unavailable: no service answers for long.
        """
        from adlro.client import JobFilter

        job: Job | None = None
        begin = dict(offsets or {})
        self._attempt = first_attempt - 1
        self._main = asyncio.current_task()
        try:
            watched = JobFilter(job_ids=(self._job_id,))
            async for event in self._client.watch(job_filter=watched, patience_s=PATIENCE_S):
                if event.job is None:
                    if job is None:
                        raise NotFound(f"there is no job {self._job_id}")
                    continue
                job = event.job
                self._on_job(job)
                await self._take_up(job, begin)
                if job.state.final:
                    break
            assert job is not None
            await self._finish()
            return job
        except asyncio.CancelledError:
            if self._broken is not None:
                raise self._broken from None
            raise
        finally:
            for each in self._readers:
                each.cancel()

    async def _take_up(self, job: Job, begin: dict[LogStream, int]) -> None:
        """Starts to read attempts that are new."""
        for attempt in job.attempts:
            if attempt.attempt > self._attempt:
                await self._finish()
                if self._attempt and attempt.attempt > 1:
                    self._note(f"attempt {attempt.attempt} of {job.job_id} begins")
                self._attempt, self._ended = attempt.attempt, False
                self._readers = [
                    asyncio.create_task(self._read(stream, writer, attempt.attempt, begin.pop(stream, None)))
                    for stream, writer in self._writers.items()
                ]
            if attempt.attempt == self._attempt:
                self._ended = bool(attempt.outcome) or job.state.final

    async def _read(self, stream: LogStream, writer: LogWriter, attempt: int, offset: int | None) -> None:
        wait_s = _SHORTEST_WAIT_S
        writer.begin_at(offset or 0)
        while True:
            ended = self._ended
            try:
                async for chunk in self._client.logs(
                    self._job_id,
                    stream,
                    attempt=attempt,
                    offset=offset,
                    follow=True,
                    rank=self._rank,
                    patience_s=PATIENCE_S,
                ):
                    self._last_byte_s = time.monotonic()
                    writer.write(chunk)
                writer.end()
                return
            except NotFound as error:
                if error.reason == _NO_RANK:
                    raise
                # Its program may not have begun; where it never did, there is nothing to read.
                if ended:
                    return
            except OSError as error:
                self._broken = error
                if self._main is not None:
                    self._main.cancel()
                return
            except (Conflict, Unsupported) as error:
                # Of a job that never started, its end says why.
                if not self._without_output and error.reason != _NEVER_STARTED:
                    self._without_output = True
                    self._note(f"no output: {error.message}")
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _finish(self) -> None:
        """Waits for the rest of an attempt's output."""
        self._ended = True
        self._last_byte_s = time.monotonic()
        while self._readers:
            quiet_s = time.monotonic() - self._last_byte_s
            done, rest = await asyncio.wait(self._readers, timeout=max(_QUIET_S - quiet_s, 0.1))
            self._raise_or_tell(done)
            self._readers = list(rest)
            if self._readers and time.monotonic() - self._last_byte_s >= _QUIET_S:
                self._note(f"the rest of the output does not come; adlro logs {self._job_id} shows what is there")
                for each in self._readers:
                    each.cancel()
                self._readers = []

    def _raise_or_tell(self, done: Iterable[asyncio.Task[None]]) -> None:
        for each in done:
            error = each.exception()
            if isinstance(error, AdlroError):
                self._note(f"the output can't be read: {error.message}")
            elif error is not None:
                raise error
