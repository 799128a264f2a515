"""What a job runs on a real cluster, and how its attempts ended there. Plain data and its checks; knows no gRPC.

A simulated cluster ignores both. `adlro.attempt` runs payloads; ingest refuses those that no node can run.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adlro.errors import FieldViolation, InvalidInput
from adlro.records.named import NamedEnum

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The node sets these: which GPUs a program sees, and which attempt it is. Code that is loaded before the program's own
# could change both.
_NODES_OWN = re.compile(r"ADLRO_.*|.*_VISIBLE_DEVICES|LD_PRELOAD|LD_AUDIT")
# The kernel accepts 128 KiB for one string. All texts of a payload are stored with the job, and sent with each change.
MOST_STRING_BYTES = (128 << 10) - 1
MOST_TEXT_BYTES = 128 << 10
_MOST_GRACE_S, _MOST_LOG_MIB, _MOST_SHARED_MEMORY_MIB = 3600.0, 1 << 20, 1 << 24


class LaunchStyle(NamedEnum):
    """The number of programs of a job of several GPUs; numbers as in payload.proto."""

    ONE_PER_NODE = 1
    ONE_PER_GPU = 2


class LogStream(NamedEnum):
    """A stream of a program's output; numbers as in payload.proto."""

    STDOUT = 1
    STDERR = 2


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a log stream.

    Attributes:
        offset: of the first byte of `data`; above the offset that was asked for: the bytes between were deleted.
        data: the bytes.
        size: length of the stream so far, deleted bytes included.
        end: the attempt has ended, and this is the last byte of the stream.
    """

    offset: int
    data: bytes
    size: int
    end: bool = False


class EndReason(NamedEnum):
    """Why an attempt ended; numbers as in payload.proto."""

    EXITED = 1
    SIGNALLED = 2
    TIME_LIMIT = 3
    OUT_OF_MEMORY = 4
    STOPPED = 5
    NOT_STARTED = 6
    GPU_FAILED = 7
    NODE_LOST = 8
    SUPERVISOR_LOST = 9


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How an attempt ended. Nothing of it runs any more.

    Attributes:
        reason: why.
        code: exit code of its program; 0 where it has none.
        signal: that ended its program; 0: none did.
        detail: for people.
        peak_memory_mib: the most that it used at once (without control groups: the largest of its processes); None:
            not known.
        left_behind: processes that were there when its program had ended, and were ended then.
    """

    reason: EndReason
    code: int = 0
    signal: int = 0
    detail: str = ""
    peak_memory_mib: int | None = None
    left_behind: int = 0

    @property
    def succeeded(self) -> bool:
        """Its program ended by itself, with exit code 0."""
        return self.reason is EndReason.EXITED and self.code == 0

    @property
    def text(self) -> str:
        """One line for people, such as "exit code 3" or "killed by SIGKILL: out of memory (limit 4096 MiB)"."""
        match self.reason:
            case EndReason.EXITED:
                text = f"exit code {self.code}"
            case EndReason.SIGNALLED:
                text = f"killed by {signal_name(self.signal)}"
            case EndReason.TIME_LIMIT:
                return self.detail or "time limit reached"
            case _:
                text = self.reason.name.lower().replace("_", " ")
        return f"{text}: {self.detail}" if self.detail else text


@dataclass(frozen=True, slots=True)
class Process:
    """A program of the node.

    Attributes:
        argv: the program and its arguments.
        workdir: absolute path of its working directory; empty: an own directory of the attempt.
    """

    argv: tuple[str, ...]
    workdir: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the node in a container: `source` on the node, `target` in the container."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """A program in a container.

    Attributes:
        image: its name.
        argv: replaces the image's command; empty: the image's own.
        workdir: absolute path in the container; empty: the image's own.
        mounts: directories and files of the node.
        shared_memory_mib: of /dev/shm; 0: the engine's default.
        always_pull: fetch the image even if the node has one of that name.
    """

    image: str
    argv: tuple[str, ...] = ()
    workdir: str = ""
    mounts: tuple[Mount, ...] = ()
    shared_memory_mib: int = 0
    always_pull: bool = False


@dataclass(frozen=True, slots=True)
class Payload:
    """What a job runs.

    Attributes:
        process, container: one of them is set.
        environment: variables, beside those that each program gets (PATH, HOME, USER, LANG, ...).
        secret_names: variables whose values are files on the node.
        stop_grace_s: between SIGTERM and SIGKILL.
        log_limit_mib: what is kept of each log stream; older bytes are deleted.
        launch_style: the number of programs of a job of several GPUs.
    """

    process: Process | None = None
    container: Container | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    stop_grace_s: float = 10.0
    log_limit_mib: int = 256
    launch_style: LaunchStyle = LaunchStyle.ONE_PER_NODE

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments; empty: a container's own."""
        program = self.process or self.container
        return () if program is None else program.argv

    @property
    def _texts(self) -> list[str]:
        mounts = () if self.container is None else self.container.mounts
        variables = (f"{name}={value}" for name, value in self.environment.items())
        paths = (each for mount in mounts for each in (mount.source, mount.target))
        return [*self.argv, *variables, *self.secret_names, *paths]

    def check(self, path: str = "payload") -> None:
        """Refuses what no node can run.

        Args:
            path: of the record, for messages.

        Raises:
            InvalidInput: with all fields that are wrong.
        """
        refuse(self.violations(path))

    def violations(self, path: str = "payload") -> list[FieldViolation]:
        """The fields that no node can run, with the reasons."""
        found: list[FieldViolation] = []
        if (self.process is None) == (self.container is None):
            found.append(FieldViolation(path, "must have either a process or a container"))
        if self.process is not None:
            found += _check_process(f"{path}.process", self.process)
        if self.container is not None:
            found += _check_container(f"{path}.container", self.container)
        found += _check_environment(f"{path}.environment", self.environment)
        found += _check_secrets(f"{path}.secret_names", self.secret_names, self.environment)
        if not 0.0 <= self.stop_grace_s <= _MOST_GRACE_S:
            found.append(FieldViolation(f"{path}.stop_grace_s", f"must be from 0 to {_MOST_GRACE_S:g} s"))
        if not 1 <= self.log_limit_mib <= _MOST_LOG_MIB:
            found.append(FieldViolation(f"{path}.log_limit_mib", f"must be from 1 to {_MOST_LOG_MIB} MiB"))
        if not found:
            found += text_violations(path, self._texts)
        return found


def process_payload(
    argv: Sequence[str],
    workdir: str = "",
    environment: Mapping[str, str] | None = None,
    secret_names: Sequence[str] = (),
    **more: Any,
) -> Payload:
    """The payload of a process; `more`: further fields of `Payload`."""
    return Payload(
        process=Process(tuple(argv), workdir),
        environment=dict(environment or {}),
        secret_names=tuple(secret_names),
        **more,
    )


def refuse(found: Iterable[FieldViolation]) -> None:
    """Raises InvalidInput with all violations, if there are any."""
    violations = list(found)
    if violations:
        raise InvalidInput("; ".join(f"{each.field} {each.description}" for each in violations), violations=violations)


def text_violations(path: str, texts: Sequence[str]) -> Iterable[FieldViolation]:
    """The reasons why the kernel does not accept texts as arguments or environment."""
    if any("\0" in each for each in texts):
        yield FieldViolation(path, "must not have NUL in it")
    try:
        lengths = [len(each.encode()) + 1 for each in texts]
    except UnicodeEncodeError:
        yield FieldViolation(path, "must be text that UTF-8 can spell")
        return
    if max(lengths, default=0) > MOST_STRING_BYTES:
        yield FieldViolation(path, f"has a text of {max(lengths)} bytes; the kernel accepts {MOST_STRING_BYTES}")
    elif sum(lengths) > MOST_TEXT_BYTES:
        yield FieldViolation(path, f"has {sum(lengths)} bytes; at most {MOST_TEXT_BYTES}: pass long texts in a file")


def _check_process(path: str, process: Process) -> Iterable[FieldViolation]:
    if not process.argv or not process.argv[0]:
        yield FieldViolation(f"{path}.argv", "must name a program")
    yield from text_violations(f"{path}.argv", process.argv)
    if process.workdir:
        yield from _check_path(f"{path}.workdir", process.workdir)


def _check_container(path: str, container: Container) -> Iterable[FieldViolation]:
    if not container.image or container.image.startswith("-") or any(each.isspace() for each in container.image):
        yield FieldViolation(f"{path}.image", "must be the name of an image, such as 'python:3.13-slim'")
    yield from text_violations(f"{path}.argv", container.argv)
    if container.workdir:
        yield from _check_path(f"{path}.workdir", container.workdir)
    for number, mount in enumerate(container.mounts):
        where = f"{path}.mounts[{number}]"
        yield from _check_path(f"{where}.source", mount.source)
        yield from _check_path(f"{where}.target", mount.target)
    targets = [each.target.rstrip("/") or "/" for each in container.mounts]
    if len(set(targets)) < len(targets):
        yield FieldViolation(f"{path}.mounts", "has two mounts at one target")
    if not 0 <= container.shared_memory_mib <= _MOST_SHARED_MEMORY_MIB:
        yield FieldViolation(f"{path}.shared_memory_mib", f"must be from 0 to {_MOST_SHARED_MEMORY_MIB} MiB")


def _check_path(path: str, text: str) -> Iterable[FieldViolation]:
    if not text.startswith("/"):
        yield FieldViolation(path, f"must be an absolute path, not '{text[:200]}'")
    elif ".." in text.split("/"):
        yield FieldViolation(path, "must be a path without '..'")
    yield from text_violations(path, [text])


def _check_environment(path: str, environment: Mapping[str, str]) -> Iterable[FieldViolation]:
    for name in environment:
        yield from _check_variable(path, name)
    yield from text_violations(path, [f"{name}={value}" for name, value in environment.items()])


def _check_secrets(path: str, names: Sequence[str], environment: Mapping[str, str]) -> Iterable[FieldViolation]:
    for name in names:
        yield from _check_variable(path, name)
        if name in environment:
            yield FieldViolation(path, f"has '{name}', which the environment has too")
    if len(set(names)) < len(names):
        yield FieldViolation(path, "names a secret twice")


def _check_variable(path: str, name: str) -> Iterable[FieldViolation]:
    if not VARIABLE_NAME.fullmatch(name):
        yield FieldViolation(path, f"has '{name[:80]}': names are letters, digits and '_', at most 128, no digit first")
    elif _NODES_OWN.fullmatch(name):
        yield FieldViolation(path, f"has '{name}', which the node sets: leave it out")


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
