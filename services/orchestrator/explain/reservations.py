"""The reservation of a session, with the figures that belong to it now. Plain data and arrays.

That a job holds it, and since when, is a fact of the ledger; where and when the job is expected to start is worked out
anew each time (adlro.decide.reservation).
"""

from __future__ import annotations

import dataclasses

from adlro.decide.reservation import Reservation, reservation_of
from adlro.records.jobs import JobReservation
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import Observation

# Moves of the expected start that are not told to those who wait: seconds, or a share of the time until then.
_SAME_START_S = 10.0
_SAME_START_SHARE = 0.05


def held_reservation(ledger: Ledger, time_s: float) -> JobReservation | None:
    """The reservation at a cluster time; None: there is none."""
    if ledger.reserved is None:
        return None
    seen = ledger.observe_some(time_s, [ledger.reserved])
    return in_record(ledger, reservation_of(seen, 0, 0))


def reservation_after(ledger: Ledger, observation: Observation, place: int) -> JobReservation | None:
    """The reservation of the job at a place of an observation."""
    return in_record(ledger, reservation_of(observation, 0, place))


def in_record(ledger: Ledger, worked_out: Reservation | None) -> JobReservation | None:
    """The ledger's reservation with its figures; None: the job can't start on the GPUs that are there now."""
    entry, layout = ledger.reserved, ledger.layout
    if entry is None or worked_out is None:
        return None
    return JobReservation(
        job_id=entry.job.job_id,
        since_s=ledger.reserved_since_s,
        gpu_model=layout.gpu_models[worked_out.model],
        node_ids=tuple(node_id for node_id, kept in zip(layout.node_ids, worked_out.nodes, strict=True) if kept),
        expected_start_s=worked_out.start_s,
        slack_gpu_count=worked_out.slack,
        gpu_count=entry.gpu_count,
    )


def as_told(told: JobReservation | None, newest: JobReservation | None, time_s: float) -> JobReservation | None:
    """The newest figures, with the expected start that was told before where that is still about right.

    Each other start is written to the record of every job that waits because of it.
    """
    if told is None or newest is None or (told.job_id, told.since_s) != (newest.job_id, newest.since_s):
        return newest
    moved_s, left_s = abs(newest.expected_start_s - told.expected_start_s), newest.expected_start_s - time_s
    if moved_s > max(_SAME_START_S, _SAME_START_SHARE * left_s) or told.expected_start_s < time_s:
        return newest
    return dataclasses.replace(newest, expected_start_s=told.expected_start_s)
