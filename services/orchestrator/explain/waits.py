"""The pending reasons of jobs in the queue, in words. Plain data and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.decide.reservation import may_enter, reservation_of
from adlro.placement import fewest_nodes
from adlro.records.jobs import JobReservation, JobSpec, PendingReason
from adlro.services.orchestrator.deciding.sets import fewest_own_nodes, given_by_nodes, in_nodes, with_each
from adlro.services.orchestrator.explain.obstacles import shortage
from adlro.services.orchestrator.explain.reservations import as_told, in_record
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy, shape_of
from adlro.services.orchestrator.ledger.transitions import left_in_words
from adlro.state.gangs import NEVER
from adlro.state.observation import Bools, Observation

_NODES_NAMED = 5
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
    sets, shortages, packed = _UsableSets(occupancy), _Shortages(occupancy), _PackedSets(occupancy)
    out = []
    for place, entry in enumerate(entries, start=len(reserved)):
        spec = entry.job.spec
        several = spec.gpu_count > 1
        if not ever[place]:
            reason = PendingReason.NO_FITTING_NODES if several else PendingReason.NO_FITTING_GPU
            never = "no set of nodes can ever hold it: " if several else ""
            wait = Wait(reason, f"{never}the cluster lacks {needs(spec)}; cancel it and ask for less")
        elif not (sets.hold(spec) if several else usable[place]):
            what = "so many of the GPUs that could hold it are" if several else "every GPU that could hold it is"
            wait = Wait(PendingReason.NODES_DRAINED, f"{what} lost or on a drained node{_reasons_away(occupancy)}")
        elif (limit := ledger.limits.over(entry)) is not None:
            wait = Wait(*limit)
        elif fits[place] and not may[place] and entry is not ledger.reserved and reservation is not None:
            wait = _waits_for(reservation)
        elif fits[place]:
            wait = Wait(PendingReason.POLICY, f"could start, but {holds_back}")
        elif several:
            wait = Wait(
                PendingReason.GANG_NODES,
                f"{shortages.told(spec)}waits for {needs(spec)}; {packed.told(spec)}",
            )
        else:
            wait = Wait(PendingReason.RESOURCES, f"{shortages.told(spec)}waits for {needs(spec)}")
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
    where = f", {nodes_in_words(spec)}" if spec.exclusive or spec.chooses_nodes else ""
    if spec.gpu_count > 1:
        nodes = f" on at most {in_nodes(spec.max_node_count)}" if spec.max_node_count else ""
        return f"{spec.gpu_count} GPUs{models or ' of one model'}{nodes}, with {with_each(spec)}{where}"
    return f"a GPU{models} with {with_each(spec).removesuffix(' for each')}{where}"


def nodes_in_words(spec: JobSpec) -> str:
    """The nodes that a picky job may run on: `on a node without other jobs, of n1, n2, not on n3`."""
    parts = []
    if spec.exclusive:
        parts.append("on a node without other jobs" if spec.gpu_count == 1 else "on nodes without other jobs")
    if spec.node_ids:
        parts.append(f"{'of' if parts else 'on one of' if spec.gpu_count == 1 else 'on'} {_named(spec.node_ids)}")
    if spec.excluded_node_ids:
        parts.append(f"not on {_named(spec.excluded_node_ids)}")
    return ", ".join(parts)


def _named(node_ids: Sequence[str]) -> str:
    more = len(node_ids) - _NODES_NAMED
    return ", ".join(node_ids[:_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _demand_of(spec: JobSpec, layout: Layout) -> tuple[object, ...]:
    """What decides which GPUs can hold a job, however it names the nodes that it may run on."""
    return *shape_of(spec), spec.gpu_models, layout.allowed_nodes(spec).tobytes() if spec.chooses_nodes else b""


class _PackedSets:
    """On how many nodes the GPUs of jobs fit, worked out once for all jobs of equal demands."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._known: dict[tuple[object, ...], str] = {}

    def told(self, spec: JobSpec) -> str:
        """By model, in words."""
        key = _demand_of(spec, self._occupancy.layout)
        if key not in self._known:
            models: dict[int, list[str]] = {}
            for number, model in enumerate(self._occupancy.layout.gpu_models):
                nodes = fewest_own_nodes(spec, self._occupancy, number) if spec.accepts(model) else NEVER
                if nodes != NEVER:
                    models.setdefault(nodes, []).append(model)
            found = [f"{in_nodes(nodes)} of {' or '.join(names)}" for nodes, names in models.items()]
            self._known[key] = f"they fit on {', or '.join(found)}"
        return self._known[key]


class _Shortages:
    """What nodes of idle GPUs lack for jobs, worked out once for all jobs of equal demands."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._known: dict[tuple[object, ...], str] = {}

    def told(self, spec: JobSpec) -> str:
        """The begin of a reason; empty: GPUs are what is short. It comes first: screens cut the end."""
        key = (*_demand_of(spec, self._occupancy.layout), spec.exclusive)
        if key not in self._known:
            lacks = shortage(spec, self._occupancy)
            self._known[key] = f"nodes of idle GPUs lack {lacks}; " if lacks else ""
        return self._known[key]


class _UsableSets:
    """Whether jobs of several GPUs would fit on GPUs that are neither lost nor drained, if no job ran."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._known: dict[tuple[object, ...], bool] = {}

    def hold(self, spec: JobSpec) -> bool:
        key = _demand_of(spec, self._occupancy.layout)
        if key not in self._known:
            self._known[key] = any(
                self._of_model(spec, number)
                for number, model in enumerate(self._occupancy.layout.gpu_models)
                if spec.accepts(model)
            )
        return self._known[key]

    def _of_model(self, spec: JobSpec, model: int) -> bool:
        occupancy = self._occupancy
        usable = occupancy.usable & occupancy.layout.allowed_nodes(spec)[occupancy.layout.gpu_node]
        given = given_by_nodes(spec, occupancy, model, usable, empty=True)
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
