"""Draws the changes of docs/learned_policy.md against the rules that the learned policy corrects. Writes an SVG.

    python -m benchmarks.learned_picture [--page docs/learned_policy.md] [--out docs/learned_policy.svg]

The figures are those of the page's tables, so picture and tables cannot differ: mean completion time, 95th percentile
and longest wait of each cell, with their intervals. Rows of one table stand together.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

RULES = ("hold_greedy_fixed", "hold_gang")
"""Whose tables' rows are drawn."""
ROW, LEFT, WIDTH, GAP, TOP = 17, 190, 220, 24, 58
_CHANGE = re.compile(r"([+-]?[\d.]+) % \(([+-]?[\d.]+) \.\. ([+-]?[\d.]+)\)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the tables: its head, its limit in % (None: 0), and from where to where it is drawn, with marks."""

    head: str
    limit: float | None
    least: float
    most: float
    step: int

    def place(self, change: float) -> float:
        """Where a change stands, from 0 to WIDTH."""
        return (min(max(change, self.least), self.most) - self.least) / (self.most - self.least) * WIDTH


COLUMNS = (
    Column("mean JCT", None, -25.0, 6.0, 5),
    Column("p95 JCT", 2.0, -38.0, 14.0, 10),
    Column("longest wait", 15.0, -62.0, 42.0, 20),
)

Change = tuple[float, float, float]
"""Value, and its interval, in %."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell: its name, the rule that it is compared with, the number of its table, and a change for each column."""

    cell: str
    rule: str
    table: int
    changes: tuple[Change, ...]


def rows_of(page: str) -> list[Row]:
    """The rows of all tables that compare with a rule of `RULES`, each cell once."""
    found: list[Row] = []
    heads: list[str] = []
    table = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if not heads:
            heads, table = cells, table + 1
            continue
        names = [column.head for column in COLUMNS]
        if "against" not in heads or not set(names) <= set(heads):
            continue
        row = dict(zip(heads, cells, strict=False))
        matches = [_CHANGE.search(row.get(name, "")) for name in names]
        if row["against"] not in RULES or any(each is None for each in matches):
            continue
        if any(each.cell == cells[0] and each.rule == row["against"] for each in found):
            continue
        changes = tuple((float(m[1]), float(m[2]), float(m[3])) for m in matches if m is not None)
        found.append(Row(cells[0], row["against"], table, changes))
    return found


def picture(rows: Sequence[Row]) -> str:
    """The SVG."""
    breaks = [i > 0 and row.table != rows[i - 1].table for i, row in enumerate(rows)]
    places, y = [], TOP
    for opens in breaks:
        y += ROW // 2 if opens else 0
        places.append(y)
        y += ROW
    width, height = LEFT + len(COLUMNS) * (WIDTH + GAP), y + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="18" font-size="13" font-weight="bold">dqn against {" and ".join(RULES)}: change in %, with '
        "95 % intervals; left is better</text>",
    ]
    for number, column in enumerate(COLUMNS):
        left = LEFT + number * (WIDTH + GAP)
        parts.append(f'<text x="{left}" y="40" font-weight="bold">{escape(column.head)}</text>')
        first = -(int(-column.least) // column.step) * column.step
        for mark in range(first, int(column.most) + 1, column.step):
            x = left + column.place(mark)
            colour = "#888" if mark == 0 else "#e4e4e4"
            parts.append(f'<line x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{y}" stroke="{colour}"/>')
            parts.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle" fill="#666">{mark:+d}</text>')
        if column.limit is not None:
            x = left + column.place(column.limit)
            parts.append(
                f'<line x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{y}" stroke="#b3261e" stroke-dasharray="3 3"/>'
                f'<text x="{left + WIDTH}" y="40" text-anchor="end" fill="#b3261e">limit {column.limit:+g}</text>'
            )
    for row, place in zip(rows, places, strict=True):
        parts.append(f'<text x="{LEFT - 12}" y="{place + 4}" text-anchor="end">{escape(row.cell)}</text>')
        for number, (column, change) in enumerate(zip(COLUMNS, row.changes, strict=True)):
            parts.append(_mark(column, LEFT + number * (WIDTH + GAP), place, change))
    return "\n".join([*parts, "</svg>", ""])


def _mark(column: Column, left: float, y: float, change: Change) -> str:
    """A point with its interval: green below 0 with the whole interval, red above the limit, otherwise grey."""
    value, low, high = change
    wrong = value > (0.0 if column.limit is None else column.limit)
    colour = "#b3261e" if wrong and low > 0.0 else "#1b7f3b" if high < 0.0 else "#666"
    x, begin, end = (left + column.place(each) for each in (value, low, high))
    point = (
        f'<circle cx="{x:.1f}" cy="{y}" r="3.2" fill="{colour}"/>'
        if column.least <= value <= column.most
        else f'<text x="{x:.1f}" y="{y + 4}" text-anchor="middle" fill="{colour}">{value:+.0f}</text>'
    )
    return f'<line x1="{begin:.1f}" y1="{y}" x2="{end:.1f}" y2="{y}" stroke="{colour}" stroke-width="1.6"/>{point}'


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=Path("docs/learned_policy.md"))
    parser.add_argument("--out", type=Path, default=Path("docs/learned_policy.svg"))
    asked = parser.parse_args(arguments)
    rows = rows_of(asked.page.read_text(encoding="utf-8"))
    if not rows:
        parser.error(f"--page: {asked.page} has no table that compares with {' or '.join(RULES)}")
    asked.out.write_text(picture(rows), encoding="utf-8")
    print(f"{asked.out}: {len(rows)} cells")


if __name__ == "__main__":
    main()
