"""Jobs that run programs: their specs, and those of jobs that run again. No I/O but the caller's name and folder."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adlro.errors import Conflict, InvalidInput
from adlro.records.applications import application_of
from adlro.records.jobs import Job, JobSpec
from adlro.records.payloads import Container, LogStream, Mount, Payload, Process
from adlro.units import given_duration_s, given_size_mib

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
    mounts: Sequence[Mount | str] = (),
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
        mounts: directories and files of the node in the container, or texts `SRC:DST`, `SRC:DST:rw`.
        shared_memory_mib: of the container; 0: the engine's default.
        fields: further fields of Payload (stop_grace_s, log_limit_mib, launch_style) and of JobSpec, also by the names
            of job files: `env`, `secrets`, `shm`, `stop_grace`, `log_limit`, and those of JobSpec. cpu_cores,
            memory_mib and gpu_memory_mib are with each of its gpu_count GPUs; gpu_models may be one name, or several;
            preemptible may be True: a stop costs nothing.

    Raises:
        InvalidInput: no node can run it, or an argument is unknown or can't be read; names it.
    """
    given: dict[str, Any] = {
        "environment": environment or None,
        "secret_names": secret_names or None,
        "shared_memory_mib": shared_memory_mib or None,
    }
    for name, (exact, read) in _SPELLINGS.items():
        if (value := fields.pop(name, None)) is not None:
            if given.get(exact, fields.get(exact)) is not None:
                raise InvalidInput(f"{name}: is {exact} in other words: give one of the two", field=name)
            (given if exact in given else fields)[exact] = read(value, name)
    environment, secret_names = given["environment"] or {}, given["secret_names"] or ()
    shared_memory_mib = given["shared_memory_mib"] or 0
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
        container=Container(image, argv, workdir, tuple(map(_mount, mounts)), shared_memory_mib) if image else None,
        environment=variables,
        secret_names=tuple(secret_names),
        **{name: fields.pop(name) for name in _OF_PAYLOADS if name in fields},
    )
    payload.check()
    if fields.get("memory") is None:
        fields.setdefault("memory_mib", 0)  # the services' default, by the cores
    fields["user"] = fields.get("user") or getpass.getuser()
    fields["name"] = fields.get("name") or fields.get("application") or application_of(payload)
    return JobSpec(payload=payload, **fields)


def with_program(spec: JobSpec, command: Sequence[Word], options: Mapping[str, Any]) -> JobSpec:
    """A spec, and the program that the job runs.

    Args:
        spec: what the job needs; without a payload.
        command: the program and its arguments.
        options: further arguments of `program_spec` about the program, such as `env` and `image`; nothing of the spec.

    Raises:
        InvalidInput: the spec has a program already, an option is the spec's, or no node can run the program.
    """
    if spec.payload is not None:
        raise InvalidInput("command: the spec has a program already: leave one of the two out", field="command")
    for name in options:
        if name not in _OF_PROGRAMS:
            raise InvalidInput(f"{name}: the spec has all that a job needs: write JobSpec({name}=...)", field=name)
    return replace(spec, payload=program_spec(command, **options).payload)


def check_kind_of_work(spec: JobSpec) -> None:
    """Raises InvalidInput for a job that has neither a program nor a type."""
    if spec.payload is None and not spec.job_type:
        raise InvalidInput(
            "job.job_type: a job without a program needs one: job_type='ml', 'data' or 'sim'. A program is given by "
            "client.submit(command=['python', 'train.py'])",
            field="job.job_type",
        )


def completed(spec: JobSpec, user: str) -> JobSpec:
    """The spec with a user and a name, where it has none.

    Args:
        spec: as its user wrote it.
        user: of the client's token; empty: the login.
    """
    if spec.user and spec.name:
        return spec
    name = str(spec.application) or (str(spec.job_type) if spec.payload is None else application_of(spec.payload))
    return replace(spec, user=spec.user or user or getpass.getuser(), name=spec.name or name)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise InvalidInput(f"{value!r} is no text: write {str(value)!r}")


def _mount(given: Mount | str) -> Mount:
    return given if isinstance(given, Mount) else mount_of(given)


def mount_of(text: str) -> Mount:
    """The mount of `SRC:DST`, `SRC:DST:ro` or `SRC:DST:rw`; a source without a slash first is below the current folder.

    Raises:
        InvalidInput: it is none.
    """
    source, *rest = text.split(":")
    if not source or len(rest) not in (1, 2) or not rest[0] or rest[1:] not in ([], ["ro"], ["rw"]):
        raise InvalidInput(f"mounts: {text!r} is none: write SRC:DST, SRC:DST:ro or SRC:DST:rw", field="mounts")
    return Mount(os.path.abspath(source), rest[0], writable=rest[1:] == ["rw"])


def _as_given(value: Any, _: str) -> Any:
    return value


# The names of job files, and the arguments that they stand for.
_SPELLINGS: Mapping[str, tuple[str, Callable[[Any, str], Any]]] = {
    "env": ("environment", _as_given),
    "secrets": ("secret_names", _as_given),
    "shm": ("shared_memory_mib", given_size_mib),
    "stop_grace": ("stop_grace_s", given_duration_s),
    "log_limit": ("log_limit_mib", given_size_mib),
}


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
    # On its own: neither in the array of the first job, nor after the jobs that this one waited for.
    labels = {**job.spec.labels, REQUEUED_FROM: job.job_id}
    return replace(job.spec, labels=labels, array=None, after=(), held=False)


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


_OF_PROGRAMS = frozenset(
    {"image", "workdir", "environment", "secret_names", "mounts", "shared_memory_mib", *_OF_PAYLOADS, *_SPELLINGS}
)
