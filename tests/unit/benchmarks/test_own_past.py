"""The past of a cell of the grid, for `adlro learn`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from adlro.hardware.cluster_files import read_cluster
from adlro.lab.candidates.reading import ListRequest, past_of_file
from benchmarks.grid_cells import GANGS, draw_cells, lists_of
from benchmarks.own_past import draw_cell


def test_the_past_of_a_cell_has_its_cluster_and_jobs(tmp_path: Path) -> None:
    number = next(cell.number for cell in draw_cells(60, 14, GANGS) if cell.cluster == "few_fast" and cell.load)
    draw_cell(tmp_path, 50, 14, number)
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert cluster == lists_of(draw_cells(60, 14, GANGS)[number], 14, 0, 1)[0]
    past = past_of_file(ListRequest(tmp_path / "jobs.csv", str(tmp_path / "cluster.toml"), None))
    assert len(past) == 50
    of_scenario = next(cell for cell in draw_cells(60, 14, GANGS) if cell.cluster == "gangs")
    with pytest.raises(SystemExit, match="its cluster is no file"):
        draw_cell(tmp_path / "other", 50, 14, of_scenario.number)
    assert not (tmp_path / "other").exists()
