"""Page tokens: a position in a list, tied to its filter and signed, so that no other token is accepted.

A token is base64url of position (8 bytes), filter digest (16) and HMAC-SHA256 of both (16). The key is in Redis, so
that every replica accepts the tokens of other replicas.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from typing import Any

import redis.asyncio as aioredis

from adlro.errors import InvalidInput
from adlro.store.keys import PAGE_SECRET

_POSITION_BYTES, _DIGEST_BYTES, _MAC_BYTES = 8, 16, 16
_LENGTH = _POSITION_BYTES + _DIGEST_BYTES + _MAC_BYTES


def encode(secret: bytes, position: int, filter_digest: bytes) -> str:
    """The token of a position in the list that the filter selects."""
    payload = struct.pack(">Q", position) + filter_digest
    return _text(payload + _mac(secret, payload))


def decode(secret: bytes, token: str, filter_digest: bytes) -> int:
    """The position a token stands for.

    Raises:
        InvalidInput: the token was not issued by this service, or belongs to another filter.
    """
    try:
        body = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        body = b""
    payload, mac = body[:-_MAC_BYTES], body[-_MAC_BYTES:]
    # base64 leaves bits of the last character unused: the same bytes must not have two tokens.
    if len(body) != _LENGTH or not hmac.compare_digest(mac, _mac(secret, payload)) or _text(body) != token:
        raise InvalidInput(
            "page_token: was not issued by this service; send the next_page_token of the previous response "
            "unchanged, or leave page_token empty for the first page",
            field="page_token",
            reason="PAGE_TOKEN_INVALID",
        )
    if payload[_POSITION_BYTES:] != filter_digest:
        raise InvalidInput(
            "page_token: belongs to another filter; send the filter of the first page with it, "
            "or leave page_token empty to begin with the new filter",
            field="page_token",
            reason="PAGE_TOKEN_OTHER_FILTER",
        )
    return int(struct.unpack(">Q", payload[:_POSITION_BYTES])[0])


class PageTokens:
    """Makes and reads tokens with the key that all replicas share; the first replica that needs it makes it.

    The key is read each time: a page costs many reads anyway, and a key of a Redis that was emptied since would make
    tokens that no other replica accepts.
    """

    def __init__(self, redis: aioredis.Redis) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results

    async def encode(self, position: int, filter_digest: bytes) -> str:
        """The token of a position in the list that the filter selects."""
        return encode(await self._secret(), position, filter_digest)

    async def decode(self, token: str, filter_digest: bytes) -> int:
        """The position a token stands for.

        Raises:
            InvalidInput: the token was not issued by this service, or belongs to another filter.
        """
        return decode(await self._secret(), token, filter_digest)

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
