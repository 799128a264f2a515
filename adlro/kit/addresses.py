"""Parses `host:port`, and explains why a service can't listen on an address. Touches sockets only."""

from __future__ import annotations

import errno
import ipaddress
import socket

from adlro.errors import AdlroError


class ListenFailed(AdlroError):
    """A service can't listen on its address."""

    default_reason = "LISTEN_FAILED"


def split_address(address: str) -> tuple[str, int]:
    """`127.0.0.1:7701` -> ("127.0.0.1", 7701); brackets of IPv6 are taken off.

    Raises:
        ValueError: it is no `host:port`.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError("must be host:port, such as 127.0.0.1:7701 or [::1]:7701")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError("must have brackets around an IPv6 host, such as [::1]:7701")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether `host:port`, or all of gRPC's list `ipv4:host:port,host:port`, name this machine's loopback."""
    if address.startswith(("ipv4:", "ipv6:")):
        return all(map(is_loopback, address[len("ipv4:") :].split(",")))
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listenable(address: str, setting: str, key: str) -> None:
    """Binds the address and releases it, to find the reason that gRPC does not give.

    Args:
        address: `host:port`.
        setting: the setting's name, such as `listen`.
        key: the environment key that changes it.

    Raises:
        ListenFailed: with the reason and the remedy.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ListenFailed(f"{setting}: the host of {address} is not known here; set {key}") from None
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: connections that have just ended don't count as use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(where)
                # Two sockets may bind with SO_REUSEADDR; only one may listen.
                probe.listen(1)
            except OSError as error:
                raise listen_error(error, address, setting, key) from None


def listen_error(error: OSError, address: str, setting: str, key: str) -> ListenFailed:
    """Explains an OSError of bind to the person who starts the service."""
    if error.errno == errno.EADDRINUSE:
        return ListenFailed(f"{setting}: {address} is in use by another process; set {key} or stop it")
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenFailed(f"{setting}: {address} is no address of this machine; set {key}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ListenFailed(f"{setting}: {address} needs rights this process does not have; set {key} to a higher port")
    return ListenFailed(f"{setting}: can't listen on {address}: {error.strerror or error}; set {key}")
