"""A process that computes a little, and talks to nobody: what any neighbour on the machine costs the orchestrator.

Used by `benchmarks.page`, as a process of its own (`--client`), beside the turns with browsers. It goes through some
megabytes of memory for a part of the time, in pieces of milliseconds, at the priority of the page, until it or its
parent is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from benchmarks.measuring import tell

PIECE_S = 0.004
_NICENESS = 10
_BYTES = 4 << 20
_CACHE_LINE_BYTES = 64


def main() -> None:
    """Runs as a client of `benchmarks.page`: JSON with `cpu_ratio`, the part of a core that it uses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True, help="JSON: cpu_ratio")
    cpu_ratio = json.loads(parser.parse_args().client)["cpu_ratio"]
    os.nice(_NICENESS)
    memory = bytearray(_BYTES)
    tell({"ready": True})
    parent = os.getppid()
    while os.getppid() == parent:
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < PIECE_S:
            memory[::_CACHE_LINE_BYTES] = memory[::_CACHE_LINE_BYTES]
        time.sleep(PIECE_S * (1.0 / cpu_ratio - 1.0))


if __name__ == "__main__":
    main()
