"""The options that describe a job, of `submit` and `run`, and the job of their values; `job_command` reads them."""

from __future__ import annotations

import dataclasses
import getpass
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from adlro.cli.option_types import SIZE, TIME, array_indexes, duration, plain_mib, size
from adlro.cli.shell import connect, token_user
from adlro.cli.when import When, when
from adlro.errors import InvalidInput
from adlro.records.arrays import ArrayIndexes
from adlro.records.dependencies import JobDependency, read_dependencies
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, Preemptible, SimulatedWork
from adlro.records.payloads import Mount

_PROGRAM = "The program"
_NEEDS = "What it needs"
_WHEN = "When it starts"
_BESIDE = "Beside other jobs"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The values of the options, as on the command line."""

    job_type: Annotated[
        str,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="simulation, machine_learning (ml) or data_processing (data). Optional for programs: it is learned.",
            show_default=False,
        ),
    ] = ""
    name: Annotated[
        str, typer.Option(help="A name for people; need not be unique. Default: the application or the type.")
    ] = ""
    user: Annotated[
        str,
        typer.Option(help="The submitting user; default: the user of your token, else your login.", show_default=False),
    ] = ""
    application: Annotated[
        str,
        typer.Option(
            "--application",
            "-a",
            help="What runs, such as resnet50_fp16; improves predictions. Default: program and script, or image.",
            show_default=False,
        ),
    ] = ""
    priority: Annotated[float, typer.Option("--priority", "-p", help="0 (least) to 1 (most urgent).")] = 0.5
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the job; repeatable.")
    ] = None

    gpus: Annotated[
        int,
        typer.Option(
            "--gpus", "-g", min=1, help="GPUs, all of one model; they start and end together.", rich_help_panel=_NEEDS
        ),
    ] = 1
    max_nodes: Annotated[
        int,
        typer.Option(
            "--max-nodes",
            min=0,
            help="The most nodes that the GPUs may be on. Default: any number.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = 0
    gpu_model: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-model",
            metavar="MODEL",
            help="A GPU model to run on, such as v100_sxm2 (adlro gpus lists them); repeatable. Default: any.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    exclusive: Annotated[
        bool | None,
        typer.Option(
            "--exclusive/--no-exclusive",
            help="No other job runs on its nodes while it runs: it starts where none does.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            "-x",
            metavar="NODE[,NODE...]",
            help="Nodes that it must not run on (adlro nodes lists them); repeatable.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    nodelist: Annotated[
        list[str] | None,
        typer.Option(
            "--nodelist",
            metavar="NODE[,NODE...]",
            help="The only nodes that it may run on (Slurm's option: at least these); repeatable. Default: any.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    cores: Annotated[
        int,
        typer.Option(
            "--cores", "-c", help="CPU cores with each GPU, on its node; 0 counts as 1.", rich_help_panel=_NEEDS
        ),
    ] = 1
    memory_mib: Annotated[
        int | None,
        typer.Option(
            "--memory",
            parser=size,
            metavar=SIZE,
            help="Main memory with each GPU, such as 16GiB. Default: 4GiB a core.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    memory_plain_mib: Annotated[
        int | None,
        typer.Option(
            "--memory-mib", parser=plain_mib, metavar=SIZE, hidden=True, help="Older name of --memory, in MiB."
        ),
    ] = None
    gpu_memory_mib: Annotated[
        int | None,
        typer.Option(
            "--gpu-memory",
            parser=size,
            metavar=SIZE,
            help="Memory of each GPU, such as 20GiB. Default: any GPU will do.",
            show_default=False,
            rich_help_panel=_NEEDS,
        ),
    ] = None
    gpu_memory_plain_mib: Annotated[
        int | None,
        typer.Option(
            "--gpu-memory-mib", parser=plain_mib, metavar=SIZE, hidden=True, help="Older name of --gpu-memory."
        ),
    ] = None
    time_limit_s: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            parser=duration,
            metavar=TIME,
            help="End the job (failed) after this runtime: 90 (seconds), 10m, 1h30m, 01:00:00 or 1-12:00:00.",
            rich_help_panel=_NEEDS,
        ),
    ] = None
    begin: Annotated[
        When | None,
        typer.Option(
            "--begin",
            parser=when,
            metavar=TIME,
            help="Start no earlier: now+1h, 16:00, 2026-11-28T08:00, or a time of the cluster's clock such as 3600s.",
            show_default=False,
            rich_help_panel=_WHEN,
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="JOB[:ok|any|fail]",
            help="Start once this job, or array, has ended: successfully (ok, the default), in any way, or not "
            "successfully. In a file of several jobs, a job of the file. Repeatable, or with commas.",
            rich_help_panel=_WHEN,
        ),
    ] = None
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--no-hold",
            help="Submit it held: it starts after adlro release.",
            show_default=False,
            rich_help_panel=_WHEN,
        ),
    ] = None
    array: Annotated[
        ArrayIndexes | None,
        typer.Option(
            "--array",
            parser=array_indexes,
            metavar="INDEXES[%N]",
            help="Submit it once for each index: 0-99, 1,5,7 or 0-100:10; %10 behind them: at most 10 at once. Each "
            "program has its index in ADLRO_ARRAY_INDEX.",
            show_default=False,
            rich_help_panel=_WHEN,
        ),
    ] = None
    runtime_s: Annotated[
        float | None,
        typer.Option(
            "--runtime",
            parser=duration,
            metavar=TIME,
            help="Expected runtime on the model of --on, with the GPUs on few nodes.",
            rich_help_panel=_NEEDS,
        ),
    ] = None
    on: Annotated[str, typer.Option("--on", help="The GPU model of --runtime.", rich_help_panel=_NEEDS)] = "v100_sxm2"
    work_s: Annotated[
        float | None,
        typer.Option(
            "--work",
            parser=duration,
            metavar=TIME,
            help="On a simulated cluster: work in time of a v100_sxm2 (default: drawn by type and --runtime).",
            rich_help_panel=_NEEDS,
        ),
    ] = None

    preemptible: Annotated[
        bool | None,
        typer.Option(
            "--preemptible/--no-preemptible",
            help="It may be stopped for another job, and goes on later from what it kept (a checkpoint).",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None
    restart_s: Annotated[
        float | None,
        typer.Option(
            "--restart",
            parser=duration,
            metavar=TIME,
            help="With --preemptible: what each start after a stop takes before the work goes on. Default: nothing.",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None
    lost_s: Annotated[
        float | None,
        typer.Option(
            "--lost",
            parser=duration,
            metavar=TIME,
            help="With --preemptible: the work that a stop loses, such as half the time between two checkpoints.",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None
    preempt_grace_s: Annotated[
        float | None,
        typer.Option(
            "--preempt-grace",
            parser=duration,
            metavar=TIME,
            help="With --preemptible: time between SIGTERM and SIGKILL at such a stop. Default: that of --stop-grace.",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None
    shareable: Annotated[
        bool | None,
        typer.Option(
            "--shareable/--no-shareable",
            help="It may share its GPU with one other job that may as well. Only for jobs of one GPU.",
            show_default=False,
            rich_help_panel=_BESIDE,
        ),
    ] = None

    workdir: Annotated[
        str,
        typer.Option(
            "--workdir",
            metavar="DIR",
            help="Where the program begins. Default: the current directory; in a container the image's own.",
            show_default=False,
            rich_help_panel=_PROGRAM,
        ),
    ] = ""
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="A variable of the program's environment; without a value, yours. Repeatable.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A variable whose value is a file on the node; it is in no record. Repeatable.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Run in a container of this image; without a program, the image's own.",
            show_default=False,
            rich_help_panel=_PROGRAM,
        ),
    ] = ""
    mount: Annotated[
        list[str] | None,
        typer.Option(
            "--mount",
            metavar="SRC:DST[:ro|rw]",
            help="A directory or file of the node in the container, read-only (ro) by default. Repeatable.",
            rich_help_panel=_PROGRAM,
        ),
    ] = None
    shm_mib: Annotated[
        int | None,
        typer.Option(
            "--shm",
            parser=size,
            metavar=SIZE,
            help="Shared memory (/dev/shm) of the container. Default: the engine's.",
            show_default=False,
            rich_help_panel=_PROGRAM,
        ),
    ] = None
    stop_grace_s: Annotated[
        float | None,
        typer.Option(
            "--stop-grace",
            parser=duration,
            metavar=TIME,
            help="Time between SIGTERM and SIGKILL, at a cancellation or the time limit. Default: 10s.",
            show_default=False,
            rich_help_panel=_PROGRAM,
        ),
    ] = None
    log_limit_mib: Annotated[
        int | None,
        typer.Option(
            "--log-limit",
            parser=size,
            metavar=SIZE,
            help="What is kept of stdout, and of stderr; older output is deleted. Default: 256MiB.",
            show_default=False,
            rich_help_panel=_PROGRAM,
        ),
    ] = None


# Options that say something of a program, and those of a container alone: parameter and option.
_OF_PROGRAMS = {
    "workdir": "--workdir",
    "env": "--env",
    "secret": "--secret",
    "stop_grace_s": "--stop-grace",
    "log_limit_mib": "--log-limit",
}
_OF_CONTAINERS = {"mount": "--mount", "shm_mib": "--shm"}
# Options that say what a stop for another job costs.
_OF_STOPS = {"restart_s": "--restart", "lost_s": "--lost", "preempt_grace_s": "--preempt-grace"}


def job_type(text: str) -> JobType:
    """The job type of a name; raises BadParameter."""
    try:
        return JobType.of(text, "--type")
    except InvalidInput as error:
        raise typer.BadParameter(error.message.removeprefix("--type: "), param_hint="--type") from None


def labels(texts: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping; raises BadParameter."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r}: write KEY=VALUE", param_hint="--label")
        found[key] = value
    return found


def dependencies(texts: Sequence[str] | None, names: Collection[str] = ()) -> tuple[JobDependency, ...]:
    """What a job waits for, of texts such as `job-17`, `array-20:any` or `17:fail,18`.

    Args:
        texts: as written.
        names: of the jobs of a file; they come first.

    Raises:
        BadParameter: one names no job, or no condition.
    """
    try:
        return tuple(each for text in texts or () for each in read_dependencies(text, names))
    except InvalidInput as error:
        raise typer.BadParameter(error.message.removeprefix("after: "), param_hint="--after") from None


def begin_s(begin: When, server: str | None) -> float:
    """The cluster time of a begin; a time of the day that is over today is tomorrow's.

    Raises:
        AdlroError: of the cluster, whose clock is asked for where that is needed.
    """
    if begin.unix_s is not None and begin.of_day and begin.unix_s < time.time():
        begin = dataclasses.replace(begin, unix_s=begin.unix_s + 86_400.0)
    if begin.time_s is not None:
        return begin.time_s
    with connect(server) as client:
        return begin.cluster_s(client.clock, "--begin")


def spec_of(options: JobOptions, argv: Sequence[str], server: str | None) -> JobSpec:
    """The job of a command line.

    Args:
        options: its options.
        argv: program and arguments; empty: none, or the image's own.
        server: value of --server: the token's user there is the submitting user.

    Raises:
        BadParameter: options that do not fit together.
        InvalidInput: a program that no node can run.
    """
    from adlro.client import program_spec

    kind = job_type(options.job_type) if options.job_type else JobType.UNSPECIFIED
    fields: dict[str, Any] = {
        "name": options.name or options.application,
        "user": options.user or token_user(server) or getpass.getuser(),
        "job_type": kind,
        "application": options.application,
        "priority": options.priority,
        "gpu_count": options.gpus,
        "max_node_count": options.max_nodes,
        "gpu_models": tuple(options.gpu_model or ()),
        "cpu_cores": options.cores,
        "memory_mib": _one_of(options.memory_mib, options.memory_plain_mib, "--memory"),
        "gpu_memory_mib": _one_of(options.gpu_memory_mib, options.gpu_memory_plain_mib, "--gpu-memory"),
        "expected_runtime": None if options.runtime_s is None else ExpectedRuntime(options.on, options.runtime_s),
        "time_limit_s": options.time_limit_s,
        "begin_time_s": None if options.begin is None else begin_s(options.begin, server),
        "after": dependencies(options.after),
        "held": bool(options.hold),
        "labels": labels(options.label),
        "simulated_work": None if options.work_s is None else SimulatedWork(options.work_s),
        "preemptible": _preemptible(options),
        "shareable": bool(options.shareable),
        "exclusive": bool(options.exclusive),
        "node_ids": _node_ids(options.nodelist),
        "excluded_node_ids": _node_ids(options.exclude),
    }
    _refuse_others(options, runs=bool(argv or options.image))
    if not argv and not options.image:
        if kind is JobType.UNSPECIFIED:
            raise typer.BadParameter("a job without a program needs a type: ml, data or sim", param_hint="--type")
        return JobSpec(**{**fields, "name": fields["name"] or kind.label})
    given = {"stop_grace_s": options.stop_grace_s, "log_limit_mib": options.log_limit_mib}
    return program_spec(
        argv,
        image=options.image,
        workdir=options.workdir,
        environment=_environment(options.env or ()),
        secret_names=options.secret or (),
        mounts=[_mount(each) for each in options.mount or ()],
        shared_memory_mib=options.shm_mib or 0,
        **{name: value for name, value in given.items() if value is not None},
        **fields,
    )


def _node_ids(texts: Sequence[str] | None) -> tuple[str, ...]:
    """The nodes of texts such as `n1` or `n1,n2`, each once."""
    return tuple(dict.fromkeys(name for text in texts or () for each in text.split(",") if (name := each.strip())))


def _preemptible(options: JobOptions) -> Preemptible | None:
    """What a stop of the job costs; None: it can't be stopped.

    Raises:
        BadParameter: it says what a stop costs, but not that it can be stopped. With --no-preemptible that is no
            mistake: the command line overrides a file.
    """
    if options.preemptible:
        return Preemptible(options.restart_s or 0.0, options.lost_s or 0.0, options.preempt_grace_s)
    for parameter, name in _OF_STOPS.items():
        if options.preemptible is None and getattr(options, parameter) is not None:
            raise typer.BadParameter("belongs to --preemptible: add that, or leave it out", param_hint=name)
    return None


def _one_of(new: int | None, old: int | None, name: str) -> int:
    if new is not None and old is not None:
        raise typer.BadParameter(f"{name}-mib is the older name of {name}: leave it out", param_hint=name)
    return new if new is not None else old or 0


def _refuse_others(options: JobOptions, *, runs: bool) -> None:
    """Refuses options that say something of a program or container, where there is none."""
    for parameter, name in ({} if runs else _OF_PROGRAMS | _OF_CONTAINERS).items():
        if getattr(options, parameter) not in (None, ""):
            raise typer.BadParameter("needs a program after --, or an --image", param_hint=name)
    for parameter, name in ({} if options.image else _OF_CONTAINERS).items():
        if getattr(options, parameter) is not None:
            raise typer.BadParameter("needs an --image", param_hint=name)


def _mount(text: str) -> Mount:
    from adlro.client.programs import mount_of

    try:
        return mount_of(text)
    except InvalidInput as error:
        raise typer.BadParameter(error.message.removeprefix("mounts: "), param_hint="--mount") from None


def _environment(texts: Sequence[str]) -> dict[str, str]:
    environment = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise typer.BadParameter(f"{text!r} is not set in your environment; write {text}=VALUE", param_hint="--env")
        environment[name] = value if equals else os.environ[name]
    return environment
