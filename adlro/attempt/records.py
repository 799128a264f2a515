"""What is to run as an attempt, how far it has come, and how it ended. Plain records; checked here, before all else."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from adlro.attempt import journal
from adlro.errors import FieldViolation, InvalidInput

# A name stands in paths, and in names of units and control groups.
_ATTEMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The node says these: which GPUs a program sees, and who it is. What is loaded into a program before its own code could
# change both.
_NODES_OWN = re.compile(r"ADLRO_.*|.*_VISIBLE_DEVICES|LD_PRELOAD|LD_AUDIT")
# The kernel takes 128 KiB for one string, and about 2 MiB for all; the rest is for what the node adds.
MOST_STRING_BYTES = (128 << 10) - 1
MOST_TEXT_BYTES = 512 << 10
# A user's name: what would end an entry of the users' list is not in it.
_USER_NAME = re.compile(r"[^\0:/\s]{0,256}")
_MOST_MIB, _MOST_CORES, _MOST_PROCESSES = 1 << 40, 1 << 20, 1 << 22
# Quotas are counted in hundredths of a core; the kernel takes no smaller one.
_LEAST_CORES = 0.01


class EndReason(enum.Enum):
    """Why an attempt ended."""

    EXITED = journal.EXITED
    SIGNALLED = journal.SIGNALLED
    TIME_LIMIT = journal.TIME_LIMIT
    OUT_OF_MEMORY = journal.OUT_OF_MEMORY
    STOPPED = journal.STOPPED
    NOT_STARTED = journal.NOT_STARTED
    GPU_FAILED = journal.GPU_FAILED
    NODE_LOST = journal.NODE_LOST
    SUPERVISOR_LOST = journal.SUPERVISOR_LOST


class Stage(enum.Enum):
    """How far an attempt has come; it only moves on."""

    ORDERED = "ordered"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Program:
    """What a user wants to run, as a process.

    Attributes:
        argv: the program and its arguments.
        workdir: where it begins, an absolute path; empty: a folder of the attempt's own.
        environment: variables, beside those that every program has (PATH, HOME, USER, LANG, ...).
        secret_names: variables whose values are files on the node.
        stop_grace_s: between SIGTERM and SIGKILL.
        log_limit_mib: what is kept of each stream; older bytes go.
    """

    argv: tuple[str, ...]
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    stop_grace_s: float = 10.0
    log_limit_mib: int = 256

    def check(self, path: str = "program") -> None:
        """Refuses what can't run on any node.

        Args:
            path: of the record, for what is told.

        Raises:
            InvalidInput: with all fields that are wrong.
        """
        found = [
            *_check_argv(f"{path}.argv", self.argv),
            *_check_workdir(f"{path}.workdir", self.workdir),
            *_check_environment(f"{path}.environment", self.environment),
            *_check_secrets(f"{path}.secret_names", self.secret_names, self.environment),
        ]
        if not 0.0 <= self.stop_grace_s <= 3600.0:
            found.append(FieldViolation(f"{path}.stop_grace_s", "must be from 0 to 3600 s"))
        if not 1 <= self.log_limit_mib <= 1 << 20:
            found.append(FieldViolation(f"{path}.log_limit_mib", "must be from 1 to 1048576 MiB"))
        _refuse(found)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attempt may use at most; None: no limit. Which of them hold depends on the driver.

    Attributes:
        memory_mib: of all its processes together.
        cpu_cores: processor time, in cores.
        processes: at once, threads included.
        devices: paths of device files that it may open beside the usual ones (null, terminals, ...); None: all.
    """

    memory_mib: int | None = None
    cpu_cores: float | None = None
    processes: int | None = None
    devices: tuple[str, ...] | None = None

    def check(self, path: str = "limits") -> None:
        """Refuses what no driver can set.

        Args:
            path: of the record, for what is told.

        Raises:
            InvalidInput: with all fields that are wrong.
        """
        _refuse(self._violations(path))

    def _violations(self, path: str) -> Iterable[FieldViolation]:
        if self.memory_mib is not None and not 1 <= self.memory_mib <= _MOST_MIB:
            yield FieldViolation(f"{path}.memory_mib", f"must be from 1 to {_MOST_MIB} MiB")
        if self.cpu_cores is not None and not _LEAST_CORES <= self.cpu_cores <= _MOST_CORES:
            yield FieldViolation(f"{path}.cpu_cores", f"must be from {_LEAST_CORES} to {_MOST_CORES} cores")
        if self.processes is not None and not 1 <= self.processes <= _MOST_PROCESSES:
            yield FieldViolation(f"{path}.processes", f"must be from 1 to {_MOST_PROCESSES}")
        if self.devices is not None:
            if any(not each.startswith("/") or any(c.isspace() for c in each) for each in self.devices):
                yield FieldViolation(f"{path}.devices", "must be absolute paths without blanks")
            yield from _check_texts(f"{path}.devices", self.devices)

    @property
    def named(self) -> frozenset[str]:
        """The limits that are set."""
        return frozenset(name for name, value in asdict(self).items() if value is not None)


@dataclass(frozen=True, slots=True)
class Launch:
    """A program, and what the node adds to it.

    Attributes:
        program: what the user wants.
        user: the Unix user whose program it is; empty: the service's.
        time_limit_s: from its start; None: no limit.
        limits: what it may use.
        environment: the node's variables (GPUs, job, attempt); they go before the user's.
        secrets: for each secret name the file that holds the value.
    """

    program: Program
    user: str = ""
    time_limit_s: float | None = None
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuses what can't run on any node.

        Raises:
            InvalidInput: with all fields of the program, or of the rest, that are wrong.
        """
        self.program.check()
        self.limits.check()
        found = [
            *_check_texts("environment", [f"{name}={value}" for name, value in self.environment.items()]),
            *_check_texts("secrets", [*self.secrets, *self.secrets.values()]),
            *_check_texts("user", [self.user]),
        ]
        if any(not _VARIABLE_NAME.fullmatch(name) for name in self.environment):
            found.append(FieldViolation("environment", "has a name that is not letters, digits and '_'"))
        if not _USER_NAME.fullmatch(self.user):
            found.append(FieldViolation("user", "is no user's name"))
        if self.time_limit_s is not None and not (math.isfinite(self.time_limit_s) and self.time_limit_s > 0.0):
            found.append(FieldViolation("time_limit_s", "must be finite and above 0 s"))
        _refuse(found)

    def intent(self, name: str) -> dict[str, Any]:
        """What is written down of it, but for what the driver adds.

        Raises:
            InvalidInput: it can't run on any node, or a secret has no file.
        """
        check_name(name)
        self.check()
        missing = [each for each in self.program.secret_names if each not in self.secrets]
        if missing:
            raise InvalidInput(f"this node has no secret '{missing[0]}' for this user", field="program.secret_names")
        intent = {
            "version": journal.VERSION,
            "name": name,
            "argv": list(self.program.argv),
            "workdir": self.program.workdir,
            "environment": dict(self.program.environment),
            "node_environment": dict(self.environment),
            "secrets": {each: self.secrets[each] for each in self.program.secret_names},
            "stop_grace_s": self.program.stop_grace_s,
            "log_limit_bytes": self.program.log_limit_mib << 20,
            "user": self.user,
            "time_limit_s": self.time_limit_s,
            "limits": {each: value for each, value in asdict(self.limits).items() if value is not None},
        }
        # A character may take six bytes there, so texts of an allowed length can be too long together.
        written_bytes = len(json.dumps(intent, allow_nan=False))
        if written_bytes > journal.MOST_INTENT_BYTES:
            raise InvalidInput(
                f"the program takes {written_bytes} bytes to write down, and at most {journal.MOST_INTENT_BYTES} are "
                "kept: hand long texts over in a file",
                field="program",
            )
        return intent


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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ExitStatus:
        """As the journal has it."""
        return cls(
            EndReason(record["reason"]),
            record["code"],
            record["signal"],
            record["detail"],
            record.get("peak_memory_mib"),
            record.get("left_behind", 0),
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on this node.

    Attributes:
        boot_id: of the machine's boot.
        boottime_s: since that boot: differences are durations.
        unix_s: wall time, for people; it may have been set since.
    """

    boot_id: str
    boottime_s: float
    unix_s: float


@dataclass(frozen=True, slots=True)
class AttemptView:
    """What can be seen of an attempt.

    Attributes:
        name: of the attempt.
        stage: how far it has come.
        supervised: a supervisor lives. Where none does and the attempt has not ended, one must be started.
        began: its program was let go; None: it was not.
        ended: nothing of it runs any more; None: it has not ended.
        exit: how it ended; None: it has not.
        stuck_pids: processes that do not end although they were killed a minute ago: the kernel, or a GPU's driver,
            holds them. The attempt ends when they do.
        problem: why it could not be taken up; empty: it was, or that was not tried. The other fields may say
            too little then.
    """

    name: str
    stage: Stage
    supervised: bool
    began: Moment | None = None
    ended: Moment | None = None
    exit: ExitStatus | None = None
    stuck_pids: tuple[int, ...] = ()
    problem: str = ""


def is_name(name: str) -> bool:
    """It can be an attempt's name."""
    return _ATTEMPT_NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Refuses what can't be an attempt's name.

    Raises:
        InvalidInput: it can't.
    """
    if not is_name(name):
        raise InvalidInput(
            f"'{name[:140]}' is no attempt's name: at most 128 letters, digits, '.', '_', '-'; first a letter or digit",
            field="name",
        )


def _refuse(found: Iterable[FieldViolation]) -> None:
    violations = list(found)
    if violations:
        raise InvalidInput("; ".join(f"{each.field} {each.description}" for each in violations), violations=violations)


def _check_argv(path: str, argv: Sequence[str]) -> Iterable[FieldViolation]:
    if not argv or not argv[0]:
        yield FieldViolation(path, "must name a program")
    yield from _check_texts(path, argv)


def _check_workdir(path: str, workdir: str) -> Iterable[FieldViolation]:
    if workdir and not workdir.startswith("/"):
        yield FieldViolation(path, f"must be an absolute path, not '{workdir}'")
    yield from _check_texts(path, [workdir])


def _check_environment(path: str, environment: Mapping[str, str]) -> Iterable[FieldViolation]:
    for name in environment:
        yield from _check_variable(path, name)
    yield from _check_texts(path, [f"{name}={value}" for name, value in environment.items()])


def _check_secrets(path: str, names: Sequence[str], environment: Mapping[str, str]) -> Iterable[FieldViolation]:
    for name in names:
        yield from _check_variable(path, name)
        if name in environment:
            yield FieldViolation(path, f"has '{name}', which the environment has too")


def _check_variable(path: str, name: str) -> Iterable[FieldViolation]:
    if not _VARIABLE_NAME.fullmatch(name):
        yield FieldViolation(path, f"has '{name[:80]}': names are letters, digits and '_', at most 128, no digit first")
    elif _NODES_OWN.fullmatch(name):
        yield FieldViolation(path, f"has '{name}', which the node sets: leave it out")


def _check_texts(path: str, texts: Sequence[str]) -> Iterable[FieldViolation]:
    if any("\0" in each for each in texts):
        yield FieldViolation(path, "must not have NUL in it")
    try:
        lengths = [len(each.encode()) + 1 for each in texts]
    except UnicodeEncodeError:
        yield FieldViolation(path, "must be text that UTF-8 can spell")
        return
    if max(lengths, default=0) > MOST_STRING_BYTES:
        yield FieldViolation(path, f"has a text of {max(lengths)} bytes; the kernel takes {MOST_STRING_BYTES}")
    elif sum(lengths) > MOST_TEXT_BYTES:
        yield FieldViolation(
            path, f"has {sum(lengths)} bytes; at most {MOST_TEXT_BYTES}: hand long texts over in a file"
        )
