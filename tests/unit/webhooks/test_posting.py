"""One message over HTTP, to receivers that answer, that do not, that answer too slowly or nonsense, and over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from adlro.cli.certs import certs
from adlro.webhooks.events import EventName
from adlro.webhooks.file import Webhook
from adlro.webhooks.posting import Answer, PostFailed, post
from tests.webhook_receiver import receiver

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def webhook(url: str, **more: Any) -> Webhook:
    return Webhook("ops", url, frozenset(EventName), **more)


async def sent(url: str, *, connect_timeout_s: float = 30.0, answer_timeout_s: float = 30.0, **more: Any) -> Answer:
    return await post(
        webhook(url, **more),
        {"webhook-id": "x"},
        b'{"a": 1}',
        connect_timeout_s=connect_timeout_s,
        answer_timeout_s=answer_timeout_s,
    )


@asynccontextmanager
async def raw(handle: Handle, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that speaks for itself; yields its address."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def saying(*parts: bytes, pause_s: float = 0.0) -> Handle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
        except ConnectionError:
            pass
        writer.close()

    return handle


async def test_a_message_arrives_whole_and_the_answer_comes_back() -> None:
    with receiver() as there:
        there.answer = lambda request: (503, {"Retry-After": "17"})
        answer = await sent(there.url)
    assert (answer.status, answer.retry_after_s, answer.accepted, answer.refused) == (503, 17.0, False, False)
    (request,) = there.requests
    assert (request.path, request.body) == ("/hook?x=1", b'{"a": 1}')
    assert request.headers["host"] == f"127.0.0.1:{there.port}"
    assert (request.headers["content-type"], request.headers["webhook-id"]) == ("application/json", "x")


@pytest.mark.parametrize(
    ("status", "accepted", "refused"),
    [
        *((status, True, False) for status in (200, 201, 204)),
        *((status, False, True) for status in (301, 307, 400, 401, 404, 410)),
        *((status, False, False) for status in (408, 425, 429, 500, 503)),
    ],
)
async def test_what_answers_mean(status: int, accepted: bool, refused: bool) -> None:
    async with raw(saying(f"HTTP/1.1 {status} X\r\n\r\n".encode())) as address:
        answer = await sent(f"http://{address}/")
    assert (answer.accepted, answer.refused) == (accepted, refused)


async def test_a_redirect_is_not_followed() -> None:
    with receiver() as elsewhere, receiver() as there:
        there.answer = lambda request: (307, {"Location": elsewhere.url})
        answer = await sent(there.url)
    assert (answer.status, answer.refused) == (307, True)
    assert elsewhere.requests == []


async def test_interim_answers_are_passed_over() -> None:
    parts = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
    async with raw(saying(*parts)) as address:
        assert (await sent(f"http://{address}/")).status == 200


async def test_nobody_listens() -> None:
    async with raw(saying()) as address:
        pass
    with pytest.raises(PostFailed, match="no connection: "):
        await sent(f"http://{address}/")


async def test_a_receiver_that_never_answers_is_left_in_time() -> None:
    async with raw(saying(b"", pause_s=60.0)) as address:
        began_s = monotonic()
        with pytest.raises(PostFailed, match=r"no answer within 0\.2 s"):
            await sent(f"http://{address}/", answer_timeout_s=0.2)
    assert monotonic() - began_s < 20.0


async def test_a_receiver_that_answers_byte_by_byte_is_left_in_time() -> None:
    """The limit is on the whole answer: a timeout of each read would never end it."""
    drip = [b"HTTP/1.1 200 OK\r\n", *[b"x"] * 1000]
    async with raw(saying(*drip, pause_s=0.05)) as address:
        with pytest.raises(PostFailed, match=r"no answer within 0\.5 s"):
            await sent(f"http://{address}/", answer_timeout_s=0.5)


@pytest.mark.parametrize(
    "parts",
    [
        (b"220 smtp.example.org\r\n\r\n",),
        (b"HTTP/1.1 2x0 OK\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n",),  # it ends within its headers
        (b"",),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",),
        tuple([b"HTTP/1.1 100 Continue\r\n\r\n"] * 20),
    ],
)
async def test_nonsense_and_endless_answers_are_no_answers(parts: tuple[bytes, ...]) -> None:
    async with raw(saying(*parts)) as address:
        with pytest.raises(PostFailed, match=r"none of HTTP|broke"):
            await sent(f"http://{address}/")


async def test_a_body_of_any_length_is_not_read() -> None:
    body = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"z" * 65_536] * 1000]
    async with raw(saying(*body)) as address:
        assert (await sent(f"http://{address}/")).status == 200


async def test_certificates_are_verified(tmp_path: Path) -> None:
    certs(out=tmp_path, host=[], days=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ingest.pem", tmp_path / "ingest.key")
    async with raw(saying(b"HTTP/1.1 200 OK\r\n\r\n"), context) as address:
        with pytest.raises(PostFailed, match="its certificate is not valid"):
            await sent(f"https://{address}/")
        answer = await sent(f"https://{address}/", ca_file=str(tmp_path / "ca.pem"))
        assert answer.status == 200
    async with raw(saying(b"HTTP/1.1 200 OK\r\n\r\n")) as address:
        with pytest.raises(PostFailed, match=r"no connection within 0\.3 s"):
            await sent(f"https://{address}/", connect_timeout_s=0.3)
