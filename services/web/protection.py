"""What every request must be, before it is looked at, and the headers of every answer. Pure functions of headers.

A page that a user has open elsewhere can make his browser send requests here. Such a request names another host (DNS
rebinding), another origin, or lacks the header that only this page's script sends; it is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from adlro.kit.addresses import split_address

OWN_HEADER: Final = "x-adlro"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_ALWAYS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
REPORT_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""For evaluation pages: they draw with scripts of their own, and reach neither the network nor the login."""


class Hosts:
    """The names under which the page may be reached.

    Args:
        listen: the address that it listens on.
        names: further names, with a port or without.
    """

    def __init__(self, listen: str, names: Iterable[str]) -> None:
        self._names = set(_LOOPBACK_NAMES) | {each.lower() for each in names}
        host = split_address(listen)[0].lower()
        if not _any_address(host):
            self._names.add(host)

    def allows(self, host: str) -> bool:
        """Whether a Host header names this page; ports are free, since lines may be forwarded."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname
            parts.port  # noqa: B018 - raises for what is no port
        except ValueError:
            return False
        if not name or parts.path or parts.query or parts.fragment or parts.username is not None:
            return False
        return name in self._names or host.lower() in self._names


def security_headers(host: str, *, tls: bool) -> dict[str, str]:
    """The headers of an answer.

    Args:
        host: the checked Host header; older browsers want it named for sockets.
        tls: whether the page is served over TLS.
    """
    sockets = f"{'wss' if tls else 'ws'}://{host}"
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        f"connect-src 'self' {sockets}; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    )
    return {**_ALWAYS, "content-security-policy": policy, "x-frame-options": "DENY"}


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request's Origin is there, and is the host that it asks for."""
    origin, host = headers.get("origin", ""), headers.get("host", "")
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


def from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that another site asks; browsers too old to say so are let pass."""
    return headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def refusal_of_post(headers: Mapping[str, str]) -> str | None:
    """Why a request that changes something is refused; None: it comes from this page."""
    if not same_origin(headers):
        return "the Origin of the request is not this page's"
    if from_elsewhere(headers):
        return "the request comes from another site"
    if headers.get(OWN_HEADER) != "1":
        return "the request lacks the header X-ADLRO: 1"
    return None


def _any_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
