"""Who a token belongs to, as ingest says: at a login, and again and again while it lasts.

So the page needs no users' file of its own, and a role that is taken away ends the login within two seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

from adlro.client import AsyncClient
from adlro.errors import AdlroError, Conflict, PermissionDenied, Unauthenticated
from adlro.kit.identity import Caller
from adlro.services.web.api import UserClients
from adlro.services.web.sessions import Session, Sessions

# ingest looks at its users' file once a second: together less than two.
_EVERY_S: Final = 0.5
_OLD_S: Final = 1.5
# While ingest is away not every request waits for its answer.
_AWAY_OLD_S: Final = 10.0
_ANSWER_S: Final = 3.0
_AT_ONCE: Final = 20
# What may stand in the metadata of a call.
_SENDABLE: Final = re.compile(r"[\x21-\x7e]{1,256}")


async def caller_of(client: AsyncClient) -> Caller | None:
    """The user and the roles of a client's token; None: nobody has it.

    Raises:
        Conflict: the services know no users, so that a token says nothing.
        AdlroError: ingest does not answer.
    """
    try:
        identity = await client.whoami()
    except (Unauthenticated, PermissionDenied):
        return None
    if not identity.tokens_needed:
        raise Conflict(
            "the services know no users (ADLRO_USERS_FILE), and the page has a token: start both with users, or none"
        )
    return Caller(identity.user, frozenset(identity.roles))


class Logins:
    """The logins of a page whose services have users.

    Args:
        sessions: the logins.
        clients: a client for each.
        now_s: a clock that never goes back.
    """

    def __init__(self, sessions: Sessions, clients: UserClients, now_s: Callable[[], float]) -> None:
        self.sessions = sessions
        self._clients = clients
        self._now_s = now_s

    async def begin(self, token: str) -> Session | None:
        """A new login; None: nobody has this token.

        Raises:
            AdlroError: as `caller_of`.
        """
        if not _SENDABLE.fullmatch(token):
            return None
        client = self._clients.with_token(token)
        try:
            caller = await caller_of(client)
        finally:
            await client.close()
        return None if caller is None else self.sessions.begin(caller, token)

    async def find(self, session_id: str) -> Session | None:
        """The login of an id, which counts as a request of its user; None: there is none, or no more."""
        session = self.sessions.find(session_id)
        if session is None:
            return None
        old_s = _OLD_S if session.unanswered_since_s is None else _AWAY_OLD_S
        if self._now_s() - session.judged_s > old_s:
            await self._judge(session)
        return self.sessions.find(session_id)

    async def run(self) -> None:
        """Looks after the logins whose pages are open, for ever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            opened = [each for each in self.sessions if each.sockets]
            for first in range(0, len(opened), _AT_ONCE):
                await asyncio.gather(*(self._judge(each) for each in opened[first : first + _AT_ONCE]))
            self._clients.close_others({each.session_id: each for each in self.sessions})

    async def _judge(self, session: Session) -> None:
        """Asks ingest; while it is away a login stays as it is for a few minutes: other services tell it something."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                caller = await caller_of(self._clients.of(session))
        except (AdlroError, TimeoutError):
            self.sessions.fail_to_judge(session)
            return
        self.sessions.judge(session, caller)
