"""Keys of topics: one spelling, bounds, and no input that breaks anything."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.records.jobs import JobState, JobType, PendingReason
from adlro.services.web.hub import Hub
from adlro.services.web.queue_filter import SORTS, QueueFilter, Sort, parse_filter, parse_sort
from adlro.services.web.topics import NAMES, canonical, parse
from adlro.services.web.viewers import EVERYBODY
from tests.unit.web.world import job, known


def encoded(text: str) -> str:
    """As encodeURIComponent does."""
    return quote(text, safe="!'()*")


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("head", {}),
        ("gpu?id=volta-0%2F2", {"id": "volta-0/2"}),
        ("job?id=job-17", {"id": "job-17"}),
        ("queue", {"count": 60, "from": 0, "filter": QueueFilter(), "sort": Sort("place")}),
        (
            "queue?count=80&from=100&sort=-priority",
            {"count": 80, "from": 100, "sort": Sort("priority", descending=True)},
        ),
        ("queue?filter=user%3Aada%20resnet", {"filter": QueueFilter(users=frozenset({"ada"}), texts=("resnet",))}),
        ("decisions?basis=margin&count=50&differs=1&job=job-3", {"differs": True, "basis": "margin", "job": "job-3"}),
    ],
)
def test_keys_of_the_page_are_read(key, params):
    found = parse(key)
    assert (found.key, found.name) == (key, key.partition("?")[0])
    assert {name: found.params[name] for name in params} == params


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "there is no topic"),
        ("Head", "there is no topic"),
        ("head?", "name=value"),
        ("head?x=1", "has no parameter x"),
        ("gpu", "needs the parameter id"),
        ("gpu?id=volta-0/2", "encodeURIComponent"),
        ("gpu?id=volta-0%2f2", "encodeURIComponent"),
        ("gpu?id=%ff", "UTF-8"),
        ("gpu?id=" + "a" * 300, "at most 256"),
        ("job?id=17", "looks like job-17"),
        ("job?id=job-0", "looks like job-17"),
        ("queue?count=0", "from 1 to 200"),
        ("queue?count=201", "from 1 to 200"),
        ("queue?count=1e2", "whole number"),
        ("queue?count=٣", "whole number|from 1 to 200"),
        ("queue?count=1&count=2", "each once"),
        ("queue?sort=id&from=1", "one of"),
        ("queue?sort=place&from=1", "alphabetical"),
        ("queue?sort=--place", "sort: must be one of"),
        ("queue?filter=state%3Adone", "state: is one of pending, running"),
        ("queue?filter=state%3A", "needs a value"),
        ("queue?filter=" + "a%20" * 13 + "a", "more than 12 words"),
        ("queue?filter=" + "a" * 301, "more than 300"),
        ("decisions?differs=0", "must be 1"),
        ("x" * 3000, "at most 2000"),
    ],
)
def test_other_keys_are_refused_with_words(key, says):
    with pytest.raises(InvalidInput, match=says):
        parse(key)


def test_filters_have_words():
    assert parse_filter("state:pending state:running reason:resources type:simulation user:Ann RES:net") == QueueFilter(
        frozenset({JobState.PENDING, JobState.RUNNING}),
        frozenset({PendingReason.RESOURCES}),
        frozenset({JobType.SIMULATION}),
        frozenset({"Ann"}),
        ("res:net",),
    )
    assert parse_filter("") == QueueFilter()
    assert parse_filter("array:array-20 array:array-3").arrays == {3, 20}
    for wrong in ("array:20", "array:job-20", "array:array-0", "array:"):
        with pytest.raises(InvalidInput, match="filter: array:"):
            parse_filter(wrong)
    assert [parse_sort(each).column for each in SORTS] == list(SORTS)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(names)
@example("<img src=x onerror=alert(1)>")
@example("\u202egnp.exe")
@example("a&b=c?d#e%20")
def test_any_text_of_a_person_makes_a_key_that_is_read_back(text):
    assert canonical("gpu", [("id", text)]) == f"gpu?id={encoded(text)}"
    assert parse(canonical("gpu", [("id", text)])).params["id"] == text


keys = st.one_of(
    st.text(max_size=80),
    st.builds("{}?{}".format, st.sampled_from(NAMES), st.text(max_size=60)),
    st.builds("queue?{}={}".format, st.sampled_from(["count", "from", "filter", "sort", "x"]), st.text(max_size=20)),
)


@given(keys)
def test_whatever_is_subscribed_is_followed_or_refused(key):
    hub = Hub(known(job(1)))
    tab = hub.open(EVERYBODY)
    answers = hub.subscribe(tab, key, 0.0)
    if key not in tab.subscriptions:
        (refused,) = answers
        assert json.loads(refused)["op"] == "refused"
        assert hub._lines == {}
    hub.tick(1.0, lambda _: False)
    hub.unsubscribe(tab, key)
    assert hub._lines == {}


@pytest.mark.parametrize("key", ["queue?filter=\ud800", "gpu?id=\udfff", "queue?filter=a%20\ud800"])
def test_half_a_character_is_refused_with_words(key):
    (answer,) = Hub(known(job(1))).subscribe(Hub(known()).open(EVERYBODY), key, 0.0)
    assert "a value is UTF-8" in str(answer)
