"""Learning: trainings in groups, what their settings differ in, trainings that go on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.browser.conftest import Watched
from tests.browser.fake_page_server import FakePageServer, fake_page_server
from tests.browser.made_up_cluster import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_trainings_are_grouped_and_their_differing_settings_listed(
    server: FakePageServer, watched: Callable[..., Watched]
) -> None:
    tab = watched(server.url)
    page = tab.open("/learning")
    # The mean of three at the last step that all have reached; the baseline and what is alone by themselves.
    # At 290, where the third scored last and the others too.
    mean = sum(0.8 + 0.1 * number - math.exp(-290 / 90) for number in range(3)) / 3
    chart = page.get_by_role("img", name="score by step")
    chart.filter(has=page.locator("canvas")).wait_for()
    said = str(chart.get_attribute("aria-label"))
    assert f"mean of 3: gang {mean:.2f}" in said
    assert "run-a (baseline)" in said
    assert "run-b" not in said
    assert "run-d" in said
    table = page.get_by_role("region", name="Settings that differ, table")
    assert table.get_by_role("row").all_inner_texts() == [
        "Setting\tgang, 3 trainings (with the baseline)\tdqn",
        "learning_rate\t0.001, 0.0003\t0.001",
        "recipe\tgang\tdqn",
        "seed\t1, 2\t1",
    ]

    page.get_by_role("button", name="by equal settings").click()
    page.wait_for_url("**/learning?group=settings")
    page.get_by_role("columnheader", name="gang, learning_rate 0.0003, 2 trainings").wait_for()
    assert "mean of 2: gang, learning_rate 0.0003" in str(chart.get_attribute("aria-label"))

    # Another baseline, pinned by the address too.
    page.get_by_role("radio", name="run-d is the baseline").check()
    page.wait_for_url("**/learning?baseline=run-d&group=settings")
    page.get_by_role("columnheader", name="(baseline)").wait_for()
    assert page.get_by_role("checkbox", name="Show run-d").is_disabled()
    page.get_by_role("checkbox", name="Show run-b").uncheck()
    page.get_by_role("button", name="each alone").click()
    assert table.get_by_role("columnheader").all_inner_texts() == ["Setting", "run-d (baseline)", "run-a", "run-c"]
    tab.open(page.url.removeprefix(server.url))
    assert table.get_by_role("columnheader").all_inner_texts() == ["Setting", "run-d (baseline)", "run-a", "run-c"]


def test_a_training_that_goes_on_is_asked_for_again(watched: Callable[..., Watched]) -> None:
    class Goes(Cluster):
        rows = 40

        def _runs(self) -> dict[str, Any]:
            found = super()._runs()
            found["runs"][1]["row_count"] = self.rows
            return found

    cluster = Goes()
    with fake_page_server(cluster) as server:
        page = watched(server.url).open("/learning")
        page.get_by_role("img", name="score by step").wait_for()
        first = {name: count for name, count in server.requests.items() if name.startswith("runs/")}
        assert set(first.values()) == {1}
        cluster.rows = 41
        until = page.get_by_role("row", name="run-b").get_by_text("41", exact=True)
        until.wait_for()
        page.wait_for_timeout(300)
        assert server.requests["runs/run-b"] == 2
        assert server.requests["runs/run-a"] == 1


def test_the_mean_of_a_group_is_that_of_plain_python(server: FakePageServer, watched: Callable[..., Watched]) -> None:
    page = watched(server.url).open("/reports")
    draw = random.Random(9)
    for _ in range(40):
        runs = []
        for number in range(draw.randrange(1, 5)):
            steps = sorted(draw.sample(range(20), draw.randrange(0, 8)))
            values = [None if draw.random() < 0.1 else draw.randrange(100) / 4 for _ in steps]
            runs.append({"id": str(number), "columns": {"step": steps, "score": values}, "settings": {}})
        found = page.evaluate(
            """async (runs) => (await import("/static/test/runs.js")).meanOf(runs, "score", "step")""", runs
        )
        columns: list[Any] = [run["columns"] for run in runs]
        curves = [[each for each in zip(*column.values(), strict=True) if each[1] is not None] for column in columns]
        steps = sorted({step for curve in curves for step, _ in curve})
        # Where all have begun and none has ended.
        steps = [each for each in steps if all(curve and curve[0][0] <= each <= curve[-1][0] for curve in curves)]
        assert found["step"] == steps
        whole = [np.array(curve, np.float64).T for curve in curves if steps]
        lines = [np.interp(np.array(steps, np.float64), known, values).tolist() for known, values in whole]
        for name, fold in (("mean", np.mean), ("low", np.min), ("high", np.max)):
            assert found[name] == pytest.approx([fold(each) for each in zip(*lines, strict=True)])
