"""What ran where in a range of cluster time: bars of attempts, or the occupancy that they fold to. Plain data; no gRPC.

A bar is an attempt on one of its GPUs: an attempt on four GPUs has four bars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from adlro.records.jobs import JobType
from adlro.records.named import NamedEnum


class AttemptOutcome(NamedEnum):
    """How an attempt ended; numbers as in job_service.proto. UNSPECIFIED: another user's, not to be known."""

    UNSPECIFIED = 0
    RUNNING = 1
    SUCCEEDED = 2
    FAILED = 3
    LOST = 4
    STOPPED = 5
    PREEMPTED = 6


class RowKind(NamedEnum):
    """What the rows of an occupancy are; numbers as in job_service.proto."""

    NODE = 1
    GPU_MODEL = 2


class Bar(NamedTuple):
    """One bar; `job_id` and `user` empty, `attempt` 0: another user's, not to be known. `end_s` inf: it runs."""

    gpu_id: str
    job_id: str
    user: str
    attempt: int
    job_type: JobType
    start_s: float
    end_s: float
    outcome: AttemptOutcome
    share: float


@dataclass(frozen=True, slots=True)
class AttemptBars:
    """Bars as columns, by begin; iterate for the bars themselves.

    Attributes:
        gpu_ids: the GPUs with bars, in the order of the cluster's description, then those that are not in it.
        job_ids, users: number 0 is empty: a job of another user, which the caller may not know.
        gpu_indexes, job_indexes, user_indexes: numbers in them.
        attempts: 1, 2, ... of its job; 0 where the job is not to be known.
        starts_s, ends_s: cluster time, not cut to the range; an attempt that runs has the end inf.
        shares: of the GPU; empty: all bars have all of it.
    """

    gpu_ids: tuple[str, ...]
    job_ids: tuple[str, ...]
    users: tuple[str, ...]
    gpu_indexes: tuple[int, ...]
    job_indexes: tuple[int, ...]
    user_indexes: tuple[int, ...]
    attempts: tuple[int, ...]
    job_types: tuple[JobType, ...]
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    outcomes: tuple[AttemptOutcome, ...]
    shares: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.starts_s)

    def __iter__(self) -> Iterator[Bar]:
        for i, gpu in enumerate(self.gpu_indexes):
            yield Bar(
                self.gpu_ids[gpu],
                self.job_ids[self.job_indexes[i]],
                self.users[self.user_indexes[i]],
                self.attempts[i],
                self.job_types[i],
                self.starts_s[i],
                self.ends_s[i],
                self.outcomes[i],
                self.shares[i] if self.shares else 1.0,
            )


@dataclass(frozen=True, slots=True)
class AttemptOccupancy:
    """How much of the time GPUs were held, by row and bucket of time.

    Attributes:
        row_names: nodes or GPU models; an empty name stands for GPUs that are not in the cluster's description.
        gpu_counts: of each row.
        bucket_s: length of a bucket, seconds; the first begins at the begin of the range.
        held: row after row, a byte for each bucket: 0: no GPU of the row was held; 255: all of them, all the time.
        folded_bar_count: the bars that are folded into it.
    """

    row_kind: RowKind
    row_names: tuple[str, ...]
    gpu_counts: tuple[int, ...]
    bucket_count: int
    bucket_s: float
    held: bytes
    folded_bar_count: int

    def held_ratio(self, row: int, bucket: int) -> float:
        """The share of a row's GPU time that was held in a bucket, 0..1."""
        return self.held[row * self.bucket_count + bucket] / 255.0


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """An answer: `bars`, or `occupancy` where there are more than were asked for.

    Attributes:
        cluster: whose GPUs stand first; empty: none is described.
        from_s, to_s: the range, cluster time.
        bar_count: attempts in the range times their GPUs.
    """

    cluster: str
    from_s: float
    to_s: float
    bar_count: int
    bars: AttemptBars | None = None
    occupancy: AttemptOccupancy | None = None
