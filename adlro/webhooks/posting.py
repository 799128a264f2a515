"""One message over HTTP: within limits of time and size, to a receiver whose certificate is verified.

Redirects are not followed: a message goes where the operator said, or nowhere. Of the answer its status and
`retry-after` are read, and no more than 16 KiB. A connection is made for each message: messages are rare beside what a
connection costs, and one that is kept open would have to be tested before each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from adlro.webhooks.events import VERSION
from adlro.webhooks.file import Webhook

_MOST_ANSWER_BYTES = 16 << 10
_MOST_INTERIM = 8
_LONGEST_RETRY_AFTER_S = 86_400.0


class PostFailed(Exception):
    """There was no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said.

    Attributes:
        status: of HTTP.
        retry_after_s: how long it asks to wait; None: it does not.
        took_s: from the begin of the connection to the answer.
    """

    status: int
    retry_after_s: float | None
    took_s: float

    @property
    def accepted(self) -> bool:
        """Whether the receiver has the message."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the receiver does not want this message, or is no receiver: another try will hardly help."""
        return 300 <= self.status < 500 and self.status not in (408, 425, 429)


async def post(
    webhook: Webhook, headers: Mapping[str, str], body: bytes, *, connect_timeout_s: float, answer_timeout_s: float
) -> Answer:
    """Sends a message, and returns the receiver's answer.

    Args:
        webhook: the receiver.
        headers: of this message, beside those of HTTP.
        body: JSON.
        connect_timeout_s: for name, connection and TLS together.
        answer_timeout_s: from then on, to the end of the answer's headers, however slowly they come.

    Raises:
        PostFailed: there was no answer in time, or none of HTTP.
    """
    began_s = time.monotonic()
    parts = urlsplit(webhook.url)
    tls = _context(webhook.ca_file) if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(connect_timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=_MOST_ANSWER_BYTES)
    except TimeoutError:
        raise PostFailed(f"no connection within {connect_timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise PostFailed(f"its certificate is not valid: {error.verify_message}") from None
    except OSError as error:
        raise PostFailed(f"no connection: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(answer_timeout_s):
            writer.write(_head(webhook, headers, len(body)) + body)
            # The answer may come before the receiver has read all, and close the connection.
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            status, retry_after_s = await _answer(reader)
    except TimeoutError:
        raise PostFailed(f"no answer within {answer_timeout_s:g} s") from None
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        raise PostFailed("its answer is none of HTTP") from None
    except OSError as error:
        raise PostFailed(f"the connection broke: {error.strerror or error}") from None
    finally:
        # Not closed in order: a receiver that never reads on would hold us.
        writer.transport.abort()
    return Answer(status, retry_after_s, time.monotonic() - began_s)


def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file or None)


def _head(webhook: Webhook, headers: Mapping[str, str], body_bytes: int) -> bytes:
    parts = urlsplit(webhook.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = {
        "host": parts.netloc,
        "user-agent": f"adlro-webhooks/{VERSION}",
        "content-type": "application/json",
        "content-length": str(body_bytes),
        "accept": "*/*",
        "connection": "close",
        **headers,
    }
    return "\r\n".join(
        [f"POST {target} HTTP/1.1", *(f"{key}: {value}" for key, value in lines.items()), "", ""]
    ).encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, float | None]:
    """The answer's status, and its `retry-after` in seconds; interim answers (1xx) are passed over."""
    for _ in range(_MOST_INTERIM):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        digits = rest[:3]
        if not version.startswith("HTTP/1.") or not (digits.isascii() and digits.isdigit() and len(digits) == 3):
            raise ValueError("no status line")
        status = int(digits)
        if status >= 200:
            return status, _retry_after_s(lines[1:])
    raise ValueError("too many interim answers")


def _retry_after_s(lines: list[str]) -> float | None:
    for line in lines:
        name, _, value = line.partition(":")
        # A date in its place is not read: our own pauses do.
        if name.strip().lower() == "retry-after" and value.strip().isascii() and value.strip().isdigit():
            return min(float(value), _LONGEST_RETRY_AFTER_S)
    return None
