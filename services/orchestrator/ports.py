"""The interfaces of the services that the orchestrator calls; `clients` implements them over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from adlro.placement import Placement
from adlro.records.events import AttemptState, Clock, ClusterDescription, EventBatch
from adlro.records.jobs import JobSpec
from adlro.state.observation import Floats

# Reasons of a cluster's refusal of a token that is not the newest lease's.
REFUSED_TOKEN = frozenset(("STALE_FENCING_TOKEN", "UNKNOWN_FENCING_TOKEN"))


class Launched(NamedTuple):
    """The answer to an accepted launch.

    Attributes:
        revision: revision of its start event; 0: the event is still to come.
        state: the attempt's state at the answer; None: the cluster does not report it.
    """

    revision: int
    state: AttemptState | None = None


class ClusterPort(Protocol):
    """A cluster that runs jobs. Every call raises the cluster's error, an `adlro.errors.AdlroError`."""

    async def describe(self) -> ClusterDescription:
        """The cluster's description and its running attempts."""

    async def launch(
        self, job_id: str, attempt: int, spec: JobSpec, placement: Placement, token: int, incarnation: str
    ) -> Launched:
        """Launches an attempt; safe to repeat."""

    async def stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        """Stops an attempt; safe to repeat. False: it is not open, or its stop is already requested."""

    async def acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        """Acknowledges all events up to a revision."""

    async def wake_at(self, times_s: Sequence[float]) -> Clock:
        """Requests wake-ups; a past time gives one at once. Returns the clock at the request."""

    async def advance_to(self, time_s: float) -> Clock:
        """Moves a simulated clock forward to a time; a clock that is ahead stays as it is."""

    def events(self, incarnation: str, after_revision: int) -> AsyncIterator[EventBatch]:
        """The events after a revision, then new ones."""


class Predicted(NamedTuple):
    """Predictions for J jobs on M GPU models.

    Attributes:
        median_s: (J, M) the median runtime of each job on each model, seconds.
        revision: after a change of this number, repeated requests may give other predictions.
        memory_revision: grows by one with each finished job that decompose learns from.
        spread: (J,) uncertainty of each job: standard deviation of ln(runtime / median); None: not reported.
        spread_speed: (J, M) speed of a job of several GPUs on more nodes than it needs, as a share of that on few; nan:
            not reported; None: of no job.
    """

    median_s: Floats
    revision: int
    memory_revision: int = 0
    spread: Floats | None = None
    spread_speed: Floats | None = None


class RuntimePredictor(Protocol):
    """Predicts runtimes. Every call raises `adlro.errors.AdlroError` without an answer."""

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        """The predicted runtime of each job on each model."""

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        """By id, the speed relative to its model of each GPU of a cluster that is flagged as slower than its model."""
