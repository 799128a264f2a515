"""What a screen reader is told on each screen: roles, names and figures, compared with files.

After a change that is meant: `ADLRO_TEST_UPDATE_SNAPSHOTS=1 python -m pytest tests/browser/test_aria.py`, and read the
difference in git.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer
from tests.browser.screens import SCREENS

SNAPSHOTS = Path(__file__).parent / "snapshots"
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_says_what_it_shows(name: str, server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open(SCREENS[name])
    # The curves' library comes when the first curve is drawn.
    page.wait_for_load_state("networkidle") if name != "gantt" else page.locator(".gantt-rows canvas").wait_for()
    if name == "gantt":
        page.locator('.overview canvas[aria-label*="now"]').wait_for()

    said = page.locator("body").aria_snapshot() + "\n"

    path = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("ADLRO_TEST_UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(said)
    assert said == path.read_text()
    assert "onerror" not in page.title()
