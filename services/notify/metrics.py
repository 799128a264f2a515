"""notify's metrics: adlro_notify_*."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from adlro.kit.metrics import OnLoop, WhenScraped

_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

Waiting = dict[str, tuple[int, int]]


class NotifyMetrics:
    """Counters of this process; the outbox has those of all times.

    Args:
        registry: registers them.
        waiting: by webhook, the number and bytes of the messages that wait; called on the loop.
    """

    def __init__(self, registry: CollectorRegistry, waiting: Callable[[], Waiting]) -> None:
        self.events = Counter("adlro_notify_events", "events noted", ["event"], registry=registry)
        self.delivered = Counter("adlro_notify_delivered", "messages delivered", ["webhook"], registry=registry)
        self.failed_tries = Counter("adlro_notify_failed_tries", "tries that failed", ["webhook"], registry=registry)
        self.given_up = Counter("adlro_notify_given_up", "messages given up", ["webhook"], registry=registry)
        self.dropped = Counter("adlro_notify_dropped", "messages dropped", ["webhook"], registry=registry)
        self.answer_s = Histogram(
            "adlro_notify_answer_seconds",
            "time from a try's begin to the receiver's answer",
            ["webhook"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        nothing: Waiting = {}
        WhenScraped(OnLoop(waiting), _show, nothing, registry)

    def know(self, webhooks: Collection[str]) -> None:
        """Shows webhooks of which nothing was counted yet."""
        for webhook in webhooks:
            for counter in (self.delivered, self.failed_tries, self.given_up, self.dropped):
                counter.labels(webhook)


def _show(waiting: Waiting) -> Iterator[Metric]:
    messages = GaugeMetricFamily("adlro_notify_waiting_messages", "messages not delivered yet", labels=["webhook"])
    sizes = GaugeMetricFamily("adlro_notify_waiting_bytes", "their bytes", labels=["webhook"])
    for webhook, (count, size) in waiting.items():
        messages.add_metric([webhook], count)
        sizes.add_metric([webhook], size)
    yield messages
    yield sizes
