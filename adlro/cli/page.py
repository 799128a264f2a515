"""The live page beside a suite: is it installed, its process' settings, its health. A suite serves without it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from adlro.cli.processes import ServiceProcess, exit_text, log_tail
from adlro.client import ServiceName
from adlro.kit.addresses import join_address, split_address
from adlro.kit.running_suites import running_suite

PAGE = "web"
MODULE = "adlro.services.web"
PORT_OFFSET = len(ServiceName)
"""Distance of its port from ingest's."""

_PACKAGES = ("starlette", "uvicorn", "websockets")
_TLS_ENV = "ADLRO_TLS_CERT_FILE"
_START_TIMEOUT_S = 40.0
_LOOK_S = 0.1
_ANSWER_S = 2.0
LAST_PORT = 65_535


def page_is_installed() -> bool:
    """Whether the packages of the extra `web` are there."""
    return all(find_spec(package) is not None for package in _PACKAGES)


def page_settings(address: str, addresses: Mapping[ServiceName, str]) -> dict[str, str]:
    """The environment of the page's process.

    Args:
        address: its own, `host:port`.
        addresses: of the services.
    """
    return {
        "ADLRO_WEB_LISTEN": address,
        **{f"ADLRO_WEB_{name.name}_ADDRESS": addresses[name] for name in ServiceName},
        # Browsers have no certificates of their own, unless somebody wants it so.
        "ADLRO_WEB_TLS_REQUIRE_CLIENT_CERT": os.environ.get("ADLRO_WEB_TLS_REQUIRE_CLIENT_CERT", "false"),
    }


def page_link(address: str) -> str:
    """The address for a browser."""
    return f"{'https' if os.environ.get(_TLS_ENV) else 'http'}://{address}/"


async def page_serves(address: str) -> bool:
    """Whether the page at an address answers."""
    context = None
    if os.environ.get(_TLS_ENV):
        # Only whether it answers: nothing is sent that is worth a check of its certificate.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                writer.write(f"GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


@dataclass(frozen=True, slots=True)
class PageState:
    """The live page of a suite.

    Attributes:
        link: for a browser.
        serving: it answers.
    """

    link: str
    serving: bool


async def page_of(server: str) -> PageState | None:
    """The page beside the suite at an address: at its own port, or where the suite's status file says; None: no page.

    Args:
        server: `host:port` of ingest.
    """
    suite = running_suite(server)
    known = suite.page if suite is not None else ""
    if known:
        return PageState(known, await page_serves(urlsplit(known).netloc))
    host, port = split_address(server)
    if not 0 < port <= LAST_PORT - PORT_OFFSET:
        return None
    address = join_address(host, port + PORT_OFFSET)
    return PageState(page_link(address), serving=True) if await page_serves(address) else None


async def until_page_serves(address: str) -> None:
    """Returns once the page at an address answers."""
    while not await page_serves(address):  # noqa: ASYNC110 - another process says it
        await asyncio.sleep(_LOOK_S)


async def page_problem(service: ServiceProcess, address: str) -> str:
    """Waits until the started page answers; returns why it does not, otherwise an empty text."""
    ended = asyncio.create_task(service.ended())
    serving = asyncio.create_task(until_page_serves(address))
    try:
        await asyncio.wait([ended, serving], timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return ""
    finally:
        ended.cancel()
        serving.cancel()
    why = f"ended ({exit_text(ended.result())})" if ended.done() and not ended.cancelled() else "does not answer"
    said = "".join(f"\n  {line}" for line in log_tail(service.log))
    return f"the page {why}; its log is {service.log}{said}"
