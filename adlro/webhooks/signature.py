"""The signature of a message, as https://www.standardwebhooks.com defines it: HMAC-SHA256 of id, time and body.

    webhook-id         of the event: the same in each try, so that a receiver can drop what it has already
    webhook-timestamp  unix seconds of this try
    webhook-signature  `v1,<base64>`, for each secret of the webhook, separated by spaces

The signed content is `<id>.<timestamp>.<body>`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adlro.errors import InvalidInput

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300.0
"""A message whose timestamp is further from now is refused: somebody may send an old one again."""

_PREFIX = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64
_MOST_SECRETS = 4


class BadSignature(ValueError):
    """A message was not signed with the secret, was changed on its way, or is too old."""


def read_secrets(path: Path, key: str) -> tuple[bytes, ...]:
    """The secrets of a file: one a line, the present one first; others while receivers change to a new one.

    Args:
        path: the file. A secret is the base64 of 24 to 64 bytes, with the prefix `whsec_` or without.
        key: the field that names the file, in error messages.

    Raises:
        InvalidInput: it can't be read, or holds no secret. The message does not show its content.
    """

    def wrong(what: str) -> InvalidInput:
        return InvalidInput(
            f"{key}: {path} {what}; a secret is the base64 of {_LEAST_BYTES} to {_MOST_BYTES} random bytes on a line, "
            f"as `openssl rand -base64 32 > {path.name}` writes it",
            field=key,
        )

    try:
        lines = [line.strip() for line in path.read_text("ascii").splitlines() if line.strip()]
    except OSError as error:
        raise InvalidInput(f"{key}: can't read {path}: {error.strerror}", field=key) from None
    except UnicodeDecodeError:
        raise wrong("holds no text of ASCII characters") from None
    if not lines:
        raise wrong("is empty")
    if len(lines) > _MOST_SECRETS:
        raise wrong(f"has more than {_MOST_SECRETS} lines")
    try:
        return tuple(secret_bytes(line) for line in lines)
    except ValueError as error:
        raise wrong(str(error)) from None


def secret_bytes(text: str) -> bytes:
    """The bytes of a secret that is written as base64. Raises ValueError, which does not show it."""
    try:
        found = base64.b64decode(text.strip().removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("holds a line that is not base64") from None
    if not _LEAST_BYTES <= len(found) <= _MOST_BYTES:
        raise ValueError(f"holds a secret of {len(found)} bytes")
    return found


def signed_headers(secrets: Sequence[bytes], message_id: str, timestamp_unix_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a message; without secrets there is no signature."""
    found = {ID_HEADER: message_id, TIMESTAMP_HEADER: str(timestamp_unix_s)}
    if secrets:
        signatures = [_signature(secret, message_id, str(timestamp_unix_s), body) for secret in secrets]
        found[SIGNATURE_HEADER] = " ".join(f"v1,{each}" for each in signatures)
    return found


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance_s: float = TOLERANCE_S,
    now_unix_s: float | None = None,
) -> Any:
    """The document of a message, once its signature is verified; for receivers in Python.

    Args:
        headers: of the request; upper or lower case.
        body: of the request, to the last byte as it came.
        secret: as it stands in the secret's file.
        tolerance_s: how far the message's time may be from now.
        now_unix_s: None: the clock of this machine.

    Raises:
        BadSignature: it is none of ours, was changed, or is too old.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp = given[ID_HEADER], given[TIMESTAMP_HEADER]
        signatures = given[SIGNATURE_HEADER].split()
        sent_unix_s = int(timestamp)
    except KeyError as error:
        raise BadSignature(f"there is no header {error.args[0]}") from None
    except ValueError:
        raise BadSignature(f"{TIMESTAMP_HEADER} is no number") from None
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    if abs(now_unix_s - sent_unix_s) > tolerance_s:
        raise BadSignature(f"the message's time is {abs(now_unix_s - sent_unix_s):.0f} s from now")
    expected = f"v1,{_signature(secret_bytes(secret), message_id, timestamp, body)}"
    if not any(hmac.compare_digest(each.encode(), expected.encode()) for each in signatures):
        raise BadSignature("the message is not signed with this secret")
    return json.loads(body)


def _signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
