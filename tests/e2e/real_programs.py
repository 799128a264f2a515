"""Programs that users run, good and bad, each with what must become of it. `program.py` is what most of them run."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adlro.records.jobs import JobSpec, JobState, JobType
from adlro.records.payloads import EndReason, process_payload
from tests.e2e.program import HOSTILE, pattern

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("program.py")))
MEMORY_MIB = 192
"""Of each job that does not ask for something else: many fit on a small machine."""
SOON_S = 1.0
"""Time limits, and graces between SIGTERM and SIGKILL."""

Output = Callable[[int, int], bytes]
"""What a program writes to a stream: a piece of it, by offset and length."""


@dataclass(frozen=True)
class RealProgram:
    """A program, and its end.

    Attributes:
        name: of the program, and of its job.
        argv: the program and its arguments.
        state: of its job at the end.
        reason: of the end of its attempt; None: there is no attempt.
        code, signal: of its end.
        says: a part of the job's message.
        stdout, stderr: what it writes; None: not looked at.
        sizes: of the two, bytes.
        cancelled: the test cancels it: `running`, once it has written a line; `pending`, before it can start.
        left_behind: processes that are there when it has ended.
        pid_file: holds the PID of its daemon.
        workdir, environment, memory_mib, log_limit_mib, time_limit_s, stop_grace_s: of the job.
    """

    name: str
    argv: tuple[str, ...]
    state: JobState
    reason: EndReason | None = EndReason.EXITED
    code: int = 0
    signal: int = 0
    says: str = ""
    stdout: Output | None = None
    stderr: Output | None = None
    sizes: tuple[int, int] = (0, 0)
    cancelled: str = ""
    left_behind: int = 0
    pid_file: Path | None = None
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = MEMORY_MIB
    log_limit_mib: int = 64
    time_limit_s: float | None = 60.0
    stop_grace_s: float = SOON_S

    def spec(self, user: str) -> JobSpec:
        """Its job."""
        return JobSpec(
            self.name,
            user,
            JobType.UNSPECIFIED,
            cpu_cores=1,
            memory_mib=self.memory_mib,
            time_limit_s=self.time_limit_s,
            begin_time_s=1e9 if self.cancelled == "pending" else None,
            payload=process_payload(
                self.argv,
                self.workdir,
                self.environment,
                stop_grace_s=self.stop_grace_s,
                log_limit_mib=self.log_limit_mib,
            ),
        )


def text(data: bytes) -> dict[str, Any]:
    """stdout of a program that writes just that."""
    return {"stdout": lambda begin, length: data[begin : begin + length], "sizes": (len(data), 0)}


def numbered(size: int, seed: int = 0) -> dict[str, Any]:
    """stdout of a program that writes so much of the pattern."""
    return {"stdout": functools.partial(pattern, seed), "sizes": (size, 0)}


def run(name: str, *arguments: object, state: JobState = JobState.SUCCEEDED, **more: Any) -> RealProgram:
    """A program of `program.py`."""
    return RealProgram(name, (*PROGRAM, *map(str, arguments)), state, **more)


def failing(code: int, size: int) -> RealProgram:
    """Writes some of the pattern, and ends with a code."""
    state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    says = "" if code == 0 else f"exit code {code}"
    return run(f"exit-{code}-{size}", "end", code, size, state=state, code=code, says=says, **numbered(size))


def killed(number: signal.Signals) -> RealProgram:
    """Ends by a signal of its own."""
    return run(
        f"killed-{number.name.lower()}", "die", int(number), state=JobState.FAILED, reason=EndReason.SIGNALLED,
        signal=int(number), says=number.name, **text(b"about to die\n"),
    )  # fmt: skip


def cancelled(name: str, *arguments: object, number: int, left_behind: int = 0) -> RealProgram:
    """Runs until the test cancels it."""
    return run(
        name, *arguments, state=JobState.CANCELLED, reason=EndReason.STOPPED, signal=number, says="cancelled",
        cancelled="running", left_behind=left_behind, **text(b"running\n"),
    )  # fmt: skip


def limited(name: str, *arguments: object, number: int, left_behind: int = 0) -> RealProgram:
    """Runs until its time limit."""
    return run(
        name, *arguments, state=JobState.FAILED, reason=EndReason.TIME_LIMIT, signal=number, says="time limit",
        time_limit_s=SOON_S, left_behind=left_behind, **text(b"running\n"),
    )  # fmt: skip


def refused(name: str, *argv: str, says: str, workdir: str = "") -> RealProgram:
    """Can't be started."""
    return RealProgram(name, argv, JobState.FAILED, EndReason.NOT_STARTED, says=says, workdir=workdir, **text(b""))


def with_daemon(folder: Path, kind: str = "") -> RealProgram:
    """Leaves a daemon behind."""
    pid_file = folder / f"daemon-{kind}.pid"
    return run(f"daemon-{kind}", "daemon", pid_file, kind, left_behind=1, pid_file=pid_file, **text(b""))


def real_programs(folder: Path, *, memory_is_limited: bool) -> list[RealProgram]:
    """Fifty of them.

    Args:
        folder: for their files; for the tests alone.
        memory_is_limited: this machine enforces limits of memory.
    """
    no_interpreter = folder / "no-interpreter"
    no_interpreter.write_text("#!/no/such/interpreter\nexit 0\n")
    no_interpreter.chmod(0o755)
    not_executable = folder / "not-executable"
    not_executable.write_text("#!/bin/sh\nexit 0\n")
    not_executable.chmod(0o644)
    script = folder / "script.sh"
    script.write_text("#!/bin/sh\necho from a script\nexit 3\n")
    script.chmod(0o755)
    closed = folder / "closed"
    closed.mkdir(mode=0o000)
    # Root may enter it, and a file is no directory for anybody.
    workdir = closed if os.geteuid() != 0 else not_executable
    training = (sys.executable, str(Path(__file__).with_name("program.py")), "train", "150")
    hungry = run("eats-memory", "eat", 4 * MEMORY_MIB, **text(b"%d MiB\n" % (4 * MEMORY_MIB)))
    if memory_is_limited:
        hungry = run(
            "eats-memory", "eat", 4 * MEMORY_MIB, state=JobState.FAILED, reason=EndReason.OUT_OF_MEMORY,
            signal=signal.SIGKILL, says="memory", **text(b""),
        )  # fmt: skip
    return [
        run("flood", "flood", 1024, **numbered(1 << 30)),
        RealProgram("train-1", training, JobState.SUCCEEDED, memory_mib=2048, **text(b"learned\n")),
        cancelled("deaf", "forever", "deaf", number=signal.SIGKILL),
        cancelled("polite", "forever", number=signal.SIGTERM),
        hungry,
        limited("limit", "forever", number=signal.SIGTERM),
        limited("limit-deaf", "forever", "deaf", number=signal.SIGKILL),
        limited("limit-workers", "workers", 3, number=signal.SIGTERM, left_behind=3),
        cancelled("workers", "workers", 4, number=signal.SIGTERM, left_behind=4),
        cancelled("stopped", "stopped", number=signal.SIGKILL),
        RealProgram("train-2", training, JobState.SUCCEEDED, memory_mib=2048, **text(b"learned\n")),
        with_daemon(folder),
        with_daemon(folder, "bare"),
        RealProgram(
            "script", (str(script),), JobState.FAILED, code=3, says="exit code 3", **text(b"from a script\n")
        ),
        RealProgram("true", ("true",), JobState.SUCCEEDED, **text(b"")),
        RealProgram("pipe", ("sh", "-c", "yes x | head -n 3"), JobState.SUCCEEDED, **text(b"x\nx\nx\n")),
        *(failing(code, size) for code in (0, 1, 3) for size in (0, 1, 4096, 65_537, 5_000_000)),
        *(failing(code, 0) for code in (2, 126, 127, 128, 137, 255)),
        *map(killed, (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGALRM)),
        *(
            run(f"both-{size}", "both", size, stdout=functools.partial(pattern, 1),
                stderr=functools.partial(pattern, 2), sizes=(size, size))
            for size in (1, 100_000)
        ),
        run("flood-small", "flood", 3, log_limit_mib=1, **numbered(3 << 20)),
        run("hostile", "hostile", stderr=text(HOSTILE)["stdout"], **text(HOSTILE) | {"sizes": (len(HOSTILE),) * 2}),
        run("environment", "environment", "GREETING", "ADLRO_REDIS_URL", "ADLRO_TOKEN_FILE",
            environment={"GREETING": "a b\nc\x1b[31m"},
            **text(b"GREETING=a b\nc\x1b[31m\nADLRO_REDIS_URL=(not set)\nADLRO_TOKEN_FILE=(not set)\n")),
        run("whoami", "environment", "ADLRO_JOB_ID", "ADLRO_ATTEMPT", "ADLRO_GPU_IDS"),
        run("no-workdir", "no_workdir", **text(b"gone\n")),
        refused("no-interpreter", str(no_interpreter), says="interpreter"),
        refused("no-program", "no-such-program-anywhere", says="no-such-program-anywhere"),
        refused("not-executable", str(not_executable), says="not-executable"),
        refused("bad-workdir", "true", workdir=str(workdir), says=str(workdir)),
        refused("no-such-workdir", "true", workdir=str(folder / "none"), says=str(folder / "none")),
        run("cancelled-early", "end", 0, state=JobState.CANCELLED, reason=None, cancelled="pending",
            says="before it ran"),
    ]  # fmt: skip
