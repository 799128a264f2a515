"""A job that is not final, as the ledger keeps it. Plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from adlro.records.jobs import Job, JobState, PendingReason
from adlro.records.predictions import PredictedInterval
from adlro.state.observation import Floats
from adlro.store import sequence_of


class Phase(enum.Enum):
    """An entry's phase in the orchestrator's own bookkeeping."""

    ARRIVING = "arriving"  # known, but the cluster time of its arrival is not yet
    HELD = "held"  # until its release
    DEPENDENT = "dependent"  # it waits for the end of other jobs
    BEGIN = "begin"  # its begin time is in the future
    PAUSED = "paused"  # its launch was refused, and the next one is due later
    QUEUED = "queued"
    PLACED = "placed"  # being launched, or running
    GONE = "gone"  # final


@dataclass(slots=True, eq=False)
class Entry:
    """A job that is not final. `version` is the version of its newest record, written or about to be written.

    A job that is stopped for another one cedes the GPUs that the other one gets, at the decision, and holds its others
    until its end.
    """

    job: Job
    version: int
    expected_s: Floats  # (K,) expected duration of all its work on each of the cluster's GPU models
    phase: Phase = Phase.ARRIVING
    row: int = -1
    gpus: tuple[int, ...] = ()  # of its attempt, in ascending order
    spread: float = 0.0  # uncertainty of expected_s: standard deviation of ln(true / expected)
    spread_speed: Floats | float = 1.0  # (K,) expected speed on a spread set of GPUs, relative to a packed one
    generation: int = 0  # of the predictions (`ExpectedRuntimes.generation`) in expected_s
    restart_cost_s: float = 0.0  # expected time of each start after a stop until its work goes on
    arrived_s: float = 0.0  # cluster time at which it was taken up, for a job without a future begin time
    since_s: float = 0.0  # start of its attempt, or the time of its decision before the cluster reports it
    expected_end_s: float = 0.0  # of its attempt
    victims: list[Entry] = field(default_factory=list)  # jobs whose ends its launch waits for
    preemptor: Entry | None = None  # whose victim it is
    ceded: tuple[int, ...] = ()  # those of `gpus` that the preemptor has
    stopped_for: str = ""  # the job for which its attempt was to be stopped; stays where that job is gone
    has_part: bool = False  # its attempt has a part of its GPU, and another job may have the rest
    mate: Entry | None = None  # the other job on its GPU
    interval: PredictedInterval | None = None  # around expected_s, as decompose reported it
    counted: tuple[Phase, PendingReason | None, int, bool] | None = None  # as `Counts` has counted it
    told: float = 1.0  # the share of its speed that it is expected to keep beside that job; 1: alone

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that the job asks for."""
        return self.job.spec.gpu_count

    @property
    def held(self) -> tuple[int, ...]:
        """The GPUs that it holds."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.ceded) if self.ceded else self.gpus

    @property
    def restart_s(self) -> float:
        """Expected seconds of its present or next start before its work goes on; 0: it was never stopped."""
        return self.restart_cost_s if self.job.resumes else 0.0

    def is_placed(self, attempt: int) -> bool:
        """Whether the attempt is the job's newest, and has not ended."""
        return self.phase is Phase.PLACED and self.job.attempt_count == attempt

    def is_open(self, attempt: int) -> bool:
        """Whether the attempt is neither known to run nor known to have ended."""
        return self.is_placed(attempt) and self.job.state is JobState.PENDING

    @property
    def order(self) -> tuple[float, int]:
        """Position in the queue: by submission (or begin) time, then by number."""
        return (self.job.submit_s or 0.0, sequence_of(self.job.job_id))
