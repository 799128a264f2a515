"""Stored decisions: two capped streams that outlive the process which decided. Knows Redis and `adlro.wire`.

The acting orchestrator appends, any instance reads. The entry of decision d-3-17 has the id 3-17: tokens of leases and
numbers of decisions only rise, so ids rise too, an entry is never there twice, and an instance that no longer acts
can't append behind the one that does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import redis.asyncio as aioredis
from google.protobuf.message import DecodeError
from redis.exceptions import ResponseError

from adlro.errors import InvalidInput
from adlro.records.decisions import Decision, DecisionFilter
from adlro.store.keys import DECISIONS, EXPLANATIONS
from adlro.store.pages import PageTokens, Position
from adlro.store.unreadable import Unreadable
from adlro.wire import decision_entry_from_bytes, decision_entry_to_bytes

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
SCAN_LIMIT = 5000
"""Entries that are looked at for one page: beyond it the page ends early, with a token to go on."""
SEARCHED = 2 * SCAN_LIMIT
"""Entries that are looked at for a job's newest decision."""
PAGE_BYTES = 3 << 20
"""A page ends early beyond this: many clients take no message of more than 4 MiB."""
_READ_AT_ONCE = 250
_FETCHED_AT_ONCE = 50
_BREATH_EVERY, _BREATH_S = 20, 1e-4
_MESSAGE = b"m"
_ID = re.compile(r"d-([1-9][0-9]{0,9})-([1-9][0-9]{0,9})", re.ASCII)
_NUMBER_BITS = 32


class Thread(Protocol):
    """A thread beside the event loop."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Runs the work there."""


class StoredDecision(NamedTuple):
    """A decision as bytes.

    Attributes:
        entry_id: of both entries.
        summary, explanation: their messages.
    """

    entry_id: str
    summary: bytes
    explanation: bytes

    @classmethod
    def of(cls, summary: Decision, explanation: Decision) -> StoredDecision:
        """The entries of a decision in two views.

        Raises:
            ValueError: its id is none of a decision.
        """
        entry_id = entry_id_of(summary.decision_id)
        if entry_id is None:
            raise ValueError(f"{summary.decision_id!r} is no id of a decision")
        return cls(entry_id, decision_entry_to_bytes(summary), decision_entry_to_bytes(explanation))


class _Entry(NamedTuple):
    entry_id: str
    decision: Decision
    size: int


class DecisionStore:
    """The streams of decisions.

    Args:
        redis: a client that repeats no write by itself.
        worker: the thread in which entries are read.
        summaries_kept: about how many decisions are kept; 0: none is stored.
        explanations_kept: of about how many of them all is kept.
        unreadable: notes entries that can't be read.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        worker: Thread,
        summaries_kept: int,
        explanations_kept: int,
        unreadable: Unreadable,
    ) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results
        self._worker = worker
        self._kept = ((DECISIONS, summaries_kept), (EXPLANATIONS, min(explanations_kept, summaries_kept)))
        self._unreadable = unreadable
        self._tokens = PageTokens(redis)

    @property
    def keeps(self) -> bool:
        """Whether decisions are stored at all."""
        return self._kept[0][1] > 0

    async def append(self, entries: Sequence[StoredDecision]) -> int:
        """Appends decisions, in one round trip; safe to repeat.

        Returns:
            The number of decisions that were refused, since a newer one is stored, or this one is.

        Raises:
            redis.exceptions.RedisError: nothing may be stored, or all of it.
        """
        pipe = self._redis.pipeline(transaction=False)
        streams = [(key, kept) for key, kept in self._kept if kept]
        for entry in entries:
            for key, kept in streams:
                body = entry.summary if key == DECISIONS else entry.explanation
                pipe.xadd(key, {_MESSAGE: body}, id=entry.entry_id, maxlen=kept, approximate=True)
        answers = await pipe.execute(raise_on_error=False)
        refused = 0
        for number, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and "equal or smaller" in str(answer):
                refused += streams[number % len(streams)][0] == DECISIONS
            elif isinstance(answer, Exception):
                raise answer
        return refused

    async def get(self, decision_id: str) -> Decision | None:
        """A decision by its id, as far as it is kept; None: it is not."""
        entry_id = entry_id_of(decision_id)
        if entry_id is None:
            return None
        for key, _ in reversed(self._kept):
            for _, fields in await self._redis.xrange(key, entry_id, entry_id):
                if (found := self._decoded(decision_id, fields, None)) is not None:
                    return found
        return None

    async def newest_of_job(self, job_id: str) -> Decision | None:
        """A job's newest decision; None: it is none of the newest SEARCHED decisions.

        The process that asks is the one that decides, and the job's decision may be gone: the rest of the store is for
        `page`, which stops after each SCAN_LIMIT.
        """
        wanted, before = DecisionFilter(job_id=job_id), ""
        for _ in range(SEARCHED // SCAN_LIMIT):
            found, before = await self._scanned(wanted, before, 1)
            if found:
                return (await self.get(found[0].decision.decision_id)) or found[0].decision
            if not before:
                break
        return None

    async def page(
        self, wanted: DecisionFilter, page_size: int, page_token: str, *, full: bool
    ) -> tuple[list[Decision], str]:
        """Decisions that match, the newest first, and the token of the next page, empty at the end.

        Args:
            wanted: the filter.
            page_size: 0: 100; at most 1000.
            page_token: of the page before, or empty.
            full: with all that is kept of each; False: its summary.

        Raises:
            InvalidInput: the token does not belong to this filter.
            redis.exceptions.RedisError: the store does not answer.
        """
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        digest = wanted.digest()
        before = _entry_id((await self._tokens.decode(page_token, digest)).number) if page_token else ""
        found, before = await self._scanned(wanted, before, size)
        if full:
            explained = await self._explanations(found)
            if len(explained) < len(found):
                before = found[len(explained) - 1].entry_id
            decisions = explained
        else:
            decisions = [each.decision for each in found]
        return decisions, await self._tokens.encode(Position(_position(before)), digest) if before else ""

    async def _scanned(self, wanted: DecisionFilter, before: str, size: int) -> tuple[list[_Entry], str]:
        """Matching entries before one, newest first; and the entry before which the search goes on, empty: it ended."""
        found: list[_Entry] = []
        scanned = weight = 0
        anything = wanted == DecisionFilter()
        while True:
            count = min(size - len(found) + 1, _READ_AT_ONCE) if anything else _READ_AT_ONCE
            part = await self._redis.xrevrange(DECISIONS, max=f"({before}" if before else "+", min="-", count=count)
            for entry in await self._worker.run(partial(self._matching, part, wanted)):
                weight += entry.size
                if found and (len(found) == size or weight > PAGE_BYTES):
                    # One more than fits: so there is a next page, and it begins with this one.
                    return found, found[-1].entry_id
                found.append(entry)
            if len(part) < count:
                return found, ""
            before = part[-1][0].decode()
            scanned += len(part)
            if scanned >= SCAN_LIMIT:
                return found, before

    def _matching(self, part: Sequence[tuple[bytes, Any]], wanted: DecisionFilter) -> list[_Entry]:
        found = []
        for number, (entry_id, fields) in enumerate(part):
            decision = self._decoded(entry_id.decode(), fields, wanted)
            if decision is not None and wanted.matches(decision):
                found.append(_Entry(entry_id.decode(), decision, len(fields[_MESSAGE])))
            if number % _BREATH_EVERY == 0:
                time.sleep(_BREATH_S)  # decisions go first
        return found

    def _decoded(self, name: str, fields: Any, wanted: DecisionFilter | None) -> Decision | None:
        body = fields.get(_MESSAGE, b"") if fields else b""
        if wanted is not None and not (wanted.job_id.encode() in body and wanted.gpu_id.encode() in body):
            return None  # without reading it
        try:
            if not body:
                raise ValueError("it has no message")
            return decision_entry_from_bytes(body, wanted)
        except (DecodeError, ValueError) as error:
            self._unreadable.add(f"decision {name}", error)
            return None

    async def _explanations(self, found: Sequence[_Entry]) -> list[Decision]:
        """All that is kept of some decisions: of the first ones, as many as fit in a page."""
        decisions: list[Decision] = []
        weight = 0
        for start in range(0, len(found), _FETCHED_AT_ONCE):
            part = found[start : start + _FETCHED_AT_ONCE]
            pipe = self._redis.pipeline(transaction=False)
            for each in part:
                pipe.xrange(EXPLANATIONS, each.entry_id, each.entry_id)
            answers = await pipe.execute()
            read = await self._worker.run(partial(self._explained, part, answers))
            for decision, size in read:
                weight += size
                if decisions and weight > PAGE_BYTES:
                    return decisions
                decisions.append(decision)
        return decisions

    def _explained(self, part: Sequence[_Entry], answers: Sequence[Any]) -> list[tuple[Decision, int]]:
        made = []
        for number, (each, answer) in enumerate(zip(part, answers, strict=True)):
            whole = self._decoded(each.entry_id, answer[0][1], None) if answer else None
            size = each.size if whole is None else len(answer[0][1][_MESSAGE])
            made.append((each.decision if whole is None else whole, size))
            if number % _BREATH_EVERY == 0:
                time.sleep(_BREATH_S)
        return made


def entry_id_of(decision_id: str) -> str | None:
    """The id of a decision's entries; None: it is no decision's id."""
    match = _ID.fullmatch(decision_id)
    return None if match is None else f"{match[1]}-{match[2]}"


def _position(entry_id: str) -> int:
    token, _, number = entry_id.partition("-")
    return int(token) << _NUMBER_BITS | int(number)


def _entry_id(position: int) -> str:
    token, number = position >> _NUMBER_BITS, position & ((1 << _NUMBER_BITS) - 1)
    if not token:
        raise InvalidInput("page_token: is none of a list of decisions", field="page_token")
    return f"{token}-{number}"
