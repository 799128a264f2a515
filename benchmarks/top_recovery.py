"""How soon `adlro top` is right again after `kill -9` of a service: the service's restart told apart from the screen.

    python -m benchmarks.top_recovery [--rounds 5] [--json]

Starts a suite of its own as users do, and the command on a terminal. A kill is measured until the screen says that the
service is away; until the restarted service answers its health check (`adlro up` starts it, which is the suite's time);
and from then until every source on the screen is live again, which is the screen's time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from adlro.client import Client
from adlro.client.endpoints import ServiceName
from adlro.client.health import check
from benchmarks.measuring import ROOT, machine, shown, spread
from tests.e2e.running_suite import ADLRO, RunningSuite, environment, start_suite
from tests.pty_screen import PtyProgram

SERVICES = {
    "ingest": ServiceName.INGEST,
    "decompose": ServiceName.DECOMPOSE,
    "orchestrator": ServiceName.ORCHESTRATOR,
    "simcluster": ServiceName.CLUSTER,
}
_LIVE = b"mlive\x1b"  # all sources: of some the screen says `others live`
_TIMEOUT_S = 120.0
_LOOK_S = 0.01


class _Served:
    """When a service answered its health check again, monotonic; looked at by a thread of its own."""

    def __init__(self, address: str) -> None:
        self.at_s: float | None = None
        self._address = address
        self._thread = threading.Thread(target=asyncio.run, args=(self._look(),), daemon=True)
        self._thread.start()

    async def _look(self) -> None:
        end_s = time.monotonic() + _TIMEOUT_S
        while self.at_s is None and time.monotonic() < end_s:
            if await check(self._address, 0.5):
                self.at_s = time.monotonic()
            await asyncio.sleep(0.05)

    def wait(self) -> float:
        """The time."""
        self._thread.join(_TIMEOUT_S + 1.0)
        if self.at_s is None:
            raise TimeoutError(f"{self._address} does not serve")
        return self.at_s


def _since(program: PtyProgram, text: bytes, after: int) -> float:
    """The time at which the program had written a text."""
    end_s = time.monotonic() + _TIMEOUT_S
    while text not in program.written[after:]:
        if time.monotonic() > end_s:
            raise TimeoutError(f"no {text!r} in {bytes(program.written[-2000:])!r}")
        time.sleep(_LOOK_S)
    return time.monotonic()


def measure(suite: RunningSuite, program: PtyProgram, service: str, address: str) -> dict[str, float]:
    """One kill."""
    after = len(program.written)
    killed_s = time.monotonic()
    os.kill(suite.pids[service], signal.SIGKILL)
    told_s = _since(program, b"away", after)
    after = len(program.written)
    served_s = _Served(address).wait()
    live_s = _since(program, _LIVE, after)
    return {"told_s": told_s - killed_s, "restart_s": served_s - killed_s, "screen_s": max(live_s - served_s, 0.0)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--services", default=",".join(SERVICES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    about = machine()
    with tempfile.TemporaryDirectory() as folder:
        suite = start_suite(Path(folder) / "data", "--port", "0")
        try:
            with Client(suite.server) as client:
                addresses = {name: client.endpoints.address(each) for name, each in SERVICES.items()}
            program = PtyProgram([*ADLRO, "top", "--server", suite.server], environment(), ROOT, (140, 40))
            try:
                program.wait_for("decided by")
                for _ in range(options.rounds):
                    for service in options.services.split(","):
                        _since(program, _LIVE, 0)
                        time.sleep(3.0)
                        found.setdefault(service, []).append(measure(suite, program, service, addresses[service]))
                program.press(b"q")
                program.end()
            finally:
                program.close()
        finally:
            suite.end()
    about["load_after"] = round(os.getloadavg()[0], 2)
    figures = {
        name: {key: spread([each[key] for each in rounds]) for key in rounds[0]} for name, rounds in found.items()
    }
    if options.json:
        print(json.dumps({"machine": about, "rounds": found, "figures": figures}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for name, each in figures.items():
        print(f"{name:13}" + "  ".join(f"{key} {shown(value, digits=2)}" for key, value in each.items()))


if __name__ == "__main__":
    main()
