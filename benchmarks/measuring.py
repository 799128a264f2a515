"""What the benchmarks share: the processes, facts about the machine, percentiles, spread, and the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import SpawnedService, spawn_service

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


def figures(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """The spread of each figure of each target over its rounds."""
    return {
        name: {key: spread([each[key] for each in results]) for key in results[0]} for name, results in rounds.items()
    }


def ratios(rounds: Mapping[str, Sequence[Mapping[str, float]]], key: str, ours: str, theirs: str) -> dict[str, float]:
    """The spread of ours over theirs, of each round by itself: neighbours on the machine then hit both sides."""
    return spread([our[key] / their[key] for our, their in zip(rounds[ours], rounds[theirs], strict=True)])


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

    def stop(self, signal_number: int = signal.SIGKILL) -> None:
        """Ends it where it still runs, by a signal."""
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
        self._process.wait(10)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended with {self._process.wait(10)} and without a result")
        parsed: dict[str, Any] = json.loads(line)
        return parsed


@contextmanager
def servers(*references: str) -> Iterator[tuple[str, dict[str, SpawnedService]]]:
    """Valkey, references (kinds of benchmarks.reference_server) and ingest, each a process of its own on a free port.

    Gives Redis's URL and the processes by name, `ingest` last.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        redis = stack.enter_context(EmbeddedRedis(directory))
        environment = {"ADLRO_REDIS_URL": redis.url}
        targets: dict[str, SpawnedService] = {}
        for kind in references:
            arguments = ("-m", "benchmarks.reference_server", kind)
            targets[kind] = stack.enter_context(spawn_service("reference", environment, arguments=arguments))
        targets["ingest"] = stack.enter_context(spawn_service("ingest", environment))
        yield redis.url, targets


def client_result(
    module: str, target: SpawnedService, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], float | None]:
    """What one client process found out, and the CPU seconds that the target used meanwhile (None: not known)."""
    cpu_before = cpu_s(target.pid)
    process = ClientProcess(module, {"address": target.address, **arguments})
    try:
        result = process.result()
    finally:
        process.stop()
    return result, cpu_since(target.pid, cpu_before)


def cpu_since(pid: int, before_s: float | None) -> float | None:
    """CPU seconds that a process has used since `cpu_s` gave `before_s`."""
    now_s = cpu_s(pid)
    return None if before_s is None or now_s is None else now_s - before_s


def command(doc: str | None, *, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """A benchmark's command line, with the options that all have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    return parser


def obey(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], dict[str, Any]],
    report: Callable[[dict[str, Any]], None],
    client: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]],
) -> None:
    """Runs the benchmark and reports; or the client, where this process is one (see `ClientProcess`)."""
    arguments = parser.parse_args()
    if arguments.client:
        tell(uvloop.run(client(json.loads(arguments.client))))
        return
    facts = machine()
    result = {"machine": facts, "seed": arguments.seed, "rounds": arguments.rounds, **run(arguments)}
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        report(result)
