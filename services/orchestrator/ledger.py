"""What the orchestrator placed where, and what waits: the one source of occupancy and masks. Plain data and arrays.

Telemetry is late by nature, so it plays no part here. No gRPC, no Redis, no clock: times are handed in.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.cluster import Cluster
from adlro.jobs import Job, PendingReason
from adlro.jobstore import sequence_of
from adlro.sim.observation import Bools, Floats, Observation


class Phase(enum.Enum):
    """Where an entry is in the orchestrator's own bookkeeping."""

    ARRIVING = "arriving"  # known, but the cluster has not been asked for the time yet
    BEGIN = "begin"  # its begin time has not come
    QUEUED = "queued"
    PLACED = "placed"  # being launched, or running


@dataclass(slots=True, eq=False)
class Entry:
    """A job that is not final. `version` is that of its newest record, written or about to be written."""

    job: Job
    version: int
    durations_s: Floats  # (G,) expected; inf where the GPU can never hold it
    phase: Phase = Phase.ARRIVING
    row: int = -1
    gpu: int = -1

    @property
    def order(self) -> tuple[float, int]:
        """Place in the queue: by submission (or begin) time, then by number."""
        return (self.job.submit_s or 0.0, sequence_of(self.job.job_id))


class Ledger:
    """Occupancy of one cluster and the queue before it.

    Args:
        cluster: what there is; GPUs are numbered in its order.
        drained: nodes on which nothing more is started.
    """

    def __init__(self, cluster: Cluster, drained: Iterable[str] = ()) -> None:
        pairs = list(cluster.gpus())
        self.cluster = cluster
        self.gpu_ids = [gpu.gpu_id for _, gpu in pairs]
        self.gpu_number = {gpu_id: number for number, gpu_id in enumerate(self.gpu_ids)}
        self.gpu_models = cluster.gpu_models
        self.node_ids = [node.node_id for node in cluster.nodes]
        node_number = {node_id: number for number, node_id in enumerate(self.node_ids)}
        self._gpu_model = np.array([self.gpu_models.index(gpu.gpu_model) for _, gpu in pairs], dtype=np.int64)
        self._gpu_memory = np.array([gpu.memory_mib for _, gpu in pairs], dtype=np.int64)
        self._gpu_node = np.array([node_number[node.node_id] for node, _ in pairs], dtype=np.int64)
        self._node_cores = np.array([node.cpu_cores for node in cluster.nodes], dtype=np.int64)
        self._node_memory = np.array([node.memory_mib for node in cluster.nodes], dtype=np.int64)
        self._cores_free = self._node_cores.copy()
        self._memory_free = self._node_memory.copy()
        self._lost = np.zeros(len(pairs), dtype=np.bool_)
        self._drained = np.zeros(len(self.node_ids), dtype=np.bool_)
        self._occupant: list[Entry | None] = [None] * len(pairs)
        self._idle = np.ones(len(pairs), dtype=np.bool_)
        self._expected_end = np.zeros(len(pairs))
        self._queue: list[tuple[tuple[float, int], str, int]] = []
        self._table = _Table(len(pairs))
        self.entries: dict[str, Entry] = {}
        self.set_drained(drained)

    # ---- jobs

    def enter(self, job: Job, version: int, model_durations_s: Floats) -> Entry:
        """Takes up a job that is not final.

        Args:
            model_durations_s: (M,) expected duration on each of `gpu_models`.
        """
        able = (
            (self._gpu_memory >= job.spec.gpu_memory_mib)
            & (self._node_cores[self._gpu_node] >= job.spec.cpu_cores)
            & (self._node_memory[self._gpu_node] >= job.spec.memory_mib)
        )
        entry = Entry(job, version, np.where(able, model_durations_s[self._gpu_model], np.inf))
        self.entries[job.job_id] = entry
        return entry

    def enqueue(self, entry: Entry) -> None:
        """Puts a job into the queue, at its place by `Entry.order`."""
        entry.phase = Phase.QUEUED
        entry.row = self._table.add(entry)
        bisect.insort(self._queue, (entry.order, entry.job.job_id, entry.row))

    def place(self, entry: Entry, gpu: int, time_s: float) -> None:
        """Takes a GPU, cores and memory for a job; it leaves the queue if it stood there."""
        if self._occupant[gpu] is not None:
            raise AssertionError(f"{self.gpu_ids[gpu]} already holds {self._occupant[gpu]}")
        self._leave_queue(entry)
        entry.phase, entry.gpu = Phase.PLACED, gpu
        self._occupant[gpu] = entry
        self._idle[gpu] = False
        self._expected_end[gpu] = time_s + entry.durations_s[gpu]
        self._cores_free[self._gpu_node[gpu]] -= entry.job.spec.cpu_cores
        self._memory_free[self._gpu_node[gpu]] -= entry.job.spec.memory_mib

    def release(self, entry: Entry) -> None:
        """Gives back what a placed job holds; the entry stays."""
        gpu = entry.gpu
        if gpu < 0:
            return
        self._occupant[gpu] = None
        self._idle[gpu] = True
        self._cores_free[self._gpu_node[gpu]] += entry.job.spec.cpu_cores
        self._memory_free[self._gpu_node[gpu]] += entry.job.spec.memory_mib
        entry.gpu = -1

    def forget(self, entry: Entry) -> None:
        """Drops a job that is final."""
        self._leave_queue(entry)
        self.release(entry)
        del self.entries[entry.job.job_id]

    def _leave_queue(self, entry: Entry) -> None:
        if entry.row < 0:
            return
        index = bisect.bisect_left(self._queue, (entry.order, entry.job.job_id, entry.row))
        del self._queue[index]
        self._table.remove(entry.row)
        entry.row = -1

    # ---- GPUs

    def set_lost(self, gpu_ids: Iterable[str], lost: bool) -> None:
        """Takes GPUs away or gives them back."""
        for gpu_id in gpu_ids:
            if gpu_id in self.gpu_number:
                self._lost[self.gpu_number[gpu_id]] = lost

    def set_drained(self, node_ids: Iterable[str]) -> None:
        """Exactly these nodes are drained."""
        names = set(node_ids)
        self._drained[:] = [node_id in names for node_id in self.node_ids]

    def occupant(self, gpu: int) -> Entry | None:
        """The job that holds a GPU."""
        return self._occupant[gpu]

    # ---- looking

    @property
    def queue_length(self) -> int:
        """Waiting jobs whose begin time has come."""
        return len(self._queue)

    def count(self, phase: Phase) -> int:
        """Entries in a phase."""
        return sum(entry.phase is phase for entry in self.entries.values())

    def queued(self) -> list[Entry]:
        """The queue, in order."""
        return [self.entries[job_id] for _, job_id, _ in self._queue]

    def at(self, place: int) -> Entry:
        """The job at a place of the queue, from 0."""
        return self.entries[self._queue[place][1]]

    @property
    def can_start_something(self) -> bool:
        """There is a waiting job and an idle GPU; cheap to ask."""
        return bool(self._queue) and bool(np.any(self._usable() & self._idle))

    def _usable(self) -> Bools:
        return ~self._lost & ~self._drained[self._gpu_node]

    def observe(self, time_s: float) -> Observation:
        """The decision point as a policy sees it, N = 1. Row j is the j-th job of the queue."""
        rows = np.fromiter((row for _, _, row in self._queue), dtype=np.int64, count=len(self._queue))
        return self._observation(time_s, rows)

    def _observation(self, time_s: float, rows: np.ndarray) -> Observation:
        table = self._table
        usable = self._usable()
        idle = usable & self._idle
        cores, memory, duration = table.cores[rows], table.memory[rows], table.duration[rows]
        fits = (
            np.isfinite(duration)
            & idle
            & (cores[:, None] <= self._cores_free[self._gpu_node])
            & (memory[:, None] <= self._memory_free[self._gpu_node])
        )
        remaining = np.where(self._idle, 0.0, np.maximum(self._expected_end - time_s, 0.0))
        return Observation(
            time_s=np.array([time_s]),
            gpu_model=self._gpu_model[None],
            gpu_memory_mib=self._gpu_memory[None],
            gpu_node=self._gpu_node[None],
            gpu_idle=idle[None],
            gpu_remaining_s=np.where(usable, remaining, np.inf)[None],
            node_cores_free=self._cores_free[None].copy(),
            node_memory_free_mib=self._memory_free[None].copy(),
            job_waiting=np.ones((1, len(rows)), dtype=np.bool_),
            job_type=table.job_type[rows][None],
            job_priority=table.priority[rows][None],
            job_submit_s=table.submit[rows][None],
            job_cores=cores[None],
            job_memory_mib=memory[None],
            job_gpu_memory_mib=table.gpu_memory[rows][None],
            duration_s=duration[None],
            fits_now=fits[None],
            gpu_models=self.gpu_models,
        )

    def reasons(self, time_s: float, policy_name: str) -> list[tuple[Entry, PendingReason, str]]:
        """Why each job of the queue waits, in order."""
        observation = self.observe(time_s)
        fits = observation.fits_now[0].any(axis=1)
        possible = np.isfinite(observation.duration_s[0])
        usable = (possible & self._usable()).any(axis=1)
        out = []
        for entry, fits_now, ever, now in zip(self.queued(), fits, possible.any(axis=1), usable, strict=True):
            if not ever:
                reason, text = (
                    PendingReason.NO_FITTING_GPU,
                    f"no GPU of the cluster can hold {needs(entry)}; cancel it and ask for less",
                )
            elif not now:
                reason, text = (
                    PendingReason.NODES_DRAINED,
                    "every GPU that could hold it is lost or on a drained node",
                )
            elif fits_now:
                reason, text = PendingReason.POLICY, f"could start, but {policy_name} serves others first"
            else:
                reason, text = PendingReason.RESOURCES, f"waits for a GPU with {needs(entry)}"
            if entry.job.attempts:
                text += f" (attempt {len(entry.job.attempts)} {entry.job.attempts[-1].outcome})"
            out.append((entry, reason, text))
        return out

    def mask_reason(self, entry: Entry, gpu: int, time_s: float) -> str:
        """Why a job cannot start on a GPU now; empty where it can."""
        node = int(self._gpu_node[gpu])
        node_id, spec = self.node_ids[node], entry.job.spec
        occupant = self._occupant[gpu]
        if self._lost[gpu]:
            return "the GPU is lost"
        if self._drained[node]:
            return f"{node_id} is drained"
        if spec.gpu_memory_mib > self._gpu_memory[gpu]:
            return f"needs {spec.gpu_memory_mib} MiB of GPU memory, it has {self._gpu_memory[gpu]}"
        if occupant is not None and occupant is not entry:
            left = max(float(self._expected_end[gpu]) - time_s, 0.0)
            return f"busy with {occupant.job.job_id} for about {left:.3g} s"
        if spec.cpu_cores > self._cores_free[node]:
            return f"needs {spec.cpu_cores} cores, {self._cores_free[node]} are free on {node_id}"
        if spec.memory_mib > self._memory_free[node]:
            return f"needs {spec.memory_mib} MiB, {self._memory_free[node]} are free on {node_id}"
        return ""

    def model_of(self, gpu: int) -> str:
        """The model's name of a GPU."""
        return self.gpu_models[int(self._gpu_model[gpu])]


def needs(entry: Entry) -> str:
    """What a job asks for, in words."""
    spec = entry.job.spec
    return f"{spec.gpu_memory_mib} MiB, and {spec.cpu_cores} cores and {spec.memory_mib} MiB on its node"


class _Table:
    """Columns of the queued jobs, so that an observation is a few array look-ups. Rows are reused."""

    def __init__(self, gpus: int) -> None:
        self._free: list[int] = []
        self._allocate(256, gpus)

    def _allocate(self, rows: int, gpus: int) -> None:
        self.job_type = np.zeros(rows, dtype=np.int64)
        self.priority = np.zeros(rows)
        self.submit = np.zeros(rows)
        self.cores = np.zeros(rows, dtype=np.int64)
        self.memory = np.zeros(rows, dtype=np.int64)
        self.gpu_memory = np.zeros(rows, dtype=np.int64)
        self.duration = np.zeros((rows, gpus))
        self._free = list(range(rows - 1, -1, -1))

    def _columns(self) -> Sequence[str]:
        return ("job_type", "priority", "submit", "cores", "memory", "gpu_memory", "duration")

    def _grow(self) -> None:
        old = {name: getattr(self, name) for name in self._columns()}
        rows, gpus = old["duration"].shape
        self._allocate(2 * rows, gpus)
        for name, column in old.items():
            getattr(self, name)[:rows] = column
        self._free = list(range(2 * rows - 1, rows - 1, -1))

    def add(self, entry: Entry) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        spec = entry.job.spec
        self.job_type[row] = int(spec.job_type)
        self.priority[row] = spec.priority
        self.submit[row] = entry.job.submit_s or 0.0
        self.cores[row] = spec.cpu_cores
        self.memory[row] = spec.memory_mib
        self.gpu_memory[row] = spec.gpu_memory_mib
        self.duration[row] = entry.durations_s
        return row

    def remove(self, row: int) -> None:
        self._free.append(row)
