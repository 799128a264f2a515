from __future__ import annotations

import string
from typing import Any

import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.records.watching import JobFilter
from adlro.store.pages import decode, encode

SECRET = b"k" * 32
FILTER = JobFilter(user="alice").digest()
ALPHABET = string.ascii_letters + string.digits + "-_"


def test_a_token_comes_back_as_its_position():
    for position in (0, 1, 2**40):
        assert decode(SECRET, encode(SECRET, position, FILTER), FILTER) == position


def test_every_changed_character_is_noticed():
    token = encode(SECRET, 17, FILTER)
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
    token = encode(SECRET, 17, FILTER)
    for other in (token[:-1], token + "A", token + "=", encode(b"x" * 32, 17, FILTER)):
        with pytest.raises(InvalidInput):
            decode(SECRET, other, FILTER)


def test_a_token_of_another_filter_is_refused_as_such():
    with pytest.raises(InvalidInput) as caught:
        decode(SECRET, encode(SECRET, 17, FILTER), JobFilter(user="bob").digest())
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
