"""Colours of the style sheet, and where they stand on a canvas."""

from __future__ import annotations

from typing import Any


def tone(page: Any, name: str) -> list[int]:
    """A colour of the style sheet as a pixel."""
    text = page.evaluate("(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()", name)
    return [int(text[at : at + 2], 16) for at in (1, 3, 5)]


def leftmost(page: Any, label: str, tone_name: str) -> float:
    """Where a curve begins: the first column with its colour, as a share of the canvas' width."""
    return float(
        page.evaluate(
            """([label, colour]) => {
  const canvas = document.querySelector(`[aria-label^="${label}"] canvas`);
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const near = (at) => colour.every((part, index) => Math.abs(data[at + index] - part) < 12) && data[at + 3] > 200;
  for (let x = 0; x < width; x += 1)
    for (let y = 0; y < height; y += 1) if (near((y * width + x) * 4)) return x / width;
  return 1;
}""",
            [label, tone(page, tone_name)],
        )
    )
