"""The live stream, for any course of changes, acknowledgements, sleep and loss: a page shows what the services said."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobState, PendingReason
from adlro.records.status import EventLag
from adlro.services.web import topics, views
from adlro.services.web.hub import SUBSCRIPTIONS, UNACKNOWLEDGED, Hub, Tab
from adlro.services.web.picture import Picture
from adlro.services.web.viewers import EVERYBODY, Viewer
from tests.unit.web.world import (
    ANN,
    BOB,
    BOTH,
    GPU_IDS,
    OPS,
    REA,
    VIEWERS,
    PageModel,
    cluster_state,
    decision,
    description,
    ended,
    frame_of,
    job,
    known,
    running,
    status,
    tell,
)

KEYS = (
    "head",
    "gpus",
    "gpu?id=volta-0%2F1",
    "job?id=job-1",
    "job?id=job-2",
    "queue",
    "queue?count=2&from=1",
    "queue?count=5&filter=user%3Aann&from=0&sort=-wait_s",
    "queue?filter=train%20state%3Apending",
    "decisions?count=3",
    "decisions?count=5&differs=1",
)


class Browser:
    """A page behind a line: messages are on their way until they are delivered, acknowledgements too."""

    def __init__(self, hub: Hub, viewer: Viewer) -> None:
        self.hub = hub
        self.tab = hub.open(viewer)
        self.page = PageModel()
        self.line: deque[str | bytes] = deque()
        self.to_acknowledge: deque[tuple[str, int]] = deque()

    def deliver(self, count: int) -> None:
        while self.line and count:
            found = self.page.take(self.line.popleft())
            if found is not None:
                self.to_acknowledge.append(found)
            count -= 1

    def acknowledge(self, count: int) -> None:
        while self.to_acknowledge and count:
            self.hub.acknowledge(self.tab, *self.to_acknowledge.popleft())
            count -= 1

    def frames_under_way(self, key: str) -> int:
        """Frames of a key that the hub knows no acknowledgement of."""
        on_line = sum(1 for each in self.line if isinstance(each, bytes) and frame_of(each).key == key)
        return on_line + sum(1 for each, _ in self.to_acknowledge if each == key)


def tick(hub: Hub, browsers: list[Browser], now: float) -> None:
    by_tab = {each.tab: each for each in browsers}
    for tab, messages in hub.tick(now, lambda _: False):
        assert not tab.asleep
        by_tab[tab].line.extend(messages)


def expected(key: str, viewer: Viewer, picture: Picture, now: float) -> dict[str, Any] | None:
    """What the page must show: the services' state, asked directly."""
    topic = topics.parse(key)
    if views.check(topic, viewer, picture) is not None:
        return None
    content = views.content(topic, viewer, picture, now)
    if content is None:
        return None
    data, body = content.snapshot()
    whole: dict[str, Any] = json.loads(json.dumps(data))
    if key == "gpus":
        count = len(whole["gpus"])
        whole["bytes"] = {name: list(body[at * count : (at + 1) * count]) for at, name in enumerate(whole["planes"])}
    return whole


changes = st.one_of(
    st.tuples(st.just("job"), st.integers(1, 4), st.sampled_from(["pending", "running", "shared", "ended", "failed"])),
    st.tuples(st.just("status"), st.sampled_from([(), ("volta-0",), ("turing-0", "volta-0")]), st.integers(0, 500)),
    st.tuples(st.just("lost"), st.sampled_from([(), GPU_IDS[:1], GPU_IDS[1:3]]), st.none()),
    st.tuples(st.just("state"), st.dictionaries(st.sampled_from(GPU_IDS), st.floats(0, 1), max_size=3), st.none()),
    st.tuples(st.just("decision"), st.integers(1, 30), st.booleans()),
)
steps = st.one_of(
    changes,
    st.tuples(st.just("tick"), st.none(), st.none()),
    st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("acknowledge"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("sleep"), st.integers(0, 2), st.none()),
    st.tuples(st.just("wake"), st.integers(0, 2), st.none()),
    st.tuples(st.just("subscribe"), st.integers(0, 2), st.sampled_from(KEYS)),
    st.tuples(st.just("unsubscribe"), st.integers(0, 2), st.sampled_from(KEYS)),
    st.tuples(st.just("lose"), st.integers(0, 2), st.sampled_from(VIEWERS)),
)


def change(picture: Picture, step: tuple[Any, Any, Any]) -> None:
    kind, what, how = step
    if kind == "job":
        made = job(what, "ann" if what % 2 else "bob")
        forms = {
            "pending": made,
            "running": running(made, GPU_IDS[what]),
            "shared": running(made, GPU_IDS[0]),
            "ended": ended(running(made, GPU_IDS[what])),
            "failed": ended(running(made, GPU_IDS[what]), JobState.FAILED),
        }
        tell(picture, forms[how])
    elif kind == "status":
        picture.take_status(status(drained_node_ids=what, event_lag=EventLag(how, how / 100.0, 500)))
    elif kind == "lost":
        picture.take_description(description(what), 0.0)
    elif kind == "state":
        picture.take_state(cluster_state(what, flagged=tuple(what)[:1]))
    else:
        basis = DecisionBasis.MARGIN if how else DecisionBasis.POLICY
        picture.take_decisions([decision(what, differs=how, basis=basis)])


@given(st.lists(steps, max_size=60), st.lists(st.sampled_from(VIEWERS), min_size=3, max_size=3))
def test_pages_show_what_the_services_said_after_any_course(course, viewers):
    picture = known(job(1), job(2, "bob"))
    hub, now = Hub(picture), 1.0
    browsers = [Browser(hub, viewer) for viewer in viewers]
    for each in browsers:
        for key in KEYS[:6]:
            each.line.extend(hub.subscribe(each.tab, key, now))
    for step in course:
        kind, which, how = step
        now += 0.5
        if kind == "tick":
            tick(hub, browsers, now)
        elif kind == "deliver":
            browsers[which].deliver(how)
        elif kind == "acknowledge":
            browsers[which].acknowledge(how)
        elif kind == "sleep":
            hub.sleep(browsers[which].tab)
        elif kind == "wake":
            browsers[which].line.extend(hub.wake(browsers[which].tab, now))
        elif kind == "subscribe":
            browsers[which].line.extend(hub.subscribe(browsers[which].tab, how, now))
        elif kind == "unsubscribe":
            # What is under way of this key still comes; a page passes over it.
            browsers[which].deliver(10_000)
            hub.unsubscribe(browsers[which].tab, how)
            browsers[which].page.forget(how)
        elif kind == "lose":
            hub.close(browsers[which].tab)
            browsers[which] = Browser(hub, how)
            for key in KEYS[:3]:
                browsers[which].line.extend(hub.subscribe(browsers[which].tab, key, now))
        else:
            change(picture, step)
        for each in browsers:
            for key in each.tab.subscriptions:
                assert len(each.tab.subscriptions[key].unacknowledged) <= UNACKNOWLEDGED
    # Pages that read what they get are right again after two rounds; the time alone is told once a second.
    now += 1.0
    for each in browsers:
        each.line.extend(hub.wake(each.tab, now))
    for _ in range(2):
        for each in browsers:
            each.deliver(10_000)
            each.acknowledge(10_000)
        tick(hub, browsers, now)
    for each in browsers:
        each.deliver(10_000)
        assert not each.page.broken
        assert not each.page.stale
        assert set(each.page.state) == set(each.tab.subscriptions)
        for key in each.tab.subscriptions:
            assert each.page.state[key] == expected(key, each.tab.viewer, picture, now), key


def test_a_page_that_does_not_acknowledge_is_told_that_it_is_stale_and_gets_the_whole_state_later():
    picture = known(job(1))
    hub = Hub(picture)
    browser = Browser(hub, EVERYBODY)
    browser.line.extend(hub.subscribe(browser.tab, "head", 0.0))
    for now in range(1, 20):
        tick(hub, [browser], float(now))
    assert [isinstance(each, bytes) for each in browser.line] == [True] * UNACKNOWLEDGED + [False]
    told = json.loads(browser.line[-1])
    assert (told["op"], told["key"], told["since_unix_s"]) == ("stale", "head", UNACKNOWLEDGED - 1)
    browser.deliver(10)
    assert browser.page.stale == {"head"}
    browser.acknowledge(1)
    tick(hub, [browser], 20.0)
    frame = frame_of(browser.line[-1])
    assert (frame.base, frame.data["wall_unix_s"]) == (None, 20.0)
    browser.deliver(10)
    assert browser.page.stale == set()


def test_the_same_bytes_go_to_all_who_see_the_same():
    picture = known(job(1), job(2, "bob"))
    hub = Hub(picture)
    tabs = {name: hub.open(viewer) for name, viewer in (("rea", REA), ("ops", OPS), ("ann", ANN), ("bob", BOB))}
    got = {name: hub.subscribe(tab, "queue", 0.0)[0] for name, tab in tabs.items()}
    assert got["rea"] is got["ops"]
    assert got["ann"] != got["bob"]
    assert [row["id"] for row in frame_of(got["ann"]).data["rows"]] == ["job-1"]
    picture.take_job(running(job(1), GPU_IDS[0]))
    sent = dict(hub.tick(1.0, lambda _: False))
    assert sent[tabs["rea"]][0] is sent[tabs["ops"]][0]


def test_nothing_is_sent_when_nothing_has_changed_nor_to_a_hidden_or_a_busy_page():
    picture = known(*(job(number) for number in range(1, 5)))
    hub = Hub(picture)
    awake, hidden, busy = (hub.open(EVERYBODY) for _ in range(3))
    for tab in (awake, hidden, busy):
        hub.subscribe(tab, "queue", 0.0)
    assert hub.tick(1.0, lambda _: False) == []
    hub.sleep(hidden)
    picture.take_job(running(job(4), GPU_IDS[0]))
    assert [tab for tab, _ in hub.tick(2.0, lambda tab: tab is busy)] == [awake]
    (whole,) = hub.wake(hidden, 3.0)
    assert (frame_of(whole).base, frame_of(whole).data["rows"][3]["state"]) == (None, "running")
    # The busy one has missed no revision, so a difference will do.
    assert [frame_of(messages[0]).base is None for _, messages in hub.tick(4.0, lambda _: False)] == [False]


def test_the_time_alone_is_told_once_a_second_and_with_every_other_change():
    picture = known(job(1))
    hub = Hub(picture)
    browser = Browser(hub, EVERYBODY)
    browser.line.extend(hub.subscribe(browser.tab, "head", 100.0))
    counts = []
    for now in (100.5, 101.0, 101.5, 102.0, 102.2, 102.4):
        if now == 102.2:
            picture.take_status(status(drained_node_ids=("volta-0",)))
        tick(hub, [browser], now)
        browser.deliver(9)
        browser.acknowledge(9)
        counts.append(browser.page.state["head"]["wall_unix_s"])
    assert counts == [100.0, 101.0, 101.0, 102.0, 102.2, 102.2]


class Costly:
    """A clock that goes on by the making of contents alone, a hundredth of a second for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        make = views.content

        def content(topic: topics.Topic, viewer: Viewer, picture: Picture, wall_unix_s: float) -> views.Content | None:
            self.made.append(topic.key)
            return make(topic, viewer, picture, wall_unix_s)

        monkeypatch.setattr(views, "content", content)

    def now_s(self) -> float:
        return len(self.made) / 100.0


def greedy(hub: Hub, viewer: Viewer, tabs: int) -> list[Browser]:
    """Pages that follow as many topics as they may, each another one."""
    browsers = [Browser(hub, viewer) for _ in range(tabs)]
    for number, each in enumerate(browsers):
        for at in range(SUBSCRIPTIONS):
            each.line.extend(hub.subscribe(each.tab, f"queue?count={number * SUBSCRIPTIONS + at + 1}", 0.0))
    return browsers


def test_a_round_has_a_limit_and_one_login_with_many_topics_delays_nobody_else(monkeypatch):
    clock = Costly(monkeypatch)
    picture = known(job(1))
    hub = Hub(picture, clock.now_s)
    many, one = greedy(hub, OPS, 10), Browser(hub, REA)
    for key in ("queue", "gpus", "queue?count=1&filter=user%3Abob"):
        one.line.extend(hub.subscribe(one.tab, key, 0.0))
    # What could not be answered at once is told in the rounds that follow.
    for now in range(1, 18):
        tick(hub, [*many, one], float(now))
    for each in [*many, one]:
        each.deliver(100)
        each.acknowledge(100)
        assert set(each.page.state) == set(each.tab.subscriptions)
    rounds = 0
    tell(picture, running(job(1), GPU_IDS[0]), job(2, "bob"))
    while not all(each.line for each in many):
        made = len(clock.made)
        tick(hub, [*many, one], 20.0 + rounds)
        rounds += 1
        assert len(clock.made) - made <= 11
        assert len(one.line) == 3
    assert 10 <= rounds <= 16
    for _ in range(16 - rounds):
        tick(hub, [*many, one], 40.0)
    assert [len(each.line) for each in many] == [SUBSCRIPTIONS] * 10


def test_answers_at_once_have_a_limit_between_two_rounds(monkeypatch):
    clock = Costly(monkeypatch)
    picture = known(job(1))
    hub = Hub(picture, clock.now_s)
    (browser,) = greedy(hub, OPS, 1)
    assert len(browser.line) == len(clock.made) == 11
    tick(hub, [browser], 1.0)
    assert len(browser.line) == SUBSCRIPTIONS
    # A page that hides and shows itself again and again, while jobs change.
    made = len(clock.made)
    for number in range(50):
        tell(picture, running(job(1), GPU_IDS[number % 4]))
        hub.sleep(browser.tab)
        browser.line.extend(hub.wake(browser.tab, 2.0))
    assert len(clock.made) - made <= 11
    for _ in range(3):
        tick(hub, [browser], 3.0)
        browser.deliver(100)
        browser.acknowledge(100)
    assert all(len(each["rows"]) == 1 for each in browser.page.state.values())


def test_what_is_followed_by_hidden_pages_alone_is_not_made_and_is_the_present_state_when_they_wake(monkeypatch):
    clock = Costly(monkeypatch)
    picture = known(job(1))
    hub = Hub(picture)
    browser = Browser(hub, EVERYBODY)
    hub.subscribe(browser.tab, "queue", 0.0)
    hub.sleep(browser.tab)
    made = len(clock.made)
    picture.take_job(running(job(1), GPU_IDS[0]))
    assert hub.tick(1.0, lambda _: False) == []
    assert len(clock.made) == made
    (whole,) = hub.wake(browser.tab, 2.0)
    assert frame_of(whole).data["rows"][0]["state"] == "running"
    assert hub.tick(3.0, lambda _: False) == []


def test_what_nobody_follows_costs_nothing():
    hub = Hub(known())
    tab = hub.open(EVERYBODY)
    assert hub.followed() == frozenset()
    hub.subscribe(tab, "head", 0.0)
    hub.subscribe(tab, "decisions", 0.0)
    assert hub.followed() == {"head", "decisions"}
    hub.sleep(tab)
    assert hub.followed() == frozenset()
    hub.close(tab)
    assert hub._tabs == {}
    assert hub._lines == {}


@pytest.mark.parametrize(
    ("viewer", "key", "says"),
    [
        (ANN, "decisions", "ann is submitter; decisions needs the role reader or operator"),
        (ANN, "gpu?id=volta-0%2F1", "needs the role reader or operator"),
        (ANN, "job?id=job-2", "there is no job job-2"),
        (ANN, "job?id=job-9", "there is no job job-9"),
        (REA, "gpu?id=nowhere", "there is no GPU of this id"),
        (REA, "bogus", "there is no topic"),
        (REA, "queue?from=0&count=1", "alphabetical order"),
    ],
)
def test_what_a_viewer_may_not_follow_is_refused_with_words(viewer, key, says):
    hub = Hub(known(job(1), job(2, "bob")))
    page = PageModel()
    for message in hub.subscribe(hub.open(viewer), key, 0.0):
        page.take(message)
    assert says in page.refused[key]
    assert page.state == {}
    assert hub._lines == {}


def test_a_job_that_does_not_exist_is_refused_once_that_is_known():
    picture = known()
    picture.take_details((), ())
    hub = Hub(picture)
    browser = Browser(hub, ANN)
    assert hub.subscribe(browser.tab, "job?id=job-2", 0.0) == []
    assert hub.followed_ids("job") == {"job-2"}
    tell(picture, job(1))
    tick(hub, [browser], 1.0)
    assert not browser.line
    picture.take_details(["job-1", "job-2"], [job(1), job(2, "bob")])
    tick(hub, [browser], 2.0)
    browser.deliver(1)
    assert browser.page.refused == {"job?id=job-2": "there is no job job-2"}
    assert browser.tab.subscriptions == {}


def test_a_job_that_ended_long_ago_has_its_page_though_it_is_in_no_table():
    picture = known()
    old = ended(running(job(7), GPU_IDS[0]))
    picture.take_details(["job-7"], [old])
    hub = Hub(picture)
    (frame,) = hub.subscribe(hub.open(ANN), "job?id=job-7", 0.0)
    assert (frame_of(frame).data["state"], len(frame_of(frame).data["attempts"])) == ("succeeded", 1)


def test_a_page_follows_so_many_topics_and_no_more():
    hub = Hub(known())
    tab = hub.open(EVERYBODY)
    for number in range(1, SUBSCRIPTIONS + 2):
        answer = hub.subscribe(tab, f"queue?count={number}", 0.0)
    assert len(tab.subscriptions) == SUBSCRIPTIONS
    assert f"at most {SUBSCRIPTIONS} topics" in str(answer[0])


def test_wrong_acknowledgements_change_nothing():
    picture = known(job(1))
    hub = Hub(picture)
    tab = hub.open(EVERYBODY)
    hub.acknowledge(tab, "head", 5)
    (frame,) = hub.subscribe(tab, "queue", 0.0)
    hub.acknowledge(tab, "queue", frame_of(frame).rev - 1)
    assert len(tab.subscriptions["queue"].unacknowledged) == 1
    hub.acknowledge(tab, "queue", 1 << 60)
    assert len(tab.subscriptions["queue"].unacknowledged) == 0


def test_who_may_cancel_a_job_is_told_each_viewer_by_himself():
    hub = Hub(known(job(1), job(2, "bob")))

    def may(viewer: Viewer, number: int) -> bool:
        tab: Tab = hub.open(viewer)
        (frame,) = hub.subscribe(tab, f"job?id=job-{number}", 0.0)
        return bool(frame_of(frame).data["may_cancel"])

    assert [may(ANN, 1), may(BOTH, 1), may(BOTH, 2), may(REA, 1), may(OPS, 2)] == [True, True, False, False, True]


def test_reasons_of_a_waiting_job_reach_the_page():
    picture = known(job(1, pending_reason=PendingReason.NO_FITTING_GPU))
    hub = Hub(picture)
    (frame,) = hub.subscribe(hub.open(ANN), "job?id=job-1", 0.0)
    assert frame_of(frame).data["reason"] == "no_fitting_gpu"
