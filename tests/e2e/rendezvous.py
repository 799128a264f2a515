"""A training without a training: the programs of an attempt meet at MASTER_ADDR:MASTER_PORT and add up their ranks.

    python rendezvous.py FOLDER [failing rank]

Standard library only. Each program notes its start in FOLDER, and prints the sum that rank 0 has made. A program that
fails does so after all have met; the others wait for a word that never comes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path


def main(folder: str, failing: int = -1) -> int:
    environment = os.environ
    rank = int(environment.get("RANK") or environment["NODE_RANK"])
    world = int(environment.get("WORLD_SIZE") or environment["NNODES"])
    job, attempt = environment["ADLRO_JOB_ID"], environment["ADLRO_ATTEMPT"]
    with open(Path(folder, f"{job}.{attempt}.{rank}"), "a") as file:
        file.write("started\n")
    address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    peers = _listen(address, world - 1) if rank == 0 else [_connect(address)]
    if rank == 0:
        ranks = [int(each.recv(64)) for each in peers]
        for each in peers:
            each.sendall(str(sum(ranks)).encode())
        total = sum(ranks)
    else:
        peers[0].sendall(str(rank).encode())
        total = int(peers[0].recv(64))
    sys.stdout.write(f"rank {rank} of {world}: sum {total}\n")
    sys.stdout.flush()
    if failing < 0:
        return 0
    if rank == failing:
        return 7
    time.sleep(300.0)
    return 0


def _listen(address: tuple[str, int], count: int) -> list[socket.socket]:
    with socket.create_server(address) as server:
        server.settimeout(60.0)
        return [server.accept()[0] for _ in range(count)]


def _connect(address: tuple[str, int]) -> socket.socket:
    until_s = time.monotonic() + 60.0
    while True:
        try:
            return socket.create_connection(address, timeout=60.0)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
