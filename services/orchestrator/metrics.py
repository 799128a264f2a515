"""The orchestrator's own metrics. Knows prometheus_client and plain records; `instrumented` calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from adlro.kit.metrics import WhenScraped
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobState, JobType
from adlro.records.status import EventLag

# Six buckets per decade, from a second to twelve days: quantiles are interpolated between them.
CLUSTER_TIME_BUCKETS_S = (*(step * 10.0**power for power in range(6) for step in (1, 1.5, 2, 3, 5, 7)), 1e6)


class OrchestratorMetrics:
    """Counters and gauges of one process.

    Args:
        registry: the registry of the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.acting = Gauge("adlro_orchestrator_acting", "1 while this instance places jobs", registry=registry)
        self.fencing_token = Gauge(
            "adlro_orchestrator_fencing_token", "token of the last lease that this instance took", registry=registry
        )
        self.queue_length = Gauge("adlro_orchestrator_queue_length_jobs", "jobs that wait for a GPU", registry=registry)
        self.running = Gauge("adlro_orchestrator_running_jobs", "jobs launched or running", registry=registry)
        self.sessions = Counter("adlro_orchestrator_sessions", "acting sessions begun", registry=registry)
        self.failed_sessions = Counter(
            "adlro_orchestrator_failed_sessions", "acting sessions that failed, by what failed", ["cause"],
            registry=registry,
        )  # fmt: skip
        for cause in ("superseded", "redis", "cluster", "bug"):
            self.failed_sessions.labels(cause)
        self.prediction_fallbacks = Counter(
            "adlro_orchestrator_prediction_fallbacks", "predictions made without decompose", registry=registry
        )
        self.unreadable = Counter(
            "adlro_unreadable_records", "records in Redis that could not be read, each counted once", registry=registry
        )
        self.decision_s = Histogram(
            "adlro_orchestrator_decision_seconds",
            "time of one policy call, observation included",
            buckets=(25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25),
            registry=registry,
        )
        self.placements = Counter(
            "adlro_orchestrator_placements", "attempts written down to be launched", ["gpu_model"], registry=registry
        )
        self.repeated_placements = Counter(
            "adlro_orchestrator_repeated_placements", "those of jobs whose attempt before was lost", registry=registry
        )
        self.preempted = Counter(
            "adlro_orchestrator_preempted", "attempts that were stopped for another job", ["gpu_model"],
            registry=registry,
        )  # fmt: skip
        self.launches = Counter(
            "adlro_orchestrator_launches",
            "launches asked of the cluster: accepted, refused, stale_token, unanswered",
            ["result"],
            registry=registry,
        )
        for result in ("accepted", "refused", "stale_token", "unanswered"):
            self.launches.labels(result)
        self.launch_s = Histogram(
            "adlro_orchestrator_launch_seconds",
            "time until the cluster answered a launch",
            buckets=(5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 2.0, 10.0),
            registry=registry,
        )
        self.ended = Counter(
            "adlro_orchestrator_ended_jobs", "jobs that reached a final state", ["job_type", "state"], registry=registry
        )
        self.jct_s = Histogram(
            "adlro_orchestrator_jct_seconds",
            "cluster time from a job's submission to its end, of jobs that succeeded",
            ["job_type"],
            buckets=CLUSTER_TIME_BUCKETS_S,
            registry=registry,
        )
        self.waiting_s = Histogram(
            "adlro_orchestrator_waiting_seconds",
            "cluster time from a job's submission to the start of its first attempt",
            ["job_type"],
            buckets=CLUSTER_TIME_BUCKETS_S,
            registry=registry,
        )
        for job_type in JobType:  # rate() misses the first event of a series that begins with it
            self.jct_s.labels(job_type.label)
            self.waiting_s.labels(job_type.label)
            for state in (state for state in JobState if state.final):
                self.ended.labels(job_type.label, state.name.lower())

        self.guard_fallbacks = Counter(
            "adlro_orchestrator_guard_fallbacks",
            "decisions of hold_gang in the acting policy's place",
            ["reason"],
            registry=registry,
        )
        for reason in DecisionBasis:
            if reason.fallback:
                self.guard_fallbacks.labels(str(reason))
        self.overdue = Counter(
            "adlro_orchestrator_overdue_decisions",
            "decisions in which a job that had waited too long changed what was done",
            registry=registry,
        )
        self.checkpoints = Counter("adlro_orchestrator_checkpoints", "checkpoints read", ["outcome"], registry=registry)
        for outcome in ("loaded", "refused"):
            self.checkpoints.labels(outcome)
        self.stored_decisions = Counter(
            "adlro_orchestrator_stored_decisions", "decisions written to the store", registry=registry
        )
        self.unstored_decisions = Counter(
            "adlro_orchestrator_unstored_decisions", "decisions that were not written to the store", ["cause"],
            registry=registry,
        )  # fmt: skip
        self.shadow_decisions = Counter(
            "adlro_orchestrator_shadow_decisions",
            "decisions shown to the policy in the shadow",
            ["outcome"],
            registry=registry,
        )

    def count_fallback(self, reason: DecisionBasis) -> None:
        """Counts a decision by the fallback."""
        self.guard_fallbacks.labels(str(reason)).inc()

    def count_checkpoint(self, used: bool) -> None:
        """Counts a checkpoint that was read."""
        self.checkpoints.labels("loaded" if used else "refused").inc()

    def declare_unstored_causes(self, causes: Iterable[str]) -> None:
        """Creates each cause's series, so that rate() works from its first decision on."""
        for cause in causes:
            self.unstored_decisions.labels(cause)

    def count_stored(self, count: int) -> None:
        """Counts decisions that were written to the store."""
        self.stored_decisions.inc(count)

    def count_unstored(self, cause: str, count: int) -> None:
        """Counts decisions that were not."""
        self.unstored_decisions.labels(cause).inc(count)

    def declare_shadow_outcomes(self, outcomes: Iterable[str]) -> None:
        """Creates each outcome's series, so that rate() works from its first decision on."""
        for outcome in outcomes:
            self.shadow_decisions.labels(outcome)

    def count_shadow(self, outcome: str) -> None:
        """Counts an answer of the shadow policy."""
        self.shadow_decisions.labels(outcome).inc()

    def observe_decision(self, took_s: float) -> None:
        """Records the duration of a policy call."""
        self.decision_s.observe(took_s)


class GpuReading(NamedTuple):
    """One GPU in the ledger."""

    gpu_id: str
    node_id: str
    gpu_model: str
    occupied: bool
    lost: bool
    drained: bool


class View(NamedTuple):
    """The exported state of an orchestrator; a standby has no GPUs.

    Attributes:
        policy: the acting policy.
        gpus: the cluster's GPUs.
        cluster_time_s: cluster time of the last event.
        oldest_wait_s: waiting time of the first job of the queue, in cluster time; 0 without a queue.
        event_lag: how far it is behind the cluster.
    """

    policy: str
    gpus: Sequence[GpuReading]
    cluster_time_s: float
    oldest_wait_s: float
    event_lag: EventLag


def show_view(view_of: Callable[[], View], registry: CollectorRegistry) -> None:
    """Exports GPUs, policy and clock at the moment of each scrape."""
    WhenScraped(view_of, _metrics_of_view, View("", (), 0.0, 0.0, EventLag(0, 0.0, 0)), registry)


def _metrics_of_view(view: View) -> Iterator[Metric]:
    policy = GaugeMetricFamily("adlro_orchestrator_policy_info", "1; the policy that decides", labels=["policy"])
    if view.policy:
        policy.add_metric([view.policy], 1)
    yield policy
    yield GaugeMetricFamily("adlro_orchestrator_cluster_time_seconds", "cluster time now", value=view.cluster_time_s)
    yield GaugeMetricFamily(
        "adlro_orchestrator_oldest_wait_seconds",
        "cluster time for which the first job of the queue has waited",
        value=view.oldest_wait_s,
    )
    yield GaugeMetricFamily(
        "adlro_orchestrator_unapplied_events",
        "events of the cluster that this instance knows of and has not applied",
        value=view.event_lag.unapplied_count,
    )
    yield GaugeMetricFamily(
        "adlro_orchestrator_oldest_unapplied_event_seconds",
        "wall time for which the oldest of them has been known; 0: there is none",
        value=view.event_lag.oldest_unapplied_s,
    )
    labels = ["gpu_id", "node_id", "gpu_model"]
    occupied = GaugeMetricFamily("adlro_orchestrator_gpu_occupied", "1 while a job holds the GPU", labels=labels)
    lost = GaugeMetricFamily("adlro_orchestrator_gpu_lost", "1 while the cluster lacks the GPU", labels=labels)
    counts: dict[tuple[str, str], int] = {}
    for gpu in view.gpus:
        names = [gpu.gpu_id, gpu.node_id, gpu.gpu_model]
        occupied.add_metric(names, gpu.occupied)
        lost.add_metric(names, gpu.lost)
        for state in ("occupied", "idle", "drained", "lost"):
            counts.setdefault((gpu.gpu_model, state), 0)
        state = "lost" if gpu.lost else "occupied" if gpu.occupied else "drained" if gpu.drained else "idle"
        counts[gpu.gpu_model, state] += 1
    yield occupied
    yield lost
    gpus = GaugeMetricFamily(
        "adlro_orchestrator_gpus",
        "GPUs: lost, else occupied, else drained with their node, else idle",
        labels=["gpu_model", "state"],
    )
    for key, count in counts.items():
        gpus.add_metric(key, count)
    yield gpus
