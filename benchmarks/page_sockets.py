"""Light browsers of the live page: WebSockets of one process, which acknowledge each frame and draw nothing.

Used by `benchmarks.page`, as a process of its own (`--client`). A third of them follows what the Cluster screen does, a
third the Queue screen, a third the Decisions screen. It says that it is ready when each key of each socket has its
first snapshot, counts from then on, and ends with SIGTERM or after `seconds`. It runs at the lowest priority: browsers
are on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import signal
import struct
import time
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmarks.measuring import tell

# What each screen subscribes to, in the page's own spelling; the queue's window is high: on a laptop it has 40 rows.
SCREENS = {
    "cluster": ("head", "gpus"),
    "queue": ("head", "queue?count=60&from=0"),
    "decisions": ("head", "decisions?count=100"),
}
_FRAMES_KNOWN = 256


class Frames:
    """Key and revision of data frames; sockets that get the same bytes unpack them once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, int]] = {}

    def read(self, frame: bytes) -> tuple[str, int]:
        """The key and the revision of a frame."""
        found = self._known.get(frame)
        if found is None:
            rest = gzip.decompress(frame[1:]) if frame[0] == 1 else frame[1:]
            (length,) = struct.unpack_from("<I", rest)
            header = json.loads(rest[4 : 4 + length])
            found = self._known[frame] = (header["key"], header["rev"])
            if len(self._known) > _FRAMES_KNOWN:
                del self._known[next(iter(self._known))]
        return found


class Socket:
    """One browser.

    Attributes:
        bytes_taken: bytes of data frames since the first snapshots.
        first_bytes: bytes of the first snapshots.
        frames_taken: frames since then.
        stale: how often it was told that it reads too slowly.
    """

    def __init__(self, screen: str, frames: Frames) -> None:
        self.screen = screen
        self.bytes_taken = self.first_bytes = self.frames_taken = self.stale = 0
        self.ready = asyncio.Event()
        self._frames = frames
        self._missing = set(SCREENS[screen])

    async def run(self, address: str) -> None:
        """Follows its keys until it is cancelled."""
        async with connect(f"ws://{address}/live/v1", origin=f"http://{address}", max_size=None) as socket:  # type: ignore[arg-type]
            for key in SCREENS[self.screen]:
                await socket.send(json.dumps({"op": "subscribe", "key": key}))
            await self._take(socket)

    async def _take(self, socket: ClientConnection) -> None:
        async for message in socket:
            if isinstance(message, str):
                self.stale += json.loads(message)["op"] == "stale"
                continue
            key, rev = self._frames.read(message)
            if self.ready.is_set():
                self.bytes_taken += len(message)
                self.frames_taken += 1
            else:
                self.first_bytes += len(message)
                self._missing.discard(key)
                if not self._missing:
                    self.ready.set()
            await socket.send(json.dumps({"op": "ack", "key": key, "rev": rev}))


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """Opens the sockets, and counts until the end.

    Args:
        arguments: `address` of the page, `count` of sockets, `seconds`.
    """
    os.nice(19)
    frames = Frames()
    screens = list(SCREENS)
    sockets = [Socket(screens[number % len(screens)], frames) for number in range(arguments["count"])]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = [asyncio.create_task(each.run(arguments["address"])) for each in sockets]
    async with asyncio.timeout(120.0):
        await asyncio.gather(*(each.ready.wait() for each in sockets))
    for each in sockets:
        each.bytes_taken = each.frames_taken = 0
    tell({"ready": True})
    began_s = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(arguments["seconds"]):
            await ended.wait()
    passed_s = time.monotonic() - began_s
    lost = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if lost:
        raise ConnectionClosed(None, None) from lost[0].exception()
    found: dict[str, dict[str, float]] = {}
    for screen in screens:
        own = [each for each in sockets if each.screen == screen]
        if own:
            found[screen] = {
                "bytes_per_s": sum(each.bytes_taken for each in own) / len(own) / passed_s,
                "frames_per_s": sum(each.frames_taken for each in own) / len(own) / passed_s,
                "first_bytes": sum(each.first_bytes for each in own) / len(own),
            }
    return {"screens": found, "stale": sum(each.stale for each in sockets), "seconds": passed_s}


def main() -> None:
    """Runs as a client of `benchmarks.page`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True, help="JSON: address, count, seconds")
    tell(uvloop.run(client(json.loads(parser.parse_args().client))))


if __name__ == "__main__":
    main()
