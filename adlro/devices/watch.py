"""What the GPUs report each second, read by child processes that may hang without harm.

One sampler for each vendor: a driver that hangs leaves the other vendor's GPUs alone. A sampler that is silent for ten
seconds is killed and another one started; its GPUs are unknown from then on, until something is heard again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from adlro.devices import children
from adlro.devices.records import (
    UNKNOWN,
    Device,
    Problem,
    Reading,
    Readings,
    Vendor,
    problem_of,
    reading_of,
    to_plain,
)

INTERVAL_S = 1.0
SILENT_S = 10.0
"""So long after the last report, values are unknown, and the sampler is replaced."""
_FIRST_REPORT_S = 45.0
"""For a new sampler: without the persistence daemon, GPUs take long to wake up."""
_PAUSE_S = 1.0
"""Between samplers: one that ends at once must not be started in a loop."""
_LOOK_S = 0.2
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How long things may take.

    Attributes:
        interval_s: between reports.
        silent_s: of silence until a sampler is replaced.
        first_report_s: until a new sampler's first report.
        retry_s: between looks for a driver that refuses, for GPUs that are lost, and for an updated driver.
    """

    interval_s: float = INTERVAL_S
    silent_s: float = SILENT_S
    first_report_s: float = _FIRST_REPORT_S
    retry_s: float = 30.0


class DeviceWatch:
    """Keeps the latest readings of GPUs. Pretended ones report nothing: their readings are UNKNOWN.

    Args:
        devices: to be watched.
        root: where /sys and /proc are, for AMD.
        times: for tests.
    """

    def __init__(self, devices: Sequence[Device], root: str = "/", times: WatchTimes | None = None) -> None:
        self._devices = tuple(devices)
        times = times or WatchTimes()
        self._watched = [
            _Watched(vendor, tuple(each for each in devices if each.vendor is vendor), root, times)
            for vendor in (Vendor.NVIDIA, Vendor.AMD)
            if any(each.vendor is vendor for each in devices)
        ]

    def __enter__(self) -> DeviceWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts to sample. Returns at once: until the first report all is unknown."""
        for each in self._watched:
            each.start()

    def stop(self) -> None:
        """Ends the samplers; takes a few seconds at most, also when a driver hangs."""
        for each in self._watched:
            each.ask_to_stop()
        for each in self._watched:
            each.stopped()

    def readings(self) -> Readings:
        """The latest readings; UNKNOWN where the last report is older than ten seconds."""
        by_uuid: dict[str, Reading] = {each.uuid: UNKNOWN for each in self._devices}
        silent_s: dict[str, float] = {}
        problems: list[Problem] = []
        for each in self._watched:
            latest = each.latest()
            by_uuid.update(latest.by_uuid)
            silent_s.update(latest.silent_s)
            problems += latest.problems
        return Readings(by_uuid, silent_s, tuple(problems))

    @property
    def sampler_pids(self) -> tuple[int, ...]:
        """The samplers that run now."""
        return tuple(pid for each in self._watched if (pid := each.pid) is not None)


class _Watched:
    """The GPUs of one vendor, their sampler, and the thread that looks after it."""

    def __init__(self, vendor: Vendor, devices: tuple[Device, ...], root: str, times: WatchTimes) -> None:
        self._vendor = vendor
        self._devices = devices
        self._root = root
        self._times = times
        self._thread = threading.Thread(target=self._keep, name=f"watch-{vendor}-gpus", daemon=True)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._readings: dict[str, Reading] = {}
        self._problems: tuple[Problem, ...] = ()
        self._sampler: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._heard_s = time.monotonic()
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stopped(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(3 * _END_S)

    @property
    def pid(self) -> int | None:
        sampler = self._sampler
        return sampler.pid if sampler is not None and sampler.poll() is None else None

    def latest(self) -> Readings:
        with self._lock:
            silent_s = time.monotonic() - self._heard_s
            known = silent_s < self._times.silent_s
            return Readings(
                {each.uuid: self._readings.get(each.uuid, UNKNOWN) if known else UNKNOWN for each in self._devices},
                {each.uuid: silent_s for each in self._devices},
                self._problems if known else (),
            )

    # ---- in the thread

    def _keep(self) -> None:
        while not self._stop.is_set():
            try:
                self._sampler = self._begin()
            except OSError:  # no process can be started just now
                self._stop.wait(_PAUSE_S)
                continue
            self._listen(self._sampler)
            self._end(self._sampler)
            self._stop.wait(_PAUSE_S)

    def _begin(self) -> subprocess.Popen[bytes]:
        order = {
            "vendor": self._vendor,
            "devices": to_plain(self._devices),
            "interval_s": self._times.interval_s,
            "retry_s": self._times.retry_s,
            "root": self._root,
        }
        sampler = subprocess.Popen(
            children.command("adlro.devices.sampler"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=children.environment(),
            start_new_session=True,  # Ctrl-C in a terminal is the parent's to handle
            bufsize=0,
        )
        assert sampler.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            sampler.stdin.write(json.dumps(order).encode() + b"\n")
        return sampler

    def _listen(self, sampler: subprocess.Popen[bytes]) -> None:
        """Takes reports until the sampler ends, is silent for too long, or the watch is stopped."""
        assert sampler.stdout is not None
        fd = sampler.stdout.fileno()
        rest = b""
        patience_s, heard_s = self._times.first_report_s, time.monotonic()
        while not self._stop.is_set():
            ready, _, _ = select.select([fd], [], [], _LOOK_S)
            if not ready:
                if time.monotonic() - heard_s > patience_s:
                    return
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                try:
                    self._take(line)
                except (ValueError, KeyError, TypeError):  # of another release, while ADLRO is being updated
                    return
                patience_s, heard_s = self._times.silent_s, time.monotonic()

    def _take(self, line: bytes) -> None:
        report = json.loads(line)
        readings = {uuid: reading_of(each) for uuid, each in report["readings"].items()}
        problems = tuple(problem_of(each) for each in report["problems"])
        with self._lock:
            self._readings, self._problems, self._heard_s = readings, problems, time.monotonic()

    def _end(self, sampler: subprocess.Popen[bytes]) -> None:
        """Ends a sampler; one that the kernel holds is left behind."""
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        for pipe in (sampler.stdin, sampler.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            sampler.wait(_END_S if self._stop.is_set() else 0.0)
        if sampler.poll() is None:
            sampler.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                sampler.wait(_END_S)
