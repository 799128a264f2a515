"""The grid: cells are drawn as they are said to be, and what is idle beside a backlog is counted."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies.base import Policy
from adlro.lab.evaluate.resampling import change_of_means
from benchmarks import grid, grid_cells
from benchmarks.grid import ADVISE_FROM, ADVISED, CHOOSE_FROM, Played, _idle_beside_backlog, main, player_of, run_cell
from benchmarks.grid_cells import (
    CLUSTERS,
    GANGS,
    GANGS_LEARNED,
    MIXTURES,
    RUNTIMES,
    SIZES,
    Cell,
    draw_cells,
    kinds_of_jobs,
    lists_of,
)
from tests.unit.decide.decision_points import Waiting, decision


def test_cells_are_different_and_of_all_kinds() -> None:
    cells = draw_cells(200, seed=13)
    assert cells == draw_cells(210, seed=13)[:200]
    assert len({cell.text for cell in cells}) == 200
    for count in Counter(cell.cluster for cell in cells).values():
        assert count == pytest.approx(200 / len(CLUSTERS), abs=10)
    for count in Counter(cell.runtime for cell in cells).values():
        assert count == pytest.approx(200 / len(RUNTIMES), abs=10)
    assert {cell.arrivals for cell in cells} == {
        *(f"{count} {kind}" for count in (200, 1000) for kind in ("at once", "equal")),
        *(f"load {load:g}" for load in (0.3, 0.6, 0.9, 1.1, 1.5)),
    }
    assert {cell.jobs for cell in cells} >= {*kinds_of_jobs("paper"), *MIXTURES}


def test_every_kind_of_cell_has_lists() -> None:
    seen = set()
    for cell in draw_cells(120, seed=1):
        if (cell.cluster, cell.jobs in MIXTURES, bool(cell.backlog)) in seen:
            continue
        seen.add((cell.cluster, cell.jobs in MIXTURES, bool(cell.backlog)))
        cluster, jobs = lists_of(cell, 1, 3, 2)
        assert jobs.submit_s.shape == (2, cell.backlog or 256)
        assert (jobs.submit_s.max(axis=1) == 0).all() == bool(cell.backlog)
        assert np.isfinite(jobs.duration_s.min(axis=2)).all()
        again = lists_of(cell, 1, 4, 1)[1]
        np.testing.assert_array_equal(again.submit_s[0], jobs.submit_s[1])
        np.testing.assert_array_equal(again.expected_s[0], jobs.expected_s[1])
        assert cluster.gpu_models
    assert len(seen) >= 2 * len(CLUSTERS)


def test_cells_with_jobs_of_several_gpus_are_of_all_kinds_and_can_be_run() -> None:
    cells = draw_cells(60, 14, GANGS)
    for name in ("clusters", "runtimes", "sizes"):
        values = [getattr(cell, name.removesuffix("s") if name != "sizes" else name) for cell in cells]
        assert set(values) == set(getattr(GANGS, name))
    seen = set()
    for cell in cells:
        if (cell.cluster, cell.sizes) not in seen:
            seen.add((cell.cluster, cell.sizes))
            _, jobs = lists_of(cell, 14, 0, 1)
            assert set(np.unique(jobs.gpu_count)) <= {size.gpu_count for size in SIZES[cell.sizes]}
            assert jobs.widest > 1
            assert cell.runtime != "true" or not jobs.expected_spread.any()
    assert any(lists_of(cell, 14, 0, 1)[1].expected_spread.any() for cell in cells[:10])


def test_a_gpu_is_idle_beside_a_backlog_where_a_job_would_be_done_before_the_last_one_starts() -> None:
    # The plan of the five: on GPU 0 in 3 and 7 s, on GPU 1 now, on GPU 0 in 11 and 15 s.
    assert _idle_beside_backlog(decision([Waiting((4.0, 11.0))] * 5, [3.0, 0.0]), 0) == 1
    assert _idle_beside_backlog(decision([Waiting((4.0, 11.0))] * 3, [3.0, 0.0]), 0) == 0
    assert _idle_beside_backlog(decision([Waiting((4.0, 11.0))] * 3, [3.0, 5.0]), 0) == 0


def test_an_interval_is_around_the_ratio_of_means() -> None:
    other = np.arange(1.0, 41.0)
    mean, low, high = change_of_means(1.1 * other, other)
    assert mean == pytest.approx(0.1)
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)
    mean, low, high = change_of_means(other[::-1].copy(), other)
    assert mean == pytest.approx(0.0)
    assert low < 0.0 < high


@pytest.mark.slow
def test_a_run_goes_on_where_it_ended_and_shows_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["run", str(tmp_path), "--cells", "2", "--lists", "2", "--choose", "2", "--seed", "5", "--processes", "1"]
    main([*asked, "--policies", "hold_greedy_fixed"])
    first = capsys.readouterr().out
    assert "best rule" in first
    assert "hold_greedy_fixed: " in first
    assert "idle beside a backlog 0.0000% of GPU time" in first
    main([*asked, "--policies", "hold_greedy_fixed,sjf"])
    assert "sjf: " in capsys.readouterr().out


def test_advice_is_the_rule_where_it_is_better_for_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule has half of the network's mean on lists of the given numbers, and the same on all others."""
    better_on: set[int] = set()
    drawn: list[int] = []

    def lists(cell: Cell, seed: int, first: int, count: int) -> tuple[str, int]:
        drawn.append(first)
        return f"{first}", count

    def play(first: str, count: int, policy: Policy) -> Played:
        mean_s = 5.0 if policy.name == "sjf" and int(first) in better_on else 10.0
        return Played(*(np.full(count, mean_s) for _ in dataclasses.fields(Played)))

    monkeypatch.setattr(grid, "lists_of", lists)
    monkeypatch.setattr(grid, "play", play)
    cell = draw_cells(1, 14, GANGS)[0]
    for lists_of_rule, advised_s in (({CHOOSE_FROM, ADVISE_FROM, 0}, 5.0), ({CHOOSE_FROM, 0}, 10.0)):
        better_on.clear()
        better_on.update(lists_of_rule)
        folder = tmp_path / str(advised_s)
        folder.mkdir()
        run_cell(cell, 14, 3, 2, [ADVISED], folder)
        with np.load(folder / "cell-0000.npz") as found:
            assert str(found["best_rule"]) == "sjf"
            np.testing.assert_array_equal(found["advised.mean_jct_s"], np.full(3, advised_s))
            np.testing.assert_array_equal(found["dqn.mean_jct_s"], np.full(3, 10.0))
    assert set(drawn) == {CHOOSE_FROM, ADVISE_FROM, 0}


def test_advice_goes_with_jobs_of_several_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path), "--policies", ADVISED])
    assert "advised goes with --gangs" in capsys.readouterr().err


def test_learned_runtimes_go_with_jobs_of_several_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path), "--learned"])
    assert "--learned goes with --gangs" in capsys.readouterr().err


@pytest.mark.slow
def test_runtimes_are_learned_while_a_list_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same list gives the same figures again, other ones than where the job types are known."""
    monkeypatch.setattr(grid_cells, "JOBS", 60)
    cell = next(cell for cell in draw_cells(60, 14, GANGS_LEARNED) if (cell.cluster, cell.load) == ("gangs", 1.1))
    assert cell.runtime == "learned"
    with player_of(cell, 14) as play_lists:
        learned, again = play_lists(0, 2, "sjf"), play_lists(1, 1, "sjf")
    with player_of(dataclasses.replace(cell, runtime="type"), 14) as play_lists:
        told = play_lists(0, 2, "sjf")
    assert learned.mean_jct_s.shape == (2,)
    assert learned.decisions.tolist() == [60, 60]
    np.testing.assert_array_equal(again.mean_jct_s, learned.mean_jct_s[1:])
    assert (learned.mean_jct_s != told.mean_jct_s).all()
