"""What a cluster has run, as one list for the simulator, with what was known of runtimes. Plain records and arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adlro.errors import InvalidInput
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.lab.compare.history import PastJob, arrays_of
from adlro.lab.compare.knowledge import counted, expected_s
from adlro.lab.compare.replaying import Rules, policy_of, replay
from adlro.records.cluster import Cluster
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.pairs import PairTable, pair_table

RULE = "hold_gang"
"""Under which a job list without start and end times is played, to know what had ended when."""


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that ran on a cluster, in the order of submission.

    Attributes:
        cluster: the cluster.
        jobs: one list of J jobs, with true and with expected durations.
        measured: (J,) which count in figures.
        sources: number of jobs by what was known of their runtimes (`adlro.lab.compare.knowledge`).
        rules: what the owner allows, and sets for every policy.
        notes: for people.
        zero_s: cluster time of the list's time 0.
    """

    cluster: Cluster
    jobs: JobArrays
    measured: Bools
    sources: tuple[tuple[str, int], ...] = ()
    rules: Rules = dataclasses.field(default_factory=Rules)
    notes: tuple[str, ...] = ()
    zero_s: float = 0.0

    def __len__(self) -> int:
        return int(self.jobs.job_count[0])

    @property
    def gang_share(self) -> float:
        """Share of the jobs with several GPUs."""
        return float((self.jobs.gpu_count[0] > 1).mean()) if len(self) else 0.0

    @property
    def length_s(self) -> float:
        """Time between the first and the last submission."""
        return float(self.jobs.submit_s[0, -1] - self.jobs.submit_s[0, 0]) if len(self) else 0.0

    @property
    def pairs(self) -> PairTable:
        """Of jobs that share a GPU."""
        return pair_table(self.cluster.gpu_models)

    @property
    def submit_s(self) -> Floats:
        """(J,) cluster time of the submissions."""
        found: Floats = self.zero_s + self.jobs.submit_s[0]
        return found

    def after(self, time_s: float) -> Past:
        """The jobs that were submitted after a cluster time."""
        return self.part(int(np.searchsorted(self.submit_s, time_s, side="right")), len(self))

    def part(self, first: int, last: int) -> Past:
        """Jobs `first` to `last` - 1."""
        rows = slice(first, last)
        fields = {name: getattr(self.jobs, name)[:, rows] for name in JobArrays._fields if name != "job_count"}
        begin_s = math.floor(fields["submit_s"][0, 0]) if last > first else 0.0
        jobs = JobArrays(job_count=np.array([last - first]), **{**fields, "submit_s": fields["submit_s"] - begin_s})
        return dataclasses.replace(self, jobs=jobs, measured=self.measured[rows], zero_s=self.zero_s + begin_s)


def past_of_list(
    cluster: Cluster, jobs: Sequence[WorkloadJob], runtime: str = "group", speeds: SpeedTable = SHIPPED
) -> Past:
    """The past of a job list that tells no start and no end: it is played under a rule, to know what had ended when.

    Args:
        cluster: where the jobs run.
        jobs: in the order of submission; all fit on the cluster.
        runtime: what is known of runtimes, one of `adlro.lab.compare.knowledge.KINDS`.
        speeds: of applications on its GPU models.

    Raises:
        InvalidInput: no jobs.
    """
    if not jobs:
        raise InvalidInput("jobs: none of them fits on the cluster", field="jobs")
    models = cluster.gpu_models
    pairs = pair_table(models)
    ran = [_unplaced(number, job) for number, job in enumerate(jobs)]
    true_s, _ = expected_s(ran, models, speeds, "true", {})
    rules = Rules()
    played = replay(cluster, arrays_of(ran, cluster, speeds, true_s, pairs), policy_of(RULE, rules), rules, pairs)
    zero_s = math.floor(jobs[0].submit_s)
    ran = [
        dataclasses.replace(job, start_s=zero_s + float(start_s), end_s=zero_s + float(end_s))
        for job, start_s, end_s in zip(ran, played.start_s, played.end_s, strict=True)
    ]
    expected, sources = expected_s(ran, models, speeds, runtime, {})
    return Past(
        cluster,
        arrays_of(ran, cluster, speeds, expected, pairs),
        np.ones(len(ran), dtype=np.bool_),
        tuple(counted(sources).items()),
        zero_s=float(zero_s),
    )


def _unplaced(number: int, job: WorkloadJob) -> PastJob:
    estimate = None if job.expected_runtime_s is None else ("", job.expected_runtime_s)
    return PastJob(f"job-{number}", job, math.nan, math.nan, 0.0, None, estimate, measured=True)
