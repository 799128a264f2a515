"""Ports of this machine for the processes of a suite."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping

from adlro.cli.page import PORT_OFFSET
from adlro.client import ServiceName
from adlro.errors import Conflict

_COUNT = PORT_OFFSET + 2
# Free ports are searched below the kernel's range of ports for outgoing connections: a restarted service must find its
# own port free. Above these are those of the stores (adlro/kit/embedded_redis.py).
FREE_PORTS = range(20_000, 26_000 - _COUNT)
_TRIES = 200
_HOST = "127.0.0.1"


class ClaimedPorts:
    """Consecutive free ports for services, page and notify, which no other `ClaimedPorts` has until `release`.

    A service binds its port seconds after the choice. A UDP socket on each port tells other suites until then; services
    use TCP alone. The kernel closes the sockets with the process.

    Attributes:
        base: the first.

    Raises:
        Conflict: there are none.
    """

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []
        for base in random.sample(FREE_PORTS, _TRIES):
            ports = range(base, base + _COUNT)
            if self._claim(ports) and all(port_is_free(_HOST, port) for port in ports):
                self.base = base
                return
            self.release()
        raise Conflict(f"found no {_COUNT} consecutive free ports; choose a --port")

    def release(self) -> None:
        """Leaves them to others."""
        while self._claims:
            self._claims.pop().close()

    def _claim(self, ports: range) -> bool:
        for port in ports:
            claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._claims.append(claim)
            try:
                claim.bind((_HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
        return True


def port_is_free(host: str, port: int) -> bool:
    """Whether a service could listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As in the services; otherwise connections that have just ended would count as use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def check_ports(addresses: Mapping[ServiceName, str]) -> None:
    """Raises Conflict with the first address that is in use."""
    for name, address in addresses.items():
        host, _, port = address.rpartition(":")
        if not port_is_free(host, int(port)):
            raise Conflict(
                f"port {port} (for {name}) is in use; is another `adlro up` running? Stop it, or name another --port"
                " (0: free ones)"
            )
