"""One cluster's course: jobs start, run and end, GPUs are lost and come back. No clock and no I/O of its own.

Event-driven: whoever drives it asks `next_event_time`, and takes the clock there with `advance_to`. It checks what a
real cluster would refuse; idempotency, tokens and attempts are the caller's (services/simcluster/runtime.py).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from adlro.cluster import Cluster, Gpu
from adlro.errors import Conflict, NotFound
from adlro.events import ClusterEvent, EventKind, RunningJob
from adlro.jobs import JobSpec
from adlro.sim.durations import PlannedRun, plan_run
from adlro.sim.gpu_metrics import GpuMetrics, MetricsSample
from adlro.sim.scenario import Scenario, load_scenario
from adlro.sim.speeds import require_speeds

_WHOLE_DIGITS = 6
"""Times of lists are taken to be whole microseconds after the origin, where they are as near to that as floats are."""


@dataclass(slots=True)
class GpuState:
    """A GPU's place in the cluster and what it does: `running` since `since_s`, or idle, or lost."""

    gpu: Gpu
    number: int
    node: int
    since_s: float
    running: RunningJob | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    job: RunningJob
    spec: JobSpec
    plan: PlannedRun
    sequence: int


class ClusterSimulator:
    """A simulated cluster at one moment of cluster time, `now_s`.

    Events come back without a revision (0): a log gives those.

    Inside, times are summed from an origin: how sums of floats are rounded, and with it which ends fall on one instant,
    would else depend on how late in cluster time it is, and a list of jobs would not go the same way twice. A list that
    begins at the origin goes exactly as it would from time 0.

    Args:
        cluster: nodes and GPUs; every GPU model must have speeds.
        scenario: where the work of jobs that state none is drawn from; `paper` where left out.
        time_s: cluster time to begin at.

    Raises:
        InvalidInput: a GPU model cannot be simulated.
    """

    def __init__(self, cluster: Cluster, *, scenario: Scenario | None = None, time_s: float = 0.0) -> None:
        require_speeds(cluster)
        self.cluster = cluster
        self.now_s = time_s
        self._origin_s = time_s
        self._elapsed_s = 0.0
        self._scenario = scenario or load_scenario("paper")
        self._metrics = GpuMetrics(cluster, time_s)
        self._cores_free = [node.cpu_cores for node in cluster.nodes]
        self._memory_free_mib = [node.memory_mib for node in cluster.nodes]
        places = ((n, gpu) for n, node in enumerate(cluster.nodes) for gpu in node.gpus)
        self._gpus = {gpu.gpu_id: GpuState(gpu, number, node, time_s) for number, (node, gpu) in enumerate(places)}
        self._running: dict[str, _Run] = {}
        # (end after the origin, sequence of the launch, job id). A run that was ended early stays until its time and is
        # passed over.
        self._ends: list[tuple[float, int, str]] = []
        self._sequence = itertools.count()

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """What runs, in the order of the launches."""
        return tuple(run.job for run in self._running.values())

    @property
    def gpus(self) -> Mapping[str, GpuState]:
        """Every GPU by its id, in the order of their numbers. For reading."""
        return self._gpus

    @property
    def lost_gpu_ids(self) -> tuple[str, ...]:
        """GPUs that were taken away."""
        return tuple(gpu_id for gpu_id, state in self._gpus.items() if state.lost)

    def running_job(self, job_id: str) -> RunningJob | None:
        """The attempt of a job that runs now."""
        run = self._running.get(job_id)
        return run.job if run is not None else None

    def sample(self, time_s: float) -> MetricsSample:
        """What the GPUs report at a time between now and the next event."""
        return self._metrics.sample(time_s)

    def launch(self, job_id: str, attempt: int, spec: JobSpec, gpu_id: str) -> ClusterEvent:
        """Starts a job now.

        Raises:
            NotFound: no such GPU.
            Conflict: GPU_LOST, GPU_BUSY, GPU_MEMORY_TOO_SMALL, NODE_CORES_EXHAUSTED, NODE_MEMORY_EXHAUSTED or
                JOB_RUNNING; the message has the figures.
        """
        state = self._gpu(gpu_id)
        self._check_fit(job_id, spec, state)
        plan = plan_run(job_id, spec, state.gpu.gpu_model, self._scenario)
        job = RunningJob(job_id, attempt, gpu_id, self.now_s)
        run = _Run(job, spec, plan, next(self._sequence))
        self._running[job_id] = run
        heapq.heappush(self._ends, (self._elapsed_s + plan.duration_s, run.sequence, job_id))
        state.running, state.since_s = job, self.now_s
        self._cores_free[state.node] -= spec.cpu_cores
        self._memory_free_mib[state.node] -= spec.memory_mib
        self._metrics.start_job(state.number, self.now_s, job_id, spec)
        return self._event(EventKind.STARTED, job)

    def stop(self, job_id: str, message: str = "stopped") -> ClusterEvent | None:
        """Ends a job now; None where it does not run."""
        run = self._running.get(job_id)
        return None if run is None else self._end(run, EventKind.STOPPED, message)

    def lose_gpu(self, gpu_id: str) -> list[ClusterEvent]:
        """Takes a GPU away now: GPU_LOST, then LOST of the job that ran there. Nothing where it is lost already.

        Raises:
            NotFound: no such GPU.
        """
        state = self._gpu(gpu_id)
        if state.lost:
            return []
        events = [ClusterEvent(0, EventKind.GPU_LOST, self.now_s, gpu_id=gpu_id)]
        if state.running is not None:
            events.append(self._end(self._running[state.running.job_id], EventKind.LOST, f"GPU {gpu_id} was lost"))
        state.lost, state.since_s = True, self.now_s
        self._metrics.lose(state.number, self.now_s)
        return events

    def restore_gpu(self, gpu_id: str) -> list[ClusterEvent]:
        """Gives a lost GPU back now: GPU_BACK. Nothing where it is not lost.

        Raises:
            NotFound: no such GPU.
        """
        state = self._gpu(gpu_id)
        if not state.lost:
            return []
        state.lost, state.since_s = False, self.now_s
        self._metrics.restore(state.number, self.now_s)
        return [ClusterEvent(0, EventKind.GPU_BACK, self.now_s, gpu_id=gpu_id)]

    def next_event_time(self) -> float | None:
        """When the next job ends; None where nothing runs."""
        while self._ends:
            end_s, sequence, job_id = self._ends[0]
            run = self._running.get(job_id)
            if run is not None and run.sequence == sequence:
                # Rounded to what floats can tell apart at this time: never before now.
                return max(self._origin_s + end_s, self.now_s)
            heapq.heappop(self._ends)
        return None

    def set_origin(self) -> None:
        """Counts from the next whole second on, where nothing runs; else nothing changes."""
        if not self._running:
            self._ends.clear()
            self._origin_s = float(math.ceil(self.now_s))
            self._elapsed_s = self._after_origin_s(self.now_s)

    def advance_to(self, time_s: float) -> list[ClusterEvent]:
        """Goes to a time; returns what happens at that instant, in the order of the launches.

        More may happen at the same time: `next_event_time` says so.

        Raises:
            ValueError: the time has passed, or an event comes before it.
        """
        if time_s < self.now_s:
            raise ValueError(f"cluster time cannot go back from {self.now_s} s to {time_s} s")
        next_s = self.next_event_time()
        if next_s is not None and next_s < time_s:
            raise ValueError(f"an event at {next_s} s comes before {time_s} s: go there first")
        if next_s is None or next_s > time_s:
            if time_s > self.now_s:
                self.now_s, self._elapsed_s = time_s, self._after_origin_s(time_s)
            return []
        # Ends that only floats of this size can't tell apart are instants of their own; the caller comes back for them.
        self.now_s = time_s
        self._elapsed_s = self._ends[0][0]
        events = []
        while self.next_event_time() is not None and self._ends[0][0] == self._elapsed_s:
            run = self._running[heapq.heappop(self._ends)[2]]
            events.append(self._end(run, run.plan.kind, run.plan.message))
        return events

    def _after_origin_s(self, time_s: float) -> float:
        elapsed_s = time_s - self._origin_s
        whole_s = round(elapsed_s, _WHOLE_DIGITS)
        return whole_s if self._origin_s + whole_s == time_s else elapsed_s

    def _end(self, run: _Run, kind: EventKind, message: str) -> ClusterEvent:
        job = run.job
        del self._running[job.job_id]
        state = self._gpus[job.gpu_id]
        state.running, state.since_s = None, self.now_s
        self._cores_free[state.node] += run.spec.cpu_cores
        self._memory_free_mib[state.node] += run.spec.memory_mib
        self._metrics.end_job(state.number, self.now_s)
        return self._event(kind, job, message)

    def _event(self, kind: EventKind, job: RunningJob, message: str = "") -> ClusterEvent:
        return ClusterEvent(0, kind, self.now_s, job.job_id, job.attempt, job.gpu_id, message)

    def _gpu(self, gpu_id: str) -> GpuState:
        state = self._gpus.get(gpu_id)
        if state is None:
            example = next(iter(self._gpus))
            raise NotFound(
                f"cluster '{self.cluster.name}' has no GPU '{gpu_id}'; DescribeCluster (or `adlro gpus`) lists its "
                f"{len(self._gpus)} GPUs, such as '{example}'",
                field="gpu_id",
                reason="UNKNOWN_GPU",
                metadata={"gpu_id": gpu_id},
            )
        return state

    def _check_fit(self, job_id: str, spec: JobSpec, state: GpuState) -> None:
        gpu_id, node = state.gpu.gpu_id, self.cluster.nodes[state.node]
        earlier = self._running.get(job_id)
        if earlier is not None:
            raise _refused(
                "JOB_RUNNING", f"{job_id} runs on {earlier.job.gpu_id} already, attempt {earlier.job.attempt}"
            )
        if state.lost:
            raise _refused("GPU_LOST", f"GPU {gpu_id} is lost")
        if state.running is not None:
            raise _refused("GPU_BUSY", f"GPU {gpu_id} runs {state.running.job_id}")
        if spec.gpu_memory_mib > state.gpu.memory_mib:
            raise _refused(
                "GPU_MEMORY_TOO_SMALL",
                f"GPU {gpu_id} has {state.gpu.memory_mib} MiB, {job_id} needs {spec.gpu_memory_mib} MiB",
            )
        if spec.cpu_cores > self._cores_free[state.node]:
            raise _refused(
                "NODE_CORES_EXHAUSTED",
                f"node {node.node_id} has {self._cores_free[state.node]} of {node.cpu_cores} CPU cores free, "
                f"{job_id} needs {spec.cpu_cores}",
            )
        if spec.memory_mib > self._memory_free_mib[state.node]:
            raise _refused(
                "NODE_MEMORY_EXHAUSTED",
                f"node {node.node_id} has {self._memory_free_mib[state.node]} of {node.memory_mib} MiB free, "
                f"{job_id} needs {spec.memory_mib} MiB",
            )


def _refused(reason: str, message: str) -> Conflict:
    return Conflict(message, reason=reason)
