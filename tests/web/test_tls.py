"""The page over TLS: the cookie that browsers keep for it alone, sockets, new certificates; and where it may listen."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.typing import Origin

from adlro.cli.certs import make_certificates
from adlro.kit.addresses import ListenFailed
from adlro.kit.credentials import Credentials
from adlro.kit.identity import Role, new_token, users_line
from adlro.services.web import server
from adlro.services.web.server import RunningWeb, start_web
from adlro.services.web.settings import WebSettings
from tests.contract.ingest_suite import ingest_here
from tests.web.page_suite import NOWHERE

SERVICES: dict[str, Any] = dict.fromkeys(
    ("ingest_address", "decompose_address", "orchestrator_address", "cluster_address"), NOWHERE
)


async def page_over_tls(folder: Path, token: str, **more: Any) -> RunningWeb:
    (folder / "web.token").write_text(token)
    given: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "tls_cert_file": str(folder / "web.pem"),
        "tls_key_file": str(folder / "web.key"),
        "tls_ca_file": str(folder / "ca.pem"),
        "service_token_file": str(folder / "web.token"),
    }
    return await start_web(WebSettings(**(SERVICES | given | more)))


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


async def test_login_and_live_stream_over_tls(redis_url: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    token, own = new_token("rea"), new_token("web")
    (tmp_path / "users").write_text(f"{users_line(token, [Role.READER])}\n{users_line(own, [Role.SERVICE])}\n")
    secured = {
        "users_file": str(tmp_path / "users"),
        "tls_cert_file": str(tmp_path / "ingest.pem"),
        "tls_key_file": str(tmp_path / "ingest.key"),
        "tls_ca_file": str(tmp_path / "ca.pem"),
    }
    async with ingest_here(redis_url, **secured) as ingest:
        await login_and_look(tmp_path, token, await page_over_tls(tmp_path, own, ingest_address=ingest))


async def login_and_look(tmp_path: Path, token: str, page: RunningWeb) -> None:
    """Logs in at a page, and opens its live stream."""
    try:
        where = f"https://{page.address}"

        def login() -> str:
            request = urllib.request.Request(
                f"{where}/login", json.dumps({"token": token}).encode(), {"Origin": where, "X-ADLRO": "1"}
            )
            with urllib.request.urlopen(request, context=trusting(tmp_path), timeout=60) as answer:
                assert answer.status == 204
                assert f"wss://{page.address}" in answer.headers["content-security-policy"]
                return str(answer.headers["set-cookie"])

        cookie = await asyncio.to_thread(login)
        assert cookie.startswith("__Host-adlro=")
        assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"))
        assert "Domain" not in cookie
        async with connect(
            f"wss://{page.address}/live/v1",
            origin=Origin(where),
            additional_headers={"cookie": cookie.partition(";")[0]},
            ssl=trusting(tmp_path),
        ) as socket:
            hello = json.loads(await socket.recv())
        assert (hello["op"], hello["user"]) == ("hello", "rea")
    finally:
        await page.stop(1.0)


@pytest.mark.slow
async def test_new_certificates_are_taken_and_wrong_ones_are_not(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make_certificates(first)
    make_certificates(second)
    page = await page_over_tls(first, new_token("rea"))

    def trusts(folder: Path) -> bool:
        try:
            with urllib.request.urlopen(f"https://{page.address}/", context=trusting(folder), timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    try:
        assert await asyncio.to_thread(trusts, first)
        assert not await asyncio.to_thread(trusts, second)
        (first / "web.pem").write_text("no certificate")
        await asyncio.sleep(2.5)
        assert await asyncio.to_thread(trusts, first)
        for name in ("web.pem", "web.key"):
            shutil.copy(second / name, first / name)
        async with asyncio.timeout(60.0):
            while not await asyncio.to_thread(trusts, second):  # noqa: ASYNC110 - the service has no event for it
                await asyncio.sleep(0.2)
        assert not page.context.crashed.is_set()
    finally:
        await page.stop(1.0)


async def test_new_authorities_are_taken_and_a_file_that_changes_while_it_is_loaded_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        def __init__(self) -> None:
            self.tries = 0
            self.authorities: list[str] = []

        def load_cert_chain(self, *_: str) -> None:
            self.tries += 1
            if self.tries == 1:
                raise ssl.SSLError("key values mismatch")

        def load_verify_locations(self, name: str) -> None:
            self.authorities.append(name)

    monkeypatch.setattr(server, "_CERTIFICATES_EVERY_S", 0.02)
    first, second, context = tmp_path / "first", tmp_path / "second", Context()
    make_certificates(first)
    make_certificates(second)
    names = ("web.pem", "web.key", "ca.pem")
    cert, key, authorities = (str(first / name) for name in names)
    settings = WebSettings(tls_cert_file=cert, tls_key_file=key, tls_ca_file=authorities)
    renewing = asyncio.create_task(server._renew(settings, cast(uvicorn.Config, SimpleNamespace(ssl=context))))
    async with asyncio.timeout(60.0):
        for number in (1, 2):
            while context.tries < number:
                for name in names:
                    shutil.copy(second / name, first / name)
                await asyncio.sleep(0.1)
            assert not renewing.done()
        while not context.authorities:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.02)
    assert set(context.authorities) == {authorities}
    renewing.cancel()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "lacks TLS (ADLRO_TLS_CERT_FILE) and tokens (ADLRO_USERS_FILE)"),
        ({"users_file": "token"}, "lacks TLS"),
        ({"service_token_file": "token"}, "lacks TLS (ADLRO_TLS_CERT_FILE); "),
        ({"listen": "127.0.0.1:0", "service_token_file": "nowhere"}, "can't read"),
    ],
)
async def test_it_does_not_listen_where_anybody_could_do_everything(
    tmp_path: Path, more: dict[str, str], says: str
) -> None:
    (tmp_path / "token").write_text(new_token("web"))
    given: dict[str, Any] = {"listen": "0.0.0.0:0"} | {
        name: str(tmp_path / value) if name.endswith("_file") else value for name, value in more.items()
    }
    with pytest.raises(ListenFailed) as refused:
        await start_web(WebSettings(**given))
    assert says in refused.value.message


async def test_a_trusted_network_is_one_that_is_named() -> None:
    given: dict[str, Any] = {"listen": "0.0.0.0:0", "trusted_network": "the lab's", **SERVICES}
    page = await start_web(WebSettings(**given))
    await page.stop(0)
    assert Credentials.of_service(page.context.settings).trusted_network


async def test_a_taken_port_is_told() -> None:
    first = await start_web(WebSettings(listen="127.0.0.1:0", **SERVICES))
    try:
        with pytest.raises(ListenFailed, match="in use by another process; set ADLRO_WEB_LISTEN"):
            await start_web(WebSettings(listen=first.address, **SERVICES))
    finally:
        await first.stop(0)
