"""The live page beside a suite: its settings, whether it answers, and a suite that goes on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adlro.cli import machine_checks, page
from adlro.cli.page import PageState, page_is_installed, page_link, page_of, page_problem, page_serves, page_settings
from adlro.cli.processes import ServiceProcess
from adlro.cli.suite import Suite, SuitePlan
from adlro.client import ServiceName
from adlro.kit.running_suites import RunningSuite
from adlro.kit.settings import known_keys
from adlro.services.web.settings import DEFAULT_PORT, WebSettings

ADDRESSES = {name: f"127.0.0.1:{7701 + name.port_offset}" for name in ServiceName}


@asynccontextmanager
async def answering(status: str) -> AsyncIterator[str]:
    """Something that answers each request so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_the_page_is_at_the_port_after_the_services_and_its_settings_are_known() -> None:
    assert 7701 + page.PORT_OFFSET == DEFAULT_PORT
    given = page_settings("127.0.0.1:7705", ADDRESSES)
    assert set(given) <= set(known_keys(WebSettings))
    made = WebSettings(**{known_keys(WebSettings)[key]: value for key, value in given.items()})  # type: ignore[arg-type]
    assert (made.listen, made.cluster_address) == ("127.0.0.1:7705", "127.0.0.1:7704")
    assert not made.tls_require_client_cert


def test_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADLRO_TLS_CERT_FILE", raising=False)
    assert page_link("127.0.0.1:7705") == "http://127.0.0.1:7705/"
    monkeypatch.setenv("ADLRO_TLS_CERT_FILE", "web.pem")
    assert page_link("127.0.0.1:7705") == "https://127.0.0.1:7705/"


async def test_the_page_of_a_suite_is_at_the_port_after_its_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADLRO_TLS_CERT_FILE", raising=False)
    monkeypatch.setattr(page, "running_suite", lambda _: None)
    async with answering("200 OK") as address:
        host, _, port = address.rpartition(":")
        server = f"{host}:{int(port) - page.PORT_OFFSET}"
        assert await page_of(server) == PageState(f"http://{address}/", serving=True)
    # Nobody says that there should be one.
    assert await page_of(server) is None
    assert await page_of("127.0.0.1:65534") is None


async def test_a_suite_that_has_a_page_says_where_though_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering("200 OK") as address:
        suite = RunningSuite(frozenset(), "token", Path(), f"http://{address}/")
        monkeypatch.setattr(page, "running_suite", lambda _: suite)
        assert await page_of("127.0.0.1:1") == PageState(f"http://{address}/", serving=True)
    assert await page_of("127.0.0.1:1") == PageState(f"http://{address}/", serving=False)


@pytest.mark.parametrize(
    ("found", "installed", "free", "level", "says"),
    [
        (PageState("http://x/", serving=True), True, False, "ok", "http://x/ answers"),
        (PageState("http://x/", serving=False), True, True, "fault", "does not answer"),
        (None, False, True, "note", "not installed"),
        (None, True, False, "note", "port 7705 is not free"),
        (None, True, True, "ok", "at port 7705"),
    ],
)
async def test_doctor_looks_at_the_page(
    monkeypatch: pytest.MonkeyPatch, found: PageState | None, installed: bool, free: bool, level: str, says: str
) -> None:
    async def told(_: str) -> PageState | None:
        return found

    monkeypatch.setattr(page, "page_of", told)
    monkeypatch.setattr(page, "page_is_installed", lambda: installed)
    monkeypatch.setattr("adlro.cli.ports.port_is_free", lambda *_: free)
    (finding,) = await machine_checks.page(7701)
    assert finding.level == level
    assert says in finding.text
    assert bool(finding.mend) == (level != "ok")


def test_it_is_not_installed_where_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_is_installed()
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "uvicorn" else name)
    assert not page_is_installed()


async def test_it_serves_where_it_says_so() -> None:
    async with answering("200 OK") as address:
        assert await page_serves(address)
    async with answering("503 Service Unavailable") as address:
        assert not await page_serves(address)
    assert not await page_serves("127.0.0.1:1")


@pytest.mark.slow
async def test_a_page_that_ends_at_its_start_is_told_with_its_log(tmp_path: Path) -> None:
    process = ServiceProcess("web", "adlro.no_such_page", {}, tmp_path)
    await process.start()
    told = await page_problem(process, "127.0.0.1:1")
    assert told.startswith(f"the page ended (exit code 1); its log is {tmp_path / 'web.log'}")
    assert "no_such_page" in told


async def test_a_taken_port_costs_the_suite_its_page_alone(tmp_path: Path) -> None:
    told: list[str] = []
    suite = Suite(SuitePlan(tmp_path, base_port=0, page=True), told.append)
    async with answering("200 OK") as address:
        port = int(address.rpartition(":")[2])
        await suite._start_page(port)
    assert told == [f"port {port} (for the page) is in use: there is no page; stop its user, or name another --port"]
    assert (suite.page_link, suite.pids()) == ("", {})
    await suite._start_page(65_536)
    assert "port 65536" in told[1]
