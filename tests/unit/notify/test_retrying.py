"""When a message is tried again, by a clock that the test turns; and when it is given up."""

from __future__ import annotations

import itertools
import random

from adlro.services.notify.retrying import MOST_REFUSED_TRIES, MOST_TRIES, Failure, Schedule

AWAY = Failure("no connection")
REFUSED = Failure("it answered 404", refused=True)
DAY_S = 86_400.0
SCHEDULE = Schedule(longest_pause_s=300.0, give_up_after_s=DAY_S)


def tries_of(failure: Failure, schedule: Schedule, chance: float) -> list[float]:
    """The times of all tries of a message that always fails."""
    now_s, times = 0.0, []
    for tries in itertools.count(1):
        times.append(now_s)
        if schedule.gives_up(tries, now_s, failure):
            return times
        now_s += schedule.pause_s(tries, chance, failure)
    raise AssertionError


def test_pauses_grow_to_the_longest_one() -> None:
    pauses = [SCHEDULE.pause_s(failures, 1.0, AWAY) for failures in range(1, 12)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert SCHEDULE.pause_s(100_000, 1.0, AWAY) == 300.0


def test_chance_shortens_a_pause_by_up_to_a_half() -> None:
    drawn = [SCHEDULE.pause_s(5, random.Random(seed).random(), AWAY) for seed in range(200)]
    assert 8.0 <= min(drawn) < 8.5
    assert 15.5 < max(drawn) <= 16.0


def test_the_receiver_may_ask_for_a_longer_pause_up_to_an_hour() -> None:
    def pause_s(asked_s: float) -> float:
        return SCHEDULE.pause_s(3, 1.0, Failure("it answered 429", retry_after_s=asked_s))

    assert (pause_s(1.0), pause_s(60.0), pause_s(1e9)) == (4.0, 60.0, 3600.0)


def test_a_message_is_tried_for_a_day_or_as_often_as_that_takes() -> None:
    slow = tries_of(AWAY, Schedule(3600.0, DAY_S), 1.0)
    assert DAY_S <= slow[-1] < DAY_S + 3600.0
    often = tries_of(AWAY, SCHEDULE, 0.0)  # the shortest pauses that chance gives
    assert often[-1] >= DAY_S
    assert len(often) < MOST_TRIES
    assert len(tries_of(AWAY, Schedule(1.0, DAY_S), 0.0)) == MOST_TRIES


def test_a_refused_message_is_given_up_within_a_minute() -> None:
    times = tries_of(REFUSED, SCHEDULE, 1.0)
    assert len(times) == MOST_REFUSED_TRIES
    assert times[-1] == 15.0


def test_an_old_message_gets_one_try() -> None:
    assert SCHEDULE.gives_up(1, DAY_S, AWAY)
    assert not SCHEDULE.gives_up(1, DAY_S - 1.0, AWAY)
