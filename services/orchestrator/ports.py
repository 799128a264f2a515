"""The interfaces of the services that the orchestrator calls; `clients` implements them over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from adlro.placement import Placement
from adlro.records.events import AttemptState, Clock, ClusterDescription, EventBatch
from adlro.records.jobs import AttemptRef, JobSpec
from adlro.records.outcomes import ApplicationSize
from adlro.records.predictions import PredictedInterval
from adlro.state.observation import Floats

# Reasons of a cluster's refusal of a token that is not the newest lease's.
REFUSED_TOKEN = frozenset(("STALE_FENCING_TOKEN", "UNKNOWN_FENCING_TOKEN"))
# Reasons of its refusal to stop other jobs for a launch: one of them has ended, can't be stopped, or none ever can.
REFUSED_STOPS = frozenset(("NOT_RUNNING", "NOT_PREEMPTIBLE", "NO_PREEMPTION"))
# Reason of its refusal of a part of a GPU: it gave parts when this one was written down, and the next one is whole.
REFUSED_SHARES = "NO_SHARES"
# Reason of its refusal of a pair: the job on the GPU and this one can't run together.
REFUSED_PAIR = "CANNOT_SHARE"


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
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        token: int,
        incarnation: str,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        """Launches an attempt; safe to repeat.

        Args:
            job_id: the job.
            attempt: its number.
            spec: the job's request.
            placement: its GPUs.
            token: the fencing token.
            incarnation: the cluster's.
            preempts: attempts of other jobs that are stopped to make room: all, or none and no launch.
            remaining_ratio: the share of the job's work that is still to be done.
            resumes: an earlier attempt was preempted.
        """

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
        restart_s: (J,) seconds that each start of a job after a stop takes before its work goes on; nan: not reported;
            None: of no job.
        intervals: J, by job; None: not reported.
    """

    median_s: Floats
    revision: int
    memory_revision: int = 0
    spread: Floats | None = None
    spread_speed: Floats | None = None
    restart_s: Floats | None = None
    intervals: Sequence[PredictedInterval] | None = None


class PredictedPairs(NamedTuple):
    """Kept shares of F kinds of jobs beside each other, on K GPU models.

    Attributes:
        kept: (F, F, K) [kind, the kind beside it, model]: the expected share of its speed that a job keeps, 0..1; 0:
            the two can't run together.
        std: (F, F, K) its standard deviation.
        revision: after a change of this number, repeated requests may give other predictions.
    """

    kept: Floats
    std: Floats
    revision: int


class PairPredictor(Protocol):
    """Predicts what jobs that share a GPU keep of their speeds."""

    async def pairs(self, kinds: Sequence[ApplicationSize], gpu_models: Sequence[str]) -> PredictedPairs:
        """The kept shares of kinds of jobs beside each other.

        Raises:
            adlro.errors.AdlroError: there is no answer.
        """


class RuntimePredictor(Protocol):
    """Predicts runtimes. Every call raises `adlro.errors.AdlroError` without an answer."""

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        """The predicted runtime of each job on each model."""

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        """By id, the speed relative to its model of each GPU of a cluster that is flagged as slower than its model."""


class Predictor(RuntimePredictor, PairPredictor, Protocol):
    """decompose."""
