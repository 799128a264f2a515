from __future__ import annotations

import math
import string
from typing import Any

import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import Job, JobSpec, JobState, JobType, PendingReason
from adlro.records.watching import JobFilter
from adlro.store.pages import Position, decode, encode

SECRET = b"k" * 32
FILTER = JobFilter(user="alice").digest()
ALPHABET = string.ascii_letters + string.digits + "-_"


def test_a_token_comes_back_as_its_position():
    settled = [Position(7, -0.5, 9), Position(2**40, math.inf, 2**50), Position(1, -math.inf), Position(3, 0.0, 1)]
    for position in (*map(Position, (0, 1, 2**40)), *settled):
        assert decode(SECRET, encode(SECRET, position, FILTER), FILTER) == position


def test_tokens_of_the_order_of_submission_stay_as_older_releases_read_them():
    # Of release 0.1.0, which knows no other order: of a position, and of a filter by user.
    token = "AAAAAAAAABG4a_-4mDHdBBATbfELgwZXPlAYlwNZpQkDpMzRA-QaPw"
    assert encode(SECRET, Position(17), FILTER) == token


def test_every_changed_character_is_noticed():
    token = encode(SECRET, Position(17), FILTER)
    for at in range(len(token)):
        for other in ALPHABET:
            if other != token[at]:
                with pytest.raises(InvalidInput):
                    decode(SECRET, token[:at] + other + token[at + 1 :], FILTER)


@pytest.mark.parametrize("token", ["x", "AAAA", "A" * 54, "ä" * 54, "?" * 54, "A" * 512])
def test_what_is_no_token_is_refused_with_the_way_out(token):
    with pytest.raises(InvalidInput) as caught:
        decode(SECRET, token, FILTER)
    assert caught.value.field == "page_token"
    assert "leave page_token empty" in caught.value.message


def test_cut_lengthened_or_foreign_tokens_are_refused():
    token = encode(SECRET, Position(17), FILTER)
    for other in (token[:-1], token + "A", token + "=", encode(b"x" * 32, Position(17), FILTER)):
        with pytest.raises(InvalidInput):
            decode(SECRET, other, FILTER)


def test_a_token_of_another_filter_is_refused_as_such():
    with pytest.raises(InvalidInput) as caught:
        decode(SECRET, encode(SECRET, Position(17), FILTER), JobFilter(user="bob").digest())
    assert caught.value.reason == "PAGE_TOKEN_OTHER_FILTER"


def test_filter_digests_tell_filters_apart_and_not_their_order():
    ids = [f"job-{n}" for n in range(20)]
    assert JobFilter(job_ids=frozenset(ids)).digest() == JobFilter(job_ids=frozenset(reversed(ids))).digest()
    filters = [
        JobFilter(),
        JobFilter(user="a"),
        JobFilter(application="a"),
        JobFilter(labels={"a": "b"}),
        JobFilter(labels={"b": "a"}),
        JobFilter(job_ids=frozenset({"a"})),
        JobFilter(states=frozenset({JobState.PENDING})),
        JobFilter(job_types=frozenset({JobType.SIMULATION})),
        JobFilter(active_after_s=0.0),
        JobFilter(ended_before_s=0.0),
        JobFilter(submitted_after_s=0.0),
        JobFilter(submitted_before_s=0.0),
        JobFilter(name_contains="a"),
        JobFilter(pending_reasons=(PendingReason.POLICY,)),
        JobFilter(min_priority=0.0),
        JobFilter(max_priority=0.0),
    ]
    assert len({each.digest() for each in filters}) == len(filters)


def test_a_job_must_match_every_field():
    spec = JobSpec("n", "alice", JobType.SIMULATION, application="cfd", labels={"a": "1", "b": "2"})
    job = Job("job-7", spec, state=JobState.RUNNING)
    assert JobFilter().matches(job)
    assert JobFilter().empty
    whole: dict[str, Any] = {
        "states": frozenset({JobState.RUNNING, JobState.PENDING}),
        "job_types": frozenset({JobType.SIMULATION}),
        "user": "alice",
        "application": "cfd",
        "labels": {"a": "1"},
        "job_ids": frozenset({"job-7", "job-8"}),
    }
    assert JobFilter(**whole).matches(job)
    other: dict[str, Any] = {
        "states": frozenset({JobState.PENDING}),
        "job_types": frozenset({JobType.DATA_PROCESSING}),
        "user": "bob",
        "application": "cf",
        "labels": {"a": "1", "b": "3"},
        "job_ids": frozenset({"job-8"}),
    }
    for name, value in other.items():
        assert not JobFilter(**(whole | {name: value})).matches(job), name


def test_job_numbers_leaves_out_what_is_no_job_id():
    ids = frozenset({"job-12", "job-3", "job-03", "job-", "x", "job-0", "job-1\n", "job-٣", "job-" + "9" * 30})
    assert JobFilter(job_ids=ids).job_numbers() == [3, 12]
