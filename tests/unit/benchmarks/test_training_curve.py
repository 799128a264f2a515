"""The picture of a training: what is drawn, where, and what is said of a folder that has none."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.training_curve import read_curve, svg, ticks


def generation(number: int, gain: float | None = None, best: float | None = None) -> dict[str, Any]:
    score = None if gain is None else {"gain": gain, "error": 0.01}
    return {"generation": number, "loss": 10.0**number, "score": score, "best": best}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1000.0, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]), (-11.0, 0.0, [-10.0, -8.0, -6.0, -4.0, -2.0, 0.0])],
)
def test_figures_at_an_axis_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_gains_and_losses_are_drawn_from_the_first_generation_to_the_last() -> None:
    curve = [generation(0, -0.5, -0.5), generation(1), generation(2, -0.1, -0.1), generation(3, -0.2, -0.1)]
    drawn = svg(curve, 256)
    ElementTree.fromstring(drawn)
    gains, best, losses = (
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'<polyline points="([^"]*)"', drawn)
    )
    assert [x for x, _ in gains] == [x for x, _ in best]
    assert gains[0][1] > gains[2][1] > gains[1][1]  # y goes down: the lowest gain stands lowest
    assert best[1][1] == best[2][1] == gains[1][1]
    assert [a[1] - b[1] for a, b in pairwise(losses)] == pytest.approx([200 / 3] * 3, abs=0.15)  # tenfold each
    assert losses[-1][0] == gains[-1][0] > losses[0][0]


def test_a_training_that_nobody_has_judged_yet_has_a_loss() -> None:
    assert svg([generation(0), generation(1)], 64).count("<polyline") == 3


def test_who_never_leaves_the_heuristic_has_a_curve() -> None:
    curve = [{**generation(number, 0.0, 0.0), "score": {"gain": 0.0, "error": 0.0}} for number in range(3)]
    assert svg(curve, 64).count("<polyline") == 3


def test_a_folder_without_a_training_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"curve\.jsonl: No such file.*adlro train"):
        read_curve(tmp_path)
    (tmp_path / "curve.jsonl").write_text(json.dumps(generation(0)) + "\n")
    (tmp_path / "settings.json").write_text('{"lists": 256}')
    assert read_curve(tmp_path) == ([generation(0)], 256)
