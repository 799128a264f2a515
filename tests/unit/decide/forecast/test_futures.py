"""Futures of small queues with starts worked out by hand, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide.forecast.futures import Size, play_futures
from adlro.decide.forecast.moment import Jobs, Moment, Past, no_jobs
from adlro.state.observation import Floats

FEW = Size(futures=8)
NOTHING = np.zeros(0)


def jobs(
    durations_s: list[list[float]],
    *,
    spread: float = 0.0,
    gpus: list[int] | None = None,
    cores: list[int] | None = None,
    submit_s: list[float] | None = None,
) -> Jobs:
    count = len(durations_s)
    return Jobs(
        np.array(durations_s, dtype=np.float64).reshape(count, -1),
        np.full(count, spread),
        np.array(gpus or [1] * count),
        np.zeros(count, dtype=np.int64),
        np.array(cores or [1] * count),
        np.full(count, 1024),
        np.array(submit_s or [0.0] * count),
    )


def moment(
    queue: Jobs,
    *,
    left_s: list[float],
    time_s: float = 100.0,
    kind: list[int] | None = None,
    spread: float = 0.0,
    cores_free: int = 64,
    there: list[bool] | None = None,
) -> Moment:
    """One node whose GPUs run jobs that end in `left_s`; 0: idle. All runs began 10 s ago."""
    count = len(left_s)
    busy = np.array(left_s) > 0
    return Moment(
        time_s,
        np.array(kind or [0] * count),
        np.zeros(count, dtype=np.int64),
        np.array(there or [True] * count),
        busy,
        np.where(busy, time_s - 10.0, 0.0),
        np.where(busy, np.array(left_s) + 10.0, 0.0),
        np.full(count, spread),
        np.where(busy, np.arange(count), -1),
        busy.astype(np.int64),
        busy * 1024,
        np.array([cores_free]),
        np.array([1 << 20]),
        queue,
    )


def starts(state: Moment, past: Past | None = None, size: Size = FEW, seed: int = 0) -> Floats:
    """(F, J) of all jobs."""
    wanted = np.ones(len(state.queue.spread), dtype=np.bool_)
    kinds = state.queue.duration_s.shape[1]
    return play_futures(state, past or Past(no_jobs(kinds), 0.0, NOTHING), wanted, np.random.default_rng(seed), size)


def test_one_gpu_with_exact_durations_gives_the_exact_starts() -> None:
    """Shortest first: the running job ends in 7 s, then 3 s, 5 s and 9 s of work follow."""
    found = starts(moment(jobs([[5.0], [9.0], [3.0]]), left_s=[7.0]))
    assert found == pytest.approx(np.tile([10.0, 15.0, 7.0], (8, 1)))


def test_a_job_goes_to_the_gpu_that_suits_it() -> None:
    """Two kinds: the first job is four times as slow on the idle GPU, and waits for the other."""
    found = starts(moment(jobs([[4.0, 16.0], [20.0, 10.0]]), left_s=[2.0, 5.0], kind=[0, 1]))
    assert found == pytest.approx(np.tile([2.0, 5.0], (8, 1)))


def test_a_job_of_several_gpus_waits_for_all_of_them_and_is_not_starved() -> None:
    """Two GPUs end at 2 s and 6 s; a stream of short jobs that end after 6 s must not push the pair back."""
    queue = jobs([[30.0], [10.0], [10.0], [10.0]], gpus=[2, 1, 1, 1])
    found = starts(moment(queue, left_s=[2.0, 6.0]))
    assert found[:, 0] == pytest.approx(np.full(8, 6.0))
    assert (found[:, 1:] >= 36.0).all()


def test_short_jobs_use_the_gap_before_a_reservation() -> None:
    found = starts(moment(jobs([[30.0], [3.0]], gpus=[2, 1]), left_s=[2.0, 6.0]))
    assert found == pytest.approx(np.tile([6.0, 2.0], (8, 1)))


def test_cores_of_the_node_count() -> None:
    """The GPU is idle, and the node has 2 cores free until the running job gives back its own."""
    found = starts(moment(jobs([[5.0]], cores=[3]), left_s=[0.0, 4.0], cores_free=2))
    assert found == pytest.approx(np.full((8, 1), 4.0))


def test_a_job_joins_the_queue_at_its_begin_time() -> None:
    found = starts(moment(jobs([[5.0]], submit_s=[130.0]), left_s=[7.0]))
    assert found == pytest.approx(np.full((8, 1), 30.0))


def test_what_no_present_gpu_can_hold_never_starts() -> None:
    queue = jobs([[np.inf, 5.0], [4.0, 4.0]])
    found = starts(moment(queue, left_s=[3.0, 0.0], kind=[0, 1], there=[True, False]))
    assert np.isinf(found[:, 0]).all()
    assert found[:, 1] == pytest.approx(np.full(8, 3.0))


def test_a_run_that_is_late_ends_soon_and_never_in_the_past() -> None:
    state = moment(jobs([[5.0]], spread=0.4), left_s=[0.5], spread=0.4)
    state = state._replace(gpu_expected_s=np.array([1.0]))  # it has run 10 s of an expected second
    found = starts(state, size=Size(futures=64))
    assert (found > 0.0).all()
    assert np.median(found) < 10.0


def test_later_arrivals_push_back() -> None:
    """Jobs that are shorter keep coming: a long job waits longer than in an empty future."""
    state = moment(jobs([[20.0]]), left_s=[5.0])
    past = Past(jobs([[2.0]] * 50), 110.0, NOTHING)
    alone, pushed = starts(state), starts(state, past, Size(futures=64))
    assert alone == pytest.approx(np.full((8, 1), 5.0))
    assert (pushed >= 5.0).all()
    assert pushed.mean() > 8.0


def test_on_a_large_cluster_a_start_after_all_arrivals_is_not_told() -> None:
    """The six arrivals of each GPU are over after some seconds: who knows what comes until 1,000 s."""
    state = moment(jobs([[20.0]]), left_s=[1000.0] * 64)
    past = Past(jobs([[2.0]] * 50), 1.6, NOTHING)
    assert np.isinf(starts(state, past)).all()
    assert starts(state) == pytest.approx(np.full((8, 1), 1000.0))
    soon = moment(jobs([[2.0]]), left_s=[1.0] * 64)
    assert np.isfinite(starts(soon, past)).all()


def test_errors_that_were_seen_are_drawn_again() -> None:
    """All finished runs took exp(2 * 0.3) times as long as expected: so do most of those that run."""
    state = moment(jobs([[5.0]], spread=0.3), left_s=[5.0], spread=0.3)
    late = Past(no_jobs(1), 0.0, np.full(256, 2.0))
    found = starts(state, late, Size(futures=64))
    assert np.median(found) == pytest.approx(15.0 * np.exp(0.6) - 10.0, rel=0.01)


def test_a_bounded_forecast_leaves_futures_out_and_says_so() -> None:
    queue = jobs([[5.0]] * 60)
    found = starts(moment(queue, left_s=[3.0]), size=Size(futures=16, most_work=400, fewest=2))
    assert 2 <= len(found) < 16
    assert np.isinf(found).any()
    assert np.isfinite(found[:, 0]).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_queue_starts_once_and_never_before_now(data: st.DataObject) -> None:
    count, gpus = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 6))
    kinds = data.draw(st.integers(1, min(3, gpus)))
    seconds = st.floats(0.5, 500.0)
    durations = [[data.draw(seconds) for _ in range(kinds)] for _ in range(count)]
    queue = jobs(
        durations,
        spread=data.draw(st.sampled_from([0.0, 0.5])),
        gpus=[data.draw(st.integers(1, 3)) for _ in range(count)],
    )
    kind = [gpu % kinds for gpu in range(gpus)]
    left_s = [data.draw(st.one_of(st.just(0.0), seconds)) for _ in range(gpus)]
    state = moment(queue, left_s=left_s, kind=kind)
    past = Past(queue, data.draw(st.floats(1.0, 1e4)), NOTHING)
    found = starts(state, past, seed=data.draw(st.integers(0, 100)))
    assert (found >= 0.0).all()
    most = max(kind.count(each) for each in range(kinds))
    possible = queue.gpu_count <= most
    assert np.isinf(found[:, ~possible]).all()
    if not (queue.gpu_count > 1).any():
        assert np.isfinite(found).all()
