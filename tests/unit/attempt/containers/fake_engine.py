"""A container engine in memory: what it was asked, containers that end by themselves, a service that dies in a call."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from adlro.attempt.containers.engine import MARK_LABEL, ContainerState, Engine, EngineAwayError, RefusedError

CALLS = ("has_image", "find", "create", "start", "remove", "logs")


class Killed(BaseException):
    """The service's thread ends here, as by kill -9."""


@dataclass(slots=True)
class FakeContainer:
    id: str
    name: str
    config: Mapping[str, Any]
    status: str = "created"
    code: int = 0
    error: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0
    runs: int = 0
    signals: list[int] = field(default_factory=list)
    log: list[tuple[int, bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


class FakeEngine(Engine):
    """Attributes: `lasts_s` and `code` of programs; `away`: it does not answer; `crash`: call number and when."""

    def __init__(self) -> None:
        self.path = "/nonexistent/engine.sock"
        self.containers: dict[str, FakeContainer] = {}
        self.all: list[FakeContainer] = []
        self.images = {"image:1"}
        self.lasts_s, self.code, self.refusal = 0.02, 5, ""
        self.traps_signals = False
        self.away = False
        self.live_restore = False
        self.start_s: float | None = 0.0
        self.crash: tuple[int, str] | None = None
        self.calls: list[str] = []
        self.pulls: list[str] = []
        self.pull_errors: list[Exception] = []
        self.pulling = threading.Event()
        self.pulling.set()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)

    def _asked(self, name: str, act: Callable[[], Any]) -> Any:
        with self._lock:
            if self.away:
                raise EngineAwayError("connection refused")
            self.calls.append(name)
            number, when = self.crash or (0, "")
            if name in CALLS and when:
                count = sum(each in CALLS for each in self.calls)
                if count == number and when == "before":
                    raise Killed
            result = act()
            if name in CALLS and when == "after" and count == number:
                raise Killed
            return result

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._asked("info", lambda: {"LiveRestoreEnabled": self.live_restore})
        return found

    def began_unix_s(self) -> float | None:
        return self.start_s

    def has_image(self, name: str) -> bool:
        return bool(self._asked("has_image", lambda: name in self.images))

    def pull(self, name: str, told: Callable[[Mapping[str, Any]], None]) -> None:
        self.pulls.append(name)
        told({"id": "a", "status": "Downloading", "progressDetail": {"current": 5 << 20, "total": 9 << 20}})
        while not self.pulling.wait(0.02):
            told({"id": "a", "status": "Downloading", "progressDetail": {"current": 5 << 20, "total": 9 << 20}})
        if self.pull_errors:
            raise self.pull_errors.pop(0)
        self.images.add(name)

    def find(self, name: str) -> ContainerState | None:
        def act() -> ContainerState | None:
            found = self._get(name)
            if found is None:
                return None
            self._age(found)
            mark = found.config["Labels"][MARK_LABEL]
            return ContainerState(
                found.id, mark, found.status, found.code, False, found.error, 1, found.began_s, found.ended_s
            )

        result: ContainerState | None = self._asked("find", act)
        return result

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        def act() -> str:
            if name in self.containers:
                raise RefusedError(409, "the name is taken")
            made = FakeContainer(f"{next(self._numbers):064x}", name, config)
            self.containers[name] = made
            self.all.append(made)
            return made.id

        return str(self._asked("create", act))

    def start(self, container: str) -> None:
        def act() -> None:
            found = self._get(container)
            if found is None:
                raise RefusedError(404, "no such container")
            if self.refusal:
                found.error = self.refusal
                raise RefusedError(500, self.refusal)
            found.runs += 1
            found.status, found.began_s = "running", time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.began_s)).encode() + b".000000001Z "
            found.log.append((1, stamp + b"hello\n"))
            if self.lasts_s < 1.0:
                threading.Timer(self.lasts_s, self._age, [found]).start()

        self._asked("start", act)

    def signal(self, container: str, number: int) -> None:
        def act() -> None:
            found = self._get(container)
            assert found is not None
            found.signals.append(int(number))
            if number == 9 or not self.traps_signals:
                self.end(found, 128 + number)

        self._asked("signal", act)

    def freeze(self, container: str, *, frozen: bool) -> None:
        self._asked("freeze", lambda: None)

    def remove(self, container: str) -> None:
        def act() -> None:
            found = self._get(container)
            if found is not None:
                self.end(found, 137)
                del self.containers[found.name]

        self._asked("remove", act)

    def logs(self, container: str, since_s: int, *, follow: bool) -> Any:
        def act() -> FakeLogStream:
            found = self._get(container)
            if found is None:
                raise RefusedError(404, "no such container")
            return FakeLogStream(found, follow)

        return self._asked("logs", act)

    def end(self, found: FakeContainer, code: int) -> None:
        if found.status == "running":
            found.status, found.code, found.ended_s = "exited", code, time.time()
        found.ended.set()

    def _get(self, name: str) -> FakeContainer | None:
        return self.containers.get(name) or next((e for e in self.containers.values() if e.id == name), None)

    def _age(self, found: FakeContainer) -> None:
        with self._lock:
            if found.status == "running" and time.time() >= found.began_s + self.lasts_s:
                self.end(found, self.code)


class FakeLogStream:
    def __init__(self, container: FakeContainer, follow: bool) -> None:
        self._container, self._follow, self._closed, self._given = container, follow, threading.Event(), False

    def read(self) -> list[tuple[int, bytes]]:
        if not self._given:
            self._given = True
            if self._container.log:
                return list(self._container.log)
        while self._follow and not self._closed.is_set() and not self._container.ended.wait(0.01):
            pass
        return []

    def close(self) -> None:
        self._closed.set()
