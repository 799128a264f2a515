"""When a hold is in force, and which wake-ups are asked for: worked by hand."""

from __future__ import annotations

from adlro.services.orchestrator.session.holding import Holding


def test_a_hold_lasts_until_its_end_or_until_something_happens() -> None:
    holding = Holding(10.0)
    assert not holding.in_force(10.0)
    holding.begin(12.0)
    assert holding.until_s == 42.0
    assert holding.in_force(12.0)
    assert holding.in_force(41.9)
    assert not holding.in_force(42.0)
    holding.happened(20.0)
    assert not holding.in_force(20.0)
    assert holding.last_event_s == 20.0


def test_who_holds_for_what_does_not_come_is_asked_ever_more_rarely() -> None:
    holding, ends, time_s = Holding(0.0), [], 10.0
    for _ in range(4):
        holding.begin(time_s)
        assert holding.until_s is not None
        time_s = holding.until_s
        ends.append(time_s)
    assert ends == [40.0, 80.0, 160.0, 320.0]


def test_one_wake_up_at_a_time_is_asked_for() -> None:
    holding = Holding(0.0)
    assert holding.next_wake_up_s(0.0) is None
    holding.begin(0.0)
    assert holding.next_wake_up_s(0.0) == 30.0
    holding.happened(10.0)
    assert holding.next_wake_up_s(10.0) is None
    holding.begin(10.0)
    assert holding.next_wake_up_s(10.0) is None, "the one at 30 s comes first, and asks for the next"
    holding.woken(30.0)
    assert holding.in_force(30.0), "it is no event"
    assert holding.next_wake_up_s(30.0) == 40.0


def test_an_earlier_end_needs_an_earlier_wake_up() -> None:
    holding = Holding(0.0)
    holding.begin(100.0)
    assert holding.next_wake_up_s(100.0) == 200.0
    holding.happened(110.0)
    holding.begin(110.0)
    assert holding.next_wake_up_s(110.0) == 140.0


def test_a_wake_up_that_comes_a_little_early_is_asked_for_again() -> None:
    holding = Holding(0.0)
    holding.begin(0.0)
    assert holding.next_wake_up_s(0.0) == 30.0
    holding.woken(29.9995)
    assert holding.in_force(29.9995)
    assert holding.next_wake_up_s(29.9995) == 30.0


def test_a_hold_that_is_over_asks_for_nothing() -> None:
    holding = Holding(0.0, 30.0)
    assert holding.next_wake_up_s(30.0) is None
    assert holding.next_wake_up_s(31.0) is None
    assert holding.next_wake_up_s(29.0) == 30.0
