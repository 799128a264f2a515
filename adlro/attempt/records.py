"""What is to run as an attempt, how far it has come, and how it ended. Plain records; checked here, before all else."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from adlro.attempt import journal
from adlro.errors import FieldViolation, InvalidInput
from adlro.records.payloads import (
    VARIABLE_NAME,
    EndReason,
    ExitStatus,
    Payload,
    refuse,
    text_violations,
)

# A name stands in paths, and in names of units and control groups.
_ATTEMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# A user's name: what would end an entry of the users' list is not in it.
_USER_NAME = re.compile(r"[^\0:/\s]{0,256}")
_MOST_MIB, _MOST_CORES, _MOST_PROCESSES = 1 << 40, 1 << 20, 1 << 22
# Quotas are counted in hundredths of a core; the kernel takes no smaller one.
_LEAST_CORES = 0.01

JOB_DIR_INSIDE = "/adlro/job"
"""Where a container sees the directory of its job."""


class Stage(enum.Enum):
    """How far an attempt has come; it only moves on."""

    ORDERED = "ordered"
    RUNNING = "running"
    ENDED = "ended"


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
        refuse(self._violations(path))

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
            yield from text_violations(f"{path}.devices", self.devices)

    @property
    def named(self) -> frozenset[str]:
        """The limits that are set."""
        return frozenset(name for name, value in asdict(self).items() if value is not None)


@dataclass(frozen=True, slots=True)
class Launch:
    """A payload, and what the node adds to it.

    Attributes:
        payload: what the user wants.
        user: the Unix user whose program it is; empty: the service's.
        time_limit_s: from its start; None: no limit.
        limits: what it may use.
        environment: the node's variables (GPUs, job, attempt); they go before the user's.
        secrets: for each secret name the file that holds the value.
        gpu_uuids: NVIDIA GPUs that a container gets; a process sees all, and is told its own by `environment`.
        device_files: of the node that a container gets as well: /dev/kfd and the render nodes of its AMD GPUs.
        gate: absolute path of a file: when all is prepared, the program waits until that is there; empty: it does not.
        network_name: by which other containers of its network find its container; empty: by none.
        job_dir: of the node, that a container sees as JOB_DIR_INSIDE; empty: none. A process has the path as it is.
    """

    payload: Payload
    user: str = ""
    time_limit_s: float | None = None
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    gpu_uuids: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    gate: str = ""
    network_name: str = ""
    job_dir: str = ""

    def check(self) -> None:
        """Refuses what can't run on any node.

        Raises:
            InvalidInput: with all fields of the payload, or of the rest, that are wrong.
        """
        self.payload.check()
        self.limits.check()
        found = [
            *text_violations("environment", [f"{name}={value}" for name, value in self.environment.items()]),
            *text_violations("secrets", [*self.secrets, *self.secrets.values()]),
            *text_violations("user", [self.user]),
            *text_violations("gpu_uuids", self.gpu_uuids),
            *text_violations("device_files", self.device_files),
            *text_violations("gate", [self.gate]),
            *text_violations("job_dir", [self.job_dir]),
        ]
        if any(not each or any(c.isspace() or c == "," for c in each) for each in self.gpu_uuids):
            found.append(FieldViolation("gpu_uuids", "must be GPUs' UUIDs, without blanks and commas"))
        if any(not each.startswith("/dev/") or ".." in each.split("/") for each in self.device_files):
            found.append(FieldViolation("device_files", "must be paths below /dev"))
        if any(not VARIABLE_NAME.fullmatch(name) for name in self.environment):
            found.append(FieldViolation("environment", "has a name that is not letters, digits and '_'"))
        if not _USER_NAME.fullmatch(self.user):
            found.append(FieldViolation("user", "is no user's name"))
        if self.time_limit_s is not None and not (math.isfinite(self.time_limit_s) and self.time_limit_s > 0.0):
            found.append(FieldViolation("time_limit_s", "must be finite and above 0 s"))
        refuse(found)

    def intent(self, name: str) -> dict[str, Any]:
        """What is written down of it, but for what the driver adds.

        Raises:
            InvalidInput: it can't run on any node, or a secret has no file.
        """
        check_name(name)
        self.check()
        payload = self.payload
        missing = [each for each in payload.secret_names if each not in self.secrets]
        if missing:
            raise InvalidInput(f"this node has no secret '{missing[0]}' for this user", field="payload.secret_names")
        return {
            "version": journal.VERSION,
            "name": name,
            **self._program(),
            **({"gate": self.gate} if self.gate else {}),
            "environment": dict(payload.environment),
            "node_environment": dict(self.environment),
            "secrets": {each: self.secrets[each] for each in payload.secret_names},
            "stop_grace_s": payload.stop_grace_s,
            "log_limit_bytes": payload.log_limit_mib << 20,
            "user": self.user,
            "time_limit_s": self.time_limit_s,
            "limits": {each: value for each, value in asdict(self.limits).items() if value is not None},
        }

    def _program(self) -> dict[str, Any]:
        process, container = self.payload.process, self.payload.container
        if process is not None:
            return {"argv": list(process.argv), "workdir": process.workdir}
        assert container is not None, "check has seen to it"
        gpus = {"gpu_uuids": list(self.gpu_uuids), "device_files": list(self.device_files)}
        name = {"network_name": self.network_name} if self.network_name else {}
        job_dir = {"job_dir": self.job_dir} if self.job_dir else {}
        return {"container": asdict(container), **gpus, **name, **job_dir}


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
        prepared: it has what it needs, and only its gate is closed or was so.
        began: its program was let go; None: it was not.
        program_ended: its program ended, and what that left behind may have run on for a while; None: it did not end,
            or when is not known.
        ended: nothing of it runs any more; None: it has not ended.
        exit: how it ended; None: it has not.
        by_node: where it was not started: the node could not start it, and another one may; else the job is wrong.
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
    by_node: bool = False
    stuck_pids: tuple[int, ...] = ()
    problem: str = ""
    prepared: bool = False
    program_ended: Moment | None = None


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


def exit_status(record: Mapping[str, Any]) -> ExitStatus:
    """How an attempt ended, from its journal."""
    return ExitStatus(
        EndReason[record["reason"].upper()],
        record["code"],
        record["signal"],
        record["detail"],
        record.get("peak_memory_mib"),
        record.get("left_behind", 0),
    )
