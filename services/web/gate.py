"""The gate that every request passes: its host, its origin, its size; and the headers of every answer. ASGI alone."""

from __future__ import annotations

import gzip
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adlro.errors import LimitExceeded
from adlro.services.web import protection
from adlro.services.web.answers import json_answer

MAX_BODY_BYTES: Final = 64 * 1024
PACK_FROM_BYTES: Final = 1024
_LEVEL: Final = 5
_UNPROTECTED: Final = "/healthz"


class Protected:
    """The protection of every request, and the headers of every answer.

    Args:
        app: what answers a request that passes.
        hosts: the names of this page.
        tls: whether it is served over TLS.
    """

    def __init__(self, app: ASGIApp, hosts: protection.Hosts, *, tls: bool) -> None:
        self._app = app
        self._hosts = hosts
        self._tls = tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one socket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # A container's engine asks by an address of its own; the answer says nothing.
        if scope["type"] == "http" and scope["path"] == _UNPROTECTED:
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope, headers)
        if refused is not None and scope["type"] == "websocket":
            # Before the handshake is answered: the browser gets 403.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1][:100]})
            return
        sender = self._with_headers(scope, headers, send)
        if refused is not None:
            status, words, code = refused
            await json_answer({"error": words, "code": code}, status)(scope, receive, sender)
            return
        await self._app(scope, _limited(receive) if scope["type"] == "http" else receive, sender)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._hosts.allows(host):
            return 421, "this page is not served under that name; its names are set by ADLRO_WEB_HOSTS", "HOST"
        if scope["type"] == "websocket":
            if not protection.same_origin(headers) or protection.from_elsewhere(headers):
                return 403, "the Origin of the socket is not this page's", "ORIGIN"
            return None
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "the page knows GET, HEAD and POST", "METHOD"
        if scope["method"] == "POST":
            words = protection.refusal_of_post(headers)
            return None if words is None else (403, words, "ORIGIN")
        if scope["path"].startswith("/api/") and protection.from_elsewhere(headers):
            return 403, "the request comes from another site", "ORIGIN"
        return None

    def _with_headers(self, scope: Scope, headers: Headers, send: Send) -> Send:
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            host = "localhost"
        added = protection.security_headers(host, tls=self._tls)

        packs = "gzip" in headers.get("accept-encoding", "")
        held: Message | None = None

        async def sender(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in added.items():
                    answer.setdefault(name, value)
                answer.setdefault("cache-control", "no-store")
                if packs and answer.get("content-type") == "application/json":
                    held = message  # its length is known once it is packed
                    return
            elif held is not None and message["type"] == "http.response.body":
                start, held = held, None
                await send(_pack(start, message))
            await send(message)

        return sender


def _pack(start: Message, body: Message) -> Message:
    """Packs an answer that comes whole and is large enough; returns its start."""
    plain = body.get("body", b"")
    if not body.get("more_body") and len(plain) >= PACK_FROM_BYTES:
        body["body"] = gzip.compress(plain, _LEVEL, mtime=0)
        answer = MutableHeaders(scope=start)
        answer["content-length"] = str(len(body["body"]))
        answer["content-encoding"] = "gzip"
        answer["vary"] = "accept-encoding"
    return start


def _limited(receive: Receive) -> Receive:
    """A body of at most `MAX_BODY_BYTES`, whatever its length says."""
    got = 0

    async def limited() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b"")) if message["type"] == "http.request" else 0
        if got > MAX_BODY_BYTES:
            raise LimitExceeded(f"a request has at most {MAX_BODY_BYTES} bytes", reason="TOO_LARGE")
        return message

    return limited
