"""The supervisor of one attempt: starts its program once, watches over it, ends all of it, tells how it ended.

A process of its own that outlives the service. It may be killed at any moment, also by what it did not expect, and
another one be started: the records of the journal say what that one does.

    exit.json there         nothing
    spawn.json there        ends what is left of the program, and tells that its supervisor (or the node) was lost
    stop.json there         tells that the attempt was stopped before it began
    else                    prepares the program, waits for its gate where it has one, and runs it

Standard library only, and only what is small of it: a node has one of these for each attempt.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

from adlro.attempt import journal as names
from adlro.attempt import tree
from adlro.attempt.cgroup import Groups
from adlro.attempt.given import NotStartedError, environment_of, user_of
from adlro.attempt.journal import Journal, now
from adlro.attempt.linux import become_subreaper, boot_id, boottime_s, process_stat, watch_writes
from adlro.attempt.log_files import Bound, open_log
from adlro.attempt.program import GATE_OPEN, Plan, become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from adlro.attempt.journal import Record

# What a program leaves behind when it ends by itself has so long between SIGTERM and SIGKILL.
LEFTOVERS_S = 2.0
# Between two looks at what was killed and is not gone.
_KILL_LOOK_S = 0.05
# Where the kernel has no watch on files left for us, logs are looked at so often.
_UNWATCHED_S = 0.1
# In place of infinity, which poll does not take: some loops a day cost nothing.
_FOREVER_S = 600.0
# What was killed is told as stuck after so long.
_STUCK_S = 60.0
_NICENESS = -10
# Between two looks whether a gate is open: at first, and after some time, when an image of a peer may be on its way.
_GATE_LOOK_S, _GATE_LATER_LOOK_S, _GATE_LATER_S = 0.02, 0.25, 5.0
_FROM_OUTSIDE = "its supervisor was told to end by somebody else: the machine goes down, or its unit was stopped"


def main(folder: str) -> int:
    """Does what is to be done for an attempt; returns the exit code of this process.

    Args:
        folder: of the attempt.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    signals = _Signals()  # before the lock: who reads this process's PID there may signal it at once
    journal = Journal(folder)
    if not journal.take_lock() or journal.has(names.EXIT):
        return 0
    _go_before_programs()
    spawned = journal.read(names.SPAWN)
    try:
        intent = journal.read(names.INTENT)
    except ValueError as error:
        if spawned is not None:
            raise  # what is left of the program can't be found
        _tell_end(journal, {**_end(names.NOT_STARTED, detail=f"its intent can't be read: {error}"), "by_node": True})
        return 0
    if intent is None:
        raise FileNotFoundError(f"{folder} has no intent")
    if spawned is not None:
        _end_for_another(journal, intent, spawned)
    elif (stop := _stop_of(journal)) is not None:
        _tell_end(journal, _end_before(stop))
    else:
        _run(journal, intent, signals, niceness)
    return 0


def _go_before_programs() -> None:
    """No program starves the one who is to end it, or takes its place where memory runs out. Root may ask for that."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def _end(reason: str, code: int = 0, signal_number: int = 0, detail: str = "") -> Record:
    return {"reason": reason, "code": code, "signal": signal_number, "detail": detail[: names.DETAIL_CHARS]}


def _end_before(stop: Record) -> Record:
    """The end of what was stopped before it began."""
    return _end(stop["reason"], detail=stop["detail"] or "it was stopped before it began")


def _tell_end(journal: Journal, end: Record) -> None:
    journal.write_reserved(names.EXIT, {**end, "ended": now()})


def _stop_of(journal: Journal) -> Record | None:
    """Who wants the end, and why; None: nobody. A record that can't be read still says that somebody does."""
    try:
        return journal.read(names.STOP)
    except ValueError:
        return {"reason": names.STOPPED, "detail": "why it was stopped can't be read"}


# ---- another supervisor's attempt


def _end_for_another(journal: Journal, intent: Record, spawned: Record) -> None:
    """The supervisor that made the program was killed, or the node has gone down."""
    groups = Groups(intent["groups"])

    def left() -> dict[int, int]:
        return tree.marked(intent["mark"]) | groups.processes()

    # Its program has ended with it. What that left behind may be anywhere, with any parent.
    groups.kill()
    killed = tree.kill_all(left)
    end, stop = journal.read(names.WAIT), _stop_of(journal)
    if end is None:
        rebooted = spawned["at"]["boot_id"] != boot_id()
        lost = "the node went down" if rebooted else "its supervisor was killed"
        ran = "while its program ran" if journal.has(names.RUN) else "before its program began"
        reason = names.NODE_LOST if rebooted else names.SUPERVISOR_LOST
        # Where its end was asked for, it has come as well.
        end = _end(reason if stop is None else stop["reason"], detail=f"{lost} {ran}")
    groups.remove()
    _tell_end(journal, {**end, "left_behind": killed})


# ---- an attempt of its own


def _run(journal: Journal, intent: Record, signals: _Signals, niceness: int) -> None:
    groups = Groups(intent["groups"])
    try:
        try:
            run = _Run(journal, intent, groups, signals)
            run.start(niceness)
        except NotStartedError as error:
            _tell_end(journal, _end(names.NOT_STARTED, detail=str(error)))
            return
        except _StoppedError as error:
            _tell_end(journal, error.end)
            return
        except Exception as error:  # nothing has run, and a second try would come to the same
            end = _end(names.NOT_STARTED, detail=f"its supervisor could not start it: {error!r}")
            _tell_end(journal, {**end, "by_node": True})
            return
        end = run.watch()
    finally:
        groups.remove()
    _tell_end(journal, end)


class _StoppedError(Exception):
    """Its end was asked for before it began."""

    def __init__(self, end: Record) -> None:
        super().__init__(end["detail"])
        self.end = end


class _Signals:
    """SIGCHLD and SIGTERM, as bytes that can be waited for."""

    def __init__(self) -> None:
        self.fd, write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # Whoever started us may have blocked some, and a mask is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def take(self) -> bytes:
        """The signals that have come since the last call."""
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""


class _Ending:
    """The end of all of an attempt's processes, under way.

    Args:
        reason: of the attempt's end; empty: its program ended by itself.
        grace_s: from now on, until they are killed.
    """

    def __init__(self, reason: str, detail: str, grace_s: float) -> None:
        self.reason = reason
        self.detail = detail
        self.half_s = boottime_s() + grace_s / 2
        self.kill_s = boottime_s() + grace_s
        self.all_told = False


class _Run:
    """One program, from its process to the end of the last one that it brought about."""

    def __init__(self, journal: Journal, intent: Record, groups: Groups, signals: _Signals) -> None:
        self._journal = journal
        self._intent = intent
        self._groups = groups
        self._signals = signals
        self._limit_s: float | None = None
        self._ending: _Ending | None = None
        # What wait4 said of the program itself, and its first record.
        self._status: int | None = None
        self._end: Record = {}
        self._peak_kib = 0
        self._left_behind = 0
        self._failure = b""

    # ---- the start

    def start(self, niceness: int) -> None:
        """Makes the program's process and opens its gate. It has not run exec yet.

        Args:
            niceness: of the program.

        Raises:
            Exception: it can't; nothing of it is there any more. NotStartedError: for a reason that its user knows.
                _StoppedError: its end was asked for while its gate was closed.
        """
        intent = self._intent
        if intent["version"] != names.VERSION:
            raise RuntimeError(f"the intent is of version {intent['version']}, not {names.VERSION}")
        user, own = user_of(intent["user"])
        scratch = self._journal.path(names.SCRATCH)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        owner = None if user is None else user[:2]
        if owner is not None:
            os.chown(scratch, *owner, follow_symlinks=False)
        environment = environment_of(intent, own)
        logs = [open_log(self._journal.path(name), owner) for name in (names.STDOUT, names.STDERR)]
        self._bounds = [Bound(fd, intent["log_limit_bytes"]) for fd in logs]
        self._watch = watch_writes([self._journal.path(name) for name in (names.STDOUT, names.STDERR)])
        plan = Plan(intent["argv"], environment, intent["workdir"] or scratch, user, niceness, logs[0], logs[1])
        self._groups.make(intent["limits"])
        become_subreaper()
        self._wait_at_gate()
        # From here on no other supervisor will start it.
        if not self._journal.write_once(names.SPAWN, {"at": now()}):
            raise NotStartedError("another supervisor has started it")
        gate, opens = os.pipe()
        self._failures, fails = os.pipe()
        supervisor = os.getpid()
        # One that came between the fork and the child's own handling would be told to us by the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._pid = os.fork()
        if self._pid == 0:
            os.close(opens)
            become(plan, supervisor, gate, fails)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(gate)
        os.close(fails)
        os.set_blocking(self._failures, False)
        try:
            self._groups.add(self._pid)
            process = process_stat(self._pid)
            began = {"pid": self._pid, "start_ticks": process[1] if process else 0, "at": now()}
            self._journal.write_once(names.RUN, began, durable=False)
        except BaseException:
            os.close(opens)  # the child ends without having run anything
            os.waitpid(self._pid, 0)
            raise
        if intent["time_limit_s"] is not None:
            self._limit_s = boottime_s() + intent["time_limit_s"]
        with contextlib.suppress(BrokenPipeError):  # it was killed before
            os.write(opens, GATE_OPEN)
        os.close(opens)

    def _wait_at_gate(self) -> None:
        """Says that all is prepared; returns when the programs of the attempt may begin, all at once."""
        gate = self._intent.get("gate")
        if not gate:
            return
        self._journal.write_once(names.READY, {"at": now()}, durable=False)
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        later_s = boottime_s() + _GATE_LATER_S
        while True:
            # Before the gate: what is to be stopped does not begin, also where it has been opened meanwhile.
            if (stop := _stop_of(self._journal)) is not None:
                raise _StoppedError(_end_before(stop))
            if os.path.exists(gate):
                return
            look_s = _GATE_LOOK_S if boottime_s() < later_s else _GATE_LATER_LOOK_S
            if poll.poll(int(1000 * look_s)) and signal.SIGTERM in self._signals.take():
                stop = _stop_of(self._journal) or {"reason": names.NODE_LOST, "detail": _FROM_OUTSIDE}
                raise _StoppedError(_end_before(stop))

    # ---- its life

    def watch(self) -> Record:
        """Returns the record of the attempt's end, when nothing of it runs any more."""
        poll = select.poll()
        for fd in (self._signals.fd, self._failures, self._watch):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        self._look_for_stop()  # asked for before this process could be told
        looked_s = boottime_s()
        while True:
            self._reap()
            if self._status is not None and not self._has_children():
                break
            log_wait_s = self._look_at_logs(boottime_s() - looked_s)
            looked_s = boottime_s()
            wait_s = min(self._next_s() - boottime_s(), log_wait_s)
            if self._watch is not None:
                # A log that grows is looked at when its time has come, and not with each line.
                poll.modify(self._watch, select.POLLIN if log_wait_s == _FOREVER_S else 0)
            for fd, _ in poll.poll(max(0, int(1000 * min(wait_s, _FOREVER_S) + 0.999))):
                if fd == self._signals.fd:
                    if signal.SIGTERM in self._signals.take():
                        self._look_for_stop(from_outside=True)
                elif fd == self._watch:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 65536)
                elif fd == self._failures:
                    poll.unregister(fd)
                    with contextlib.suppress(BlockingIOError):
                        self._failure = os.read(fd, names.DETAIL_CHARS * 4)
        return self._finish()

    def _look_for_stop(self, *, from_outside: bool = False) -> None:
        stop = _stop_of(self._journal)
        if stop is not None:
            grace_s = stop["grace_s"] if "grace_s" in stop else self._intent["stop_grace_s"]
            self._begin_end(stop["reason"], stop["detail"], grace_s)
        elif from_outside:
            self._begin_end(names.NODE_LOST, _FROM_OUTSIDE, self._intent["stop_grace_s"])

    def _begin_end(self, reason: str, detail: str, grace_s: float) -> None:
        if self._ending is None:
            self._ending = _Ending(reason, detail, grace_s)
            if self._status is None:
                self._signal_program(signal.SIGTERM)

    def _signal_program(self, number: int) -> None:
        # It is our child, and nobody but us can reap it: its PID is its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _next_s(self) -> float:
        """Does what is due; returns when the next thing is, in seconds since boot.

        A program that is asked to end is told alone at first: it may need its children to save its work. They are told
        when it has gone, or does not go within half of its grace.
        """
        present_s = boottime_s()
        if self._ending is None and self._limit_s is not None and present_s >= self._limit_s:
            reached = f"time limit of {self._intent['time_limit_s']:g} s reached"
            self._begin_end(names.TIME_LIMIT, reached, self._intent["stop_grace_s"])
        ending = self._ending
        if ending is None:
            return _FOREVER_S + present_s if self._limit_s is None else self._limit_s
        if present_s >= ending.kill_s:
            self._kill()
            return present_s + _KILL_LOOK_S
        if not ending.all_told and (self._status is not None or present_s >= ending.half_s):
            ending.all_told = True
            tree.send(tree.descendants(os.getpid()), signal.SIGTERM)
        return ending.kill_s if ending.all_told else ending.half_s

    def _kill(self) -> None:
        self._groups.kill()
        below = tree.descendants(os.getpid())
        tree.send(below, signal.SIGSTOP)  # so that none makes another one meanwhile
        tree.send(below, signal.SIGKILL)
        assert self._ending is not None
        if below and boottime_s() > self._ending.kill_s + _STUCK_S and not self._journal.has(names.STUCK):
            with contextlib.suppress(OSError):  # of a full disk
                self._journal.write_once(names.STUCK, {"pids": sorted(below)}, durable=False)

    def _look_at_logs(self, since_s: float) -> float:
        waits = [bound.look(since_s) for bound in self._bounds]
        idle_s = _FOREVER_S if self._watch is not None else _UNWATCHED_S
        return min((wait for wait in waits if wait is not None), default=idle_s)

    # ---- its end

    def _has_children(self) -> bool:
        """Something of it is there. All that it brought about is below this process, the subreaper."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._peak_kib = max(self._peak_kib, usage.ru_maxrss)
            if pid == self._pid:
                self._status = status
                self._program_ended(status)

    def _program_ended(self, status: int) -> None:
        """Writes down at once how the program ended: the supervisor may be killed before all else is over."""
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(BlockingIOError, OSError):
            self._failure = self._failure or os.read(self._failures, names.DETAIL_CHARS * 4)
        ending = self._ending
        if self._failure:
            end = _end(names.NOT_STARTED, detail=self._failure.decode(errors="replace"))
        elif ending is not None:
            end = _end(ending.reason, max(code, 0), max(-code, 0), ending.detail)
        elif code != 0 and self._groups_now().out_of_memory():
            end = _end(names.OUT_OF_MEMORY, max(code, 0), max(-code, 0), "it used more memory than its limit")
        elif code < 0:
            end = _end(names.SIGNALLED, 0, -code)
        else:
            end = _end(names.EXITED, code)
        self._end = {**end, "at": now()}
        self._journal.write_reserved(names.WAIT, self._end)
        if self._has_children():
            self._left_behind = len(tree.descendants(os.getpid()))
            if ending is None:
                self._ending = _Ending("", "", LEFTOVERS_S)

    def _groups_now(self) -> Groups:
        return Groups.of_this_process() if self._intent["driver"] == "unit" else self._groups

    def _finish(self) -> Record:
        for bound in self._bounds:
            bound.look(0.0)
            bound.close()
            if bound.problem:
                sys.stderr.write(bound.problem + "\n")
        peak_mib = self._groups_now().peak_mib()
        if peak_mib is None:  # the largest of its processes; those at the same time are not added up
            peak_mib = self._peak_kib >> 10
        return {**self._end, "peak_memory_mib": peak_mib, "left_behind": self._left_behind}
