"""Intervals that come true as often as they say, on streams whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.decide.forecast.calibration import (
    KEPT,
    KINDS,
    LEAST_WAIT_S,
    SHIPPED_WEIGHT,
    Calibration,
    Raw,
    Setting,
    error_of,
    kind_of,
    raw_of,
    setting_of,
)
from adlro.decide.forecast.moment import Past
from adlro.decide.forecast.shipped import ERRORS
from tests.unit.decide.forecast.test_futures import jobs, moment

SETTING = Setting(fresh=True, typical_s=30.0, spread=0.4, load=0.9)


def test_the_shipped_errors_are_ascending_and_of_every_kind() -> None:
    assert set(ERRORS) == set(KINDS)
    for errors in ERRORS.values():
        assert list(errors) == sorted(errors)
        assert np.isfinite(errors).all()


@given(
    st.floats(0.0, 12.0),
    st.floats(0.0, 3.0),
    st.floats(0.0, LEAST_WAIT_S),
    st.booleans(),
    st.lists(st.floats(0.0, 1e6), max_size=20),
)
def test_quantiles_are_in_order_and_never_before_the_least_wait(
    middle: float, spread: float, waited_s: float, fresh: bool, ends: list[float]
) -> None:
    least = float(np.log1p(LEAST_WAIT_S - waited_s))
    calibration = Calibration()
    setting = SETTING._replace(fresh=fresh)
    for start_s in ends:
        calibration.learn(calibration.forecast(0.0, Raw(middle, spread, least), setting), start_s)
    interval = calibration.forecast(0.0, Raw(middle, spread, least), setting).interval
    assert LEAST_WAIT_S - waited_s - 1e-6 <= interval.low_s <= interval.median_s <= interval.high_s < np.inf


def test_a_large_cluster_begins_with_what_its_futures_say() -> None:
    """And not with the errors of small ones."""
    raw = Raw(middle=4.0, spread=0.2, least=0.0)
    large = Calibration().forecast(0.0, raw, SETTING._replace(large=True)).interval
    logs = np.log1p([large.low_s, large.median_s, large.high_s])
    assert logs == pytest.approx([4.0 - 1.28 * 0.25, 4.0, 4.0 + 1.28 * 0.25], abs=0.01)
    assert Calibration().forecast(0.0, raw, SETTING).interval != large
    queue = moment(jobs([[7.0]]), left_s=[3.0] * 64)
    assert setting_of(queue, Past(jobs([[4.0]]), 10.0, np.zeros(0)), fresh=True).large


@pytest.mark.parametrize(("bias", "scale"), [(0.0, 1.0), (-1.5, 1.0), (0.8, 3.0), (0.0, 0.2)])
def test_the_record_brings_a_wrong_spread_to_80_percent(bias: float, scale: float) -> None:
    """Futures with a bias and a wrong spread: after some hundred finished forecasts 80 % come in."""
    rng = np.random.default_rng(7)
    calibration, came_in = Calibration(), []
    for number in range(1200):
        raw = Raw(float(rng.normal(5.0, 1.0)), float(rng.uniform(0.2, 0.6)), 0.0)
        forecast = calibration.forecast(float(number), raw, SETTING)
        start_s = number + float(np.expm1(max(raw.middle + raw.spread * (bias + scale * rng.standard_normal()), 0.1)))
        came_in.append(calibration.learn(forecast, start_s))
    assert np.mean(came_in[400:]) == pytest.approx(0.8, abs=0.05)


def test_the_record_follows_a_change() -> None:
    """The errors grow threefold: the interval does after as many forecasts as the window keeps."""
    rng = np.random.default_rng(3)
    calibration, came_in = Calibration(), []
    for number in range(1000):
        scale = 1.0 if number < 400 else 3.0
        raw = Raw(5.0, 0.3, 0.0)
        forecast = calibration.forecast(0.0, raw, SETTING)
        start_s = float(np.expm1(max(5.0 + 0.3 * scale * rng.standard_normal(), 0.1)))
        came_in.append(calibration.learn(forecast, start_s))
    assert np.mean(came_in[600:]) == pytest.approx(0.8, abs=0.06)


def test_kinds_have_their_own_errors() -> None:
    calibration = Calibration()
    fresh, older = SETTING, SETTING._replace(fresh=False)
    raw = Raw(5.0, 0.3, 0.0)
    before = calibration.forecast(0.0, raw, older).interval
    for _ in range(KEPT):
        calibration.learn(calibration.forecast(0.0, raw, fresh), 1e5)
    assert calibration.forecast(0.0, raw, older).interval == before
    assert calibration.forecast(0.0, raw, fresh).interval.high_s > 4 * before.high_s
    assert calibration.tally(fresh=False).finished_count == 0
    assert calibration.tally(fresh=True).finished_count == KEPT


def test_the_record_tells_what_was_told() -> None:
    """Four of five starts within the interval as it was told, not as it would be told now."""
    calibration = Calibration(shipped=dict.fromkeys(KINDS, (-1.0, 0.0, 1.0)))
    raw = Raw(3.0, 0.3, 0.0)
    for number in range(10):
        forecast = calibration.forecast(50.0, raw, SETTING)
        interval = forecast.interval
        start_s = interval.median_s if number % 5 else interval.high_s * 1.01
        assert calibration.learn(forecast, 50.0 + start_s) == bool(number % 5)
    tally = calibration.tally(fresh=True)
    assert tally.finished_count == 10
    assert tally.ratio == pytest.approx(0.8)


def test_shipped_errors_fade() -> None:
    """After some own errors of 5 the shipped ones of 0 no longer make the median."""
    calibration = Calibration(shipped=dict.fromkeys(KINDS, (0.0,) * 41))
    raw = Raw(5.0, 0.5, 0.0)
    forecast = calibration.forecast(0.0, raw, SETTING)
    for _ in range(int(SHIPPED_WEIGHT) + 2):
        calibration.learn(forecast, float(np.expm1(5.0 + 5 * 0.5)))
    assert calibration.errors(forecast.kind)[1] > 2.4
    assert error_of(raw, float(np.expm1(7.5))) == pytest.approx(5.0)


def test_raw_leaves_out_starts_at_once_and_needs_half_of_the_futures() -> None:
    raw = raw_of(np.array([1.0, 2.0, 8.0, 9.0, 10.0]), waited_s=0.0)
    assert raw is not None
    assert raw.middle == pytest.approx(np.log(10.0))
    later = raw_of(np.array([1.0, 2.0, 8.0, 9.0, 10.0]), waited_s=6.0)
    assert later is not None
    assert later.middle == pytest.approx(np.log(9.0))
    assert later.least == 0.0
    assert raw_of(np.array([8.0, np.inf, np.inf]), waited_s=0.0) is None
    at_once = raw_of(np.zeros(5), waited_s=0.0)
    assert at_once is not None
    assert at_once.middle == pytest.approx(np.log1p(LEAST_WAIT_S))


def test_the_setting_tells_load_and_lengths() -> None:
    state = moment(jobs([[4.0, 8.0], [40.0, 10.0]]), left_s=[5.0, 5.0], kind=[0, 1])
    past = Past(jobs([[4.0, 8.0], [40.0, 10.0]], gpus=[1, 2]), 10.0, np.zeros(0))
    setting = setting_of(state, past, fresh=True)
    assert setting == Setting(True, 7.0, 0.0, (4.0 + 2 * 10.0) / (10.0 * 2))
    assert kind_of(Raw(float(np.log1p(12.0)), 0.2, 0.0), setting) == "fresh_late_wide_sure_busy"
