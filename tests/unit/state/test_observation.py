"""When a hold ends: the rule that the simulator and the orchestrator share."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from adlro.state.observation import hold_until_s


@given(
    time_us=st.integers(0, 50_000_000_000),
    quiet_us=st.integers(0, 1_000_000_000),
    begin_s=st.integers(0, 10_000_000),
)
def test_a_hold_ends_at_the_same_whole_millisecond_of_a_list_wherever_the_clock_began(time_us, quiet_us, begin_s):
    time_s, last_s = time_us / 1e6, (time_us - min(quiet_us, time_us)) / 1e6
    end_us = time_us + max(30_000_000, min(quiet_us, time_us))
    exact_s = Decimal(-(-end_us // 1000)) / 1000
    assert hold_until_s(time_s, last_s) == float(exact_s)
    assert hold_until_s(begin_s + time_s, begin_s + last_s) == float(begin_s + exact_s)


def test_a_hold_lasts_as_long_again_as_nothing_has_happened():
    assert hold_until_s(100.0, 99.5) == 130.0
    assert hold_until_s(100.0, 30.25) == 169.75
    assert hold_until_s(100.0001, 100.0001) == 130.001
