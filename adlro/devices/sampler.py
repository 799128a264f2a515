"""Reads the GPUs of one vendor each second: `python -m adlro.devices.sampler`, a child process of DeviceWatch.

Standard input: one line of JSON (`vendor`, `devices`, `interval_s`, `retry_s`, `root`), then nothing until it is
closed, which ends the sampler, also while the driver hangs. Standard output: each second one line of JSON, `readings`
by UUID and `problems`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Protocol

from adlro.devices.amd import AmdReader
from adlro.devices.nvidia import NvidiaReader, library_was_replaced
from adlro.devices.records import Problem, Reading, Vendor, device_of, to_plain

REPLACED = 4
"""Exit code: the driver's library was updated. The next sampler loads the new one, and reports a mismatch if any."""


class Reader(Protocol):
    """Reads GPUs."""

    def read(self) -> tuple[dict[str, Reading], tuple[Problem, ...]]:
        """What each GPU reports now, by UUID, and what is wrong with the driver."""


def reader_of(order: dict[str, Any]) -> Reader:
    """The reader of a sampler's first line."""
    devices = [device_of(each) for each in order["devices"]]
    if order["vendor"] == Vendor.NVIDIA:
        return NvidiaReader(devices, order["retry_s"])
    return AmdReader(devices, order["root"])


def main() -> None:
    """Samples until standard input is closed."""
    line = sys.stdin.readline()
    if not line:  # the parent has ended before it could say what to read
        return
    order = json.loads(line)
    # What the driver's libraries print must not mix with the readings.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reader = reader_of(order)
    looked_s = next_s = time.monotonic()
    while True:
        readings, problems = reader.read()
        report = json.dumps({"readings": to_plain(readings), "problems": to_plain(problems)}) + "\n"
        try:
            _write(out, report.encode())
        except BrokenPipeError:
            return
        now_s = time.monotonic()
        if now_s - looked_s >= order["retry_s"]:
            looked_s = now_s
            if library_was_replaced():
                sys.exit(REPLACED)
        next_s = max(next_s + order["interval_s"], now_s)
        time.sleep(next_s - now_s)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _end_with_parent() -> None:
    """Ends this process when its standard input is closed: by the parent's wish, or with its end."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
