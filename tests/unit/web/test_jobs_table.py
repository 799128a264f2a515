"""The table of jobs against plain Python: filters, orders, windows, counts, and who has which GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.records.jobs import ArrayTask, Job, JobState, JobType, PendingReason
from adlro.services.web.documents import job_row, reason_name, wait_s
from adlro.services.web.jobs_table import JobTable
from adlro.services.web.queue_filter import SORTS, QueueFilter, Sort, parse_filter
from tests.unit.web.world import GPU_IDS, ended, job, running

jobs = st.builds(
    lambda number, user, name, priority, kind, array, reason, form, gpu: form_of(
        replace(job(number, user, name=name, priority=priority, job_type=kind, array=array), pending_reason=reason),
        form,
        gpu,
    ),
    st.integers(1, 30),
    st.sampled_from(["ann", "bob", "eve"]),
    st.sampled_from(["train", "Train", "<b>x</b>", "résumé"]),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from(JobType),
    st.sampled_from([None, ArrayTask("array-1", 0, 3), ArrayTask("array-12", 4, 9, 2)]),
    st.sampled_from([PendingReason.RESOURCES, PendingReason.POLICY, PendingReason.SUBMITTED]),
    st.sampled_from(["new", "waits", "runs", "ended", "failed"]),
    st.sampled_from(GPU_IDS),
)
filters = st.sampled_from(
    [
        *("", "state:pending", "state:running", "state:succeeded state:failed", "user:ann", "reason:policy"),
        *("type:simulation", "TRAIN", "job-1", "user:ann state:pending train", "user:nobody", "<b>"),
        *("array:array-1", "array:array-12 state:pending", "array:array-12 array:array-1 user:ann"),
    ]
)
sorts = st.builds(Sort, st.sampled_from(SORTS), st.booleans())


def form_of(made: Job, form: str, gpu_id: str) -> Job:
    if form == "new":
        return replace(made, submit_s=None)
    if form == "waits":
        return made
    started = running(made, gpu_id, start_s=(made.submit_s or 0.0) + 20.0)
    if form == "runs":
        return started
    return ended(started, JobState.FAILED if form == "failed" else JobState.SUCCEEDED)


def test_a_submitters_rows_name_no_job_of_others() -> None:
    """The page reads them with its own token, to which ingest shows all."""
    table = JobTable()
    table.take(replace(job(1, "ann"), message="waits for job-2, job-3 and job-4"))
    table.take(job(2, "bob"))
    table.take(ended(running(job(3, "ann"), GPU_IDS[0])))
    chosen, sort = parse_filter(""), Sort("place", descending=False)
    texts = {
        user: table.window(chosen, sort, 0, 10, user).rows[0]["message"] for user in (None, "ann") for _ in range(2)
    }
    assert texts == {None: "waits for job-2, job-3 and job-4", "ann": "waits for another job, job-3 and another job"}


def matches(each: Job, chosen: QueueFilter) -> bool:
    states = chosen.states or (set(JobState) if chosen.arrays else {JobState.PENDING, JobState.RUNNING})
    text = f"{each.job_id}\n{each.spec.name}".lower()
    return (
        each.state in states
        and (not chosen.reasons or each.pending_reason in chosen.reasons)
        and (not chosen.types or each.spec.job_type in chosen.types)
        and (not chosen.users or each.spec.user in chosen.users)
        and (not chosen.arrays or array_of(each) in chosen.arrays)
        and all(part in text for part in chosen.texts)
    )


def array_of(each: Job) -> int | None:
    return None if each.spec.array is None else int(each.spec.array.array_id.removeprefix("array-"))


def number_of(each: Job) -> int:
    return int(each.job_id.removeprefix("job-"))


def value(each: Job, column: str, places: dict[str, int]) -> Any:
    if column == "place":
        return places.get(each.job_id)
    if column == "wait_s":
        if each.state is JobState.PENDING:
            # The longest wait is that of the first.
            return None if each.submit_s is None else 1e15 - each.submit_s
        return wait_s(each)
    if column == "submit_s":
        return each.submit_s
    if column in ("state", "reason"):
        return each.state if column == "state" else each.pending_reason
    return {"type": each.spec.job_type}.get(column, getattr(each.spec, column, None))


@given(
    st.lists(jobs, max_size=25), filters, sorts, st.integers(0, 6), st.integers(1, 10), st.sampled_from([None, "ann"])
)
def test_a_window_has_the_rows_that_plain_python_gives(found, text, sort, first, count, user):
    table, all_jobs = JobTable(), {}
    for each in found:
        table.take(each, newest=True)
        all_jobs[each.job_id] = each
    chosen = parse_filter(text)
    waiting = sorted((each for each in all_jobs.values() if each.state is JobState.PENDING), key=number_of)
    places = {each.job_id: at for at, each in enumerate(waiting, start=1)}
    mine = [each for each in all_jobs.values() if user in (None, each.spec.user)]
    kept = sorted((each for each in mine if matches(each, chosen)), key=number_of)
    known = [each for each in kept if value(each, sort.column, places) is not None]
    known.sort(key=lambda each: value(each, sort.column, places), reverse=sort.descending)
    if sort.descending:  # jobs of one value stay in the order of their numbers
        known = sorted(
            known, key=lambda each: (_falling(value(each, sort.column, places), known, sort, places), number_of(each))
        )
    expected = known + [each for each in kept if value(each, sort.column, places) is None]
    window = table.window(chosen, sort, first, count, user)
    assert window.total == len(kept)
    assert [row["id"] for row in window.rows] == [each.job_id for each in expected][first : first + count]
    for row in window.rows:
        each = all_jobs[row["id"]]
        assert row == job_row(each) | {"place": places.get(each.job_id)}
        assert row["reason"] == reason_name(each)
    counts = window.counts
    assert counts["state"] == {
        "pending": sum(1 for each in mine if each.state is JobState.PENDING),
        "running": sum(1 for each in mine if each.state is JobState.RUNNING),
    }
    assert sum(counts["reason"].values()) == counts["state"]["pending"]
    for array in (1, 12):
        of = Counter(each.state.name.lower() for each in all_jobs.values() if array_of(each) == array)
        assert table.array_states(f"array-{array}") == of


def _falling(this: Any, known: list[Job], sort: Sort, places: dict[str, int]) -> int:
    values = sorted({value(each, sort.column, places) for each in known}, reverse=True)
    return values.index(this)


@given(st.lists(jobs, max_size=40))
def test_holders_are_the_jobs_that_have_a_gpu_now(found):
    table, all_jobs = JobTable(), {}
    for each in found:
        table.take(each, newest=True)
        all_jobs[each.job_id] = each
    expected: dict[str, set[str]] = {}
    for each in all_jobs.values():
        for gpu_id in () if each.state.final else each.placement.gpu_ids:
            expected.setdefault(gpu_id, set()).add(each.job_id)
    assert {gpu_id: set(holders) for gpu_id, holders in table.holders.items()} == expected
    table.drop_except([])
    assert (len(table), table.holders) == (0, {})
    assert table.counts(None)["state"] == {"pending": 0, "running": 0}


def test_an_older_state_is_passed_over_unless_it_comes_from_a_snapshot():
    table = JobTable()
    table.take(running(job(1), GPU_IDS[0]))
    table.take(job(1))
    assert [each.state for each in table.jobs()] == [JobState.RUNNING]
    table.take(job(1), newest=True)
    assert [each.state for each in table.jobs()] == [JobState.PENDING]


def test_of_jobs_that_have_ended_the_newest_are_kept():
    table = JobTable(ended_kept=20)
    for number in range(1, 101):
        table.take(ended(running(job(number), GPU_IDS[0]), end_s=1000.0 + number))
        table.take(job(1000 + number))
    kept = [each for each in table.jobs() if each.state.final]
    assert 20 <= len(kept) <= 33
    assert {each.job_id for each in kept} >= {f"job-{number}" for number in range(81, 101)}
    assert sum(1 for each in table.jobs() if not each.state.final) == 100


def test_of_the_time_before_the_jobs_that_were_dropped_not_all_are_known():
    table = JobTable(ended_kept=20)
    assert table.known_since_s == 0.0
    for number in range(1, 101):
        table.take(ended(running(job(number), GPU_IDS[0]), end_s=1000.0 + number))
    table.take(job(200))
    kept = {int(each.job_id[4:]) for each in table.jobs() if each.state.final}
    assert table.known_since_s == 1000.0 + min(kept) - 1
    lives = table.lives(1095.0, None)
    assert set(lives.job_ids) == {*(f"job-{number}" for number in range(96, 101)), "job-200"}
    assert np.isinf(lives.end_s).sum() == 1
    assert table.lives(1095.0, "bob").job_ids == ()


def test_figures_of_the_last_hour_and_of_the_queue():
    table = JobTable()
    table.take(job(1))
    table.take(job(2, "bob"))
    table.take(running(job(3), GPU_IDS[0], start_s=103.0))
    table.take(ended(running(job(4, "bob"), GPU_IDS[1], start_s=10.0), JobState.FAILED, end_s=120.0))
    table.take(ended(running(job(5), GPU_IDS[1], start_s=10.0), end_s=20.0))
    assert table.waits_s(50.0, None).tolist() == [100.0]
    assert table.waits_s(50.0, "bob").tolist() == []
    assert table.ended_since(100.0, None) == (0, 1)
    assert table.ended_since(0.0, "ann") == (1, 0)
    assert table.waiting_by_user(20) == {"ann": 1, "bob": 1}
    assert table.waiting_by_user(1) == {"ann": 1}
    assert table.waiting_by_type("bob") == {"machine_learning": 1}
    assert table.running_by_model(None) == {"volta": 1}
    assert table.place(job(2)) == 2
    assert table.place(job(3)) is None


def test_filters_that_somebody_types_do_not_fill_memory():
    table = JobTable()
    table.take(job(1))
    for number in range(2000):
        table.window(parse_filter(f"text-{number}"), Sort("place"), 0, 10, None)
    assert len(table._cache) < 210


@pytest.mark.parametrize("count", [2000])
def test_slots_of_dropped_jobs_are_used_again(count):
    table = JobTable(ended_kept=10)
    for number in range(1, count + 1):
        table.take(ended(running(job(number), GPU_IDS[0]), end_s=float(number)))
    assert len(table._jobs) < 100
