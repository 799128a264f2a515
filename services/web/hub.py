"""Topics that browsers follow: one state of each for all who see the same, revisions, deltas, acknowledgements.

No I/O; who calls `tick` says what time it is. A browser acknowledges each frame. With `UNACKNOWLEDGED` frames of a key
on their way nothing more of it is sent, and the browser is told that it grows stale; after acknowledgements it gets the
whole state. So a slow browser costs a few frames, and knows that it is slow.

A round makes frames for `ROUND_S` at most, and the next one goes on with the topics that have waited longest, in turn
for each user. So who follows very much waits longer himself, and nobody else does.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from adlro.errors import AdlroError
from adlro.services.web import frames, topics, views
from adlro.services.web.picture import Picture
from adlro.services.web.topics import Topic
from adlro.services.web.viewers import Viewer
from adlro.services.web.views import Content

UNACKNOWLEDGED: Final = 4
SUBSCRIPTIONS: Final = 16
ROUND_S: Final = 0.1
_LineKey = tuple[str, tuple[str, ...]]
# A user's name; where nobody logs in, a connection.
_Owner: TypeAlias = "str | Tab"
Message = str | bytes


class _Line:
    """One topic as one group of viewers sees it: its state, and its two frames, each made once."""

    def __init__(self, topic: Topic, viewer: Viewer) -> None:
        self.topic = topic
        self.viewer = viewer
        self.followers = 0
        self.turn = 0
        self.rev = 0
        self.base = 0
        self._stamp: tuple[int, ...] = ()
        self._now: Content | None = None
        self._before: Content | None = None
        self._snapshot: bytes | None = None
        self._delta: bytes | None = None

    def refresh(self, picture: Picture, wall_unix_s: float, revs: Callable[[], int]) -> None:
        """Takes the present state, if it has changed."""
        stamp = picture.stamp(*views.PARTS[self.topic.name])
        if stamp == self._stamp and self.topic.name != "head":
            return
        self._stamp = stamp
        found = views.content(self.topic, self.viewer, picture, wall_unix_s)
        if found is None:
            # Not known any more: what was known is no state of now. The next one is told whole.
            self._now = self._before = self._snapshot = self._delta = None
            return
        if self._now is not None and (found.same(self._now) or views.only_time_passed(self.topic, self._now, found)):
            return
        self._before, self._now = self._now, found
        self.base, self.rev = self.rev, revs()
        self._snapshot = self._delta = None

    @property
    def known(self) -> bool:
        """Whether there is a state."""
        return self._now is not None

    def frame(self, last_rev: int) -> bytes:
        """The frame for somebody whose last revision was this one; 0: none that counts."""
        if last_rev and last_rev == self.base and self._before is not None:
            delta = self._made_delta()
            if delta is not None:
                return delta
        if self._snapshot is None:
            assert self._now is not None
            data, body = self._now.snapshot()
            self._snapshot = frames.encode(frames.Frame(self.topic.key, self.rev, None, data, body))
        return self._snapshot

    def _made_delta(self) -> bytes | None:
        if self._delta is None:
            assert self._now is not None
            assert self._before is not None
            found = views.delta(self.topic, self._before, self._now)
            if found is None:
                self._before = None
                return None
            self._delta = frames.encode(frames.Frame(self.topic.key, self.rev, self.base, *found))
        return self._delta


@dataclass(slots=True)
class _Subscription:
    line: _Line
    last_rev: int = 0
    unacknowledged: deque[int] = field(default_factory=deque)
    sent_unix_s: float = 0.0
    stale: bool = False


class Tab:
    """One browser's connection.

    Attributes:
        viewer: who looks.
        asleep: it is hidden: nothing is sent.
    """

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.asleep = False
        self.subscriptions: dict[str, _Subscription] = {}


class Hub:
    """All connections, and what they follow.

    Args:
        picture: the services' state.
        now_s: a clock that never goes back, for the limit of a round; one that stands still: there is no limit.
    """

    def __init__(self, picture: Picture, now_s: Callable[[], float] = float) -> None:
        self._picture = picture
        self._now_s = now_s
        self._lines: dict[_LineKey, _Line] = {}
        self._tabs: dict[Tab, None] = {}
        self._revs = itertools.count(1)
        self._turns = itertools.count(1)
        # When each user's topics had a turn last.
        self._served: dict[_Owner, int] = {}
        # What may be spent on answers at once until the next round.
        self._at_once_s = ROUND_S

    def followed(self) -> frozenset[str]:
        """The names of the topics that somebody follows who is awake."""
        return frozenset(
            each.line.topic.name for tab in self._tabs if not tab.asleep for each in tab.subscriptions.values()
        )

    def followed_ids(self, name: str) -> frozenset[str]:
        """The ids of the jobs, or of the GPUs, whose own topic somebody follows who is awake."""
        return frozenset(
            each.line.topic.params["id"]
            for tab in self._tabs
            if not tab.asleep
            for each in tab.subscriptions.values()
            if each.line.topic.name == name
        )

    def open(self, viewer: Viewer) -> Tab:
        """A new connection."""
        tab = Tab(viewer)
        self._tabs[tab] = None
        return tab

    def close(self, tab: Tab) -> None:
        """A connection has ended."""
        for key in list(tab.subscriptions):
            self.unsubscribe(tab, key)
        self._tabs.pop(tab, None)

    def subscribe(self, tab: Tab, key: str, wall_unix_s: float) -> list[Message]:
        """Follows a topic; the answer is its state, if it is known, or why it is refused."""
        if key in tab.subscriptions:
            return []
        if len(tab.subscriptions) >= SUBSCRIPTIONS:
            return [_refused(key, f"a page follows at most {SUBSCRIPTIONS} topics")]
        try:
            topic = topics.parse(key)
        except AdlroError as error:
            return [_refused(key, error.message)]
        if problem := views.check(topic, tab.viewer, self._picture):
            return [_refused(key, problem.message)]
        line_key = (key, tab.viewer.scope(topic.name))
        line = self._lines.get(line_key)
        if line is None:
            line = self._lines[line_key] = _Line(topic, tab.viewer)
        line.followers += 1
        tab.subscriptions[key] = _Subscription(line)
        return [] if tab.asleep else self._answers(tab, [key], wall_unix_s)

    def unsubscribe(self, tab: Tab, key: str) -> None:
        """Follows a topic no more."""
        subscription = tab.subscriptions.pop(key, None)
        if subscription is None:
            return
        line = subscription.line
        line.followers -= 1
        if not line.followers:
            del self._lines[key, line.viewer.scope(line.topic.name)]

    def acknowledge(self, tab: Tab, key: str, rev: int) -> None:
        """A browser has shown all frames of a key up to a revision."""
        subscription = tab.subscriptions.get(key)
        if subscription is None:
            return
        waiting = subscription.unacknowledged
        while waiting and waiting[0] <= rev:
            waiting.popleft()

    def sleep(self, tab: Tab) -> None:
        """A browser shows another tab: nothing is sent until it wakes."""
        tab.asleep = True

    def wake(self, tab: Tab, wall_unix_s: float) -> list[Message]:
        """A browser shows the page again: it gets the whole present state of each topic."""
        if not tab.asleep:
            return []
        tab.asleep = False
        for subscription in tab.subscriptions.values():
            subscription.last_rev = 0
        return self._answers(tab, list(tab.subscriptions), wall_unix_s)

    def tick(self, wall_unix_s: float, busy: Callable[[Tab], bool]) -> list[tuple[Tab, list[Message]]]:
        """What is to be sent now, to each connection.

        Args:
            wall_unix_s: now.
            busy: whether what was sent to a connection has not left yet: it gets nothing more.
        """
        began_s, self._at_once_s = self._now_s(), ROUND_S
        found: dict[Tab, list[Message]] = {}
        for line, followers in self._turns_of([tab for tab in self._tabs if not tab.asleep and not busy(tab)]):
            line.refresh(self._picture, wall_unix_s, self._next_rev)
            for tab in followers:
                if messages := self._due(tab, line.topic.key, wall_unix_s):
                    found.setdefault(tab, []).extend(messages)
            if self._now_s() - began_s >= ROUND_S:
                break
        return list(found.items())

    def _turns_of(self, tabs: Sequence[Tab]) -> Iterator[tuple[_Line, list[Tab]]]:
        """The topics of some connections, each with those that follow it, in the order in which it is their turn.

        One topic of each user after another; of a user's topics the one that has waited longest.
        """
        followers: dict[_Line, list[Tab]] = {}
        lines: dict[_Owner, dict[_Line, None]] = {}
        for tab in tabs:
            mine = lines.setdefault(tab.viewer.user or tab, {})
            for subscription in tab.subscriptions.values():
                followers.setdefault(subscription.line, []).append(tab)
                mine[subscription.line] = None
        # Forgets who is not here any more.
        self._served = {owner: self._served.get(owner, 0) for owner in lines}
        waiting = deque(
            (owner, deque(sorted(lines[owner], key=lambda each: each.turn)))
            for owner in sorted(lines, key=lambda each: self._served[each])
        )
        while waiting:
            owner, its = waiting.popleft()
            # Another user's turn may have been that of the same topic.
            while its and its[0] not in followers:
                its.popleft()
            if its:
                line = its.popleft()
                line.turn = self._served[owner] = next(self._turns)
                yield line, followers.pop(line)
                waiting.append((owner, its))

    def _answers(self, tab: Tab, keys: Sequence[str], wall_unix_s: float) -> list[Message]:
        """What a connection gets at once of some topics; the others have their turn in the next round."""
        found: list[Message] = []
        for key in keys:
            if self._at_once_s <= 0.0:
                break
            began_s = self._now_s()
            tab.subscriptions[key].line.refresh(self._picture, wall_unix_s, self._next_rev)
            found += self._due(tab, key, wall_unix_s)
            self._at_once_s -= self._now_s() - began_s
        return found

    def _due(self, tab: Tab, key: str, wall_unix_s: float) -> list[Message]:
        subscription = tab.subscriptions[key]
        line = subscription.line
        # Looked at again: a job may be deleted, a GPU removed, and the first snapshot may not have them.
        if problem := views.check(line.topic, tab.viewer, self._picture):
            self.unsubscribe(tab, key)
            return [_refused(key, problem.message)]
        if not line.known or subscription.last_rev == line.rev:
            return []
        if len(subscription.unacknowledged) >= UNACKNOWLEDGED:
            if subscription.stale:
                return []
            subscription.stale = True
            subscription.last_rev = 0
            return [frames.control("stale", key=key, since_unix_s=round(subscription.sent_unix_s, 1))]
        subscription.stale = False
        frame = line.frame(subscription.last_rev)
        subscription.last_rev = line.rev
        subscription.unacknowledged.append(line.rev)
        subscription.sent_unix_s = wall_unix_s
        return [frame]

    def _next_rev(self) -> int:
        return next(self._revs)


def _refused(key: str, why: str) -> str:
    return frames.control("refused", key=key[: topics.MAX_KEY_CHARACTERS], error=why)


def hello(epoch: str, viewer: Viewer, tick_s: float) -> str:
    """The first message to a browser."""
    limits: Mapping[str, Any] = {"subscriptions": SUBSCRIPTIONS, "rows": topics.MAX_ROWS}
    roles = sorted(viewer.roles)
    return frames.control("hello", epoch=epoch, user=viewer.user, roles=roles, tick_s=tick_s, limits=limits)
