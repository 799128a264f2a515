"""Whose process listens on a port of this machine, as the kernel reports it. Linux only.

Asks by netlink (sock_diag), which looks at listening sockets alone; where that is not to be had, reads /proc/net, for
which the kernel walks through its table of all connections.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_LISTEN = 10
_HEAD = struct.Struct("=IHHII")
# Family, protocol, two unused bytes, states; then ports and addresses of the wanted socket, interface and cookie.
_QUESTION = struct.Struct("=BBBxI")
_SOCKET_ID = struct.Struct("!HH16s16s12x")
# Family, state, timer, retransmissions; the socket's id; expiry, two queues, user id, inode.
_ANSWER = struct.Struct("=BBBB48sIIIII")
_TIMEOUT_S = 1.0
_BUFFER_BYTES = 1 << 16

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = f"{_LISTEN:02X}"
# The kernel lists in parts; a socket that is closed between two of them may hide the next one.
_LOOKS = 3

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def listener_uid(address: str) -> int | None:
    """The user id of the process that gets the connections to an address.

    Args:
        address: an IPv4 address and a port, such as `127.0.0.1:7701`.

    Returns:
        None if no process listens there, or this system does not report it.

    Raises:
        ValueError: the host is a name or an IPv6 address.
    """
    host, _, port = address.rpartition(":")
    ip = ipaddress.IPv4Address(host)
    if sys.platform != "linux":
        return None
    # The kernel prefers a listener on the address itself to one on all addresses. gRPC's have IPv6 sockets.
    preferred = (_mapped(ip), ip, ipaddress.IPv6Address(0), ipaddress.IPv4Address(0))
    for _ in range(_LOOKS):
        try:
            found = dict(_by_netlink(int(port)))
        except OSError:
            found = dict(_by_proc(int(port)))
        for each in preferred:
            if each in found:
                return found[each]
    return None


def _by_netlink(port: int) -> Iterator[tuple[_IPAddress, int]]:
    """Addresses and user ids of the sockets that listen on a port. Raises OSError if the kernel does not answer."""
    for family in (socket.AF_INET6, socket.AF_INET):
        question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN) + _SOCKET_ID.pack(port, 0, b"", b"")
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_TIMEOUT_S)
            head = _HEAD.pack(_HEAD.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
            kernel.sendto(head + question, (0, 0))
            yield from _answers(kernel, port)


def _answers(kernel: socket.socket, port: int) -> Iterator[tuple[_IPAddress, int]]:
    while True:
        rest = kernel.recv(_BUFFER_BYTES)
        while rest:
            length, kind, *_ = _HEAD.unpack_from(rest)
            if kind == _DONE:
                return
            if kind == _ERROR or length < _HEAD.size:
                raise OSError("the kernel does not list sockets")
            family, _, _, _, socket_id, _, _, _, uid, _ = _ANSWER.unpack_from(rest, _HEAD.size)
            found_port, _, ip, _ = _SOCKET_ID.unpack(socket_id)
            if found_port == port:
                ipv4 = family == socket.AF_INET
                yield ipaddress.IPv4Address(ip[:4]) if ipv4 else ipaddress.IPv6Address(ip), uid
            rest = rest[(length + 3) & ~3 :]


def _by_proc(port: int) -> Iterator[tuple[_IPAddress, int]]:
    """As `_by_netlink`; nothing where there is no /proc."""
    for table in _TABLES:
        try:
            with table.open(encoding="ascii") as lines:
                next(lines, "")  # the heads
                for line in lines:
                    _, local, _, state, _, _, _, uid, *_ = line.split()
                    if state != _LISTENING:
                        break  # listening sockets come first; there may be very many others
                    address, _, hexadecimal = local.rpartition(":")
                    if int(hexadecimal, 16) == port:
                        yield _address(address), int(uid)
        except OSError:
            continue


def _address(text: str) -> _IPAddress:
    """An address of /proc/net: 32-bit numbers in the machine's byte order."""
    words = (int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    packed = b"".join(words)
    return ipaddress.IPv4Address(packed) if len(packed) == 4 else ipaddress.IPv6Address(packed)


def _mapped(ip: ipaddress.IPv4Address) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + ip.packed)
