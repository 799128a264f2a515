"""`adlro run`: submits a program, shows its output, and exits with its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status

from adlro.cli import render
from adlro.cli.following import PATIENCE_S, JobFollower
from adlro.cli.job_command import FileOption, ProgramArgument, program, several_jobs, with_job_options
from adlro.cli.job_options import JobOptions, spec_of
from adlro.cli.log_writer import LogWriter
from adlro.cli.shell import EXIT_ERROR, ServerOption, connect_async, say, silence_stdout, stderr
from adlro.errors import AdlroError
from adlro.records.jobs import Job, JobSpec, JobState
from adlro.records.payloads import EndReason, LogStream
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import AsyncClient

EXIT_NOT_THE_PROGRAMS = 125
"""The program did not run, or how it ended is not known; docker uses the same code."""

_EXIT_CODES = {
    EndReason.TIME_LIMIT: 124,  # as of timeout(1)
    EndReason.OUT_OF_MEMORY: 137,  # 128 + SIGKILL, as shells report it
    EndReason.STOPPED: 143,  # 128 + SIGTERM
}

RawOption = Annotated[
    bool,
    typer.Option(
        "--raw", help="Pass escape sequences on to a terminal; a pipe or file always gets the bytes as they are."
    ),
]


def exit_code(job: Job) -> int:
    """The exit code of `adlro run` for an ended job.

    The program's own; 128 and the signal's number where one ended it; 124 at the time limit, 137 out of memory, 143
    cancelled; 125 where the program did not run, or its end is not known.
    """
    if job.state is JobState.SUCCEEDED:
        return 0
    status = job.attempts[-1].exit if job.attempts else None
    if status is None:
        return _EXIT_CODES[EndReason.STOPPED] if job.state is JobState.CANCELLED else EXIT_NOT_THE_PROGRAMS
    if status.reason is EndReason.EXITED:
        return status.code or EXIT_NOT_THE_PROGRAMS  # a job may fail for another reason than its program
    if status.reason is EndReason.SIGNALLED:
        return 128 + status.signal
    return _EXIT_CODES.get(status.reason, EXIT_NOT_THE_PROGRAMS)


@with_job_options
def run(
    ctx: typer.Context,
    options: JobOptions,
    command: ProgramArgument = None,
    file: FileOption = None,
    raw: RawOption = False,
    server: ServerOption = None,
) -> None:
    """Run a program on the cluster: submit it, show its output, exit with its exit code.

    Ctrl-C cancels the job, and shows its output until it has ended; the second Ctrl-C does not wait for that. What is
    read from stdin is not passed on.

    Exit codes: the program's; 128 + the signal that ended it; 124 at its time limit, 137 out of memory, 143 cancelled,
    125 if it did not run or its end is not known; 130 after Ctrl-C, 141 if nobody reads the output.

    Example: adlro run --cores 2 -- nvidia-smi -L
    """
    argv = program(ctx)
    if options.array is not None or several_jobs(ctx) is not None:
        raise typer.BadParameter("runs one program: submit several with adlro submit", param_hint="--array")
    if not argv and not options.image:
        raise typer.BadParameter("name a program after --, or an --image", param_hint="PROGRAM")
    spec = spec_of(options, argv, server)
    raise typer.Exit(asyncio.run(_run(server, spec, raw=raw)))


async def _run(server: str | None, spec: JobSpec, *, raw: bool) -> int:
    # Few retries until the job is recorded: a missing suite is reported at once.
    async with connect_async(server) as client:
        job = await _submitted(client, spec)
    async with connect_async(server, patience_s=PATIENCE_S) as client:
        return await _Run(client, job, raw=raw).run()


async def _submitted(client: AsyncClient, spec: JobSpec) -> Job:
    """Submits a job. A Ctrl-C meanwhile cancels the job, too, which may be recorded by then."""
    submission = asyncio.create_task(client.submit(spec))
    try:
        return await asyncio.shield(submission)
    except asyncio.CancelledError:
        with contextlib.suppress(AdlroError):
            job = await client.cancel((await submission).job_id)
            say(f"[dim]adlro: {escape(job.job_id)} is cancelled[/]")
        raise


class _Run:
    """One job, from its submission to its end."""

    def __init__(self, client: AsyncClient, job: Job, *, raw: bool) -> None:
        self._client = client
        self._job_id = job.job_id
        self._signals: list[int] = []
        self._cancelling: asyncio.Task[None] | None = None
        self._status: Status | None = None
        self._writers = {
            LogStream.STDOUT: LogWriter(sys.stdout, "stdout", self._note, raw=raw),
            LogStream.STDERR: LogWriter(sys.stderr, "stderr", self._note, raw=raw),
        }

    async def run(self) -> int:
        """Shows the output until the end; returns the exit code."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self._on_signal, number, me)
        try:
            job = await JobFollower(self._client, self._job_id, self._writers, self._show, self._note).run()
        except asyncio.CancelledError:
            if not self._signals:
                raise
            self._note(f"{self._job_id} is being cancelled; adlro logs -f {self._job_id} shows the rest of its output")
            return 128 + self._signals[0]
        except AdlroError:
            self._note(f"{self._job_id} is not cancelled; adlro logs -f {self._job_id} shows its output")
            raise
        except OSError as error:
            # A program that nobody reads ends, too.
            self._hide()
            await self._cancel()
            if isinstance(error, BrokenPipeError):
                silence_stdout()
                return 128 + signal.SIGPIPE
            self._note(f"the output can't be written ({error.strerror}): {self._job_id} is cancelled")
            return EXIT_ERROR
        finally:
            self._hide()
            if self._cancelling is not None:
                self._cancelling.cancel()
        self._tell_end(job)
        if self._signals and job.state is JobState.CANCELLED:
            return 128 + self._signals[0]
        return exit_code(job)

    def _on_signal(self, number: int, main: asyncio.Task[object]) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            main.cancel()
            return
        self._hide()
        self._note(f"cancelling {self._job_id}; Ctrl-C again does not wait for its end")
        self._cancelling = asyncio.create_task(self._cancel())

    async def _cancel(self) -> None:
        try:
            await self._client.cancel(self._job_id)
        except AdlroError as error:
            self._note(f"{self._job_id} could not be cancelled: {error.message}")

    def _show(self, job: Job) -> None:
        """Shows why a job waits, on a terminal."""
        console = stderr()
        if job.state is not JobState.PENDING or not console.is_terminal or self._signals:
            self._hide()
            return
        text = f"{escape(job.job_id)} waits: {render.why(job)}"
        if self._status is None:
            self._status = Status(text, console=console)
            self._status.start()
        else:
            self._status.update(text)

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _note(self, text: str) -> None:
        say(f"[dim]adlro: {escape(text)}[/]")

    def _tell_end(self, job: Job) -> None:
        """Says how it ended, where its program's own exit does not."""
        status = job.attempts[-1].exit if job.attempts else None
        if job.state is JobState.SUCCEEDED or (
            status is not None and status.reason is EndReason.EXITED and status.code
        ):
            return
        text = status.text if status is not None else job.message
        self._note(f"{job.job_id} {job.state.name.lower()}" + (f": {text}" if text else ""))
