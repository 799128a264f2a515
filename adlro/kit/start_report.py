"""Logs that a service's start makes progress, so that a waiting process can tell a slow start from a stuck one.

On a loaded machine imports take long, and so does the first compilation. The standard library only: the report begins
before any large import.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
import time

EVENT = "starting"
# A shorter start needs no report.
INTERVAL_S = 5.0
# CPU seconds between two lines; a stuck process uses less.
WORK_S = 0.25


class StartReport:
    """Logs a line every `interval_s` while the process works.

    Args:
        service: the service's name, for the log.
        interval_s: seconds between two checks.
        work_s: CPU seconds that count as work.
    """

    def __init__(self, service: str, interval_s: float = INTERVAL_S, work_s: float = WORK_S) -> None:
        self._service = service
        self._interval_s = interval_s
        self._work_s = work_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start report", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the report: the start has succeeded or failed."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began_s = time.monotonic()
        told_s = time.process_time()
        while not self._ended.wait(self._interval_s):
            cpu_s = time.process_time()
            if cpu_s - told_s >= self._work_s:
                told_s = cpu_s
                self._write(after_s=round(time.monotonic() - began_s, 1), cpu_s=round(cpu_s, 1))

    def _write(self, **figures: float) -> None:
        # In the format of adlro.kit.log, which may not be imported yet.
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        line = {"time": now, "level": "info", "service": self._service, "event": EVENT, **figures}
        try:
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # stderr has no reader any more
            return


_running: StartReport | None = None


def begin(service: str) -> None:
    """Begins the report on this process's start, unless it has begun."""
    global _running
    if _running is None:
        _running = StartReport(service)


def end() -> None:
    """Ends the report: the start has succeeded or failed."""
    global _running
    if _running is not None:
        _running.end()
        _running = None
