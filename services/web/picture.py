"""What the services last said, in one place: jobs, status, cluster, telemetry, decisions. No I/O, no clock.

Each part has a version, so that what is derived from it is made again only after a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from adlro.records.cluster import Cluster
from adlro.records.decisions import Decision
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job
from adlro.records.matrices import ClusterPlanes, TelemetryBlock
from adlro.records.status import EventLag, OrchestratorStatus
from adlro.records.telemetry import Metric
from adlro.services.web.jobs_table import JobTable

T = TypeVar("T")

DECISIONS_KEPT: Final = 1000
# The figures of the past look back so long, in seconds of the cluster's clock.
WINDOW_S: Final = 3600.0
LONGEST_WINDOW_S: Final = 86_400.0
METRICS: Final = tuple(Metric)

_PARTS: Final = ("status", "described", "cluster", "state", "decisions", "complete", "details", "readings")

Plane = NDArray[np.uint8]
# Values of a plane of one byte a GPU.
NOT_REPORTED: Final = 255
IDLE, ALLOCATED, SHARED, LOST, DRAINED_IDLE, DRAINED_ALLOCATED, DRIFTS = 0, 1, 2, 3, 4, 5, 16


@dataclass(frozen=True, slots=True)
class Layout:
    """The GPUs of the cluster in their order, each with its model and node; `keys`: their places as JSON's keys."""

    gpu_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    model: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    node: tuple[int, ...] = ()
    index: dict[str, int] = field(default_factory=dict)
    node_of: dict[str, str] = field(default_factory=dict)
    model_of: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> Layout:
        """That of a cluster."""
        pairs = list(cluster.gpus())
        models, nodes = cluster.gpu_models, tuple(node.node_id for node in cluster.nodes)
        model_number = {name: number for number, name in enumerate(models)}
        node_number = {name: number for number, name in enumerate(nodes)}
        return cls(
            tuple(gpu.gpu_id for _, gpu in pairs),
            models,
            tuple(model_number[gpu.gpu_model] for _, gpu in pairs),
            nodes,
            tuple(node_number[node.node_id] for node, _ in pairs),
            {gpu.gpu_id: number for number, (_, gpu) in enumerate(pairs)},
            {gpu.gpu_id: node.node_id for node, gpu in pairs},
            {gpu.gpu_id: gpu.gpu_model for _, gpu in pairs},
            {gpu.gpu_id: str(number) for number, (_, gpu) in enumerate(pairs)},
        )


def readings_of(newest: TelemetryBlock) -> dict[str, dict[Metric, float]]:
    """The newest raw values of each GPU of a block."""
    columns = {metric: column.raw[-1] for metric, column in newest.columns.items() if len(column.raw)}
    return {
        gpu_id: {metric: float(values[at]) for metric, values in columns.items()}
        for at, gpu_id in enumerate(newest.gpu_ids)
    }


class Picture:
    """The services' state as the page knows it.

    Attributes:
        jobs: the jobs that have not ended, and those that ended lately; without what a table does not show.
        jobs_complete: their first snapshot has ended; before, no number of jobs is right.
        details: all of the jobs whose page somebody follows.
        details_known: the ids of those that were asked for: one that is not in `details` does not exist.
        readings: the newest raw values of the GPUs whose page somebody follows, by GPU.
        status, described, cluster, state: None: not known yet.
        status_live: the orchestrator answers now; otherwise `status` is its last word.
        decisions: newest first.
        decisions_known: a stream of them has begun.
    """

    def __init__(self) -> None:
        self.jobs = JobTable()
        self.jobs_complete = False
        self.details: dict[str, Job] = {}
        self.details_known: frozenset[str] = frozenset()
        self.readings: Mapping[str, Mapping[Metric, float]] = {}
        self.status_live = False
        self.status: OrchestratorStatus | None = None
        self.described: ClusterDescription | None = None
        self.cluster: Cluster | None = None
        self.state: ClusterPlanes | None = None
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.decisions_known = False
        self.layout = Layout()
        self.version = dict.fromkeys(_PARTS, 0)
        self._described_unix_s = 0.0
        self._snapshot: set[str] | None = None
        self._made: dict[str, tuple[tuple[int, ...], Any]] = {}

    def stamp(self, *parts: str) -> tuple[int, ...]:
        """The versions of some parts; `jobs` is one of them."""
        return tuple(self.jobs.version if part == "jobs" else self.version[part] for part in parts)

    def time_s(self, wall_unix_s: float) -> float | None:
        """The time of the cluster's clock now, as far as it is known; a virtual clock's stands until the next report.

        Args:
            wall_unix_s: now.
        """
        told = [] if self.status is None or not self.status.acting else [self.status.cluster_time_s]
        clock = self.clock
        if clock is not None:
            runs = clock.mode is not ClockMode.VIRTUAL and not clock.paused
            passed_s = max(wall_unix_s - self._described_unix_s, 0.0) * clock.scale if runs else 0.0
            told.append(clock.time_s + passed_s)
        return max(told, default=None)

    def time_then_s(self, then_unix_s: float, wall_unix_s: float) -> float | None:
        """The time of the cluster's clock at an earlier wall time, as if it had run evenly since; None: not known.

        Args:
            then_unix_s: the earlier time.
            wall_unix_s: now.
        """
        now_s = self.time_s(wall_unix_s)
        scale = 1.0 if self.clock is None else self.clock.scale
        return None if now_s is None else now_s - (wall_unix_s - then_unix_s) * scale

    @property
    def clock(self) -> Clock | None:
        """The cluster's clock."""
        return None if self.described is None else self.described.clock

    @property
    def capabilities(self) -> Capabilities:
        """What the cluster offers."""
        found = None if self.described is None else self.described.capabilities
        return found or Capabilities()

    @property
    def event_lag(self) -> EventLag | None:
        """How far the orchestrator is behind the cluster; None: it does not act, or does not answer."""
        return self.status.event_lag if self.status is not None and self.status_live else None

    @property
    def lost_gpu_ids(self) -> Sequence[str]:
        """The GPUs that the cluster has lost."""
        return () if self.described is None else self.described.lost_gpu_ids

    @property
    def drained_node_ids(self) -> Sequence[str]:
        """The nodes that take no new jobs."""
        return () if self.status is None else self.status.drained_node_ids

    # What the services say

    def take_status(self, status: OrchestratorStatus) -> None:
        """The orchestrator's status."""
        if status != self.status or not self.status_live:
            self.status, self.status_live = status, True
            self.version["status"] += 1

    def lose_status(self) -> None:
        """The orchestrator answers no more: its last word is no figure of now."""
        if self.status_live:
            self.status_live = False
            self.version["status"] += 1

    def take_description(self, described: ClusterDescription, wall_unix_s: float) -> None:
        """The cluster's own description, as of a moment."""
        self.described, self._described_unix_s = described, wall_unix_s
        self.version["described"] += 1
        self.take_cluster(described.cluster)

    def take_cluster(self, cluster: Cluster) -> None:
        """The cluster's nodes and GPUs."""
        if cluster != self.cluster:
            self.cluster, self.layout = cluster, Layout.of(cluster)
            self.version["cluster"] += 1

    def take_state(self, state: ClusterPlanes) -> None:
        """The matrix of the GPUs."""
        self.state = state
        self.version["state"] += 1

    def take_readings(self, newest: TelemetryBlock) -> None:
        """The newest raw values of some GPUs."""
        self.readings = readings_of(newest)
        self.version["readings"] += 1

    def take_details(self, asked: Collection[str], found: Iterable[Job]) -> None:
        """All of the jobs that somebody follows: those asked for that are not found do not exist."""
        self.details = {job.job_id: job for job in found}
        self.details_known = frozenset(asked)
        self.version["details"] += 1

    def take_detail(self, job: Job) -> None:
        """All of a job that somebody follows, after a change."""
        self.details[job.job_id] = job
        self.version["details"] += 1

    def take_decisions(self, decisions: Iterable[Decision], *, anew: bool = False) -> None:
        """New decisions, oldest first.

        Args:
            decisions: those that follow the known ones.
            anew: a stream of them begins: what was decided between the known ones and these is not known, so that
                they are forgotten. A list without a hole can be continued with older ones.
        """
        if anew:
            self.decisions.clear()
        known = {each.decision_id for each in self.decisions}
        for decision in decisions:
            if decision.decision_id not in known:
                self.decisions.appendleft(decision)
        self.decisions_known = True
        self.version["decisions"] += 1

    def begin_snapshot(self, since_s: float = 0.0) -> None:
        """The jobs follow in their present state, up to `end_snapshot`: all that had not ended at a time."""
        self._snapshot = set()
        self.jobs.known_since_s = since_s

    def take_job(self, job: Job) -> None:
        """A job in its present state; after the snapshot, a state that is older than the known one is passed over."""
        if self._snapshot is not None:
            self._snapshot.add(job.job_id)
        self.jobs.take(job, newest=self._snapshot is not None)

    def end_snapshot(self) -> None:
        """All jobs have been told: the others exist no more."""
        if self._snapshot is not None:
            self.jobs.drop_except(self._snapshot)
            self._snapshot = None
        if not self.jobs_complete:
            self.jobs_complete = True
            self.version["complete"] += 1

    def forget(self) -> None:
        """Nobody has told anything for a while: nothing is known until it is told again, but the cluster's nodes."""
        self.jobs.drop_except(())
        self.jobs_complete, self._snapshot = False, None
        self.status, self.status_live, self.described, self.state = None, False, None, None
        self.readings, self.decisions_known = {}, False
        self.decisions.clear()
        self.take_details((), ())
        for part in self.version:
            self.version[part] += 1

    # What is derived for all viewers

    def _once(self, name: str, make: Callable[[], T], *parts: str) -> T:
        """What is made of some parts, made again only after a change of one of them."""
        stamp = self.stamp(*parts)
        known = self._made.get(name)
        if known is None or known[0] != stamp:
            known = self._made[name] = (stamp, make())
        found: T = known[1]
        return found

    def state_plane(self) -> Plane:
        """What each GPU is doing, one byte each; not to be changed."""
        return self._once("state", self._made_state, "jobs", "status", "described", "cluster", "state")

    def metric_planes(self) -> dict[str, Plane]:
        """Each metric as one byte a GPU, 0..254 for 0..1; in the cluster's order."""
        return self._once("metrics", self._made_planes, "state", "cluster")

    def holders_of(self, user: str) -> Mapping[str, tuple[str, ...]]:
        """The jobs of one user that have each GPU now, by GPU."""
        return self._once("holders", self._made_holders, "jobs").get(user, {})

    def usable_ids(self) -> frozenset[str]:
        """The GPUs that are neither lost nor on a drained node."""
        return self._once("usable", self._made_usable, "status", "described", "cluster")

    def _made_holders(self) -> dict[str, dict[str, tuple[str, ...]]]:
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for gpu_id, holders in self.jobs.holders.items():
            for job_id in holders:
                job = self.jobs.get(job_id)
                if job is not None:
                    mine = found.setdefault(job.spec.user, {})
                    mine[gpu_id] = (*mine.get(gpu_id, ()), job_id)
        return found

    def _made_usable(self) -> frozenset[str]:
        lost, drained, layout = set(self.lost_gpu_ids), set(self.drained_node_ids), self.layout
        return frozenset(each for each in layout.gpu_ids if each not in lost and layout.node_of[each] not in drained)

    def _made_state(self) -> Plane:
        layout, index = self.layout, self.layout.index
        plane = np.zeros(len(layout.gpu_ids), np.uint8)
        for gpu_id, holders in self.jobs.holders.items():
            if gpu_id in index:
                plane[index[gpu_id]] = ALLOCATED if len(holders) == 1 else SHARED
        drained = {number for number, node in enumerate(layout.nodes) if node in set(self.drained_node_ids)}
        if drained:
            of_drained = np.isin(np.array(layout.node), list(drained))
            plane[of_drained & (plane == IDLE)] = DRAINED_IDLE
            plane[of_drained & ((plane == ALLOCATED) | (plane == SHARED))] = DRAINED_ALLOCATED
        for gpu_id in self.lost_gpu_ids:
            if gpu_id in index:
                plane[index[gpu_id]] = LOST
        for gpu_id, drift in ({} if self.state is None else self.state.drifts).items():
            if drift.flagged and gpu_id in index:
                plane[index[gpu_id]] |= DRIFTS
        return plane

    def _made_planes(self) -> dict[str, Plane]:
        count = len(self.layout.gpu_ids)
        planes = {metric.name.lower(): np.full(count, NOT_REPORTED, np.uint8) for metric in METRICS}
        if self.state is None:
            return planes
        told = tuple(gpu_id for gpu_id, _, _ in self.state.gpus)
        same = told == self.layout.gpu_ids
        where = [self.layout.index.get(gpu_id, -1) for gpu_id in told] if not same else []
        for metric, plane in self.state.planes.items():
            values = np.asarray(plane, np.float64)
            known = np.isfinite(values)
            levels = np.full(len(values), NOT_REPORTED, np.uint8)
            levels[known] = np.rint(np.clip(values[known], 0.0, 1.0) * 254.0).astype(np.uint8)
            if same:
                planes[metric.name.lower()] = levels
            else:
                for number, level in zip(where, levels, strict=False):
                    if number >= 0:
                        planes[metric.name.lower()][number] = level
        return planes
