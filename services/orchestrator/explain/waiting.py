"""Why a job waits: what the ledger tells about it, what its user could change, and words for what can't be forecast.

Plain data and arrays; the expected start itself comes from `services/orchestrator/forecasts`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.reservation import may_enter, reservation_of
from adlro.records.jobs import PendingReason
from adlro.records.precedence import Precedence
from adlro.records.waiting import ExpectedStart, WaitingChange, WaitingExplanation
from adlro.services.orchestrator.explain.obstacles import changes, fitting_count, obstacles
from adlro.services.orchestrator.explain.precedence import standing
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.state.observation import Bools

_NEVER_STARTS = (PendingReason.NO_FITTING_GPU, PendingReason.NO_FITTING_NODES)


class Seen(NamedTuple):
    """What is copied of the ledger for one explanation: the rest is worked out beside the event loop.

    Attributes:
        entry: the job.
        sentence, reason: as in its record.
        place, length: of the queue; place 0: not in it.
        occupancy: a copy.
        fits: whether it could start somewhere if nothing were kept free.
        kept: (G,) free GPUs that are kept for another job, as far as the job could start on them.
        kept_nodes: (G,) all free GPUs of nodes where some are kept: a job with another demand may be refused there.
        precedence: the job's level in words.
    """

    entry: Entry
    sentence: str
    reason: PendingReason
    time_s: float
    place: int
    length: int
    occupancy: Occupancy
    fits: bool
    kept: Bools
    kept_nodes: Bools
    precedence: str = ""


def see(ledger: Ledger, entry: Entry, time_s: float, rule: Precedence | None = None) -> Seen:
    """What the ledger tells about a job that is not placed.

    Args:
        rule: which waiting jobs go before others; None: none do by rule.
    """
    queue, occupancy = ledger.queued(), ledger.occupancy.copy()
    place, fits = 0, False
    kept = np.zeros(len(ledger.layout.gpu_ids), dtype=np.bool_)
    kept_nodes = kept
    if entry.phase is Phase.QUEUED:
        place = ledger.place_of(entry) + 1
        reserved = ledger.reserved
        both = [entry] if reserved is None or reserved is entry else [reserved, entry]
        seen = ledger.observe_some(time_s, both)
        row = len(both) - 1
        fits = bool(seen.table.rows_of_job[0, row])
        held = reservation_of(seen, 0, 0) if len(both) > 1 else None
        if held is not None:
            may = may_enter(seen, 0, held)
            for each in range(int(seen.table.first[0, row]), int(seen.table.first[0, row + 1])):
                kept[seen.group(0, each)] = not may[each]
            free = occupancy.idle & occupancy.usable
            kept_nodes = free & np.asarray(held.nodes, dtype=np.bool_)[ledger.layout.gpu_node]
    return Seen(
        entry,
        entry.job.message,
        entry.job.pending_reason,
        time_s,
        place,
        len(queue),
        occupancy,
        fits,
        kept,
        kept_nodes,
        standing(rule, ledger, entry, time_s),
    )


def explanation(seen: Seen, start: ExpectedStart | None, none: str) -> WaitingExplanation:
    """The whole explanation.

    Args:
        seen: what the ledger told.
        start: the expected start; None: none can be given.
        none: the reason for that.
    """
    spec = seen.entry.job.spec
    queued = seen.place > 0
    return WaitingExplanation(
        job_id=seen.entry.job.job_id,
        time_s=seen.time_s,
        reason=seen.reason,
        sentence=seen.sentence,
        queue_place=seen.place,
        queue_length=seen.length,
        obstacles=obstacles(spec, seen.occupancy, seen.fits, seen.kept) if queued else {},
        changes=_changes(seen) if queued else (),
        expected_start=start,
        no_expected_start="" if start is not None else none,
        precedence=seen.precedence,
    )


def _changes(seen: Seen) -> tuple[WaitingChange, ...]:
    """What the user could change; nothing where the job fits and the policy alone holds it back."""
    spec = seen.entry.job.spec
    if fitting_count(spec, seen.occupancy, seen.kept):
        return ()
    return changes(spec, seen.occupancy, seen.kept | seen.kept_nodes)


def why_none(entry: Entry) -> str:
    """Why no start can be forecast for a job at all, as a sentence's part; empty: one may be."""
    job = entry.job
    if entry.phase is Phase.PAUSED:
        return "its launch was refused, and when one succeeds is not known"
    if entry.phase is Phase.ARRIVING:
        return "it has only just arrived"
    if entry.phase is Phase.HELD:
        return "it is held, and nobody knows when it is released"
    if entry.phase is Phase.DEPENDENT:
        return "it waits for other jobs"
    if job.pending_reason in (PendingReason.QUOTA, PendingReason.ARRAY_LIMIT):
        return "a limit keeps it from its start, and forecasts don't know limits"
    if job.pending_reason in _NEVER_STARTS:
        return "no GPU of the cluster can ever hold it"
    if job.pending_reason is PendingReason.NODES_DRAINED:
        return "every GPU that could hold it is lost or on a drained node, until an operator changes that"
    return ""
