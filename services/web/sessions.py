"""Logins: a token becomes an opaque id, which a cookie holds. No I/O; in memory, so a restart ends all logins.

The token stays here, for calls in its user's name; no browser gets it back.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from adlro.errors import LimitExceeded
from adlro.kit.identity import Caller
from adlro.services.web.viewers import Viewer

TRIES: Final = 5
TRIES_WITHIN_S: Final = 60.0
UNANSWERED_S: Final = 300.0
# Addresses whose tries are remembered; the oldest go.
_ADDRESSES: Final = 10_000
_ID_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """A login.

    Attributes:
        viewer: who logged in; his roles as of now.
        token: his token; never shown, logged or sent to a browser.
        began_s, used_s, judged_s: of a clock that never goes back; the last: when ingest was asked about the token.
        unanswered_since_s: since when ingest says nothing of the token; None: it answered the last time.
        revoked: the services don't know the token any more, its roles have changed, or nobody can say for too long.
        sockets: how many live connections it has.
    """

    session_id: str = field(repr=False)
    viewer: Viewer
    token: str = field(repr=False)
    began_s: float
    used_s: float
    judged_s: float
    unanswered_since_s: float | None = None
    sockets: int = 0
    revoked: bool = False


class Sessions:
    """The logins of a page.

    Args:
        idle_s: a login ends after so long without a request.
        limit_s: and after so long in any case.
        now_s: a clock that never goes back.
    """

    def __init__(
        self,
        idle_s: float,
        limit_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._now_s = now_s
        self._sessions: dict[str, Session] = {}
        self._tries: dict[str, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def count_try(self, address: str) -> None:
        """Counts a try to log in from an address; `forgive_try` takes it back unless its token is refused.

        Raises:
            LimitExceeded: there were too many of late.
        """
        now_s = self._now_s()
        tries = self._tries.pop(address, deque())
        self._tries[address] = tries  # at the end: the addresses that tried last are kept longest
        while len(self._tries) > _ADDRESSES:
            self._tries.pop(next(iter(self._tries)))
        while tries and now_s - tries[0] >= TRIES_WITHIN_S:
            tries.popleft()
        if len(tries) >= TRIES:
            left_s = TRIES_WITHIN_S - (now_s - tries[0])
            raise LimitExceeded(
                f"{TRIES} refused tries to log in within a minute are the most; try again in {left_s:.0f} s",
                reason="TOO_MANY_TRIES",
                retry_after_s=left_s,
            )
        tries.append(now_s)

    def forgive_try(self, address: str) -> None:
        """The last try from an address was none: its token was right, or nobody could say; many may share one."""
        tries = self._tries.get(address)
        if tries:
            tries.pop()

    def begin(self, caller: Caller, token: str) -> Session:
        """A new login of a token's user."""
        now_s = self._now_s()
        session = Session(secrets.token_urlsafe(_ID_BYTES), Viewer.of(caller), token, now_s, now_s, now_s)
        self._sessions[session.session_id] = session
        return session

    def judge(self, session: Session, caller: Caller | None) -> None:
        """What the services say of a login's token now; None: nobody has it."""
        session.judged_s, session.unanswered_since_s = self._now_s(), None
        session.revoked = session.revoked or caller is None or Viewer.of(caller) != session.viewer

    def fail_to_judge(self, session: Session) -> None:
        """The services say nothing of a login's token now; a login of which they have said nothing for long ends."""
        session.judged_s = self._now_s()
        if session.unanswered_since_s is None:
            session.unanswered_since_s = session.judged_s
        session.revoked = session.revoked or session.judged_s - session.unanswered_since_s >= UNANSWERED_S

    def find(self, session_id: str) -> Session | None:
        """The login of an id, which counts as a request of its user; None: there is none, or no more."""
        session = self._sessions.get(session_id)
        if session is None or self._over(session) is not None:
            return None
        session.used_s = self._now_s()
        return session

    def end(self, session: Session) -> None:
        """A user logs out."""
        self._sessions.pop(session.session_id, None)

    def sweep(self) -> list[tuple[Session, str]]:
        """Ends the logins that are over; with why: `role` (the token or its roles have changed) or `logout`."""
        ended = []
        for session in self:
            reason = self._over(session)
            if reason is not None:
                self.end(session)
                ended.append((session, reason))
        return ended

    def _over(self, session: Session) -> str | None:
        now_s = self._now_s()
        if now_s - session.used_s >= self._idle_s or now_s - session.began_s >= self._limit_s:
            return "logout"
        return "role" if session.revoked else None
