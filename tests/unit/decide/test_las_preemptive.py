"""Two queues by attained service, by hand; one GPU second of 34 is the limit between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.errors import InvalidInput
from tests.unit.decide.gang_points import Several
from tests.unit.decide.stop_points import HELD, chosen, stop_point

NEW = Several(1, 50.0, submit_s=900.0)


def las(limit: float = 34.0) -> LasPreemptive:
    policy = LasPreemptive(limit)
    policy.wait_ratio = np.inf
    return policy


def test_a_new_job_stops_one_that_has_had_more_than_the_limit() -> None:
    point = lambda *attained_s: stop_point(  # noqa: E731
        [NEW], [[5.0, 5.0]], attained_s=attained_s, running_submit_s=[100.0, 200.0]
    )
    assert chosen(las(), point(10.0, 33.9)) == HELD
    assert chosen(las(), point(10.0, 34.0)) == (0, (1,), True)
    # Of two in the second queue the later submitted one.
    assert chosen(las(), point(40.0, 35.0)) == (0, (1,), True)


def test_in_a_queue_the_earlier_submitted_goes_first_and_stops_the_later() -> None:
    seen = stop_point([NEW], [[5.0, 5.0]], attained_s=1.0, running_submit_s=[899.0, 901.0])
    assert chosen(las(), seen) == (0, (1,), True)
    seen = stop_point([NEW], [[5.0, 5.0]], attained_s=1.0, running_submit_s=[899.0, 900.0])
    assert chosen(las(), seen) == HELD
    # One in the second queue stops no one of the first.
    seen = stop_point([NEW], [[5.0, 5.0]], attained_s=1.0, running_submit_s=[901.0, 902.0], job_attained_s=[34.0])
    assert chosen(las(), seen) == HELD


def test_the_first_that_can_start_does_and_starts_on_what_is_idle_where_it_is_fastest() -> None:
    jobs = [Several(4, 9.0, submit_s=1.0, spread_speed=0.0), Several(1, (5.0, 4.0), submit_s=2.0), NEW]
    seen = stop_point(jobs, [[0.0, 5.0], [0.0, 5.0]], model=[0, 1], running_submit_s=[0.0] * 4)
    assert chosen(las(), seen) == (1, (2,), False)
    later = stop_point(
        jobs, [[0.0, 5.0], [0.0, 5.0]], model=[0, 1], running_submit_s=[0.0] * 4, job_attained_s=[0, 34, 0]
    )
    assert chosen(las(), later) == (2, (0,), False)


def test_the_fastest_model_where_it_may_stop_something_and_the_fewest_gpus() -> None:
    job = Several(1, (9.0, 5.0, 7.0), submit_s=10.0)
    submits = [20.0, 20.0, 5.0, 20.0]
    seen = stop_point([job], [[9.0, 9.0], [9.0], [9.0]], model=[0, 1, 2], running_submit_s=submits)
    assert chosen(las(), seen) == (0, (3,), True)
    # A gang of two would lose two GPUs.
    seen = stop_point([job], [[9.0, 9.0], [9.0], [9.0]], runs=[(0, 1)], running_submit_s=[20.0, 20.0, 20.0, 20.0])
    assert chosen(las(), seen) == (0, (2,), True)


def test_without_what_can_be_stopped_only_what_fits_starts() -> None:
    seen = stop_point([NEW], [[5.0, 0.0]], attained_s=99.0)
    assert chosen(las(), replace(seen, preemption=None)) == (0, (1,), False)
    assert chosen(las(), replace(stop_point([NEW], [[5.0]], attained_s=99.0), preemption=None)) == HELD


def test_a_limit_is_a_time() -> None:
    with pytest.raises(InvalidInput, match="first_queue_gpu_s"):
        LasPreemptive(0.0)
