"""Ports of this machine for the processes of a suite."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from adlro.cli.page import PORT_OFFSET
from adlro.client import ServiceName
from adlro.errors import Conflict

# Free ports are searched below the kernel's range of ports for outgoing connections: a restarted service must find its
# own port free.
FREE_PORTS = range(20_000, 32_000)


def free_base_port() -> int:
    """The first of as many consecutive free ports as services and page need. Raises Conflict if there are none."""
    for base in random.sample(FREE_PORTS, 200):
        if all(port_is_free("127.0.0.1", base + offset) for offset in range(PORT_OFFSET + 1)):
            return base
    raise Conflict(f"found no {PORT_OFFSET + 1} consecutive free ports; choose a --port")


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
