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

from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.hold_greedy import HoldGreedy
from adlro.hardware.gang_speeds import spread_speeds
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy
from adlro.services.orchestrator.ledger.queue_columns import QueueColumns
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.state.candidate_table import with_new_table
from adlro.state.gangs import NEVER
from adlro.state.observation import Floats, Gangs, Ints, Observation
from adlro.state.scene import whole_queue
from adlro.store import sequence_of


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
    gpus: tuple[int, ...] = ()  # in ascending order
    spread: float = 0.0  # uncertainty of expected_s: standard deviation of ln(true / expected)
    spread_speed: Floats | float = 1.0  # (K,) expected speed on a spread set of GPUs, relative to a packed one
    generation: int = 0  # of the predictions (`ExpectedRuntimes.generation`) in expected_s
    arrived_s: float = 0.0  # cluster time at which it was taken up, for a job without a future begin time

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that the job asks for."""
        return self.job.spec.gpu_count

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
        # The waiting job that GPUs are kept free for, and the cluster time since which it has that.
        self.reserved: Entry | None = None
        self.reserved_since_s = 0.0
        # Each GPU's user (-1: idle), the start of its job, and the job's submission time.
        self._holder_user: Ints = np.full(len(self.layout.gpu_ids), -1, dtype=np.int64)
        self._since_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self._holder_submit_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self.set_drained(drained)

    # ---- jobs

    def enter(
        self,
        job: Job,
        version: int,
        expected_s: Floats,
        spread: float = 0.0,
        generation: int = 0,
        spread_speed: Floats | None = None,
    ) -> Entry:
        """Adds a job that is not final.

        Args:
            expected_s: (K,) expected duration on each of the cluster's GPU models, on a packed set of GPUs; inf: the
                job does not accept the model.
            spread: uncertainty of expected_s: standard deviation of ln(true / expected).
            generation: generation of these predictions.
            spread_speed: (K,) expected speed on a spread set, relative to a packed one; None: that of the speed table.
        """
        entry = Entry(job, version, expected_s, spread=spread, generation=generation)
        entry.spread_speed = self._spread_speed(job.spec, spread_speed)
        self.entries[job.job_id] = entry
        return entry

    def expect(self, entry: Entry, expected_s: Floats, spread: float = 0.0, spread_speed: Floats | None = None) -> bool:
        """Sets the expectations of a job that is not placed; the arguments are those of `enter`.

        Returns:
            Whether they differ from those before.
        """
        if entry.gpu_count > 1:
            speed: Floats | float = self._spread_speed(entry.job.spec, spread_speed)
            same = np.array_equal(speed, entry.spread_speed)
        else:
            speed, same = 1.0, True
        if same and spread == entry.spread and np.array_equal(expected_s, entry.expected_s):
            return False
        entry.expected_s, entry.spread, entry.spread_speed = expected_s, spread, speed
        if entry.row >= 0:
            self._columns.jobs.expected_s[0, entry.row] = expected_s
            self._columns.jobs.expected_spread[0, entry.row] = spread
            self._columns.jobs.expected_spread_speed[0, entry.row] = speed
            self.changes += 1
        return True

    def _spread_speed(self, spec: JobSpec, expected: Floats | None) -> Floats | float:
        if spec.gpu_count == 1:
            return 1.0
        if expected is not None:
            return expected
        speeds: Floats = spread_speeds([spec.application], [spec.job_type], [spec.gpu_count], self.layout.gpu_models)[0]
        return speeds

    def durations_s(self, entry: Entry) -> Floats:
        """(G,) a job's expected duration on each GPU; inf if the GPU can never hold the job.

        For a job of several GPUs: on a packed set whose slowest GPU this one is.
        """
        spec = entry.job.spec
        able = self.layout.can_ever_hold(spec)
        if spec.gpu_count > 1:
            able &= self.layout.packed_nodes(spec)[self.layout.gpu_model] != NEVER
        return np.where(able, entry.expected_s[self.layout.gpu_model] / self.occupancy.speed, np.inf)

    def can_ever_start(self, entry: Entry) -> bool:
        """Whether some set of GPUs, with all nodes empty and no GPU lost, can hold the job."""
        return bool(np.isfinite(self.durations_s(entry)).any())

    def duration_on_s(self, entry: Entry, gpus: Sequence[int]) -> float:
        """A job's expected duration on a set of GPUs of one model: equal to that in a candidate table, to the bit."""
        model = self.layout.gpu_model[gpus[0]]
        if len(gpus) == 1:
            return float(entry.expected_s[model] / self.occupancy.speed[gpus[0]])
        duration_s = entry.expected_s[model] / min(self.occupancy.speed[gpu] for gpu in gpus)
        if self.is_spread(entry.job.spec, gpus):
            duration_s /= np.broadcast_to(entry.spread_speed, entry.expected_s.shape)[model]
        return float(duration_s)

    def is_spread(self, spec: JobSpec, gpus: Sequence[int]) -> bool:
        """Whether a set of GPUs of one model is on more nodes than the job needs.

        It is not where the cluster, changed since the start, can hold no packed set of the model.
        """
        nodes = len({int(self.layout.gpu_node[gpu]) for gpu in gpus})
        return nodes > 1 and NEVER < int(self.layout.packed_nodes(spec)[self.layout.gpu_model[gpus[0]]]) < nodes

    def enqueue(self, entry: Entry) -> None:
        """Inserts a job into the queue, in the order of `Entry.order`."""
        entry.phase = Phase.QUEUED
        user = self.user_service.number_of(entry.job.spec.user)
        entry.row = self._columns.add(
            entry.job.spec, entry.job.submit_s or 0.0, user, entry.expected_s, entry.spread, entry.spread_speed
        )
        place, at = entry.order, len(self._places)
        if self._places and place < self._places[-1]:  # rare, and never while a session loads
            at = bisect.bisect_left(self._places, place)
        self._waiting.insert(at, entry)
        self._places.insert(at, place)
        self._rows.insert(at, entry.row)

    def place(self, entry: Entry, gpus: Sequence[int], time_s: float) -> None:
        """Places a job: it holds the GPUs, cores and memory, and leaves the queue if it was there.

        Args:
            gpus: all of one model.
        """
        gpus = tuple(sorted(gpus))
        duration_s = self.duration_on_s(entry, gpus)
        self.occupancy.take(gpus, entry.job.job_id, entry.job.spec, time_s + duration_s)
        self._leave_queue(entry)
        entry.phase, entry.gpus = Phase.PLACED, gpus
        user = self.user_service.number_of(entry.job.spec.user)
        for gpu in gpus:
            self._holder_user[gpu] = user
            self._since_s[gpu] = time_s
            self._holder_submit_s[gpu] = entry.job.submit_s or 0.0

    def place_elsewhere(self, entry: Entry) -> None:
        """Marks a job as placed on a GPU that the cluster no longer has: it holds nothing here."""
        self._leave_queue(entry)
        entry.phase = Phase.PLACED

    def runs_since(self, entry: Entry, start_s: float) -> None:
        """Sets the start of a placed job, as reported by the cluster."""
        for gpu in entry.gpus:
            self._since_s[gpu] = start_s

    def program_runs(self, entry: Entry, run_s: float) -> None:
        """The program of a placed job runs since `run_s`: its expected duration counts from there."""
        if entry.gpus:
            self.occupancy.expected_end_s[list(entry.gpus)] = run_s + self.duration_on_s(entry, entry.gpus)

    def release(self, entry: Entry) -> None:
        """Releases the resources of a placed job; the entry stays."""
        self.occupancy.give_back(entry.gpus, entry.job.spec)
        for gpu in entry.gpus:
            self._holder_user[gpu] = -1
        entry.gpus = ()

    def forget(self, entry: Entry) -> None:
        """Removes a final job."""
        self._leave_queue(entry)
        self.release(entry)
        del self.entries[entry.job.job_id]
        entry.phase = Phase.GONE

    def _leave_queue(self, entry: Entry) -> None:
        if entry.row < 0:
            return
        if self.reserved is entry:
            self.end_reservation()
        at = bisect.bisect_left(self._places, entry.order)
        assert self._waiting[at] is entry
        del self._waiting[at], self._places[at], self._rows[at]
        self._columns.remove(entry.row)
        entry.row = -1

    # ---- the reservation

    def reserve(self, entry: Entry, since_s: float) -> None:
        """Keeps GPUs free for a job of the queue; a job that has the reservation keeps it as it is."""
        assert entry.phase is Phase.QUEUED, f"{entry.job.job_id} does not wait"
        if self.reserved is not entry:
            self.reserved, self.reserved_since_s = entry, since_s
            self.changes += 1

    def end_reservation(self) -> None:
        """Keeps GPUs free for no job any more."""
        if self.reserved is not None:
            self.reserved = None
            self.changes += 1

    # ---- GPUs

    def set_lost(self, gpu_ids: Iterable[str], lost: bool) -> None:
        """Marks GPUs as lost or as present; a mapping gives the reasons."""
        self.changes += 1
        reason_of = gpu_ids if isinstance(gpu_ids, Mapping) else {}
        reasons = dict(self.occupancy.lost_reasons)  # a copy of the occupancy keeps its own
        for gpu_id in gpu_ids:
            if gpu_id in self.layout.gpu_number:
                self.occupancy.lost[self.layout.gpu_number[gpu_id]] = lost
                reasons[gpu_id] = reason_of.get(gpu_id, "") if lost else ""
        self.occupancy.lost_reasons = {gpu_id: reason for gpu_id, reason in reasons.items() if reason}

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
        reserved = None
        if self.reserved is not None:
            reserved = np.array([bisect.bisect_left(self._places, self.reserved.order)])
        return self._observe(time_s, np.array(self._rows, dtype=np.int64), reserved)

    def observe_some(self, time_s: float, entries: Sequence[Entry]) -> Observation:
        """The same with some jobs of the queue alone: row j is the j-th of these; without the reservation."""
        return self._observe(time_s, np.array([entry.row for entry in entries], dtype=np.int64))

    def _observe(self, time_s: float, rows: Ints, reserved: Ints | None = None) -> Observation:
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
            gpu_gang=self.occupancy.gang[None],
            reserved=reserved,
        )

    def reflect(self, observation: Observation, job: int, gpus: Sequence[int]) -> Observation:
        """The observation of this ledger after a placement of the observation's job; the job stays as padding.

        Args:
            job: its place in the observation.
            gpus: those on which it was placed at the time of the observation.
        """
        time_s, placed = float(observation.time_s[0]), list(gpus)
        # Equal to a new observation to the last bit: ties depend on it.
        remaining_s = self.occupancy.expected_end_s[placed] - time_s
        return with_new_table(
            dataclasses.replace(
                observation,
                job_waiting=_with(observation.job_waiting, job, False),
                gpu_idle=_with(observation.gpu_idle, placed, False),
                gpu_remaining_s=_with(observation.gpu_remaining_s, placed, remaining_s),
                gpu_submit_s=_with(observation.gpu_submit_s, placed, observation.job_submit_s[0, job]),
                gpu_cores_held=_with(observation.gpu_cores_held, placed, observation.job_cores[0, job]),
                gpu_memory_held_mib=_with(observation.gpu_memory_held_mib, placed, observation.job_memory_mib[0, job]),
                node_cores_free=self.occupancy.cores_free[None].copy(),
                node_memory_free_mib=self.occupancy.memory_free_mib[None].copy(),
                hold_allowed=np.ones(1, dtype=np.bool_),
                gangs=self._gangs_after(observation.gangs, job),
            )
        )

    def _gangs_after(self, gangs: Gangs | None, job: int) -> Gangs | None:
        """What an observation says of jobs of several GPUs, after the placement of its job."""
        if gangs is None:
            return None
        gpu_count = _with(gangs.gpu_count, job, 1)
        if self.reserved is None and not ((gpu_count > 1).any() or (self.occupancy.gang > 1).any()):
            return None
        ended = gangs.reserved[0] == job
        return Gangs(
            gpu_count=gpu_count,
            max_nodes=_with(gangs.max_nodes, job, 0),
            nodes=_with(gangs.nodes, job, 0),
            spread_speed=_with(gangs.spread_speed, job, 1.0),
            gpu_run=self.occupancy.run[None].copy(),
            reserved=np.full(1, -1, dtype=np.int64) if ended else gangs.reserved,
        )


def _with(column: NDArray[Any], place: int | list[int], value: Any) -> NDArray[Any]:
    """(1, ...) a copy of a column of an observation, with the values at one or several places replaced."""
    changed = column.copy()
    changed[0, place] = value
    return changed


def warm() -> Ledger:
    """Compiles the code for decisions, or loads it from numba's cache, so that no decision waits for a compilation.

    Returns:
        A ledger with a running job of several GPUs and a queue with another, which has a reservation.
    """
    gpus = tuple(Gpu(str(number), "any", 1) for number in range(4))
    ledger = Ledger(Cluster("warm", (Node("node", 1, 1, gpus),)))
    entries = []
    for number, gpu_count in enumerate((2, 4, 2, 1), start=1):
        spec = JobSpec("warm", "warm", JobType.SIMULATION, gpu_count=gpu_count, cpu_cores=0, memory_mib=0)
        job = Job(f"job-{number}", spec, submit_s=0.0)
        entries.append(ledger.enter(job, 0, np.ones(1)))
    # The compiled policies; the acting policy may change at any time.
    policies = (HoldGreedy(), HoldGang())
    for entry in (entries[-1], *entries[:-1]):
        ledger.enqueue(entry)
        for policy in policies:
            policy.judge(ledger.observe(0.0))
    seen = ledger.observe(0.0)
    ledger.place(entries[0], (0, 1), 0.0)
    ledger.reflect(seen, 0, (0, 1))
    ledger.reserve(entries[1], 0.0)
    for policy in policies:
        policy.judge(ledger.observe(100.0))
    return ledger
