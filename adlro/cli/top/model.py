"""What `adlro top` knows: the client's records, put together. No terminal, no network, no clock: times are passed in.

Events of a job may come in any order and more than once: the newest revision counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from adlro.cli.top.feed_states import Feed, FeedState, FeedStatus
from adlro.cli.top.gpu_cells import Figures, GpuCell, gpu_cells, gpu_figures, plane_figures
from adlro.cli.top.job_rows import Expected, JobEntry, Moment, StartForecast, holds_gpus
from adlro.records.capacity import ClusterCapacity
from adlro.records.cluster import Cluster
from adlro.records.events import ClockMode, ClusterDescription
from adlro.records.identity import Identity
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import ClusterPlanes, ClusterState
from adlro.records.status import EventLag, OrchestratorStatus
from adlro.records.watching import JobEvent, JobEventKind

_MOST_ENDED = 200_000
"""Jobs whose end is remembered, so that an old event does not bring one back."""


class TopModel:
    """The jobs, the GPUs, who decides, and how much of that is known.

    Attributes:
        entries: the open jobs by id.
        status: of the acting orchestrator; None: not known yet.
        description: of the cluster; None: not known yet.
        state: what the GPUs report, in full or in short; None: not known yet.
        capacity: what is free, for a caller who may not see the rest; None: not asked for.
        identity: of the caller; None: not asked for.
        own_view_problem: why neither is newly known, nor when his jobs start; empty: they are.
        expected: runtimes by job, where they were asked for.
        starts: forecasts of the starts of waiting jobs, where they were asked for.
        ended: jobs that ended since the begin, by state.
        version: changes with each record that is taken; `jobs_version` with those of jobs.
    """

    def __init__(self) -> None:
        self.entries: dict[str, JobEntry] = {}
        self.status: OrchestratorStatus | None = None
        self.description: ClusterDescription | None = None
        self.cluster: Cluster | None = None
        self.state: ClusterState | ClusterPlanes | None = None
        self.capacity: ClusterCapacity | None = None
        self.identity: Identity | None = None
        self.own_view_problem = ""
        self.expected: dict[str, Expected] = {}
        self.starts: dict[str, StartForecast] = {}
        self.ended: Counter[JobState] = Counter()
        self.version = 0
        self.jobs_version = 0
        self.feeds = {feed: FeedStatus() for feed in Feed}
        self.jobs_complete = False
        self.jobs_revision: int | None = None
        self._gone: dict[str, int] = {}
        self._snapshot: dict[str, Job] | None = None
        self._time: tuple[float, float] | None = None
        self._figures: tuple[object, object, dict[str, Figures]] = (None, None, {})
        self._cells: tuple[int, list[GpuCell]] = (-1, [])

    # Sources

    def heard(self, feed: Feed, now_s: float) -> None:
        """A source has spoken."""
        before = self.feeds[feed]
        began_s = before.began_s if before.state is FeedState.LIVE else now_s
        self.feeds[feed] = FeedStatus(FeedState.LIVE, "", now_s, began_s)

    def failed(self, feed: Feed, why: str, now_s: float, *, refused: bool = False) -> None:
        """A source can't be read; its last data stay."""
        state = FeedState.REFUSED if refused else FeedState.AWAY
        before = self.feeds[feed]
        began_s = before.began_s if before.state is state else now_s
        self.feeds[feed] = FeedStatus(state, why, before.heard_s, began_s)

    @property
    def own_jobs_only(self) -> bool:
        """Whether the caller sees only his own jobs: the services refuse him what is of all."""
        return self.feeds[Feed.DECIDER].state is FeedState.REFUSED and self.status is None

    # Records

    def begin_jobs(self) -> None:
        """A snapshot of the open jobs follows: at its end, what it did not have is gone."""
        self._snapshot = {}

    def take_job(self, event: JobEvent) -> None:
        """A job's state, in the order in which it came or in another one."""
        if event.kind is JobEventKind.SNAPSHOT_END:
            self._end_snapshot(event.revision)
        elif event.job is not None:
            if event.kind is JobEventKind.SNAPSHOT:
                self._snapshot = {} if self._snapshot is None else self._snapshot
                self._snapshot[event.job.job_id] = event.job
            if event.kind is JobEventKind.CHANGE:
                self.jobs_revision = max(self.jobs_revision or 0, event.revision)
            self._take(event.job)
        self.version += 1
        self.jobs_version += 1

    def _take(self, job: Job) -> None:
        known = self.entries.get(job.job_id)
        newest = known.job.revision if known is not None else self._gone.get(job.job_id, -1)
        if job.revision < newest or (known is None and job.revision == newest):
            return
        if job.state.final:
            if job.job_id not in self._gone:
                self.ended[job.state] += 1
            self._forget(job.job_id, job.revision)
        else:
            self.entries[job.job_id] = JobEntry(job)
            if known is not None and known.job.attempt_count != job.attempt_count:
                self.expected.pop(job.job_id, None)
            if job.state is not JobState.PENDING:
                self.starts.pop(job.job_id, None)

    def _forget(self, job_id: str, revision: int) -> None:
        self.entries.pop(job_id, None)
        self.expected.pop(job_id, None)
        self.starts.pop(job_id, None)
        self._gone[job_id] = revision
        while len(self._gone) > _MOST_ENDED:
            del self._gone[next(iter(self._gone))]

    def _end_snapshot(self, revision: int) -> None:
        seen, self._snapshot = {} if self._snapshot is None else self._snapshot, None
        if self.jobs_revision is not None and revision < self.jobs_revision:
            # The store lost its last changes: what came after them never was.
            self._gone.clear()
            self.entries = {job_id: JobEntry(job) for job_id, job in seen.items()}
        for job_id in [each for each in self.entries if each not in seen]:
            self._forget(job_id, self.entries[job_id].job.revision)
        self.jobs_revision = revision
        self.jobs_complete = True

    def take_status(self, status: OrchestratorStatus, now_s: float) -> None:
        """The orchestrator's state at a monotonic time."""
        self.status = status
        if status.cluster_connected:
            # Its time is that of the last event that it heard of, however long ago: only news counts.
            known_s = self.moment(now_s, 0.0).cluster_s
            if known_s is None or status.cluster_time_s > known_s:
                self._time = (status.cluster_time_s, now_s)
        self.version += 1

    def take_description(self, description: ClusterDescription, now_s: float) -> None:
        """The cluster's own description at a monotonic time."""
        self.description = description
        if description.cluster != self.cluster:
            self.cluster = description.cluster
        self._time = (description.clock.time_s, now_s)
        self.version += 1

    def take_gpus(self, state: ClusterState | ClusterPlanes) -> None:
        """What the GPUs report."""
        self.state = state
        self.version += 1

    def take_capacity(self, capacity: ClusterCapacity, identity: Identity | None) -> None:
        """What a caller who sees only his own jobs may know besides."""
        self.capacity = capacity
        self.identity = identity
        self.version += 1

    def take_starts(self, found: Mapping[str, StartForecast]) -> None:
        """Forecasts of starts by job."""
        self.starts.update({job_id: each for job_id, each in found.items() if job_id in self.entries})
        self.version += 1

    def take_expected(self, found: Mapping[str, Expected]) -> None:
        """Expected runtimes by job."""
        self.expected.update({job_id: each for job_id, each in found.items() if job_id in self.entries})
        self.version += 1

    # What is said of it

    @property
    def event_lag(self) -> EventLag | None:
        """How far the orchestrator says that it is behind the cluster; None: not known, or it does not say."""
        return self.status.event_lag if self.status is not None else None

    def moment(self, now_s: float, unix_s: float) -> Moment:
        """Now, in cluster time and in wall time."""
        if self._time is None:
            return Moment(None, unix_s)
        time_s, taken_s = self._time
        clock = self.description.clock if self.description is not None else None
        if clock is None or clock.paused or clock.mode is ClockMode.VIRTUAL:
            return Moment(time_s, unix_s)
        speed = clock.scale if clock.mode is ClockMode.SCALED else 1.0
        # A cluster that does not answer is not taken to go on.
        return Moment(time_s + min(max(now_s - taken_s, 0.0), 10.0) * speed, unix_s)

    def waiting_by_reason(self) -> Counter[str]:
        """Numbers of waiting jobs by the name of the reason."""
        return Counter(entry.waits_for or "waiting" for entry in self.entries.values() if entry.waiting)

    def count(self, state: JobState) -> int:
        """Open jobs in a state."""
        return sum(entry.job.state is state for entry in self.entries.values())

    def cells(self) -> list[GpuCell]:
        """The GPUs, in the cluster's order; empty where the cluster or its jobs are not known."""
        if self._cells[0] != self.version:
            self._cells = (self.version, self._made_cells())
        return self._cells[1]

    def _made_cells(self) -> list[GpuCell]:
        if self.cluster is None or not self.jobs_complete or self.own_jobs_only:
            return []
        jobs_on: dict[str, list[str]] = {}
        for entry in self.entries.values():
            if holds_gpus(entry.job):
                for gpu_id in entry.job.placement.gpu_ids:
                    jobs_on.setdefault(gpu_id, []).append(entry.job.job_id)
        lost: dict[str, str] = {}
        if self.description is not None:
            lost = dict.fromkeys(self.description.lost_gpu_ids, "lost")
            lost |= {each.gpu_id: each.reason for each in self.description.gpu_conditions}
        drained: dict[str, str] = {}
        if self.status is not None:
            reasons = self.status.drain_reasons
            drained = {node_id: reasons.get(node_id, "") for node_id in self.status.drained_node_ids}
        return gpu_cells(self.cluster, self._known_figures(self.cluster), jobs_on, lost, drained)

    def _known_figures(self, cluster: Cluster) -> dict[str, Figures]:
        """Of the GPUs' newest state; made once for each of them."""
        of, by, figures = self._figures
        if of is not self.state or by is not cluster:
            if isinstance(self.state, ClusterPlanes):
                figures = plane_figures(self.state, cluster)
            else:
                figures = gpu_figures(self.state) if self.state is not None else {}
            self._figures = (self.state, cluster, figures)
        return figures

    def waiting_of(self, job_ids: Iterable[str]) -> list[str]:
        """Of these jobs those that wait."""
        return [each for each in job_ids if (entry := self.entries.get(each)) is not None and entry.waiting]

    def unasked(self, job_ids: Iterable[str]) -> list[Job]:
        """Of these jobs the running ones whose runtime nobody has asked for."""
        found = []
        for job_id in job_ids:
            entry = self.entries.get(job_id)
            if entry is not None and entry.job.state is JobState.RUNNING and job_id not in self.expected:
                found.append(entry.job)
        return found


def told_runtime(job: Job) -> Expected | None:
    """The runtime that a job's user expects on the GPU model where it runs; None: he said nothing of it."""
    told = job.spec.expected_runtime
    if told is None or told.gpu_model != job.gpu_model:
        return None
    return Expected(told.runtime_s, told.runtime_s, told.runtime_s, told=True)
