"""Which candidate wins: one rule for one observation and for many, with its next best."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adlro.decide.winner import actions, winner, winner_and_next, winners
from adlro.state.observation import HOLD, CandidateTable

ROWS = st.lists(st.lists(st.lists(st.integers(0, 3), max_size=3, unique=True), min_size=3, max_size=3), min_size=1)


def table_of(gpus: list[list[list[int]]]) -> CandidateTable:
    """Of clusters with three jobs each, which fit on such GPUs."""
    sizes = np.array([[len(of_job) for of_job in cluster] for cluster in gpus])
    ends = np.cumsum(sizes).reshape(sizes.shape)
    job = [place for cluster in gpus for place, of_job in enumerate(cluster) for _ in of_job]
    gpu = [each for cluster in gpus for of_job in cluster for each in sorted(of_job)]
    jobs, gpu_of = np.array(job, dtype=np.int64), np.array(gpu, dtype=np.int64)
    first = np.column_stack([ends[:, 0] - sizes[:, 0], ends])
    none_spread = np.zeros(len(gpu), dtype=np.bool_)
    return CandidateTable(
        first, jobs, gpu_of, np.ones_like(gpu_of), np.ones(len(gpu)), gpu_of.reshape(-1, 1), none_spread
    )


@given(st.data())
def test_one_and_many_have_the_first_of_the_highest(data: st.DataObject) -> None:
    gpus = data.draw(ROWS)
    table = table_of(gpus)
    score = st.sampled_from([-np.inf, -1.0, 0.0, 2.0])
    scores = np.array(data.draw(st.lists(score, min_size=len(table.job), max_size=len(table.job))), dtype=np.float64)
    found = winners(table, scores)
    for n in range(len(gpus)):
        rows, its = table.rows(n), scores[table.rows(n)]
        by_score = sorted(
            np.flatnonzero(its > -np.inf).tolist(), key=lambda row: -its[row]
        )  # stable: of equals the first
        first = by_score[0] if by_score else HOLD
        assert winner(its) == first
        assert winner_and_next(its) == (first, by_score[1] if len(by_score) > 1 else HOLD)
        assert found[n] == (HOLD if first == HOLD else rows.start + first)
        alone = table.of_cluster(n)
        assert winners(alone, its).tolist() == [first]
        pair = (HOLD, HOLD) if first == HOLD else (alone.job[first], alone.gpu[first])
        assert tuple(actions(alone, winners(alone, its))[0].tolist()) == pair
        assert tuple(actions(table, found)[n].tolist()) == pair


def test_another_gpu_of_the_group_may_be_meant() -> None:
    table = table_of([[[0, 2], [], [1]]])
    rows, meant = np.array([1]), np.array([0, 3, 1])
    assert actions(table, rows).tolist() == [[0, 2]]
    assert actions(table, rows, meant).tolist() == [[0, 3]]


def test_nothing_to_choose_from_is_a_hold() -> None:
    table = table_of([[[], [], []]])
    assert winner(np.zeros(0)) == HOLD
    assert winner_and_next(np.zeros(0)) == (HOLD, HOLD)
    assert winners(table, np.zeros(0)).tolist() == [HOLD]
    assert actions(table, winners(table, np.zeros(0))).tolist() == [[HOLD, HOLD]]
