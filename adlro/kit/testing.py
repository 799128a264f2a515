"""Services for tests, benchmarks, evaluations: on the running loop, or as separate processes. Imports no service.

    async with serve(IngestServer(settings), settings) as address: ...
    with spawn_service("ingest", {"ADLRO_REDIS_URL": url}) as ingest: ... ingest.address ...

Ends only processes that it starts itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from adlro.kit.server import start_server
from adlro.kit.service import Service
from adlro.kit.settings import PREFIX, ServiceSettings

ROOT = Path(__file__).resolve().parents[2]
_LINES_KEPT_IN_ERRORS = 15


class ServiceEnded(AssertionError):
    """A service's process has ended, or is stuck at its start; the message has the end of its log."""


@asynccontextmanager
async def serve(service: Service, settings: ServiceSettings, grace_s: float = 1.0) -> AsyncIterator[str]:
    """Runs a service on this loop; yields its address; drains it at the end.

    Args:
        service: the service, created with `settings`.
        settings: with port 0 in `listen`, the default.
        grace_s: seconds that calls may continue at the end.

    Raises:
        ServiceEnded: at the end, if one of the service's tasks has crashed meanwhile.
    """
    running = await start_server(service, settings)
    try:
        yield running.address
    finally:
        crashed = running.context.crashed.is_set()
        await running.stop(grace_s)
    if crashed:
        raise ServiceEnded(f"a task of {service.name} crashed; the log has its traceback")


class SpawnedService:
    """A service's process; `spawn_service` creates it.

    Attributes:
        process: the process.
        address: the service's listening address.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.process = process
        self.address = ""
        self._lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"log of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self.process.pid

    def wait_until_listening(self, silence_s: float) -> None:
        """Waits while its log grows. Raises ServiceEnded if it ends, or logs nothing for so long."""
        count = 0
        while not (heard := self._listening.wait(silence_s)) and len(self._lines) > count:
            count = len(self._lines)
        if not self.address:
            # Its log has ended, so the process is about to end.
            code = self.wait() if heard else self.process.poll()
            what = f"said nothing for {silence_s:g} s" if code is None else f"ended at its start ({code})"
            raise ServiceEnded(f"{self.name} {what}; its log ends:\n" + "\n".join(self._lines[-_LINES_KEPT_IN_ERRORS:]))

    def raw_lines(self) -> list[str]:
        """Its stderr so far."""
        return list(self._lines)

    def log_lines(self) -> list[dict[str, Any]]:
        """Its log so far; lines that are not JSON are left out."""
        return [line for line in map(_parsed, list(self._lines)) if line is not None]

    def terminate(self) -> None:
        """Sends SIGTERM: the service drains."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL, and waits for the end."""
        self.process.kill()
        self.wait()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for its end and the end of its log; returns the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self, timeout_s: float = 60.0) -> int:
        """Drains it, kills it after the timeout; returns the exit code. No effect after its end."""
        if self.process.poll() is None:
            self.terminate()
            try:
                return self.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.wait()

    def __enter__(self) -> SpawnedService:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self._lines.append(line.rstrip("\n"))
                if not self._listening.is_set():
                    event = _parsed(line)
                    if event is not None and event.get("event") == "listening":
                        self.address = str(event["address"])
                        self._listening.set()
        self._listening.set()


def spawn_service(
    name: str,
    env: Mapping[str, str] | None = None,
    *,
    silence_s: float = 60.0,
    arguments: Sequence[str] = (),
) -> SpawnedService:
    """Starts `python -m adlro.services.<name>`; returns once it listens. Use it with `with`, or call `stop`.

    The process gets no ADLRO_ key of this process, only those of `env`; without ADLRO_<NAME>_LISTEN it selects a free
    port.

    Args:
        name: name of the service, such as "ingest".
        env: environment keys in addition to those of this process.
        silence_s: longest time without a log line before it listens; imports take part of it.
        arguments: arguments of python, in place of `-m services.<name>`.

    Raises:
        ServiceEnded: it has ended, or is stuck.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)} | dict(env or {})
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, *(arguments or ("-m", f"adlro.services.{name}"))],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    service = SpawnedService(name, process)
    try:
        service.wait_until_listening(silence_s)
    except BaseException:
        service.kill()
        raise
    return service


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
