"""What each source of the screen is in: connecting, live, stale, away or refused. Pure records."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Feed(enum.StrEnum):
    """A source of the screen."""

    JOBS = "jobs"  # ingest's watch
    DECIDER = "decider"  # the orchestrator's status
    CLUSTER = "cluster"  # the cluster's description and clock
    GPUS = "gpus"  # decompose's matrix of the GPUs


class FeedState(enum.StrEnum):
    """Whether the data of a source can be relied on."""

    CONNECTING = "connecting"  # no data yet
    LIVE = "live"
    STALE = "stale"  # no word for too long, and no error either
    AWAY = "away"  # the service does not answer: the last data, with its age
    REFUSED = "refused"  # the caller may not read it, or the service does not have it


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The state of one source.

    Attributes:
        state: as last noted; `seen` finds stale ones.
        why: of an error, its text.
        heard_s: monotonic time of the last word; None: there was none.
        began_s: monotonic time since which the state is so.
    """

    state: FeedState = FeedState.CONNECTING
    why: str = ""
    heard_s: float | None = None
    began_s: float = 0.0

    def seen(self, now_s: float, stale_after_s: float) -> FeedState:
        """The state at a monotonic time; a live source without a word for `stale_after_s` is stale."""
        if self.state is FeedState.LIVE and self.heard_s is not None and now_s - self.heard_s > stale_after_s:
            return FeedState.STALE
        return self.state

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last word."""
        return None if self.heard_s is None else max(now_s - self.heard_s, 0.0)
