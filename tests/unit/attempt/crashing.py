"""Kills its own process, as by kill -9, before or after its n-th file operation or fork. ADLRO knows nothing of it.

    python -I -S crashing.py N WHEN COUNT_FILE FOLDER          a supervisor, killed at its N-th operation, once
    python crashing.py N WHEN COUNT_FILE service FOLDER RUNS   a service that starts an attempt there, killed alike
    python crashing.py N WHEN COUNT_FILE forget FOLDER         a service that forgets attempt a.1 there, killed alike

N: from 1; 0: it is not killed. WHEN: before or after. COUNT_FILE: is given the operations' names, one a line.
"""

from __future__ import annotations

import functools
import os
import signal
import sys

OPERATIONS = (
    "open",
    "write",
    "pwrite",
    "fsync",
    "link",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "posix_fallocate",
    "fork",
    "close",
)
SUBPROCESS = "start a process"


class Crash:
    """Counts operations of this process, and ends it at one of them."""

    def __init__(self, at: int, when: str, count_file: str) -> None:
        self.at, self.when, self.pid = at, when, os.getpid()
        self.count = 0
        self.file = open(count_file, "a", buffering=1)  # noqa: SIM115  as long as the process lives

    def around(self, module, attribute: str, name: str) -> None:
        real = getattr(module, attribute)

        @functools.wraps(real)
        def counted(*args, **more):
            if os.getpid() != self.pid:  # the program's process, which is not killed here
                return real(*args, **more)
            self.count += 1
            here = self.count == self.at
            self.file.write(name + "\n")
            if here and self.when == "before":
                os.kill(self.pid, signal.SIGKILL)
            try:
                return real(*args, **more)
            finally:  # also after one that fails: a file that is looked for need not be there
                if here and os.getpid() == self.pid:
                    os.kill(self.pid, signal.SIGKILL)

        setattr(module, attribute, counted)


def main() -> None:
    at, when, count_file, *rest = sys.argv[1:]
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    if rest[0] == "service":
        start(Crash(int(at), when, count_file), *rest[1:])
        return
    if rest[0] == "forget":
        forget(Crash(int(at), when, count_file), rest[1])
        return
    from adlro.attempt.supervisor import main as supervise

    if not os.path.exists(count_file):  # its successor lives
        crash = Crash(int(at), when, count_file)
        for name in OPERATIONS:
            crash.around(os, name, name)
    sys.exit(supervise(rest[0]))


def start(crash: Crash, folder: str, runs: str) -> None:
    import subprocess
    from pathlib import Path

    from adlro.attempt.attempts import Attempts
    from adlro.attempt.drivers import TreeDriver
    from adlro.attempt.records import Launch
    from adlro.records.payloads import process_payload

    attempts = Attempts(Path(folder), TreeDriver())
    for name in OPERATIONS:
        crash.around(os, name, name)
    crash.around(subprocess, "Popen", SUBPROCESS)
    program = process_payload(
        ("sh", "-c", 'echo started >> "$RUNS"; exit 7'), environment={"RUNS": runs}, stop_grace_s=1.0
    )
    attempts._start("a.1", Launch(program))


def forget(crash: Crash, folder: str) -> None:
    from pathlib import Path

    from adlro.attempt.attempts import Attempts
    from adlro.attempt.drivers import TreeDriver

    attempts = Attempts(Path(folder), TreeDriver())
    for name in OPERATIONS:
        crash.around(os, name, name)
    attempts._forget("a.1")


if __name__ == "__main__":
    main()
