"""What a submitter sees: his own jobs, and of the cluster's GPUs only that they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import fake_page_server
from tests.browser.made_up_cluster import Cluster
from tests.browser.pixels import tone
from tests.browser.test_accessibility import violations

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class OfSubmitter(Cluster):
    """The page's server as it answers a submitter: job-1 is his, on the first GPU."""

    def me(self, *, users_known: bool) -> dict[str, Any]:
        few = {
            "roles": ["submitter"],
            "screens": ["cluster", "queue", "gantt", "submit"],
            "actions": ["submit", "cancel"],
        }
        return super().me(users_known=users_known) | few

    def head(self) -> dict[str, Any]:
        shown = super().head()
        for name in ("alerts", "policy", "deciding_policy", "event_lag", "drift", "busy_ratio"):
            shown.pop(name, None)
        return shown

    def topic(self, key: str) -> tuple[dict[str, Any], bytes]:
        data, body = super().topic(key)
        if key != "gpus":
            return data, body
        states = bytes([1]) + bytes([255]) * (len(self.gpus) - 1)
        return data | {"metrics": [], "planes": ["state"], "jobs": {"0": ["job-1"]}}, states


def colour_of_cell(page: Any, index: int) -> list[int]:
    """The pixel of the map's canvas in the middle of a GPU's button; red, green, blue and opacity."""
    return list(
        page.evaluate(
            """(index) => {
  const canvas = document.querySelector(".heatmap canvas");
  const cell = document.querySelector(`.heatmap button[data-index="${index}"]`).getBoundingClientRect();
  const around = canvas.getBoundingClientRect();
  const scale = canvas.width / around.width;
  const at = [(cell.left + cell.width / 2 - around.left) * scale, (cell.top + cell.height / 2 - around.top) * scale];
  return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
}""",
            index,
        )
    )


@pytest.mark.parametrize("node_count", [8, 40])
def test_gpus_of_others_are_not_shown_and_it_is_said(node_count: int, watched: Callable[..., Watched]) -> None:
    with fake_page_server(OfSubmitter(node_count)) as server:
        tab = watched(server.url)
        tab.allowed.append("Multiple readback operations")  # by this test itself
        page = tab.open("/")
        page.get_by_role("heading", name="Your jobs", exact=True).wait_for()
        assert page.get_by_text("Nothing needs you").count() == 0
        gpus = 4 * node_count
        assert page.locator(".map-summary").inner_text() == f"1 allocated · {gpus - 1} not shown to you"
        mine = page.locator('.heatmap button[data-index="0"]')
        other = page.locator('.heatmap button[data-index="5"]')
        assert mine.get_attribute("aria-label") == "v100-0/0: allocated"
        assert str(other.get_attribute("aria-label")).endswith(": not shown to you")
        assert "not shown to you" in page.locator(".map-legend").inner_text()
        assert "slower" not in page.locator(".map-legend").inner_text()
        if node_count > 16:
            # Beyond 64 GPUs the colours are painted on a canvas behind the buttons.
            assert colour_of_cell(page, 0)[:3] == tone(page, "--tone-1")
            assert colour_of_cell(page, 5)[3] == 0  # nothing: the button has its own grey
        assert violations(page) == []


def test_the_map_leads_a_submitter_to_his_own_job_and_nowhere_else(watched: Callable[..., Watched]) -> None:
    with fake_page_server(OfSubmitter()) as server:
        page = watched(server.url).open("/")
        page.locator('.heatmap button[data-index="5"]').click()
        page.locator('.heatmap button[data-index="0"]').focus()
        assert page.url.endswith("/")
        page.locator('.heatmap button[data-index="0"]').click()
        page.wait_for_url("**/jobs/job-1")
        # Its GPU is named, and leads to no page that he may not see.
        page.get_by_role("heading", name="job-1").wait_for()
        assert page.locator('main a[href^="/gpus/"]').count() == 0


def test_colours_of_many_gpus_follow_their_figures(watched: Callable[..., Watched]) -> None:
    cluster = Cluster(40)
    with fake_page_server(cluster) as server:
        tab = watched(server.url, device_scale_factor=2)
        tab.allowed.append("Multiple readback operations")
        page = tab.open("/?metric=utilization")
        page.locator(".heatmap canvas").wait_for()
        cluster.planes["utilization"][2] = 0
        cluster.planes["utilization"][3] = 254
        server.push()
        page.wait_for_timeout(300)
        assert colour_of_cell(page, 2)[:3] == tone(page, "--ramp-0")
        assert colour_of_cell(page, 3)[:3] == tone(page, "--ramp-15")
        # As each whole state brings new lists of the same GPUs, whose button has the focus keeps it.
        page.locator('.heatmap button[data-index="7"]').focus()
        server.push()
        page.wait_for_timeout(300)
        assert page.evaluate("document.activeElement.dataset.index") == "7"
