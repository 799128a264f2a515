"""The benchmark on real jobs of several GPUs: what its look at the event log finds, and its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adlro.placement import GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType
from benchmarks.philly_replay import Overbooked, check_log, longest_queue, waited_s, waits

CLUSTER = Cluster(
    "c",
    (
        Node("a", 8, 8000, tuple(Gpu(f"a/{number}", "v100", 1000) for number in range(2))),
        Node("b", 8, 8000, (Gpu("b/0", "t4", 1000),)),
    ),
)
BOTH = Placement.on("a/0", "a/1")
SPEC = JobSpec("j", "ann", JobType.SIMULATION, cpu_cores=4, memory_mib=4000, gpu_memory_mib=1000)
GANG = Job(
    *("job-1", replace(SPEC, gpu_count=2), JobState.SUCCEEDED),
    submit_s=0.0,
    start_s=1.0,
    end_s=3.0,
    placement=BOTH,
    attempts=(JobAttempt(1, BOTH, "v100", 1.0, 3.0),),
)
ON = Placement.on("a/0")
ONE = Job(
    *("job-2", SPEC, JobState.SUCCEEDED),
    submit_s=0.0,
    start_s=3.0,
    end_s=7.0,
    placement=ON,
    attempts=(JobAttempt(1, ON, "v100", 3.0, 7.0),),
)


def event(
    job: Job, kind: EventKind, time_s: float, placement: Placement | None = None, attempt: int = 1
) -> ClusterEvent:
    return ClusterEvent(0, kind, time_s, job.job_id, attempt, job.placement if placement is None else placement)


STARTED, FINISHED = EventKind.STARTED, EventKind.FINISHED
LOG = [
    event(GANG, STARTED, 1.0),
    event(GANG, FINISHED, 3.0),
    event(ONE, STARTED, 3.0),
    event(ONE, FINISHED, 7.0),
]


def test_a_log_without_fault_is_counted() -> None:
    assert check_log(LOG, [GANG, ONE], CLUSTER) == {"events": 4, "starts": 2, "most_gpus_in_use": 2}
    stopped = [
        *(LOG[0], event(GANG, EventKind.PREEMPTED, 2.0), event(ONE, STARTED, 2.0), event(ONE, FINISHED, 7.0)),
        *(event(GANG, STARTED, 7.0, attempt=2), event(GANG, FINISHED, 9.0, attempt=2)),
    ]
    assert check_log(stopped, [replace(GANG, end_s=9.0), ONE], CLUSTER)["starts"] == 3
    half = Placement((GpuShare("a/0", 0.5),))
    small = replace(SPEC, gpu_memory_mib=500, shareable=True)
    two = [replace(ONE, spec=small), replace(ONE, job_id="job-3", spec=small)]
    shared = [*(event(job, STARTED, 3.0, half) for job in two), *(event(job, FINISHED, 7.0, half) for job in two)]
    assert check_log(shared, two, CLUSTER)["most_gpus_in_use"] == 1


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ([LOG[0], LOG[2], LOG[1], LOG[3]], "a/0 or its node was overbooked by job-2 at 3.0 s"),
        ([event(GANG, STARTED, 1.0, Placement.on("a/0")), *LOG[1:]], "asked for 2 GPUs of one model, and got"),
        ([event(GANG, STARTED, 1.0, Placement.on("a/0", "b/0")), *LOG[1:]], "asked for 2 GPUs of one model"),
        (LOG[:3], "1 attempts never ended"),
        ([*LOG, LOG[3]], "finished without a start, or twice"),
        ([LOG[0], LOG[0]], "started twice"),
        (LOG[:2], "job-2 is SUCCEEDED at 7.0; the log says None"),
        ([*LOG[:3], event(ONE, EventKind.FAILED, 7.0)], "the log says"),
        ([*LOG[:3], event(ONE, FINISHED, 8.0)], "the log says"),
    ],
)
def test_what_is_wrong_in_a_log_is_found(log: list[ClusterEvent], found: str) -> None:
    with pytest.raises(Overbooked, match=found):
        check_log(log, [GANG, ONE], CLUSTER)


@pytest.mark.parametrize("fields", [{"cpu_cores": 5}, {"memory_mib": 4001}, {"gpu_memory_mib": 1001}])
def test_nodes_and_gpus_have_what_is_asked_for(fields: dict[str, Any]) -> None:
    job = replace(GANG, spec=replace(GANG.spec, **fields))
    with pytest.raises(Overbooked, match="overbooked by job-1"):
        check_log(LOG[:2], [job], CLUSTER)


def test_waits_are_by_number_of_gpus() -> None:
    rows = waits([GANG, ONE], {"job-1"})
    assert [(row["gpus"], row["jobs"], row["mean_wait_s"], row["reserved"]) for row in rows] == [
        (1, 1, 3.0, 0),
        (2, 1, 1.0, 1),
        ("all", 2, 2.0, 1),
    ]
    assert [row["mean_nodes"] for row in rows] == [1.0, 1.0, 1.0]
    assert longest_queue([GANG, ONE]) == 2
    stopped = JobAttempt(1, ON, "v100", 0.5, 1.5, preempted=True)
    again = replace(ONE, attempts=(stopped, replace(ONE.attempts[0], attempt=2)))
    assert waited_s(again) == 2.0
