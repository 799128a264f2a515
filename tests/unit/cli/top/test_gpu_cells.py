"""The strip of GPUs: one character each, told apart without colour, folded where they are too many."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli.top.gpu_cells import GLYPHS, GpuCell, GpuMode, StripMetric, glyph, legend, strip
from adlro.cli.top.lines import plain, width_of
from adlro.cli.top.tables import gpu_head, gpu_row
from adlro.records.matrices import GpuDrift
from adlro.records.telemetry import Metric


def cell(number: int, mode: GpuMode = GpuMode.IDLE, model: str = "v100", **fields: object) -> GpuCell:
    held = mode in (GpuMode.BUSY, GpuMode.ALLOCATED)
    ratio = float(str(fields.pop("ratio", 0.9 if mode is GpuMode.BUSY else 0.1)))
    ratios = dict.fromkeys(Metric, ratio)
    return GpuCell(
        f"node/{number}",
        "node",
        model,
        16384,
        mode,
        ("job-1",) if held else (),
        ratios,
        ratios,
        **fields,  # type: ignore[arg-type]
    )


MIXED = [cell(number, mode) for number, mode in enumerate(GpuMode)]


def test_each_mode_has_a_character_of_its_own() -> None:
    assert len({character for character, _ in GLYPHS.values()}) == len(GpuMode)
    (line,), fold = strip(MIXED, StripMetric.STATE, 80, 10)
    assert fold == 1
    assert plain(line) == "v100 5  ·▒█=×"


@pytest.mark.parametrize("metric", [each for each in StripMetric if each is not StripMetric.STATE])
def test_lost_and_drained_gpus_are_told_in_each_metric(metric: StripMetric) -> None:
    (line,), _ = strip(MIXED, metric, 80, 10)
    assert plain(line).endswith("=×")
    assert "=" in plain(legend(metric, 1, 80))


def test_a_metric_is_a_height_and_unknown_is_no_zero() -> None:
    assert glyph(cell(0, GpuMode.BUSY, ratio=1.0), StripMetric.UTILIZATION)[0] == "█"
    assert glyph(cell(0, GpuMode.ALLOCATED, ratio=0.0), StripMetric.MEMORY)[0] == "▁"
    unknown = GpuCell("node/0", "node", "v100", 16384, GpuMode.ALLOCATED, ("job-1",), {}, {})
    assert glyph(unknown, StripMetric.POWER)[0] == "?"
    slow = cell(0, GpuMode.BUSY, drift=GpuDrift(5.0, True, 0.5, 20))
    assert glyph(slow, StripMetric.SPEED) == ("▅", "bad")


@given(st.integers(1, 1100), st.integers(1, 300), st.integers(40, 200), st.integers(3, 12))
def test_each_gpu_is_there_once_and_the_lines_fit(first: int, second: int, width: int, most: int) -> None:
    cells = [cell(number) for number in range(first)] + [cell(number, model="rtx") for number in range(second)]
    lines, fold = strip(cells, StripMetric.STATE, width, most)
    assert len(lines) <= most
    assert all(width_of(line) <= width for line in lines)
    characters = sum(plain(line).count("·") for line in lines)
    assert characters == -(-first // fold) + -(-second // fold)


@pytest.mark.parametrize(
    ("modes", "character", "look"),
    [
        ([GpuMode.BUSY, GpuMode.BUSY], "█", "good"),
        ([GpuMode.LOST, GpuMode.LOST], "×", "bad"),
        ([GpuMode.BUSY, GpuMode.IDLE], "▅", "good"),
        ([GpuMode.ALLOCATED, GpuMode.IDLE], "▅", "warn"),
        ([GpuMode.BUSY, GpuMode.LOST], "▅", "bad"),
        ([GpuMode.IDLE, GpuMode.DRAINED], "·", "accent"),
    ],
)
def test_several_gpus_in_one_character(modes: Sequence[GpuMode], character: str, look: str) -> None:
    cells = [cell(number, mode) for number, mode in enumerate(modes)] * 40
    lines, fold = strip(cells, StripMetric.STATE, 49, 1)
    assert fold == 2
    assert lines[0][1] == (character * 40, look)
    assert "one character is 2 GPUs" in plain(legend(StripMetric.STATE, fold, 80))


@pytest.mark.parametrize("width", [60, 80, 99, 100, 160])
def test_rows_of_the_gpu_table_fill_the_screen(width: int) -> None:
    assert width_of(gpu_head(width)) == width_of(gpu_row(MIXED[2], width)) <= width
    hostile = GpuCell("\x1b[31mnode/0", "node", "[red]v100", 1, GpuMode.LOST, (), {}, {}, why="fell \n off the bus")
    text = plain(gpu_row(hostile, width))
    assert "\x1b" not in text
    assert "\n" not in text
