"""A real browser for the page's tests: chromium by playwright, and what every page must keep to.

Chromium is looked for on PATH (or named by ADLRO_TEST_CHROMIUM). Where it is missing the tests fail, unless
ADLRO_TEST_BROWSER=skip. Every page of these tests ends with the same questions: an error or a warning in the console?
a violation of the content security policy? a request to another origin?
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.fake_page_server import FakePageServer, fake_page_server

# Reported by the browser itself, before any script of the page could.
WATCH = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error("violates the content security policy:", event.violatedDirective, event.blockedURI, event.sample);
});
"""


@dataclass
class Watched:
    """A page of the browser, and what it did.

    Attributes:
        allowed: expressions of console messages that the test provokes, such as an answer 401.
    """

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        """Goes to a path of the server, and waits until the screen's heading and no skeleton is there."""
        self.page.goto(self.url + path)
        self.settled()
        return self.page

    def settled(self) -> None:
        """Waits until the screen is there with its figures."""
        self.page.locator("main h1").first.wait_for(state="attached")
        self.page.locator(".skeleton").first.wait_for(state="detached")

    def check(self) -> None:
        """Fails if the page did something that no page may."""
        bad = [each for each in self.problems if not any(re.search(allowed, each) for allowed in self.allowed)]
        assert not bad, "\n".join(bad)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = os.environ.get("ADLRO_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None or not Path(path).exists():
        if os.environ.get("ADLRO_TEST_BROWSER") == "skip":
            pytest.skip("no chromium on PATH")
        pytest.fail("no chromium on PATH: install it, or set ADLRO_TEST_BROWSER=skip to leave out the page's tests")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def server() -> Iterator[FakePageServer]:
    with fake_page_server() as running:
        yield running


@pytest.fixture
def watched(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Watched]]:
    """Makes pages: `watched(url, width=360, ...)`; the options are those of a playwright context."""
    contexts: list[Any] = []
    pages: list[Watched] = []

    def make(url: str, width: int = 1280, height: int = 900, **options: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
        context.add_init_script(WATCH)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        made = Watched(page, url)
        pages.append(made)

        def on_console(message: Any) -> None:
            if message.type in {"error", "warning"}:
                made.problems.append(f"console {message.type}: {message.text}")

        def on_request(sent: Any) -> None:
            parts = urlsplit(sent.url)
            if parts.scheme in {"http", "https", "ws", "wss"} and parts.netloc != urlsplit(url).netloc:
                made.problems.append(f"request to another origin: {sent.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: made.problems.append(f"error: {error}"))
        page.on("request", on_request)
        page.on("websocket", on_request)
        return made

    yield make
    try:
        for each in pages:
            each.check()
    finally:
        for context in contexts:
            context.close()
