"""The picture of a training: what is drawn, where, and what is said of a folder that has none."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.training_curve import read_curve, svg, ticks


def judged(number: int, gain: float | None = None, best: float | None = None, episodes: int = 256) -> dict[str, Any]:
    """A line of a curve; gains in %."""
    return {
        "steps": number + 1,
        "episodes": (number + 1) * episodes,
        "loss": 10.0**number,
        "gain_percent": gain,
        "half_width_percent": None if gain is None else 2.0,
        "best_percent": best,
    }


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1000.0, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]), (-11.0, 0.0, [-10.0, -8.0, -6.0, -4.0, -2.0, 0.0])],
)
def test_figures_at_an_axis_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("episodes", "across"), [(256, "episodes"), (0, "steps")])
def test_gains_and_losses_are_drawn_from_the_first_judgement_to_the_last(episodes: int, across: str) -> None:
    curve = [judged(0, -50.0, -50.0), judged(1), judged(2, -10.0, -10.0), judged(3, -20.0, -10.0)]
    drawn = svg([{**each, "episodes": each["steps"] * episodes} for each in curve])
    ElementTree.fromstring(drawn)
    assert f">{across}<" in drawn
    gains, best, losses = (
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'<polyline points="([^"]*)"', drawn)
    )
    assert [x for x, _ in gains] == [x for x, _ in best]
    assert gains[0][1] > gains[2][1] > gains[1][1]  # y goes down: the lowest gain stands lowest
    assert best[1][1] == best[2][1] == gains[1][1]
    assert [a[1] - b[1] for a, b in pairwise(losses)] == pytest.approx([200 / 3] * 3, abs=0.15)  # tenfold each
    assert losses[-1][0] == gains[-1][0] > losses[0][0]


def test_a_training_that_never_placed_all_jobs_has_a_loss() -> None:
    assert svg([judged(0), judged(1)]).count("<polyline") == 3


def test_who_never_leaves_the_heuristic_has_a_curve() -> None:
    curve = [{**judged(number, 0.0, 0.0), "half_width_percent": 0.0, "loss": None} for number in range(3)]
    assert svg(curve).count("<polyline") == 3


def test_a_folder_without_a_training_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"settings\.json: No such file.*adlro train"):
        read_curve(tmp_path)
    (tmp_path / "settings.json").write_text('{"recipe": "paper"}')
    with pytest.raises(SystemExit, match=r"curve\.jsonl: No such file.*adlro train"):
        read_curve(tmp_path)
    (tmp_path / "curve.jsonl").write_text(json.dumps(judged(0)) + "\n")
    assert read_curve(tmp_path) == [judged(0)]


def test_a_folder_of_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"name": "paper", "lists": 64}')
    with pytest.raises(SystemExit, match="began with a version of before"):
        read_curve(tmp_path)
