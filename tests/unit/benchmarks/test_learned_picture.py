"""The picture of the learned policy has the figures of the page's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learned_picture import main, picture, rows_of

PAGE = """
| main | lists | policy | against | mean JCT | p95 JCT | longest wait |
| --- | --- | --- | --- | --- | --- | --- |
| paper 0.9 | 400 | dqn | hold_greedy_fixed | -1.3 % (-1.7 .. -1.0) | -2.0 % (-2.8 .. -1.2) | +91.7 % (+61.0 .. +99.5) |
| paper 0.9 | 400 | dqn | fcfs | -51.0 % (-52.0 .. -50.1) | -27.5 % (-28.4 .. -26.6) | +57.8 % (+51.6 .. +64.0) |

| priority | lists | policy | against | mean JCT | p95 JCT | longest wait |
| --- | --- | --- | --- | --- | --- | --- |
| paper 0.9 | 400 | dqn | hold_greedy_fixed | -1.3 % (-1.7 .. -1.0) | -2.0 % (-2.8 .. -1.2) | -9.7 % (-13.0 .. -6.5) |

| cell | lists | against | mean JCT | p95 JCT | longest wait | fallback, % |
| --- | --- | --- | --- | --- | --- | --- |
| gangs 0.6 | 400 | hold_gang | -9.1 % (-9.7 .. -8.4) | -11.8 % (-13.1 .. -10.6) | -38.8 % (-41.8 .. -35.7) | 0.00 |

| other | against | mean JCT |
| --- | --- | --- |
| x | hold_gang | -9.1 % (-9.7 .. -8.4) |
"""


def test_the_rows_are_those_against_the_rules_that_are_corrected_each_cell_once() -> None:
    rows = rows_of(PAGE)
    assert [(row.cell, row.rule) for row in rows] == [("paper 0.9", "hold_greedy_fixed"), ("gangs 0.6", "hold_gang")]
    assert rows[0].changes == ((-1.3, -1.7, -1.0), (-2.0, -2.8, -1.2), (91.7, 61.0, 99.5))
    assert rows[0].table < rows[1].table


def test_a_change_beyond_the_picture_is_written_as_a_figure() -> None:
    drawn = picture(rows_of(PAGE))
    assert ">+92</text>" in drawn
    assert drawn.count("<circle") == 5


def test_a_page_without_such_tables_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit):
        main(["--page", str(page), "--out", str(tmp_path / "out.svg")])
    assert "no table" in capsys.readouterr().err
    assert not (tmp_path / "out.svg").exists()


def test_the_picture_in_the_docs_is_that_of_the_page() -> None:
    docs = Path(__file__).parents[3] / "docs"
    assert (docs / "learned_policy.svg").read_text() == picture(rows_of((docs / "learned_policy.md").read_text()))
