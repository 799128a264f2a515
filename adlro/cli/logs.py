"""`adlro logs`: the output of a job's program."""

from __future__ import annotations

import asyncio
import enum
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli import render
from adlro.cli.following import PATIENCE_S, JobFollower
from adlro.cli.job_filters import job_argument
from adlro.cli.log_writer import LogWriter
from adlro.cli.run import RawOption
from adlro.cli.shell import PATIENCE_S as SHORT_PATIENCE_S
from adlro.cli.shell import ServerOption, connect_async, say
from adlro.errors import InvalidInput, NotFound
from adlro.records.jobs import Job
from adlro.records.payloads import EndReason, LogChunk, LogStream
from adlro.terminal import escape
from adlro.units import SIZES, size_bytes

if TYPE_CHECKING:
    from adlro.client import AsyncClient

# Of the end of a log: read first to find its last lines, and at most.
_FIRST_TAIL_BYTES, _MOST_TAIL_BYTES = 64 << 10, 64 << 20


class StreamChoice(enum.StrEnum):
    """The streams to show."""

    BOTH = "both"
    STDOUT = "stdout"
    STDERR = "stderr"


class Tail:
    """The end of a log: so many lines, or so many bytes."""

    def __init__(self, text: str) -> None:
        lines = re.fullmatch(r"[0-9]{1,9}", text.strip())
        self.lines = int(text) if lines else None
        self.size_bytes = 0 if lines else size_bytes(text)


def _tail(text: str) -> Tail:
    try:
        return Tail(text)
    except InvalidInput:
        raise typer.BadParameter(
            f"{text!r}: write a number of lines, or a size: {SIZES}", param_hint="--tail"
        ) from None


def logs(
    job_id: Annotated[str, job_argument()],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    tail: Annotated[
        str | None,
        typer.Option("--tail", "-n", metavar="LINES|SIZE", help="Only the last lines (100), or the last part (64KiB)."),
    ] = None,
    stream: Annotated[
        StreamChoice,
        typer.Option("--stream", "-s", help="both: stdout goes to stdout, stderr to stderr. One alone goes to stdout."),
    ] = StreamChoice.BOTH,
    attempt: Annotated[
        int, typer.Option("--attempt", min=0, help="Of this attempt. Default: the newest one.", show_default=False)
    ] = 0,
    rank: Annotated[
        int,
        typer.Option(
            "--rank",
            min=0,
            max=1023,
            help="Of this program of a job of several GPUs, which has one on each node or one for each GPU.",
        ),
    ] = 0,
    raw: RawOption = False,
    server: ServerOption = None,
) -> None:
    """Show the output of a job's program, also after its end.

    The command reads on after an outage of a service. A terminal gets escape sequences of a log only with --raw.
    """
    wanted = None if tail is None else _tail(tail)
    asyncio.run(_logs(server, job_id, stream, wanted, attempt, rank, follow=follow, raw=raw))


async def _logs(
    server: str | None,
    job_id: str,
    choice: StreamChoice,
    tail: Tail | None,
    attempt: int,
    rank: int,
    *,
    follow: bool,
    raw: bool,
) -> None:
    writers = _writers(choice, raw=raw)
    async with connect_async(server, patience_s=SHORT_PATIENCE_S) as client:
        job = await client.get(job_id)
        newest = job.attempts[-1].attempt if job.attempts else 0
        if attempt > newest and (not follow or job.state.final):
            raise NotFound(f"{job_id} has no attempt {attempt}; its newest one is {newest}")
        if not newest and (not follow or job.state.final):
            raise NotFound(f"{job_id} has no output: it is {job.state.name.lower()}{_because(job)}")
        if reason := _why_never_begun(job, attempt or newest):
            if not follow or attempt or job.state.final:
                _note(f"{job_id} has no output: {reason}")
                return
            tail = None
        offsets: dict[LogStream, int] = {}
        if newest and tail is not None:
            for each, writer in writers.items():
                offsets[each] = await _show_tail(client, job_id, each, attempt or newest, rank, tail, writer)
        if not follow:
            for each, writer in writers.items():
                if tail is None:
                    async for chunk in client.logs(
                        job_id, each, attempt=attempt or newest, rank=rank, patience_s=PATIENCE_S
                    ):
                        writer.write(chunk)
                writer.end()
            return
    async with connect_async(server, patience_s=PATIENCE_S) as client:
        if attempt:
            await asyncio.gather(
                *(_follow_one(client, job_id, each, attempt, rank, offsets.get(each), w) for each, w in writers.items())
            )
            return
        if not newest:
            _note(f"{job_id} waits{_because(job)}")
        follower = JobFollower(client, job_id, writers, lambda _: None, _note, rank)
        job = await follower.run(max(newest, 1), offsets)
        if reason := _why_never_begun(job, len(job.attempts)):
            _note(f"{job_id} has no output: {reason}")


def _writers(choice: StreamChoice, *, raw: bool) -> dict[LogStream, LogWriter]:
    if choice is not StreamChoice.BOTH:
        return {LogStream[choice.name]: LogWriter(sys.stdout, str(choice), _note, raw=raw)}
    return {
        LogStream.STDOUT: LogWriter(sys.stdout, "stdout", _note, raw=raw),
        LogStream.STDERR: LogWriter(sys.stderr, "stderr", _note, raw=raw),
    }


def _why_never_begun(job: Job, number: int) -> str:
    """Why an attempt's program never ran, so that there is no output; empty: it ran, or may yet."""
    attempt = next((each for each in job.attempts if each.attempt == number), None)
    if attempt is not None and attempt.exit is not None and attempt.exit.reason is EndReason.NOT_STARTED:
        return attempt.exit.text
    if attempt is not None and attempt.start_s is None and attempt.end_s is not None:
        return attempt.outcome or job.message
    if job.state.final and (attempt is None or attempt.start_s is None):
        return f"it is {job.state.name.lower()}{_because(job)}"
    return ""


def _because(job: Job) -> str:
    reason = render.why_text(job)
    return f" ({reason})" if reason else ""


def _note(text: str) -> None:
    say(f"[dim]adlro: {escape(text)}[/]")


async def _follow_one(
    client: AsyncClient,
    job_id: str,
    stream: LogStream,
    attempt: int,
    rank: int,
    offset: int | None,
    writer: LogWriter,
) -> None:
    writer.begin_at(offset or 0)
    async for chunk in client.logs(
        job_id, stream, attempt=attempt, offset=offset, follow=True, rank=rank, patience_s=PATIENCE_S
    ):
        writer.write(chunk)
    writer.end()


async def _show_tail(
    client: AsyncClient, job_id: str, stream: LogStream, attempt: int, rank: int, tail: Tail, writer: LogWriter
) -> int:
    """Writes the end of a log; returns the offset behind it."""
    asked = tail.size_bytes if tail.lines is None else _FIRST_TAIL_BYTES
    while True:
        # Bytes may be deleted meanwhile: what counts is the part without a gap.
        begin, data = 0, bytearray()
        size = 0
        async for chunk in client.logs(
            job_id, stream, attempt=attempt, tail_bytes=max(asked, 1), rank=rank, patience_s=PATIENCE_S
        ):
            if chunk.offset != begin + len(data):
                begin, data = chunk.offset, bytearray()
            data += chunk.data
            size = max(size, chunk.size)
        if tail.lines is None:
            start = 0 if asked else len(data)
            break
        start = _start_of_last_lines(bytes(data), tail.lines)
        if start > 0 or len(data) < asked or asked >= _MOST_TAIL_BYTES:
            break
        asked = min(asked * 8, _MOST_TAIL_BYTES)
    writer.begin_at(None)
    writer.write(LogChunk(begin + start, bytes(data[start:]), size))
    return begin + len(data)


def _start_of_last_lines(data: bytes, lines: int) -> int:
    """Where the last lines begin; 0: the data has no more than these."""
    position = len(data)
    if not lines:
        return position
    if data.endswith(b"\n"):
        position -= 1
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1
