"""The checks on job records notice what they are there to notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType
from tests.e2e.records import check_placements, makespan_s, mean_jct_s, mean_jobs_in_system

GPUS = tuple(Gpu(f"node/{number}", "v100_sxm2", 16_160) for number in range(2))
CLUSTER = Cluster("default", (Node("node", 10, 100_000, GPUS),))


def job(number: int, gpu: int, start_s: float, end_s: float, **spec) -> Job:
    asked = JobSpec(name=f"{number}", user="ada", job_type=JobType.SIMULATION, cpu_cores=4, memory_mib=10_000)
    attempt = JobAttempt(1, Placement.on(f"node/{gpu}"), "v100_sxm2", start_s, end_s, "succeeded")
    return Job(
        job_id=f"job-{number}",
        spec=replace(asked, **spec),
        state=JobState.SUCCEEDED,
        submit_s=0.0,
        start_s=start_s,
        end_s=end_s,
        placement=Placement.on(f"node/{gpu}"),
        gpu_model="v100_sxm2",
        attempts=(attempt,),
    )


def test_jobs_one_after_the_other_and_side_by_side_are_right() -> None:
    jobs = [job(1, 0, 0.0, 5.0, cpu_cores=6), job(2, 0, 5.0, 6.0, cpu_cores=6), job(3, 1, 2.0, 9.0)]
    check_placements(jobs, CLUSTER)
    assert (mean_jct_s(jobs), makespan_s(jobs)) == (20.0 / 3, 9.0)
    assert mean_jobs_in_system(jobs) == pytest.approx(20.0 / 9, rel=1e-3)


@pytest.mark.parametrize(
    ("jobs", "complaint"),
    [
        ([job(1, 0, 0.0, 5.0), job(2, 0, 4.9, 6.0)], "job-2 started on node/0 while it was busy"),
        ([job(1, 0, 0.0, 5.0, cpu_cores=6), job(2, 1, 4.9, 6.0, cpu_cores=6)], "12 cores were in use on node"),
        ([job(1, 0, 0.0, 5.0, memory_mib=60_000), job(2, 1, 0.0, 5.0, memory_mib=60_000)], "120000 MiB were in use"),
        ([job(1, 0, 0.0, 5.0, gpu_memory_mib=20_000)], "job-1 does not fit node/0"),
        ([job(1, 0, 0.0, 5.0, begin_time_s=1.0)], "job-1 is early"),
        ([job(1, 7, 0.0, 5.0)], "job-1 ran on node/7"),
    ],
)
def test_what_cannot_be_is_told(jobs: list[Job], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_placements(jobs, CLUSTER)
