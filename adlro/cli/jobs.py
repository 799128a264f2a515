"""Commands on jobs: submit, queue, watch, cancel (`describe` has a file of its own)."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli import render
from adlro.cli.shell import (
    EXIT_ERROR,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    emit_json_line,
    report,
    say,
    stderr,
    stdout,
    token_user,
)
from adlro.errors import AdlroError
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobState, JobType, SimulatedWork
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import JobFilter, Rejection

_TYPES = {each.label: each for each in JobType} | {
    "ml": JobType.MACHINE_LEARNING,
    "data": JobType.DATA_PROCESSING,
    "sim": JobType.SIMULATION,
}
_LISTED_AT_ONCE = 500
_STATES = {each.name.lower(): each for each in JobState}

LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; repeatable.")
]
UserOption = Annotated[str, typer.Option("--user", help="Only of this user.")]
TypeFilterOption = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only of this job type; repeatable."),
]


def _job_type(text: str) -> JobType:
    try:
        return _TYPES[text.lower().replace("-", "_")]
    except KeyError:
        raise typer.BadParameter(
            f"{text!r} is no job type; there are simulation, machine_learning (ml) and data_processing (data)",
            param_hint="--type",
        ) from None


def _labels(texts: Sequence[str] | None) -> dict[str, str]:
    labels = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r}: write KEY=VALUE", param_hint="--label")
        labels[key] = value
    return labels


def _filter(
    *,
    states: Sequence[JobState] = (),
    types: Sequence[str] | None = None,
    user: str = "",
    labels: Sequence[str] | None = None,
    job_ids: Sequence[str] = (),
) -> JobFilter:
    from adlro.client import JobFilter

    return JobFilter(
        states=tuple(states),
        job_types=tuple(_job_type(each) for each in types or ()),
        user=user,
        labels=_labels(labels),
        job_ids=tuple(job_ids),
    )


def submit(
    job_type: Annotated[
        str,
        typer.Option(
            "--type", "-t", metavar="TYPE", help="simulation, machine_learning (ml) or data_processing (data)."
        ),
    ],
    name: Annotated[
        str, typer.Option(help="A name for people; need not be unique. Default: the application or the type.")
    ] = "",
    user: Annotated[
        str,
        typer.Option(help="The submitting user; default: the user of your token, else your login.", show_default=False),
    ] = "",
    application: Annotated[
        str,
        typer.Option(
            "--application", "-a", help="The program of the job, such as resnet50_fp16; improves predictions."
        ),
    ] = "",
    priority: Annotated[float, typer.Option("--priority", "-p", help="0 (least) to 1 (most urgent).")] = 0.5,
    cores: Annotated[int, typer.Option("--cores", "-c", help="CPU cores on the GPU's node.")] = 1,
    memory_mib: Annotated[
        int, typer.Option("--memory-mib", help="Main memory; 0: 4096 MiB a core.", show_default=False)
    ] = 0,
    gpu_memory_mib: Annotated[
        int, typer.Option("--gpu-memory-mib", help="Memory of the GPU; 0: any GPU will do.", show_default=False)
    ] = 0,
    runtime_s: Annotated[
        float | None,
        typer.Option("--runtime", metavar="S", help="Expected runtime in seconds, on the model of --on."),
    ] = None,
    on: Annotated[str, typer.Option("--on", help="The GPU model of --runtime.")] = "v100_sxm2",
    time_limit_s: Annotated[
        float | None, typer.Option("--time-limit", metavar="S", help="End the job (failed) after this runtime.")
    ] = None,
    begin_s: Annotated[
        float | None, typer.Option("--begin", metavar="S", help="Start no earlier than this cluster time.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the job; repeatable.")
    ] = None,
    work_s: Annotated[
        float | None,
        typer.Option(
            "--work",
            metavar="S",
            help="On a simulated cluster: work in seconds of a v100_sxm2 (default: drawn by type and --runtime).",
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of jobs of this kind.")] = 1,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="An id by which a repeated submission returns the same job.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Return when the job has ended; exit code 1 unless it succeeded.")
    ] = (False),
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job and print its id.

    A job whose id is printed is recorded, even if the command is interrupted then. With -o json the ids of
    --count and --wait go to stderr. Exit code 1 if a job was refused.

    Example: adlro submit --type ml --application resnet50_fp16 --cores 4 --gpu-memory-mib 8000 --runtime 30
    """
    spec = JobSpec(
        name=name or application or _job_type(job_type).label,
        user=user or token_user() or getpass.getuser(),
        job_type=_job_type(job_type),
        application=application,
        priority=priority,
        cpu_cores=cores,
        memory_mib=memory_mib,
        gpu_memory_mib=gpu_memory_mib,
        expected_runtime=None if runtime_s is None else ExpectedRuntime(on, runtime_s),
        time_limit_s=time_limit_s,
        begin_time_s=begin_s,
        labels=_labels(label),
        simulated_work=None if work_s is None else SimulatedWork(work_s),
    )
    rejected: Sequence[Rejection] = ()
    with connect(server) as client:
        if count == 1:
            jobs = [client.submit(spec, request_id)]
            job_ids: Sequence[str] = [jobs[0].job_id]
            if wait or output is Output.TABLE:
                _tell_ids(job_ids, output)
        else:
            # Printed at once: no user can cancel a job with an unknown id.
            answer = client.submit_many(
                [spec] * count, request_id, on_answer=lambda part: _tell_ids(part.accepted_ids, output)
            )
            rejected = answer.rejected
            if rejected:
                say(f"[bold red]error:[/] {len(rejected)} of {count} jobs were refused: {escape(rejected[0].message)}")
            job_ids, jobs = answer.accepted_ids, []
            if output is Output.JSON and not wait:
                for start in range(0, len(job_ids), _LISTED_AT_ONCE):
                    jobs += client.list(_filter(job_ids=job_ids[start : start + _LISTED_AT_ONCE]))
        if wait:
            jobs = list(client.wait(job_ids)) if job_ids else []
    if output is Output.JSON:
        emit_json(jobs[0] if count == 1 else {"jobs": jobs, "rejected": rejected})
    elif wait and jobs:
        console = stdout()
        console.print(render.job_table(jobs, width=console.width))
    if rejected or (wait and any(job.state is not JobState.SUCCEEDED for job in jobs)):
        raise typer.Exit(EXIT_ERROR)


def _tell_ids(job_ids: Sequence[str], output: Output) -> None:
    """Prints ids on stdout, one per line; on stderr if stdout must have one document."""
    console = stdout() if output is Output.TABLE else stderr()
    for job_id in job_ids:
        console.print(job_id)


def queue(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="pending, running, succeeded, failed or cancelled; repeatable. Default: pending and running.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Jobs in every state.")] = False,
    user: UserOption = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Largest number of jobs; 0: all.")] = 0,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs in the order of submission, with the reason of each wait."""
    states: list[JobState] = []
    for name in state or ():
        if name.lower() not in _STATES:
            raise typer.BadParameter(f"{name!r}: there are {', '.join(_STATES)}", param_hint="--state")
        states.append(_STATES[name.lower()])
    if not states and not everything:
        states = [JobState.PENDING, JobState.RUNNING]
    with connect(server) as client:
        jobs = []
        for job in client.list(_filter(states=states, types=job_type, user=user, labels=label)):
            jobs.append(job)
            if limit and len(jobs) >= limit:
                break
        if output is Output.JSON:
            emit_json({"jobs": jobs})
            return
        status, now_s = None, None
        # The list does not need the other services: without an answer their columns are left out.
        with contextlib.suppress(AdlroError):
            status = client.status()
        with contextlib.suppress(AdlroError):
            now_s = client.clock().time_s
    if jobs:
        console = stdout()
        console.print(render.job_table(jobs, now_s, console.width))
    else:
        say("no jobs" + ("" if everything else " in these states; adlro queue --all shows the others"))
    if status is not None:
        later = status.waiting_for_begin_time_count
        say(
            f"[dim]{status.running_count} running, {status.queue_length} waiting"
            + (f", {later} before their begin time" if later else "")
            + f"; policy {render.policy_text(status.policy, status.deciding_policy, status.deciding_basis)}[/]"
        )


def watch(
    job: Annotated[list[str] | None, typer.Argument(help="Only these jobs.", metavar="[JOB]...")] = None,
    user: UserOption = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    after: Annotated[
        int | None, typer.Option("--after", help="Start after this revision, instead of with all jobs.")
    ] = None,
    until_done: Annotated[bool, typer.Option("--until-done", help="Return when all listed jobs have ended.")] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow jobs: their present state, then every change in order.

    Runs until Ctrl-C, also through outages of a service. With -o json: one event a line.
    """
    from adlro.client import JobEventKind

    seen_open: set[str] = set()
    complete = after is not None
    console = stdout()
    with connect(server) as client:
        for job_id in job or ():
            client.get(job_id)  # a missing job is an error, not an endless wait
        events = client.watch(
            after, _filter(types=job_type, user=user, labels=label, job_ids=job or ()), patience_s=60.0
        )
        for event in events:
            if output is Output.JSON:
                emit_json_line(event)
            if event.job is None:
                complete = True
                if output is Output.TABLE:
                    console.print(f"[dim]{_now()}  now following changes (revision {event.revision})[/]")
            else:
                if output is Output.TABLE:
                    mark = "now" if event.kind is JobEventKind.SNAPSHOT else _now()
                    console.print(f"{mark:8}  {_event_line(event.job)}")
                (seen_open.discard if event.job.state.final else seen_open.add)(event.job.job_id)
            if until_done and complete and not seen_open:
                return


def _event_line(job: Job) -> str:
    facts = [f"{escape(job.job_id):10} {render.state(job)}"]
    if job.gpu_id:
        facts.append(f"on {escape(job.gpu_id)}")
    if job.attempt_count > 1:
        facts.append(f"attempt {job.attempt_count}")
    if job.jct_s is not None:
        facts.append(f"JCT {render.seconds(job.jct_s)}")
    reason = render.why(job)
    return "  ".join(facts) + f"  [dim]{escape(job.spec.name)}[/]" + (f"  {reason}" if reason else "")


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def cancel(
    job: Annotated[list[str] | None, typer.Argument(help="Ids of jobs.", metavar="[JOB]...")] = None,
    label: LabelOption = None,
    user: UserOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Every job that has not ended.")] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel jobs, by id, label or user."""
    chosen = list(job or ())
    if bool(chosen) == bool(label or user or everything):
        raise typer.BadParameter("name jobs, or choose them by --label, --user or --all")
    cancelled: list[Job] = []
    failed = 0
    with connect(server) as client:
        if not chosen:
            open_states = (JobState.PENDING, JobState.RUNNING)
            chosen = [each.job_id for each in client.list(_filter(states=open_states, user=user, labels=label))]
        for job_id in chosen:
            try:
                cancelled.append(client.cancel(job_id))
            except AdlroError as error:
                failed = report(error)
                if failed != EXIT_ERROR:
                    raise typer.Exit(failed) from None
    if output is Output.JSON:
        emit_json({"jobs": cancelled})
    else:
        for each in cancelled:
            stdout().print(f"{escape(each.job_id)}  {'cancelled' if each.state.final else 'being cancelled'}")
        if not chosen:
            say("no job to cancel")
    if failed:
        raise typer.Exit(failed)
