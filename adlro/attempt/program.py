"""The child between fork and exec: waits at the gate, becomes the user, runs the program. Part of the supervisor.

Nothing here returns: the process becomes the program, or says in one line why not, and ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal

from adlro.attempt.linux import die_with_parent, new_keyring

GATE_OPEN = b"\n"
_FAILED = 127

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


class Plan:
    """What the child is to become; made before the fork, so that what can fail there fails there.

    Args:
        argv: the program and its arguments; without a slash it is looked for in the environment's PATH.
        environment: all of it.
        workdir: where it begins; looked at as the user.
        user: user id, group id, groups; None: as the supervisor.
        niceness: its priority.
        stdout, stderr: descriptors.
    """

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str],
        workdir: str,
        user: tuple[int, int, list[int]] | None,
        niceness: int,
        stdout: int,
        stderr: int,
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.workdir = workdir
        self.user = user
        self.niceness = niceness
        self.stdout = stdout
        self.stderr = stderr


def become(plan: Plan, parent: int, gate: int, failures: int) -> NoReturn:
    """Runs in the child: waits at the gate, then becomes the program.

    Args:
        plan: what to become.
        parent: the supervisor, as it was called before the fork: it may be gone by now.
        gate: a pipe. Read to its end without GATE_OPEN: the supervisor is gone, and so nothing may begin.
        failures: a pipe, closed by exec; takes why there was none.
    """
    try:
        _own_process(plan)
        if os.read(gate, 1) == GATE_OPEN:
            _run(plan, parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            # No more than a pipe takes at once, whoever reads it.
            os.write(failures, (str(error) or type(error).__name__).encode(errors="replace")[: select.PIPE_BUF])
    finally:
        os._exit(_FAILED)


def _own_process(plan: Plan) -> None:
    """A session of its own, the program's files, and nothing of the supervisor's signals."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # some are the C library's
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (plan.stdout, 1), (plan.stderr, 2)):
        os.dup2(fd, target)
    # What the supervisor has taken for itself.
    os.setpriority(os.PRIO_PROCESS, 0, plan.niceness)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")


def _run(plan: Plan, parent: int) -> NoReturn:
    new_keyring()
    if plan.user is not None:
        user_id, group_id, groups = plan.user
        os.setgroups(groups)
        os.setresgid(group_id, group_id, group_id)
        os.setresuid(user_id, user_id, user_id)
    os.umask(0o022)
    # Between a supervisor's end and the next one's start nothing watches over the program, so it ends with its
    # supervisor. After the change of user, which takes that back.
    die_with_parent()
    if os.getppid() != parent:
        os._exit(_FAILED)
    try:
        os.chdir(plan.workdir)
    except OSError as error:
        raise RuntimeError(f"working directory '{plan.workdir}' can't be entered: {error.strerror}") from None
    _exec(plan)


def _exec(plan: Plan) -> NoReturn:
    program = plan.argv[0]
    if "/" in program:
        candidates = [program]
    else:
        folders = plan.environment.get("PATH", os.defpath).split(":")
        candidates = [os.path.join(folder, program) for folder in folders if folder]
    denied = ""
    for candidate in candidates:
        try:
            os.execve(candidate, plan.argv, plan.environment)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR} and not os.path.exists(candidate):
                continue
            if error.errno == errno.EACCES and "/" not in program:
                denied = denied or candidate
                continue
            raise RuntimeError(f"'{candidate}' can't be run: {_why(error)}") from None
    if denied:
        raise RuntimeError(f"'{denied}' can't be run: Permission denied")
    if "/" in program:
        seen = "" if program.startswith("/") else f", seen from '{plan.workdir}'"
        raise RuntimeError(f"there is no program '{program}'{seen}")
    raise RuntimeError(f"there is no program '{program}' in PATH, which is {plan.environment.get('PATH', os.defpath)}")


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "it is there, but the interpreter that it names (in its first line, or as a binary) is not"
    if error.errno == errno.ENOEXEC:
        return "it is no binary of this machine, and its first line does not name an interpreter (such as #!/bin/sh)"
    if error.errno == errno.E2BIG:
        return "its arguments and its environment are longer than the kernel takes"
    return error.strerror or str(error)
