"""What an attempt of a program costs: from the order to exec, attempts a second, memory of a supervisor.

    python -m benchmarks.attempts [--folder FOLDER]

Records are on the disk before anything rests on them, so the figures depend on the disk, that of FOLDER or of temporary
files: a write that is waited for is measured beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import TreeDriver
from adlro.attempt.journal import Journal
from adlro.attempt.records import Launch
from adlro.records.payloads import process_payload

ATTEMPTS = 60
AT_ONCE = 8


async def latency(attempts: Attempts) -> list[float]:
    """Milliseconds from the call to the program's first instruction, one attempt after the other."""
    found: list[float] = []
    for number in range(ATTEMPTS):
        began = time.time()
        await attempts.start(f"latency.{number}", Launch(process_payload(("date", "+%s.%N"))))
        await attempts.ended(f"latency.{number}")
        told = attempts.read_log(f"latency.{number}", "stdout", 0).data
        found.append(1000.0 * (float(told) - began))
    return found


async def rate(attempts: Attempts) -> float:
    """Attempts a second, from the call to the record of the end, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await attempts.start(f"rate.{number}", Launch(process_payload(("true",))))
            assert (await attempts.ended(f"rate.{number}")).succeeded

    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(4 * ATTEMPTS)))
    return 4 * ATTEMPTS / (time.monotonic() - began)


async def memory(attempts: Attempts, folder: Path, count: int) -> list[float]:
    """MiB (PSS) of each of so many supervisors at once."""
    for number in range(count):
        await attempts.start(f"memory.{count}.{number}", Launch(process_payload(("sleep", "60"))))
        await attempts.begun(f"memory.{count}.{number}")
    await asyncio.sleep(0.5)
    found: list[float] = []
    for number in range(count):
        supervisor = Journal(str(folder / f"memory.{count}.{number}")).supervisor()
        assert supervisor is not None
        lines = Path(f"/proc/{supervisor[0]}/smaps_rollup").read_text().splitlines()  # noqa: ASYNC240
        found.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
    for number in range(count):
        await attempts.stop(f"memory.{count}.{number}")
        await attempts.ended(f"memory.{count}.{number}")
    return found


def bare_start_ms() -> float:
    """Milliseconds of a Python that does nothing."""
    found: list[float] = []
    for _ in range(20):
        began = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        found.append(1000.0 * (time.monotonic() - began))
    return statistics.median(found)


def write_ms(folder: Path) -> float:
    """Milliseconds of a small write that is waited for."""
    found: list[float] = []
    for number in range(30):
        began = time.monotonic()
        with (folder / f"written.{number}").open("wb") as file:
            file.write(bytes(500))
            file.flush()
            os.fsync(file.fileno())
        found.append(1000.0 * (time.monotonic() - began))
    return statistics.median(found)


async def measure(folder: Path) -> None:
    """Prints the figures."""
    attempts = Attempts(folder / "attempts", TreeDriver())
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; bare Python {bare_start_ms():.0f} ms; ", end="")
    print(f"a write that is waited for {write_ms(folder):.1f} ms")
    found = sorted(await latency(attempts))
    print(f"from the order to exec: p50 {statistics.median(found):.0f} ms, p95 {found[int(0.95 * len(found))]:.0f} ms")
    print(f"{await rate(attempts):.1f} attempts/s, {AT_ONCE} at once")
    for count in (1, 16):
        print(f"{count} at once: {max(await memory(attempts, folder / 'attempts', count)):.1f} MiB of PSS, the largest")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args().folder
    with tempfile.TemporaryDirectory(dir=given) as made:
        asyncio.run(measure(Path(made)))
