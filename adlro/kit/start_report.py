"""Says in a service's log that its start goes on, so that whoever waits can tell slow from stuck.

On a loaded machine imports take long, and so does the first compilation. The standard library only: a report begins
before anything large is imported.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
import time

EVENT = "starting"
# A start that takes less is nothing to tell of.
INTERVAL_S = 5.0
# CPU time between two lines; a process that stands still stays below.
WORK_S = 0.25


class StartReport:
    """A line in the log every `interval_s`, as long as the process works.

    Args:
        service: its name, for the log.
        interval_s: between two looks.
        work_s: the CPU time that counts as work.
    """

    def __init__(self, service: str, interval_s: float = INTERVAL_S, work_s: float = WORK_S) -> None:
        self._service = service
        self._interval_s = interval_s
        self._work_s = work_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start report", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The service has started, or will not."""
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
        # As adlro.kit.log writes it, which may not be there yet.
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        line = {"time": now, "level": "info", "service": self._service, "event": EVENT, **figures}
        try:
            sys.stderr.write(json.dumps(line) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it any more
            return


_running: StartReport | None = None


def begin(service: str) -> None:
    """Reports on the start of this process from now on; does nothing where that has begun."""
    global _running
    if _running is None:
        _running = StartReport(service)


def end() -> None:
    """The process has started, or will not."""
    global _running
    if _running is not None:
        _running.end()
        _running = None
