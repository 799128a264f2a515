"""Ports at which the programs of an attempt meet (MASTER_PORT): each for one attempt, as long as it is open."""

from __future__ import annotations

import errno
import random
import socket
import threading

from adlro.errors import Unavailable

# Below what Linux gives to connections of its own accord (from 32768), and above what services are usually at.
FIRST_PORT, PORT_COUNT = 20_000, 10_000


class Ports:
    """The ports of this machine that attempts have.

    A port is given to one attempt at a time, and only while nobody listens at it. What is not of ADLRO may still take
    it before the program does.
    """

    def __init__(self) -> None:
        self._port_of: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, attempt_name: str) -> int:
        """A port for an attempt: the one that it has, or a free one.

        Raises:
            Unavailable: there is none.
        """
        # From anywhere: two services of one machine hardly ever choose the same one at the same time.
        first = random.randrange(PORT_COUNT)
        with self._lock:
            if attempt_name in self._port_of:
                return self._port_of[attempt_name]
            taken = set(self._port_of.values())
            for number in range(PORT_COUNT):
                port = FIRST_PORT + (first + number) % PORT_COUNT
                if port not in taken and _is_free(port):
                    self._port_of[attempt_name] = port
                    return port
        raise Unavailable(f"no port from {FIRST_PORT} to {FIRST_PORT + PORT_COUNT - 1} is free", reason="NO_PORT")

    def keep(self, attempt_name: str, port: int) -> None:
        """An attempt from before a restart has this port."""
        if port:
            self._port_of[attempt_name] = port

    def give_back(self, attempt_name: str) -> None:
        """An attempt has ended."""
        self._port_of.pop(attempt_name, None)


def _is_free(port: int) -> bool:
    """Nobody listens there, at whatever address of this machine."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                # As servers do: connections that are being closed are not in the way.
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                return False
    return True
