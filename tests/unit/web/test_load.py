"""The curves of waiting jobs and allocated GPUs against plain Python, moment by moment."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.placement import NOWHERE, Placement
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import Job, JobAttempt, JobState, JobType
from adlro.services.web import load
from adlro.services.web.jobs_table import JobTable, Lives
from adlro.services.web.load import Curve, Spans, allocated_curve, folded_curve, waiting_curve
from adlro.services.web.picture import Layout
from tests.unit.web.world import GPU_IDS, job, known

NOW_S = 40.0
# Few different times, so that many things happen at once.
times = st.integers(0, 50).map(float)


@st.composite
def lives(draw: st.DrawFn) -> Job:
    """A job with its attempts up to now: it waits, runs or has ended."""
    made = job(draw(st.integers(1, 30)), draw(st.sampled_from(["ann", "bob"])))
    if draw(st.integers(0, 9)) == 0:
        return replace(made, submit_s=None)
    moments = sorted(draw(st.lists(times, min_size=1, max_size=7)))
    made = replace(made, submit_s=moments[0])
    rest = [each for each in moments[1:] if each <= NOW_S]
    attempts: list[JobAttempt] = []
    for at in range(0, len(rest), 2):
        gpus = draw(st.lists(st.sampled_from(GPU_IDS), min_size=1, max_size=2, unique=True))
        end_s = rest[at + 1] if at + 1 < len(rest) else None
        attempts.append(JobAttempt(len(attempts) + 1, Placement.on(*gpus), "volta", rest[at], end_s, ""))
    made = replace(made, attempts=tuple(attempts))
    if attempts and attempts[-1].end_s is None:
        return replace(made, state=JobState.RUNNING, start_s=attempts[-1].start_s, placement=attempts[-1].placement)
    if draw(st.booleans()) and (rest or moments[0] <= NOW_S):
        end_s = (
            attempts[-1].end_s if attempts else draw(st.sampled_from([moments[0], min(moments[0] + 3.0, NOW_S), NOW_S]))
        )
        return replace(made, state=JobState.SUCCEEDED, end_s=end_s, placement=NOWHERE)
    return replace(made, state=JobState.PENDING)


all_lives = st.lists(lives(), max_size=12, unique_by=lambda each: each.job_id)


def bars_of(jobs: Sequence[Job], user: str | None = None) -> AttemptBars:
    """What ingest tells somebody of what ran."""
    found = [(each, ran, gpu_id) for each in jobs for ran in each.attempts for gpu_id in ran.placement.gpu_ids]
    ids = ("", *dict.fromkeys(each.job_id for each, _, _ in found if user in (None, each.spec.user)))
    seen = [ids.index(each.job_id) if each.job_id in ids else 0 for each, _, _ in found]
    return AttemptBars(
        gpu_ids=GPU_IDS,
        job_ids=ids,
        users=("",),
        gpu_indexes=tuple(GPU_IDS.index(gpu_id) for _, _, gpu_id in found),
        job_indexes=tuple(seen),
        user_indexes=tuple(0 for _ in found),
        attempts=tuple(ran.attempt for _, ran, _ in found),
        job_types=tuple(JobType.SIMULATION for _ in found),
        starts_s=tuple(ran.start_s or 0.0 for _, ran, _ in found),
        ends_s=tuple(math.inf if ran.end_s is None else ran.end_s for _, ran, _ in found),
        outcomes=tuple(AttemptOutcome.SUCCEEDED for _ in found),
        shares=(),
    )


def lives_of(jobs: Sequence[Job], from_s: float = 0.0, user: str | None = None) -> Lives:
    """As the page's table has them."""
    table = JobTable()
    for each in jobs:
        table.take(each, newest=True)
    return table.lives(from_s, user)


def runs_at(each: Job, time_s: float) -> bool:
    return any(
        ran.start_s is not None and ran.start_s <= time_s < (math.inf if ran.end_s is None else ran.end_s)
        for ran in each.attempts
    )


def waits_at(each: Job, time_s: float) -> bool:
    submit_s = NOW_S if each.submit_s is None else each.submit_s
    end_s = each.end_s if each.state.final and each.end_s is not None else math.inf
    return submit_s <= time_s < end_s and not runs_at(each, time_s)


def at(curve: Curve, time_s: float) -> float:
    """What a curve says of a moment."""
    return float(curve.count[np.flatnonzero(curve.time_s <= time_s)[-1]])


def check(curve: Curve, from_s: float, right: Callable[[float], float]) -> None:
    """The curve is right at each moment, also between two changes."""
    assert curve.time_s[0] == from_s
    assert curve.time_s[-1] == NOW_S
    assert (np.diff(curve.time_s) >= 0).all()
    for time_s in np.arange(from_s, NOW_S, 0.5):
        assert at(curve, time_s) == right(time_s), time_s


@given(all_lives, st.sampled_from([0.0, 7.0, 20.0, 20.5]), st.sampled_from([None, "ann"]))
def test_the_curves_say_of_each_moment_what_plain_python_says(jobs, from_s, user):
    mine = [each for each in jobs if user in (None, each.spec.user)]
    bars = bars_of(jobs, user)
    lives = lives_of(jobs, from_s, user)
    check(waiting_curve(lives, bars, from_s, NOW_S), from_s, lambda t: sum(waits_at(each, t) for each in mine))
    # How many GPUs are allocated everybody may know.
    ran = [one for each in jobs for one in each.attempts]

    def taken(time_s: float) -> int:
        now = [one for one in ran if runs_at(replace(jobs[0], attempts=(one,)), time_s)]
        return len({gpu_id for one in now for gpu_id in one.placement.gpu_ids})

    layout = known().layout
    check(allocated_curve(bars, layout, from_s, NOW_S), from_s, taken)
    whole = load.load_document(
        lives, AttemptHistory("c", from_s, NOW_S, len(bars), bars=bars), layout, 0.0, from_s, NOW_S
    )
    assert json.loads(json.dumps(whole, allow_nan=False))["exact"]
    others = {each.job_id for each in jobs} - {each.job_id for each in mine}
    assert not any(f'"{each}"' in json.dumps(whole) for each in others)


@given(all_lives)
def test_at_last_the_curve_of_waiting_jobs_has_those_that_wait_now(jobs):
    curve = waiting_curve(lives_of(jobs), bars_of(jobs), 0.0, NOW_S)
    waits = [each for each in jobs if each.state is JobState.PENDING and (each.submit_s or 0.0) <= NOW_S]
    assert curve.count[-1] == len(waits)


@given(all_lives)
def test_without_bars_a_jobs_last_start_is_what_is_known(jobs):
    once = [each for each in jobs if len(each.attempts) <= 1]
    with_start = [replace(each, start_s=each.attempts[0].start_s if each.attempts else None) for each in once]
    kept = [each for each in with_start if each.state is not JobState.PENDING or not each.attempts]
    check(waiting_curve(lives_of(kept), None, 0.0, NOW_S), 0.0, lambda t: sum(waits_at(each, t) for each in kept))


@given(st.lists(st.tuples(st.integers(0, 3), times, times), max_size=20))
def test_spans_are_merged_where_they_touch(given_spans):
    owners, start_s, end_s = np.array(given_spans, np.float64).reshape(len(given_spans), 3).T
    merged = Spans.of(owners.astype(np.int64), start_s, end_s).merged()
    found = list(zip(merged.owner.tolist(), merged.start_s.tolist(), merged.end_s.tolist(), strict=True))
    for owner in range(4):
        own = sorted((start_s, end_s) for which, start_s, end_s in found if which == owner)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(own))
        for time_s in np.arange(0.0, 51.0, 0.5):
            inside = any(which == owner and low <= time_s < high for which, low, high in given_spans)
            assert inside == any(low <= time_s < high for low, high in own)


@given(st.lists(st.tuples(times, st.integers(-5, 5)), min_size=1, max_size=300), st.integers(1, 20))
def test_what_a_screen_can_show_of_a_curve_stays(changes, parts):
    moments, by = np.array([each for each, _ in changes]), np.array([float(each) for _, each in changes])
    # Times that are all different, so that there is something to leave out.
    moments = moments + np.arange(len(moments)) / 1000.0
    whole = Curve.of(moments, by, 1.0, 45.0)
    thin = whole.thinned(parts)
    assert len(thin.time_s) <= max(4 * parts, 2)
    assert set(zip(thin.time_s, thin.count, strict=True)) <= set(zip(whole.time_s, whole.count, strict=True))
    assert (thin.time_s[0], thin.time_s[-1]) == (1.0, 45.0)
    assert (thin.count.min(), thin.count.max()) == (whole.count.min(), whole.count.max())


def test_too_many_attempts_are_means_of_the_parts_of_the_range():
    given = AttemptOccupancy(
        RowKind.NODE,
        ("volta-0", "turing-0", ""),
        (3, 2, 1),
        4,
        10.0,
        bytes([255, 0, 128, 255, 0, 0, 255, 255, *[255] * 4]),
        9,
    )
    curve = folded_curve(given, 100.0, 125.0)
    assert curve.time_s.tolist() == [100.0, 110.0, 120.0, 125.0]
    assert curve.count.tolist() == pytest.approx([3.0, 0.0, 2 + 3 * 128 / 255, 2 + 3 * 128 / 255])
    assert folded_curve(given, 100.0, 100.0).count.tolist() == [0.0, 0.0]


def test_gpus_that_the_cluster_has_no_more_are_not_counted():
    bars = bars_of([replace(job(1), attempts=(JobAttempt(1, Placement.on(*GPU_IDS[:2]), "volta", 5.0),))])
    layout = Layout(gpu_ids=GPU_IDS[1:], index={each: at for at, each in enumerate(GPU_IDS[1:])})
    assert allocated_curve(bars, layout, 0.0, NOW_S).count[-1] == 1
    assert allocated_curve(bars, Layout(), 0.0, NOW_S).count[-1] == 2
