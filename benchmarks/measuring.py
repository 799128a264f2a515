"""What the benchmarks share: facts about the machine, percentiles, spread, client processes. Touches no service."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """Cores, Python and the packages that the figures depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf", "redis", "numpy")},
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of a figure over the rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(values: dict[str, float], unit: str = "", digits: int = 0) -> str:
    """`1234 (1200..1300) jobs/s`."""
    median, low, high = (f"{values[key]:,.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} ({low}..{high}) {unit}".rstrip()


def cpu_s(pid: int) -> float | None:
    """CPU seconds that a process has used so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(message: dict[str, Any]) -> None:
    """What a client process prints for the one that started it."""
    # An event loop may have made it non-blocking, and a long line would then be cut.
    os.set_blocking(sys.stdout.fileno(), True)
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class ClientProcess:
    """A client in a process of its own, so that it doesn't share the interpreter with what is measured.

    It is started with `module` and JSON arguments, and prints one line of JSON at its end.
    """

    def __init__(self, module: str, arguments: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--client", json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns when the client has said that it is ready."""
        line = self._read()
        if line != {"ready": True}:
            raise RuntimeError(f"the client said {line} instead of being ready")

    def result(self) -> dict[str, Any]:
        """What it found out; waits for its end."""
        result = self._read()
        if self._process.wait(30) != 0:
            raise RuntimeError(f"the client ended with {self._process.returncode}")
        return result

    def stop(self) -> None:
        """Ends it where it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended with {self._process.wait(10)} and without a result")
        parsed: dict[str, Any] = json.loads(line)
        return parsed
