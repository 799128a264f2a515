"""axe-core finds nothing on any screen, in light, dark, at 200 % zoom and 360 px; and none is wider than the window.

axe-core is read from node_modules (`npm ci`); it is never shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import TOKEN, FakePageServer, fake_page_server
from tests.browser.screens import SCREENS

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [pytest.mark.browser, pytest.mark.slow]

MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    # The browser's zoom halves the window in CSS pixels and doubles the pixels of each.
    "zoom 200 %": {"width": 640, "height": 450, "device_scale_factor": 2},
    "360 px": {"width": 360, "height": 740},
}


def violations(page: Any) -> list[str]:
    """What axe-core finds, a line each."""
    if not AXE.exists():
        pytest.fail(f"{AXE} is missing: run `npm ci`")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((result) => result.violations)")
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("mode", MODES)
def test_no_screen_has_a_fault_that_axe_knows(
    mode: str, server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url, **MODES[mode])
    found = []
    for name, path in SCREENS.items():
        page = tab.open(path)
        found += [f"{name}: {each}" for each in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{name} is wider than the window")

    assert not found, "\n".join(found)


def test_login_and_dialogs_have_none(watched: Callable[..., Watched]) -> None:
    with fake_page_server(login=True) as server:
        tab = watched(server.url, width=360, height=740, color_scheme="dark")
        tab.allowed.append("status of 401")
        page = tab.open("/jobs/job-26")
        assert violations(page) == []
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Cancel job").click()
        page.get_by_role("dialog").wait_for()
        assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_that_are_old_can_still_be_read(
    scheme: str, server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url, color_scheme=scheme)
    for path in ("/", "/queue", "/jobs/job-2", "/gpus/v100-0%2F1"):
        page = tab.open(path)
        away = {"state": "away", "since_unix_s": 0, "error": "connection refused"}
        server.say(op="sources", ingest=away, decompose=away, orchestrator=away, cluster=away)
        page.locator(".panel.old").first.wait_for()
        assert violations(page) == [], path
    page = tab.open("/")
    server.say(op="stale", key="head", since_unix_s=0)
    page.locator(".panel.head.old .state-stale").wait_for()
    assert violations(page) == []
