"""The pending reasons of jobs in the queue, in words. Plain data and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.decide.reservation import may_enter, reservation_of
from adlro.placement import fewest_nodes
from adlro.records.jobs import JobReservation, JobSpec, PendingReason
from adlro.services.orchestrator.deciding.sets import given_by_nodes, in_nodes, with_each
from adlro.services.orchestrator.explain.reservations import as_told, in_record
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy, shape_of
from adlro.services.orchestrator.ledger.transitions import left_in_words
from adlro.state.gangs import NEVER
from adlro.state.observation import Bools, Observation

_REASONS_SHOWN = 3
"""Largest number of GPUs and nodes whose absence one job's reason explains."""


class Wait(NamedTuple):
    """Why a job waits.

    Attributes:
        reserved_for: with RESERVED: the job for which GPUs are kept free.
        reserved_until_s: with RESERVED: cluster time until about which.
    """

    reason: PendingReason
    text: str
    reserved_for: str = ""
    reserved_until_s: float | None = None


class Waits(NamedTuple):
    """Why jobs wait, in the order in which they were named, and the reservation that was found; None: none."""

    reasons: list[Wait]
    reservation: JobReservation | None


def waits(
    ledger: Ledger, entries: Sequence[Entry], time_s: float, holds_back: str, told: JobReservation | None = None
) -> Waits:
    """Why jobs of the queue wait.

    Args:
        time_s: the present cluster time.
        holds_back: why jobs that could start don't, as a clause.
        told: the reservation as it was told last.
    """
    reserved = [] if ledger.reserved is None else [ledger.reserved]
    # The job with the reservation comes first, also where nobody asks for its reason.
    seen = ledger.observe_some(time_s, [*reserved, *entries])
    kept = reservation_of(seen, 0, 0) if reserved else None
    reservation = as_told(told, in_record(ledger, kept), time_s)
    fits: Bools = seen.table.rows_of_job[0] > 0
    may: Bools = fits if kept is None else _may_start(seen, may_enter(seen, 0, kept))
    possible: Bools = np.isfinite(seen.kind_duration_s[0])
    ever: Bools = seen.job_waiting[0]
    occupancy = ledger.occupancy
    usable_kinds = np.unique(seen.gpu_kind[0, occupancy.usable])
    usable: Bools = np.logical_or.reduce(possible[:, usable_kinds], axis=1)
    sets = _UsableSets(occupancy)
    out = []
    for place, entry in enumerate(entries, start=len(reserved)):
        spec = entry.job.spec
        several = spec.gpu_count > 1
        wait = Wait(PendingReason.RESOURCES, f"waits for {needs(spec)}")
        if not ever[place]:
            reason = PendingReason.NO_FITTING_NODES if several else PendingReason.NO_FITTING_GPU
            never = "no set of nodes can ever hold it: " if several else ""
            wait = Wait(reason, f"{never}the cluster lacks {needs(spec)}; cancel it and ask for less")
        elif not (sets.hold(spec) if several else usable[place]):
            what = "so many of the GPUs that could hold it are" if several else "every GPU that could hold it is"
            wait = Wait(PendingReason.NODES_DRAINED, f"{what} lost or on a drained node{_reasons_away(occupancy)}")
        elif fits[place] and not may[place] and entry is not ledger.reserved and reservation is not None:
            wait = _waits_for(reservation)
        elif fits[place]:
            wait = Wait(PendingReason.POLICY, f"could start, but {holds_back}")
        elif several:
            wait = Wait(PendingReason.GANG_NODES, f"waits for {needs(spec)}; {_packed_on(spec, occupancy)}")
        if entry.job.attempts:
            last = entry.job.attempts[-1]
            left = f"; {left_in_words(entry.job)}" if entry.job.resumes else ""
            wait = wait._replace(text=f"{wait.text} (attempt {len(entry.job.attempts)} {last.outcome}{left})")
        out.append(wait)
    return Waits(out, reservation)


def _may_start(seen: Observation, rows: Bools) -> Bools:
    """(J,) which jobs of an observation of one cluster have one of these rows of its table."""
    may = np.zeros(seen.job_waiting.shape[1], dtype=np.bool_)
    may[seen.table.job[rows]] = True
    return may


def _waits_for(reservation: JobReservation) -> Wait:
    until_s = reservation.expected_start_s
    return Wait(
        PendingReason.RESERVED,
        f"could start, but GPUs are kept free for {reservation.job_id} until about {until_s:.6g} s of cluster time",
        reservation.job_id,
        until_s,
    )


def needs(spec: JobSpec) -> str:
    """A job's requirements in words."""
    models = f" of model {' or '.join(spec.gpu_models)}" if spec.gpu_models else ""
    if spec.gpu_count > 1:
        nodes = f" on at most {in_nodes(spec.max_node_count)}" if spec.max_node_count else ""
        return f"{spec.gpu_count} GPUs{models or ' of one model'}{nodes}, with {with_each(spec)}"
    return f"a GPU{models} with {with_each(spec).removesuffix(' for each')}"


def _packed_on(spec: JobSpec, occupancy: Occupancy) -> str:
    """On how many nodes the GPUs of a job fit, by model, in words."""
    layout = occupancy.layout
    models: dict[int, list[str]] = {}
    for model, nodes in zip(layout.gpu_models, layout.packed_nodes(spec).tolist(), strict=True):
        if nodes != NEVER and spec.accepts(model):
            models.setdefault(nodes, []).append(model)
    found = [f"{in_nodes(nodes)} of {' or '.join(names)}" for nodes, names in models.items()]
    return f"they fit on {', or '.join(found)}"


class _UsableSets:
    """Whether jobs of several GPUs would fit on GPUs that are neither lost nor drained, if no job ran."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._known: dict[tuple[object, ...], bool] = {}

    def hold(self, spec: JobSpec) -> bool:
        key = (*shape_of(spec), spec.gpu_models)
        if key not in self._known:
            self._known[key] = any(
                self._of_model(spec, number)
                for number, model in enumerate(self._occupancy.layout.gpu_models)
                if spec.accepts(model)
            )
        return self._known[key]

    def _of_model(self, spec: JobSpec, model: int) -> bool:
        given = given_by_nodes(spec, self._occupancy, model, self._occupancy.usable, empty=True)
        nodes = fewest_nodes(given, spec.gpu_count)
        return nodes is not None and (not spec.max_node_count or nodes <= spec.max_node_count)


def warm(ledger: Ledger) -> None:
    """Compiles the code for a reservation, or loads it from numba's cache: see `ledger.warm.warm`."""
    waits(ledger, ledger.queued(), 1.0, "")


def _reasons_away(occupancy: Occupancy) -> str:
    """The reasons of the first lost GPUs and drained nodes, for people."""
    reasons = {**occupancy.lost_reasons, **occupancy.drain_reasons}
    said = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    return f" ({'; '.join(said[:_REASONS_SHOWN])}{'; ...' if len(said) > _REASONS_SHOWN else ''})" if said else ""
