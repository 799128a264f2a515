"""The records of jobs, under the name that they had in 0.1: kept for programs written for it."""

from adlro.records.jobs import (
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobSpec,
    JobState,
    JobType,
    PendingReason,
    SimulatedWork,
)

__all__ = [
    "ExpectedRuntime",
    "Job",
    "JobAttempt",
    "JobSpec",
    "JobState",
    "JobType",
    "PendingReason",
    "SimulatedWork",
]
