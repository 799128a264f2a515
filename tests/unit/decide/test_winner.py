"""Which pair wins: one rule for one observation and for many, with its next best."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from adlro.decide.winner import winner, winner_and_next, winners
from adlro.state.observation import HOLD

SHAPES = array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=4)
SCORES = st.sampled_from([-np.inf, -1.0, 0.0, 2.0])


@given(st.data())
def test_one_and_many_have_the_first_of_the_highest_that_fit(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    fits = data.draw(arrays(np.bool_, shape))
    scores = data.draw(arrays(np.float64, shape, elements=SCORES))
    found = winners(fits, scores)
    for n in range(shape[0]):
        pairs = [(job, gpu) for job, gpu in np.argwhere(fits[n] & (scores[n] > -np.inf)).tolist()]
        by_score = sorted(pairs, key=lambda pair: -scores[n][pair])  # stable: of equals the first
        first = by_score[0] if by_score else (HOLD, HOLD)
        assert winner(fits[n], scores[n]) == first
        assert winner_and_next(fits[n], scores[n]) == (first, by_score[1] if len(by_score) > 1 else None)
        assert tuple(found[n].tolist()) == first


def test_nothing_to_choose_from_is_a_hold() -> None:
    fits, scores = np.zeros((0, 3), dtype=np.bool_), np.zeros((0, 3))
    assert winner(fits, scores) == (HOLD, HOLD)
    assert winner_and_next(fits, scores) == ((HOLD, HOLD), None)
    assert winners(fits[None], scores[None]).tolist() == [[HOLD, HOLD]]
