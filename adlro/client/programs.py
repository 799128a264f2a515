"""Jobs that run programs: their specs, and those of jobs that run again. No I/O but the caller's name and folder."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adlro.errors import Conflict, InvalidInput
from adlro.records.applications import application_of
from adlro.records.jobs import Job, JobSpec, JobType, Preemptible
from adlro.records.payloads import Container, LogStream, Mount, Payload, Process

REQUEUED_FROM = "requeued-from"
"""The label of a job that was requeued: the id of the job before it."""

Word = str | os.PathLike[str]
"""A word of a command, or the value of a variable."""

_OF_PAYLOADS = ("stop_grace_s", "log_limit_mib", "launch_style")


def program_spec(
    command: Sequence[Word] = (),
    *,
    image: str = "",
    workdir: str = "",
    environment: Mapping[str, Word] | None = None,
    secret_names: Sequence[str] = (),
    mounts: Sequence[Mount] = (),
    shared_memory_mib: int = 0,
    **fields: Any,
) -> JobSpec:
    """The spec of a job that runs a program, with defaults as those of `adlro submit`.

    Args:
        command: the program and its arguments, texts or paths; may be empty with an image.
        image: run in a container of it; empty: as a process of the node.
        workdir: where the program begins; empty: the current directory, in a container the image's own.
        environment: its variables. A process without a PATH of its own gets this process's, so that a command is found
            as here: in an activated virtual environment, for example.
        secret_names: variables whose values are files on the node.
        mounts: directories and files of the node in the container.
        shared_memory_mib: of the container; 0: the engine's default.
        fields: further fields of Payload (stop_grace_s, log_limit_mib, launch_style) and of JobSpec. cpu_cores,
            memory_mib and gpu_memory_mib are with each of its gpu_count GPUs; gpu_models may be one name, or several;
            preemptible may be True: a stop costs nothing.

    Raises:
        InvalidInput: no node can run it.
    """
    if isinstance(command, str):
        raise InvalidInput("a command is a list, such as ['python', 'train.py']; a shell is run by ['sh', '-c', text]")
    if not image and (mounts or shared_memory_mib):
        raise InvalidInput("mounts and shared memory are a container's: name an image", field="image")
    if not command and not image:
        raise InvalidInput("a job needs a command or an image", field="command")
    argv = tuple(map(_text, command))
    variables = {name: _text(value) for name, value in (environment or {}).items()}
    if not image and "PATH" in os.environ:
        variables.setdefault("PATH", os.environ["PATH"])
    payload = Payload(
        process=None if image else Process(argv, os.path.abspath(workdir or os.getcwd())),
        container=Container(image, argv, workdir, tuple(mounts), shared_memory_mib) if image else None,
        environment=variables,
        secret_names=tuple(secret_names),
        **{name: fields.pop(name) for name in _OF_PAYLOADS if name in fields},
    )
    payload.check()
    fields.setdefault("job_type", JobType.UNSPECIFIED)
    fields.setdefault("memory_mib", 0)  # the services' default, by the cores
    models = fields.get("gpu_models", ())
    fields["gpu_models"] = (models,) if isinstance(models, str) else tuple(models)
    if isinstance(stops := fields.get("preemptible"), bool):
        fields["preemptible"] = Preemptible() if stops else None
    fields["user"] = fields.get("user") or getpass.getuser()
    fields["name"] = fields.get("name") or fields.get("application") or application_of(payload)
    return JobSpec(payload=payload, **fields)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise InvalidInput(f"{value!r} is no text: write {str(value)!r}")


def requeued_spec(job: Job) -> JobSpec:
    """The spec of an ended job, to run again.

    Raises:
        Conflict: it has not ended.
    """
    if not job.state.final:
        raise Conflict(
            f"{job.job_id} is {job.state.name.lower()}: cancel it first (adlro cancel {job.job_id})",
            field="job_id",
            reason="JOB_NOT_FINAL",
        )
    return replace(job.spec, labels={**job.spec.labels, REQUEUED_FROM: job.job_id})


def log_stream_of(stream: LogStream | str) -> LogStream:
    """A stream, or that of a name: `stdout` or `stderr`.

    Raises:
        InvalidInput: there is no such stream.
    """
    try:
        return LogStream[stream.upper()] if isinstance(stream, str) else LogStream(stream)
    except (KeyError, ValueError):
        raise InvalidInput(f"stream: {stream!r} is neither 'stdout' nor 'stderr'", field="stream") from None


def job_id_of(job: Job | str) -> str:
    """The id of a job, or of an id."""
    return job if isinstance(job, str) else job.job_id
