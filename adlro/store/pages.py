"""Page tokens: a position in a list, tied to its filter and order and signed, so that no other token is accepted.

A token is base64url of the position (8 bytes in the order of submission, as of older releases, otherwise 24), the
digest of filter and order (16) and HMAC-SHA256 of both (16). The key is in Redis, so that every replica accepts the
tokens of other replicas.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from typing import Any, NamedTuple

import redis.asyncio as aioredis

from adlro.errors import InvalidInput
from adlro.store.keys import PAGE_SECRET

_DIGEST_BYTES, _MAC_BYTES = 16, 16


class Position(NamedTuple):
    """A place in a list: the job that a page ended with.

    Attributes:
        number: of the job.
        key: by which the order goes before the number.
        revision: of the jobs that the page was made of.
    """

    number: int
    key: float = 0.0
    revision: int = 0


# In the order of submission only the number; one number must not have two tokens, so these lengths stay apart.
_FORMS = {8: struct.Struct(">Q"), 24: struct.Struct(">QdQ")}


def encode(secret: bytes, position: Position, list_digest: bytes) -> str:
    """The token of a position in the list that filter and order select."""
    form = _FORMS[8] if position[1:] == (0.0, 0) else _FORMS[24]
    payload = form.pack(*position[: 1 if form.size == 8 else 3]) + list_digest
    return _text(payload + _mac(secret, payload))


def decode(secret: bytes, token: str, list_digest: bytes) -> Position:
    """The position a token stands for.

    Raises:
        InvalidInput: the token was not issued by this service, or belongs to another filter or order.
    """
    try:
        body = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        body = b""
    payload, mac = body[:-_MAC_BYTES], body[-_MAC_BYTES:]
    form = _FORMS.get(len(payload) - _DIGEST_BYTES)
    # base64 leaves bits of the last character unused: the same bytes must not have two tokens.
    if form is None or not hmac.compare_digest(mac, _mac(secret, payload)) or _text(body) != token:
        raise InvalidInput(
            "page_token: was not issued by this service; send the next_page_token of the previous response "
            "unchanged, or leave page_token empty for the first page",
            field="page_token",
            reason="PAGE_TOKEN_INVALID",
        )
    if payload[form.size :] != list_digest:
        raise InvalidInput(
            "page_token: belongs to another filter or order; send those of the first page with it, "
            "or leave page_token empty to begin anew",
            field="page_token",
            reason="PAGE_TOKEN_OTHER_FILTER",
        )
    return Position(*form.unpack(payload[: form.size]))


class PageTokens:
    """Makes and reads tokens with the key that all replicas share; the first replica that needs it makes it.

    The key is read each time: a page costs many reads anyway, and a key of a Redis that was emptied since would make
    tokens that no other replica accepts.
    """

    def __init__(self, redis: aioredis.Redis) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results

    async def encode(self, position: Position, list_digest: bytes) -> str:
        """The token of a position in the list that filter and order select."""
        return encode(await self._secret(), position, list_digest)

    async def decode(self, token: str, list_digest: bytes) -> Position:
        """The position a token stands for.

        Raises:
            InvalidInput: the token was not issued by this service, or belongs to another filter or order.
        """
        return decode(await self._secret(), token, list_digest)

    async def _secret(self) -> bytes:
        secret: bytes | None = await self._redis.get(PAGE_SECRET)
        if secret is None:
            await self._redis.set(PAGE_SECRET, secrets.token_bytes(32), nx=True)
            secret = await self._redis.get(PAGE_SECRET)
        return bytes(secret or b"")


def _text(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.new(secret, payload, hashlib.sha256).digest()[:_MAC_BYTES]
