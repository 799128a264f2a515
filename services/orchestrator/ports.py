"""What the orchestrator needs of others, without saying how they are reached; `clients` has both over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from adlro.placement import Placement
from adlro.records.events import AttemptState, Clock, ClusterDescription, EventBatch
from adlro.records.jobs import JobSpec
from adlro.state.observation import Floats

# Reasons by which a cluster refuses whoever's lease is not the newest.
REFUSED_TOKEN = frozenset(("STALE_FENCING_TOKEN", "UNKNOWN_FENCING_TOKEN"))


class Launched(NamedTuple):
    """A launch was accepted.

    Attributes:
        revision: of its start; 0: that is to come.
        state: how far the attempt had come when this was answered; None: the cluster does not say.
    """

    revision: int
    state: AttemptState | None = None


class ClusterPort(Protocol):
    """A cluster that runs jobs. Every call raises `adlro.errors.AdlroError`, as the cluster answers."""

    async def describe(self) -> ClusterDescription:
        """What the cluster is and what runs."""

    async def launch(
        self, job_id: str, attempt: int, spec: JobSpec, placement: Placement, token: int, incarnation: str
    ) -> Launched:
        """Has an attempt taken; safe to repeat."""

    async def stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        """Has an attempt ended; safe to repeat. False: it is not open, or is to end already."""

    async def acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        """Everything up to a revision is dealt with."""

    async def wake_at(self, times_s: Sequence[float]) -> Clock:
        """Asks for wake-ups; a time that has passed gives one at once. Returns the clock when it was asked."""

    async def advance_to(self, time_s: float) -> Clock:
        """Moves a simulated clock forward to a time, where it is behind, and leaves it otherwise as it is."""

    def events(self, incarnation: str, after_revision: int) -> AsyncIterator[EventBatch]:
        """The events after a revision, then new ones."""


class Predicted(NamedTuple):
    """An answer about J jobs on M GPU models.

    Attributes:
        median_s: (J, M) the median runtime of each job on each model, seconds.
        revision: another one than before: predictions asked for before may be others now.
        memory_revision: grows by one with each finished job that is learned from.
        spread: (J,) how unsure it is of each job: standard deviation of ln(runtime / median); None: it does not say.
    """

    median_s: Floats
    revision: int
    memory_revision: int = 0
    spread: Floats | None = None


class RuntimePredictor(Protocol):
    """Predicts runtimes. Every call raises `adlro.errors.AdlroError` where it can't be answered."""

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        """How long each job would take on each model."""

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        """By id, the speed relative to its model of each GPU of a cluster that is flagged as slower than its kind."""
