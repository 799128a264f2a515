"""The orchestrator's placements and queue: the only source of occupancy and masks. Plain data and arrays.

Telemetry lags, so the ledger doesn't use it. No gRPC, no Redis, no clock: callers pass times in.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies.hold_greedy import HoldGreedy
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy
from adlro.services.orchestrator.ledger.queue_columns import QueueColumns
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.state.candidate_table import with_new_table
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.scene import whole_queue
from adlro.store import sequence_of

_REASONS_SHOWN = 3
"""Largest number of nodes whose drains one job's reason explains."""


class Phase(enum.Enum):
    """An entry's phase in the orchestrator's own bookkeeping."""

    ARRIVING = "arriving"  # known, but the cluster time of its arrival is not yet
    BEGIN = "begin"  # its begin time is in the future
    PAUSED = "paused"  # its launch was refused, and the next one is due later
    QUEUED = "queued"
    PLACED = "placed"  # being launched, or running
    GONE = "gone"  # final


@dataclass(slots=True, eq=False)
class Entry:
    """A job that is not final. `version` is the version of its newest record, written or about to be written."""

    job: Job
    version: int
    expected_s: Floats  # (K,) expected duration on each of the cluster's GPU models
    phase: Phase = Phase.ARRIVING
    row: int = -1
    gpu: int = -1
    spread: float = 0.0  # uncertainty of expected_s: standard deviation of ln(true / expected)
    generation: int = 0  # of the predictions (`ExpectedRuntimes.generation`) in expected_s
    arrived_s: float = 0.0  # cluster time at which it was taken up, for a job without a future begin time

    def is_placed(self, attempt: int) -> bool:
        """Whether the attempt is the job's newest, and has not ended."""
        return self.phase is Phase.PLACED and self.job.attempt_count == attempt

    def is_open(self, attempt: int) -> bool:
        """Whether the attempt is neither known to run nor known to have ended."""
        return self.is_placed(attempt) and self.job.state is JobState.PENDING

    @property
    def order(self) -> tuple[float, int]:
        """Position in the queue: by submission (or begin) time, then by number."""
        return (self.job.submit_s or 0.0, sequence_of(self.job.job_id))


class Ledger:
    """Occupancy of one cluster and the queue before it.

    Args:
        cluster: the cluster; GPUs are numbered in its order.
        drained: ids of the drained nodes; a mapping gives the reasons.
        user_service_s: by user, the GPU seconds of ended attempts so far.
    """

    def __init__(
        self, cluster: Cluster, drained: Iterable[str] = (), user_service_s: Mapping[str, float] | None = None
    ) -> None:
        self.layout = Layout(cluster)
        self.occupancy = Occupancy.empty(self.layout)
        self.entries: dict[str, Entry] = {}
        # Counts changes of GPUs, nodes or expected durations: each makes earlier observations invalid.
        self.changes = 0
        # The queue in order: the entries, their sort keys, and their rows of the columns. Each round of decisions reads
        # all of them, so arrays in order save a lookup for each job.
        self._waiting: list[Entry] = []
        self._places: list[tuple[float, int]] = []
        self._rows = array("q")
        self.user_service = UserService(user_service_s or {})
        self._columns = QueueColumns(len(self.layout.gpu_models))
        # Each GPU's user (-1: idle), the start of its job, and the job's submission time.
        self._holder_user: Ints = np.full(len(self.layout.gpu_ids), -1, dtype=np.int64)
        self._since_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self._holder_submit_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self.set_drained(drained)

    # ---- jobs

    def enter(self, job: Job, version: int, expected_s: Floats, spread: float = 0.0, generation: int = 0) -> Entry:
        """Adds a job that is not final.

        Args:
            expected_s: (K,) expected duration on each of the cluster's GPU models.
            spread: uncertainty of expected_s: standard deviation of ln(true / expected).
            generation: generation of these predictions.
        """
        entry = Entry(job, version, expected_s, spread=spread, generation=generation)
        self.entries[job.job_id] = entry
        return entry

    def expect(self, entry: Entry, expected_s: Floats, spread: float = 0.0) -> None:
        """Sets the expected durations, (K,), and the spread of a job that is not placed."""
        entry.expected_s, entry.spread = expected_s, spread
        if entry.row >= 0:
            self._columns.jobs.expected_s[0, entry.row] = expected_s
            self._columns.jobs.expected_spread[0, entry.row] = spread
            self.changes += 1

    def durations_s(self, entry: Entry) -> Floats:
        """(G,) a job's expected duration on each GPU; inf if the GPU can never hold the job."""
        able = self.layout.can_ever_hold(entry.job.spec)
        return np.where(able, entry.expected_s[self.layout.gpu_model] / self.occupancy.speed, np.inf)

    def enqueue(self, entry: Entry) -> None:
        """Inserts a job into the queue, in the order of `Entry.order`."""
        entry.phase = Phase.QUEUED
        user = self.user_service.number_of(entry.job.spec.user)
        entry.row = self._columns.add(entry.job.spec, entry.job.submit_s or 0.0, user, entry.expected_s, entry.spread)
        place, at = entry.order, len(self._places)
        if self._places and place < self._places[-1]:  # rare, and never while a session loads
            at = bisect.bisect_left(self._places, place)
        self._waiting.insert(at, entry)
        self._places.insert(at, place)
        self._rows.insert(at, entry.row)

    def place(self, entry: Entry, gpu: int, time_s: float) -> None:
        """Places a job: it holds the GPU, cores and memory, and leaves the queue if it was there."""
        duration_s = float(entry.expected_s[self.layout.gpu_model[gpu]] / self.occupancy.speed[gpu])
        self.occupancy.take(gpu, entry.job.job_id, entry.job.spec, time_s + duration_s)
        self._leave_queue(entry)
        entry.phase, entry.gpu = Phase.PLACED, gpu
        self._holder_user[gpu] = self.user_service.number_of(entry.job.spec.user)
        self._since_s[gpu] = time_s
        self._holder_submit_s[gpu] = entry.job.submit_s or 0.0

    def place_elsewhere(self, entry: Entry) -> None:
        """Marks a job as placed on a GPU that the cluster no longer has: it holds nothing here."""
        self._leave_queue(entry)
        entry.phase = Phase.PLACED

    def runs_since(self, entry: Entry, start_s: float) -> None:
        """Sets the start of a placed job, as reported by the cluster."""
        if entry.gpu >= 0:
            self._since_s[entry.gpu] = start_s

    def release(self, entry: Entry) -> None:
        """Releases the resources of a placed job; the entry stays."""
        if entry.gpu >= 0:
            self.occupancy.give_back(entry.gpu, entry.job.spec)
            self._holder_user[entry.gpu] = -1
            entry.gpu = -1

    def forget(self, entry: Entry) -> None:
        """Removes a final job."""
        self._leave_queue(entry)
        self.release(entry)
        del self.entries[entry.job.job_id]
        entry.phase = Phase.GONE

    def _leave_queue(self, entry: Entry) -> None:
        if entry.row < 0:
            return
        at = bisect.bisect_left(self._places, entry.order)
        assert self._waiting[at] is entry
        del self._waiting[at], self._places[at], self._rows[at]
        self._columns.remove(entry.row)
        entry.row = -1

    # ---- GPUs

    def set_lost(self, gpu_ids: Iterable[str], lost: bool) -> None:
        """Marks GPUs as lost or as present."""
        self.changes += 1
        for gpu_id in gpu_ids:
            if gpu_id in self.layout.gpu_number:
                self.occupancy.lost[self.layout.gpu_number[gpu_id]] = lost

    def set_speeds(self, speed_of: Mapping[str, float]) -> None:
        """Sets the speeds of single GPUs, by id, relative to their models; all other GPUs have speed 1."""
        speeds = np.array([speed_of.get(gpu_id, 1.0) for gpu_id in self.layout.gpu_ids])
        if not np.array_equal(speeds, self.occupancy.speed):
            self.changes += 1
            self.occupancy.speed[:] = speeds

    def set_drained(self, node_ids: Iterable[str]) -> None:
        """Sets the drained nodes; a mapping gives the reasons."""
        self.changes += 1
        names = set(node_ids)
        self.occupancy.drain_reasons = dict(node_ids) if isinstance(node_ids, Mapping) else {}
        self.occupancy.drained[:] = [node_id in names for node_id in self.layout.node_ids]

    def _drain_reasons(self) -> str:
        """The drain reasons of the first nodes, for people."""
        said = [f"{node_id}: {reason}" for node_id, reason in self.occupancy.drain_reasons.items() if reason]
        return f" ({'; '.join(said[:_REASONS_SHOWN])}{'; ...' if len(said) > _REASONS_SHOWN else ''})" if said else ""

    # ---- reading

    @property
    def queue_length(self) -> int:
        """Waiting jobs whose begin time has come."""
        return len(self._waiting)

    @property
    def waiting_count(self) -> int:
        """Number of jobs in the queue, and of jobs whose next launch is due later."""
        return self.queue_length + self.count(Phase.PAUSED)

    def count(self, phase: Phase) -> int:
        """Number of entries in a phase."""
        # list() first: a metrics thread may call this while the loop changes the entries.
        return sum(entry.phase is phase for entry in list(self.entries.values()))

    def queued(self, start: int = 0, end: int | None = None) -> list[Entry]:
        """The queue or a part of it, in order."""
        return self._waiting[start:end]

    @property
    def can_start_something(self) -> bool:
        """Whether there is a waiting job and an idle GPU; cheap."""
        return bool(self._waiting) and bool(np.any(self.occupancy.usable & self.occupancy.idle))

    @property
    def hold_allowed(self) -> bool:
        """Whether a job runs, or is known to join the queue later: its event will end a hold.

        Future submissions are unknown, so they do not justify a hold.
        """
        return len(self.entries) > len(self._waiting)  # jobs outside the queue are placed or join it later

    def observe(self, time_s: float) -> Observation:
        """The decision point as a policy observes it, N = 1. Row j is the j-th job of the queue."""
        return self._observe(time_s, np.array(self._rows, dtype=np.int64))

    def _observe(self, time_s: float, rows: Ints) -> Observation:
        held = self._holder_user >= 0
        return whole_queue(
            self.layout.hardware,
            self.occupancy.scene(time_s, self._since_s),
            self._columns.jobs,
            rows[None],
            np.array([len(rows)]),
            gpu_submit_s=self._holder_submit_s[None],
            user_service_s=self.user_service.at(time_s, self._holder_user[held], self._since_s[held])[None],
            hold_allowed=np.array([self.hold_allowed]),
            gpu_models=self.layout.gpu_models,
        )

    def reflect(self, observation: Observation, job: int, gpu: int) -> Observation:
        """The observation of this ledger after a placement of the observation's job; the job stays as padding."""
        duration_s = observation.kind_duration_s[0, job, observation.gpu_kind[0, gpu]]
        time_s = float(observation.time_s[0])
        # Equal to a new observation to the last bit: ties depend on it.
        remaining_s = (time_s + duration_s) - time_s
        return with_new_table(
            dataclasses.replace(
                observation,
                job_waiting=_with(observation.job_waiting, job, False),
                gpu_idle=_with(observation.gpu_idle, gpu, False),
                gpu_remaining_s=_with(observation.gpu_remaining_s, gpu, remaining_s),
                gpu_submit_s=_with(observation.gpu_submit_s, gpu, observation.job_submit_s[0, job]),
                gpu_cores_held=_with(observation.gpu_cores_held, gpu, observation.job_cores[0, job]),
                gpu_memory_held_mib=_with(observation.gpu_memory_held_mib, gpu, observation.job_memory_mib[0, job]),
                node_cores_free=self.occupancy.cores_free[None].copy(),
                node_memory_free_mib=self.occupancy.memory_free_mib[None].copy(),
                hold_allowed=np.ones(1, dtype=np.bool_),
            )
        )

    def reasons(self, entries: Sequence[Entry], holds_back: str) -> list[tuple[Entry, PendingReason, str]]:
        """The pending reasons of jobs in the queue.

        Args:
            holds_back: why jobs that could start don't, as a clause.
        """
        seen = self._observe(0.0, np.array([entry.row for entry in entries], dtype=np.int64))
        possible: Bools = np.isfinite(seen.kind_duration_s[0])
        ever: Bools = seen.job_waiting[0]
        fits: Bools = seen.table.rows_of_job[0] > 0
        usable_kinds = np.unique(seen.gpu_kind[0, self.occupancy.usable])
        usable: Bools = np.logical_or.reduce(possible[:, usable_kinds], axis=1)
        out = []
        for entry, fits_now, fits_ever, fits_usable in zip(entries, fits, ever, usable, strict=True):
            if not fits_ever:
                reason, text = (
                    PendingReason.NO_FITTING_GPU,
                    f"the cluster lacks {needs(entry)}; cancel it and ask for less",
                )
            elif not fits_usable:
                reason, text = (
                    PendingReason.NODES_DRAINED,
                    "every GPU that could hold it is lost or on a drained node" + self._drain_reasons(),
                )
            elif fits_now:
                reason, text = PendingReason.POLICY, f"could start, but {holds_back}"
            else:
                reason, text = PendingReason.RESOURCES, f"waits for {needs(entry)}"
            if entry.job.attempts:
                text += f" (attempt {len(entry.job.attempts)} {entry.job.attempts[-1].outcome})"
            out.append((entry, reason, text))
        return out


def _with(column: NDArray[Any], place: int, value: Any) -> NDArray[Any]:
    """(1, ...) a copy of a column of an observation, with one value replaced."""
    changed = column.copy()
    changed[0, place] = value
    return changed


def needs(entry: Entry) -> str:
    """A job's requirements in words."""
    spec = entry.job.spec
    memory = f"{spec.gpu_memory_mib} MiB of memory, " if spec.gpu_memory_mib else ""
    cores = "1 core" if spec.cpu_cores == 1 else f"{spec.cpu_cores} cores"
    return f"a GPU with {memory}{cores} and {spec.memory_mib} MiB on its node"


def warm() -> None:
    """Compiles the code for decisions, or loads it from numba's cache, so that no decision waits for a compilation."""
    cluster = Cluster("warm", (Node("node", 1, 1, (Gpu("gpu", "any", 1),)),))
    # The only compiled policy; the acting policy may change at any time.
    HoldGreedy().scores(Ledger(cluster).observe(0.0))
