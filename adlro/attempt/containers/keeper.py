"""One attempt's life, in a thread: its image, its container, its one start, its logs, its time limit, its end.

The service may be killed between any two steps. Another keeper then goes by what is there:

    exit.json       removes the container
    wait.json       takes the rest of the logs, then writes exit.json
    spawn.json      never starts anything: watches the container that it names, or writes down that it was lost
    else            removes a container that was made and not started, then makes and starts one

The lock of the attempt's folder is held meanwhile: of several services one keeps an attempt. spawn.json is written
after the container was made and before the engine is asked to start it: a start of a container that has ended would run
it again, and a request of a killed service may still be under way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from adlro.attempt import journal as names
from adlro.attempt.containers.engine import ContainerState, Engine, EngineAwayError, RefusedError
from adlro.attempt.containers.images import CancelledError, Images, NoImageError, UnknownImageError
from adlro.attempt.containers.mounts import Mounts
from adlro.attempt.containers.plan import cdi_knows, container_config, container_name
from adlro.attempt.containers.spooler import Spool, Spooler, copy_log
from adlro.attempt.given import NotStartedError, secrets_of, user_of
from adlro.attempt.journal import Journal, now
from adlro.attempt.linux import boot_id, boottime_s
from adlro.attempt.log_files import read_log
from adlro.attempt.records import JOB_DIR_INSIDE

_log = structlog.get_logger()
_Result = TypeVar("_Result")
Record = dict[str, Any]

# Between two tries while the engine is away, or another service keeps the attempt: shortest, longest.
_AWAY_S, _MOST_AWAY_S = 0.1, 5.0
_LOCKED_S = 0.5
# Between two looks whether the gate of an attempt of several containers is open.
_GATE_LOOK_S = 0.05
# Between two looks at a container: its end is noticed at the end of its log, which comes by itself.
_LOOK_S = 5.0
_TICK_S = 1.0
_KILL_LOOK_S = 0.5
_STUCK_S = 60.0
# An image that this node can't fetch is tried for again after so long.
_PULL_PAUSES_S = (2.0, 10.0)
# A log whose entries come later than this is written faster than the engine hands it out.
_LAG_S = 2.0
_HELD_LOOK_S, _CAUGHT_UP_S = 0.1, 0.3
# The log's end follows the container's.
_LOG_END_S = 10.0
# What an engine's end does to containers: SIGTERM, SIGKILL, and not known.
_ENGINE_CODES = frozenset({143, 137, 255})
# It ends them so long before it is there again, and after that.
_ENGINE_DOWN_S, _ENGINE_UP_S = 60.0, 30.0
# The engine's first process could not run the program.
_NO_PROGRAM_CODES, _NO_PROGRAM = frozenset({126, 127}), b"[FATAL tini"


CLEARED = "cleared.json"
"""The attempt has ended, and its container is gone: nothing is to be asked of the engine any more."""

# SIGTERM was sent, and when: the grace does not begin anew with each service.
_TERM = "term.json"
_TIME_OVER = "its time was over"


class _ClosedError(Exception):
    """The service ends. The container goes on."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all keepers of a node share.

    Attributes:
        engine: it.
        images: of it.
        mounts: what may be mounted.
        network: the engine's network that containers are in.
    """

    engine: Engine
    images: Images
    mounts: Mounts
    network: str


@dataclass(slots=True)
class _Ending:
    """The end of a container, under way."""

    reason: str
    detail: str
    kill_s: float


class Keeper:
    """Keeps one attempt until it has ended and its container is gone.

    Args:
        journal: of the attempt.
        surroundings: of all keepers.
    """

    def __init__(self, journal: Journal, surroundings: Surroundings) -> None:
        self.done = threading.Event()
        self.doing = ""
        self._journal = journal
        self._around = surroundings
        self._engine = surroundings.engine
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._called: list[Callable[[], None]] = []
        self._exited = False
        self._called_lock = threading.Lock()
        self._intent: Record = {}
        self._ending: _Ending | None = None
        self._spooler: Spooler | None = None
        # While the engine was away, Unix time: since when, and until when.
        self._away_unix_s: float | None = None
        self._back_unix_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"keeper of {journal.name}", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """There is a stop to be read."""
        self._wake.set()

    def close(self) -> None:
        """Leaves the container to itself; returns when this thread has ended."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    @property
    def image(self) -> str:
        """Of the container; empty: not read yet."""
        return str(self._intent["container"]["image"]) if self._intent else ""

    def call_when_exited(self, call: Callable[[], None]) -> None:
        """Has something called in this thread when the attempt's end is written down, or the keeper ends."""
        with self._called_lock:
            if not self._exited and not self.done.is_set():
                self._called.append(call)
                return
        call()

    # ---- the thread

    def _run(self) -> None:
        try:
            self._keep_locked()
        except _ClosedError:
            pass
        except Exception:
            _log.exception("an attempt's container is not kept; trying again later", attempt=self._journal.name)
        finally:
            self.done.set()
            self._call_waiting()

    def _call_waiting(self) -> None:
        with self._called_lock:
            self._exited = self._journal.has(names.EXIT)
            calls, self._called = self._called, []
        for call in calls:
            call()

    def _keep_locked(self) -> None:
        while (lock := self._journal.hold_lock()) is None:
            if self._journal.has(names.EXIT):
                return
            self._sleep(_LOCKED_S)
        try:
            self._keep()
        finally:
            os.close(lock)

    def _keep(self) -> None:
        journal = self._journal
        try:
            intent = journal.read(names.INTENT)
        except ValueError as error:
            if journal.has(names.SPAWN):
                raise
            self._end_attempt(_not_started(f"its intent can't be read: {error}", by_node=True))
            return
        if intent is None:
            return  # it was forgotten
        self._intent = intent
        if not journal.has(names.EXIT):
            self._end_attempt(journal.read(names.WAIT) or self._live())
        self._clear()

    def _end_attempt(self, end: Record) -> None:
        """Writes down how it ended: at first how its program did, then, with its logs whole, that of the attempt."""
        end = {"at": now(), **end}
        if not self._journal.has(names.WAIT):
            self._journal.write_reserved(names.WAIT, end)
        self.doing = "taking the rest of the log"
        self._complete_logs()
        self._journal.write_reserved(names.EXIT, {**end, "ended": now()})
        self.doing = ""
        self._call_waiting()

    def _live(self) -> Record:
        spawned = self._journal.read(names.SPAWN)
        if spawned is None:
            try:
                self._begin()
            except NotStartedError as error:
                return _not_started(str(error))
            except NoImageError as error:
                return _not_started(str(error), by_node=True)
            except RefusedError as error:
                return _not_started(f"the container engine refuses it: {error.text}", by_node=error.status >= 500)
            except CancelledError:
                stop = self._stop()
                assert stop is not None, "nothing else cancels it"
                return _end(stop["reason"], detail=stop["detail"] or "it was stopped before it began")
            spawned = self._journal.read(names.SPAWN)
            assert spawned is not None, "a start is written down before it is asked for"
        return self._watch(spawned)

    # ---- the start

    def _begin(self) -> None:
        """Makes the container and starts it; writes down before that it will.

        Raises:
            NotStartedError, NoImageError, RefusedError, CancelledError: it was not started, and never will be.
        """
        intent, journal, around = self._intent, self._journal, self._around
        if intent["version"] != names.VERSION:
            raise RefusedError(500, f"the intent is of version {intent['version']}, not {names.VERSION}")
        self._go_on()
        self._fetch_image()
        other, own = user_of(intent["user"])
        user_id, group_id, groups = other or (os.geteuid(), os.getegid(), os.getgroups())
        environment = {"HOME": "/tmp"} if user_id != 0 else {}
        if own is not None:
            # Without them a library that asks who runs it fails: the image does not know this user.
            environment |= {"USER": own.pw_name, "LOGNAME": own.pw_name}
        environment |= intent["environment"] | secrets_of(intent, own) | {"ADLRO_ATTEMPT": intent["name"]}
        environment |= intent["node_environment"]
        with around.mounts.staged(intent["mark"], intent["container"]["mounts"], other) as mounts:
            config = container_config(
                intent,
                user=(user_id, group_id),
                groups=sorted({*groups, *_owners(intent["device_files"])} - {group_id}),
                environment=environment,
                # Of the node's own, in a folder of the service's: nobody can exchange it.
                mounts=[*mounts, *_job_dir(intent)],
                network=around.network,
                cdi=cdi_knows(self._cdi_folders(), intent["gpu_uuids"]),
            )
            self.doing = "making the container"
            container = self._create(config)
            self._wait_at_gate()
            self._go_on()
            if not journal.write_once(names.SPAWN, {"at": now(), "container": container}):
                raise RuntimeError("another service has started it although this one has the lock")
            self.doing = "starting the container"
            try:
                self._engine.start(container)
            except EngineAwayError:
                self._hear_away()  # what became of it will be seen

    def _wait_at_gate(self) -> None:
        """Says that all is prepared; returns when the containers of the attempt may begin, all at once."""
        gate = self._intent.get("gate")
        if not gate:
            return
        # Before others see that it is prepared.
        self.doing = "waiting for the other programs of its job"
        self._journal.write_once(names.READY, {"at": now()}, durable=False)
        self._go_on()
        while not os.path.exists(gate):
            self._pause(_GATE_LOOK_S)
            self._go_on()

    def _fetch_image(self) -> None:
        container = self._intent["container"]
        for pause_s in (*_PULL_PAUSES_S, None):
            self.doing = f"looking for image {container['image']}"
            try:
                self._ask(
                    self._around.images.get, container["image"], always=container["always_pull"], wanted=self._wanted
                )
                return
            except UnknownImageError as error:
                raise NotStartedError(str(error)) from error
            except NoImageError:
                if pause_s is None:
                    raise
                self._sleep(pause_s)
                self._go_on()
            except CancelledError:
                self._check_open()
                raise

    def _create(self, config: Record) -> str:
        name = container_name(self._intent)
        while True:
            # One that is there was made and never started; what it would mount may be somebody else's by now.
            found = self._ask(self._engine.find, name)
            if found is not None:
                if found.mark != self._intent["mark"]:
                    raise RefusedError(500, f"there is a container {name} which is not this attempt's")
                self._ask(self._engine.remove, found.id)
            try:
                return self._engine.create(name, config)
            except EngineAwayError:
                self._hear_away()
            except RefusedError as error:
                if error.status != 409:
                    raise
            self._sleep(_AWAY_S)

    def _cdi_folders(self) -> list[str]:
        if not self._intent["gpu_uuids"]:
            return []
        return list(self._ask(self._engine.info).get("CDISpecDirs") or ())

    def _go_on(self) -> None:
        if self._stop() is not None:
            raise CancelledError(self._journal.name)

    def _wanted(self) -> bool:
        return not self._closing.is_set() and self._stop() is None

    # ---- its life

    def _watch(self, spawned: Record) -> Record:
        """Returns the record of the end, when the container has ended, or has turned out never to have run."""
        container = spawned["container"]
        state = self._ask(self._engine.find, container)
        if state is not None and state.status == "created":
            return self._never_ran(state, spawned)
        if state is None:
            return self._gone(spawned)
        self.doing = ""
        began_s = self._begun(state)
        spool = Spool(self._journal, self._intent["log_limit_bytes"])
        try:
            ended = self._until_end(state, began_s, spool)
            if self._spooler is not None:
                self._spooler.join(_LOG_END_S)
        finally:
            if self._spooler is not None:
                self._spooler.close()
            spool.close()
        return self._gone(spawned) if ended is None else self._ended(ended)

    def _until_end(self, state: ContainerState, began_s: float, spool: Spool) -> ContainerState | None:
        """Keeps the time limit, the stop and the log; returns the container when it has ended; None: it is gone."""
        # A service that was killed may have left it held.
        container, held = state.id, state.status == "paused"
        spooler = self._spooler = Spooler(self._engine, container, spool, self._wake.set)
        looked_s = boottime_s()
        while state.status not in {"exited", "dead"}:
            self._look_for_end(container, began_s, state)
            if held and (self._ending is not None or not spooler.running or spooler.idle_s > _CAUGHT_UP_S):
                self._tolerant(self._engine.freeze, container, frozen=False)
                held = False
            elif not held and self._ending is None and spooler.lag_s > _LAG_S:
                held = self._tolerant(self._engine.freeze, container, frozen=True)
            self._pause(_HELD_LOOK_S if held else _KILL_LOOK_S if self._ending is not None else _TICK_S)
            if not spooler.running or self._ending is not None or boottime_s() >= looked_s + _LOOK_S:
                looked_s = boottime_s()
                found = self._ask(self._engine.find, container)
                if found is None:
                    return None
                state = found
                if not spooler.running and state.status in {"running", "paused"}:
                    if spooler.problem:
                        self._pause(_TICK_S)
                    spooler = self._spooler = Spooler(self._engine, container, spool, self._wake.set)
        return state

    def _begun(self, state: ContainerState) -> float:
        """Writes down that the program runs; returns since when, in seconds since boot."""
        journal = self._journal
        if not journal.has(names.RUN):
            at = now()
            ago_s = max(0.0, at["unix_s"] - state.began_unix_s)
            at = {**at, "boottime_s": at["boottime_s"] - ago_s, "unix_s": at["unix_s"] - ago_s}
            try:
                journal.write_once(names.RUN, {"pid": state.pid, "start_ticks": 0, "at": at}, durable=False)
            except OSError as error:  # a full disk: the limits hold all the same
                _log.warning("a start can't be written down", attempt=journal.name, why=str(error))
                return float(at["boottime_s"])
        run = journal.read(names.RUN)
        assert run is not None
        return float(run["at"]["boottime_s"]) if run["at"]["boot_id"] == boot_id() else 0.0

    def _look_for_end(self, container: str, began_s: float, state: ContainerState) -> None:
        """Does what a stop or the time limit asks for: SIGTERM, and SIGKILL after the grace."""
        intent, limit_s, present_s = self._intent, self._intent["time_limit_s"], boottime_s()
        if self._ending is None:
            stop, grace_s = self._stop(), intent["stop_grace_s"]
            if stop is not None:
                reason, detail, grace_s = stop["reason"], stop["detail"], stop.get("grace_s", grace_s)
            elif limit_s is not None and present_s >= began_s + limit_s:
                reason, detail = names.TIME_LIMIT, _TIME_OVER
            else:
                return
            # Another service may have asked before: the grace does not begin anew.
            asked = self._journal.read(_TERM)
            if state.status == "paused":
                self._tolerant(self._engine.freeze, container, frozen=False)
            if asked is None:
                if not self._tolerant(self._engine.signal, container, signal.SIGTERM):
                    return
                with contextlib.suppress(OSError):  # of a full disk
                    self._journal.write_once(_TERM, {"at": now()}, durable=False)
                asked_s = present_s
            else:
                asked_s = min(asked["at"]["boottime_s"], present_s)
            self._ending = _Ending(reason, detail, asked_s + grace_s)
        if present_s >= self._ending.kill_s:
            self._tolerant(self._engine.signal, container, signal.SIGKILL)
            if present_s > self._ending.kill_s + _STUCK_S and not self._journal.has(names.STUCK):
                with contextlib.suppress(OSError):
                    self._journal.write_once(names.STUCK, {"pids": [state.pid]}, durable=False)

    def _stop(self) -> Record | None:
        try:
            return self._journal.read(names.STOP)
        except ValueError:
            return {"reason": names.STOPPED, "detail": "why it was stopped can't be read"}

    # ---- its end

    def _ended(self, state: ContainerState) -> Record:
        code, number = exit_of(state.code)
        asked = self._asked(state)
        if asked is not None:
            return _end(asked[0], code, number, asked[1])
        run = self._journal.read(names.RUN)
        rebooted = run is not None and run["at"]["boot_id"] != boot_id()
        live_restore = bool(self._ask(self._engine.info).get("LiveRestoreEnabled"))
        engine_began_s = self._engine.began_unix_s()
        away = None if self._away_unix_s is None else (self._away_unix_s, self._back_unix_s or time.time())
        if lost_with_engine(state, engine_began_s, away, live_restore=live_restore and not rebooted):
            if rebooted:
                return _end(names.NODE_LOST, detail="the node went down while its container ran")
            return _end(names.SUPERVISOR_LOST, code, number, "the container engine was restarted, which ended it")
        if state.out_of_memory and state.code != 0:
            return _end(names.OUT_OF_MEMORY, code, number, "it used more memory than its limit")
        if state.code in _NO_PROGRAM_CODES:
            text = read_log(self._journal.path(names.STDERR), 0, names.DETAIL_CHARS).data
            if text.startswith(_NO_PROGRAM):
                return _not_started(text.decode(errors="replace").strip())
        if number:
            return _end(names.SIGNALLED, 0, number, f"the engine reports exit code {state.code}")
        return _end(names.EXITED, code)

    def _asked(self, state: ContainerState) -> tuple[str, str] | None:
        """Reason and detail of an end that was asked for, also by a service that was killed since; None: it was not."""
        if self._ending is not None:
            return self._ending.reason, self._ending.detail
        if not self._journal.has(_TERM) and state.code not in {143, 137}:
            return None
        stop, limit_s = self._stop(), self._intent["time_limit_s"]
        if stop is not None:
            return stop["reason"], stop["detail"]
        lasted_s = state.ended_unix_s - state.began_unix_s
        over = limit_s is not None and lasted_s >= limit_s
        return (names.TIME_LIMIT, _TIME_OVER) if over or self._journal.has(_TERM) else None

    def _gone(self, spawned: Record) -> Record:
        """Its container is not there any more, and nobody knows how it ended."""
        return self._lost(spawned, "its container was removed by somebody else")

    def _never_ran(self, state: ContainerState, spawned: Record) -> Record:
        self._remove(state.id)  # a start that is still under way finds nothing, or is undone
        if state.error:
            return _not_started(f"the container engine refuses it: {state.error}", by_node=True)
        return self._lost(spawned, "the service or the engine was killed while the engine was asked to start it")

    def _lost(self, spawned: Record, detail: str) -> Record:
        stop = self._stop()
        if stop is not None:
            return _end(stop["reason"], detail=detail)
        if spawned["at"]["boot_id"] != boot_id():
            return _end(names.NODE_LOST, detail=f"the node went down; {detail}")
        return _end(names.SUPERVISOR_LOST, detail=detail)

    def _complete_logs(self) -> None:
        """Takes what the engine has beyond what came while the container ran."""
        spawned = self._journal.read(names.SPAWN)
        while spawned is not None and self._ask(self._engine.find, spawned["container"]) is not None:
            spool = Spool(self._journal, self._intent["log_limit_bytes"])
            try:
                copy_log(self._engine, spawned["container"], spool, lambda _: None, self._closing, follow=False)
                self._engine.info()  # else the log may have ended with the engine
                self._check_open()
                return
            except EngineAwayError:
                self._hear_away()
                self._sleep(_AWAY_S)
            except (RefusedError, OSError) as error:
                _log.warning("the log of an attempt is not whole", attempt=self._journal.name, why=str(error))
                return
            finally:
                spool.close()

    def _clear(self) -> None:
        """Removes the container: all that it had to say is in the folder."""
        self._around.mounts.unstage(self._intent["mark"])
        self._remove(container_name(self._intent))
        with contextlib.suppress(OSError):  # of a full disk: the next service looks for it again
            self._journal.write_once(CLEARED, {"at": now()}, durable=False)

    def _remove(self, name: str) -> None:
        """Removes a container of this attempt; returns when it is gone. Another request may be at it already."""
        pause_s = _AWAY_S
        while (found := self._ask(self._engine.find, name)) and found.mark == self._intent["mark"]:
            self.doing = "removing the container"
            try:
                self._ask(self._engine.remove, found.id)
                if self._ask(self._engine.find, found.id) is None:
                    return
            except RefusedError as error:
                _log.warning("a container can't be removed yet", attempt=self._journal.name, why=error.text)
            self._sleep(pause_s)
            pause_s = min(2.0 * pause_s, _MOST_AWAY_S)

    # ---- calls and waits

    def _ask(self, call: Callable[..., _Result], *args: Any, **more: Any) -> _Result:
        """Asks the engine until it answers. For what may be asked twice."""
        pause_s = _AWAY_S
        while True:
            self._check_open()
            try:
                result = call(*args, **more)
            except EngineAwayError:
                self._hear_away()
                self.doing = self.doing or "waiting for the container engine"
                self._sleep(pause_s)
                pause_s = min(2.0 * pause_s, _MOST_AWAY_S)
                continue
            if self._away_unix_s is not None and self._back_unix_s is None:
                self._back_unix_s = time.time()
            return result

    def _hear_away(self) -> None:
        if self._away_unix_s is None or self._back_unix_s is not None:
            self._away_unix_s, self._back_unix_s = time.time(), None

    def _tolerant(self, call: Callable[..., None], *args: Any, **more: Any) -> bool:
        """Asks once for what will be asked for again; False: it was not done."""
        try:
            call(*args, **more)
        except EngineAwayError:
            self._hear_away()
            return False
        except RefusedError as error:
            _log.warning("the container engine refuses", attempt=self._journal.name, why=error.text)
            return False
        return True

    def _pause(self, most_s: float) -> None:
        """Returns after a time, or when there is something to look at."""
        self._wake.wait(most_s)
        self._wake.clear()
        self._check_open()

    def _sleep(self, time_s: float) -> None:
        self._closing.wait(time_s)
        self._check_open()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise _ClosedError


def exit_of(code: int) -> tuple[int, int]:
    """Exit code and signal of a program, as a container's exit code gives them: 128 + n for signal n."""
    number = code - 128
    if number > 0 and number in set(signal.valid_signals()):
        return 0, number
    return code, 0


def lost_with_engine(
    state: ContainerState,
    engine_began_s: float | None,
    away: tuple[float, float] | None,
    *,
    live_restore: bool,
) -> bool:
    """A container that nobody asked to end was ended with its engine, and did not end by itself.

    Args:
        state: of the container.
        engine_began_s: when the engine was started, Unix time; None: not known.
        away: since when and until when it did not answer, Unix time; None: it always did, or nobody looked.
        live_restore: containers go on while the engine is away.
    """
    if live_restore:
        return False
    end_s = state.ended_unix_s
    if away is not None and away[0] - 1.0 <= end_s <= away[1] + 1.0:
        return True
    if engine_began_s is None or state.began_unix_s >= engine_began_s:
        return False
    if engine_began_s - _ENGINE_DOWN_S <= end_s <= engine_began_s + _ENGINE_UP_S:
        return True
    return end_s < engine_began_s and state.code in _ENGINE_CODES


def _job_dir(intent: Record) -> list[Record]:
    """The mount of the job's directory, where the node has one for it."""
    source = intent.get("job_dir")
    return [{"source": source, "target": JOB_DIR_INSIDE, "writable": True}] if source else []


def _owners(paths: list[str]) -> set[int]:
    """The groups of device files: an image may have others by these names."""
    try:
        return {os.stat(path).st_gid for path in paths} - {0}
    except OSError as error:
        raise RefusedError(500, f"a GPU's device file is missing: {error}") from error


def _end(reason: str, code: int = 0, number: int = 0, detail: str = "") -> Record:
    return {"reason": reason, "code": code, "signal": number, "detail": detail[: names.DETAIL_CHARS]}


def _not_started(detail: str, *, by_node: bool = False) -> Record:
    return {**_end(names.NOT_STARTED, detail=detail), "by_node": by_node}
