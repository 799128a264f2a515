"""`adlro submit`: one job, several of a kind, an array, or the jobs of a file.

The id of each recorded job is printed at once: nobody can cancel a job with an unknown id. So Ctrl-C ends the command
only behind the answer to the call that is under way; a second one ends it at once.
"""

from __future__ import annotations

import contextlib
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.job_command import FileOption, GivenJob, ProgramArgument, program, several_jobs, with_job_options
from adlro.cli.job_filters import job_filter
from adlro.cli.job_listing import job_table
from adlro.cli.job_options import JobOptions
from adlro.cli.job_plan import PlannedJob, plan_of, plan_of_several, request_id_of
from adlro.cli.shell import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    report,
    say,
    stderr,
    stdout,
)
from adlro.errors import AdlroError, Conflict, DeadlineExceeded, Unavailable
from adlro.records.dependencies import JobDependency
from adlro.records.jobs import Job, JobState
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, Rejection, SubmittedJobs

_AT_ONCE = 500
_LONGEST_REQUEST_ID = 64  # the contract allows 128, and a name has 63 at most


@with_job_options
def submit(
    ctx: typer.Context,
    options: JobOptions,
    command: ProgramArgument = None,
    file: FileOption = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of jobs of this kind.")] = 1,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="An id by which a repeated submission returns the same jobs.")
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Submit the same jobs only once: the same command again returns the jobs there are."
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Return when the jobs have ended; exit code 1 unless all succeeded.")
    ] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job, or the jobs of a file, and print their ids.

    A job whose id is printed is recorded, even if the command is interrupted then. With -o json the ids go to stderr,
    unless there is one job. Exit code 1 if a job was refused.

    A program: adlro submit --cores 4 --gpu-memory 20GiB --time-limit 4h -- python train.py

    A script with lines #ADLRO --cores 4: adlro submit train.sh

    An array, 10 at once, and a job after it: adlro submit --array 0-99%10 -- python sweep.py

    adlro submit --after array-17 -- python report.py

    On a simulated cluster: adlro submit --type ml --application resnet50_fp16 --runtime 30
    """
    several = several_jobs(ctx)
    planned = [plan_of(options, program(ctx), server)] if several is None else plan_of_several(several, server)
    if count > 1 and (several is not None or planned[0].array is not None):
        other = "a file of several jobs" if several is not None else "--array"
        raise typer.BadParameter(f"--count and {other} don't go together; leave --count out", param_hint="--count")
    if once and request_id is not None:
        raise typer.BadParameter("makes the request id itself: leave --request-id out", param_hint="--once")
    if once:
        _refuse_moving(options if several is None else None, several or ())
    given_id = request_id_of(planned) if once else request_id
    if several is not None and len(given_id or "") > _LONGEST_REQUEST_ID:
        raise typer.BadParameter(
            f"has more than {_LONGEST_REQUEST_ID} characters, and each job's name comes behind it",
            param_hint="--request-id",
        )
    quiet = output is Output.JSON and not wait
    submission = _Submission(output, given_id or str(uuid.uuid4()), is_quiet=quiet, once=once)
    with connect(server) as client, submission.uninterrupted():
        if several is not None:
            submission.submit_several(client, planned)
        elif planned[0].array is not None:
            submission.submit_array(client, planned[0], submission.request_id)
        elif count > 1:
            submission.submit_count(client, planned[0], count)
        else:
            submission.submit_job(client, planned[0], submission.request_id)
    if submission.interrupted:
        submission.tell_quiet()
        raise typer.Exit(EXIT_INTERRUPTED)
    ids = submission.job_ids
    jobs: list[Job] = []
    try:
        with connect(server) as client:
            if wait:
                jobs = list(client.wait(ids)) if ids else []
            elif output is Output.JSON:
                for start in range(0, len(ids), _AT_ONCE):
                    jobs += client.list(job_filter(job_ids=ids[start : start + _AT_ONCE]))
    except BaseException:
        submission.tell_quiet()
        raise
    _show(submission, jobs, output, is_one=several is None and count == 1 and planned[0].array is None, wait=wait)
    if submission.exit_code or (wait and any(job.state is not JobState.SUCCEEDED for job in jobs)):
        raise typer.Exit(submission.exit_code or EXIT_ERROR)


def _refuse_moving(options: JobOptions | None, several: Sequence[GivenJob]) -> None:
    """Refuses begin times that are another one at each submission, with --once."""
    given = [("", options), *((f"{each.where}: ", each.options) for each in several)]
    for where, each in given:
        if each is not None and each.begin is not None and each.begin.time_s is None:
            raise typer.BadParameter(
                f"{where}--begin {each.begin.text} is another time of the cluster's clock at each submission: write "
                "one of its own, such as 3600s, or leave --once out",
                param_hint="--once",
            )


@dataclass
class _Submission:
    """The jobs that one command submits, and what has become of them.

    Attributes:
        request_id: of one job; the jobs of a file have ids that begin so.
        is_quiet: stdout has one document, and one job's id stands in that.
        once: the request id is that of the jobs themselves.
        job_ids: of the recorded jobs.
        ids: by name in the file, the id of the recorded job or array.
        rejected: of --count.
        refused: of a file: name and error.
        arrays: ids of the recorded arrays.
        interrupted: Ctrl-C has come.
        untold: the id that is to stand in the document alone; empty: there is none.
        under_way: the request id of the call that is under way.
    """

    output: Output
    request_id: str
    is_quiet: bool
    once: bool = False
    job_ids: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    rejected: Sequence[Rejection] = ()
    refused: list[tuple[str, AdlroError]] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    interrupted: bool = False
    untold: str = ""
    under_way: str = ""
    exit_code: int = 0

    def submit_job(
        self, client: Client, planned: PlannedJob, request_id: str, after: Sequence[JobDependency] = ()
    ) -> None:
        """Submits one job."""
        self.under_way = request_id
        job = client.submit(replace(planned.spec, after=(*planned.spec.after, *after)), request_id)
        self.job_ids.append(job.job_id)
        self.ids[planned.name] = job.job_id
        if self.is_quiet and not planned.name:
            self.untold = job.job_id
        else:
            self._tell(job.job_id, planned.name)

    def submit_array(
        self, client: Client, planned: PlannedJob, request_id: str, after: Sequence[JobDependency] = ()
    ) -> None:
        """Submits an array."""
        assert planned.array is not None
        spec = replace(planned.spec, after=(*planned.spec.after, *after))
        indexes, most = planned.array
        self.under_way = request_id
        made = client.submit_array(spec, indexes, max_running=most, request_id=request_id)
        self.job_ids += made.job_ids
        self.arrays.append(made.array_id)
        self.ids[planned.name] = made.array_id
        last = made.job_ids[-1]
        self._tell(made.array_id, planned.name, f"{made.first_job_id} to {last}" if made.job_count > 1 else last)

    def submit_count(self, client: Client, planned: PlannedJob, count: int) -> None:
        """Submits several jobs of one kind."""

        def tell(part: SubmittedJobs) -> None:
            for job_id in part.accepted_ids:
                self.job_ids.append(job_id)
                self._tell(job_id)
            if self.interrupted:
                raise KeyboardInterrupt

        self.under_way = self.request_id
        try:
            answer = client.submit_many([planned.spec] * count, self.request_id, on_answer=tell)
        except (AdlroError, KeyboardInterrupt) as error:
            self._say_how_to_go_on(f"{len(self.job_ids)} of {count} jobs are recorded")
            if isinstance(error, AdlroError):
                raise
            return
        self.rejected = answer.rejected
        if self.rejected:
            self.exit_code = EXIT_ERROR
            first = escape(self.rejected[0].message)
            say(f"[bold red]error:[/] {len(self.rejected)} of {count} jobs were refused: {first}")

    def submit_several(self, client: Client, planned: Sequence[PlannedJob]) -> None:
        """Submits the jobs of a file; what waits for a refused one is left out."""
        for each in planned:
            if self.interrupted:
                break
            gone = [one.job_id for one in each.after if one.job_id not in self.ids]
            if gone:
                told = f"not submitted: it waits for {', '.join(gone)}"
                say(f"[yellow]{escape(f'{each.where}: {told}')}[/]")
                self.refused.append((each.name, Conflict(told, reason="WAITS_FOR_REFUSED")))
                continue
            after = [JobDependency(self.ids[one.job_id], one.condition) for one in each.after]
            request_id = f"{self.request_id}-{each.name}"
            try:
                if each.array is None:
                    self.submit_job(client, each, request_id, after)
                else:
                    self.submit_array(client, each, request_id, after)
            except (Unavailable, DeadlineExceeded) as error:  # whether it is recorded is not known
                self.exit_code = report(error)
                break
            except AdlroError as error:
                say(f"[bold red]{escape(each.where)}:[/]")
                self.exit_code = report(error)
                self.refused.append((each.name, error))
        if len(self.ids) < len(planned):
            self._say_how_to_go_on(f"{len(self.ids)} of {len(planned)} jobs of the file are recorded")

    def tell_quiet(self) -> None:
        """Prints the id that the document would have had, on stderr."""
        if self.untold:
            stderr().print(escape(self.untold))

    def _say_how_to_go_on(self, recorded: str) -> None:
        if self.job_ids:
            again = "" if self.once else f" with [bold]{escape(f'--request-id {self.request_id}')}[/]"
            say(f"{recorded}; the same command{again} submits the others, and none twice")

    def _tell(self, name: str, key: str = "", more: str = "") -> None:
        """Prints an id on stdout, one in a line; on stderr if stdout must have one document."""
        words = "  ".join(each for each in (name, key, more) if each)
        (stdout() if self.output is Output.TABLE else stderr()).print(escape(words))

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Notes the first Ctrl-C, so that the answer to a call under way is still told; the second one interrupts."""

        def note(_number: int, _frame: FrameType | None) -> None:
            if self.interrupted:
                say(f"whether the last job is recorded is not known; its request id is {escape(self.under_way)}")
                raise KeyboardInterrupt
            self.interrupted = True

        try:
            before = signal.signal(signal.SIGINT, note)
        except ValueError:  # not in the main thread, as in tests
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _show(submission: _Submission, jobs: Sequence[Job], output: Output, *, is_one: bool, wait: bool) -> None:
    if output is Output.JSON:
        if is_one:
            emit_json(jobs[0])
            return
        shown: dict[str, Any] = {"jobs": jobs, "rejected": submission.rejected}
        if submission.arrays:
            shown["arrays"] = submission.arrays
        if any(submission.ids):
            shown["names"] = {name: job_id for name, job_id in submission.ids.items() if name}
            shown["rejected"] = [_refusal(name, error) for name, error in submission.refused]
        emit_json(shown)
    elif wait and jobs:
        console = stdout()
        console.print(job_table(jobs, width=console.width), soft_wrap=True)


def _refusal(name: str, error: AdlroError) -> Mapping[str, str]:
    return {"name": name, "message": error.message, "reason": error.reason}
