"""A copied cluster is the same cluster, and goes its own way from there."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.numeric.compiled import compiled
from adlro.sim import fork, kernel
from adlro.sim.batch import change_arrays
from adlro.sim.course import DECISION, DONE, Course, GpuChanges, new_course
from adlro.state.cluster_arrays import Hardware, Machines, empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

# The record of ended runs, and what is written anew before it is read.
NOT_COPIED = {
    "kept",
    "told",
    "run_job",
    "run_gpus",
    "run_start_s",
    "run_end_s",
    "run_completed",
    "run_count",
    "stop_job",
    "stop_gpus",
    "stop_start_s",
    "stop_end_s",
    "stop_count",
    "window",
    "window_count",
    "largest_idle_mib",
    "node",
    "gives",
    "taken",
}


@compiled
def copy(jobs: JobArrays, machines: Machines, course: Course, n: int, other: Machines, others: Course, m: int) -> None:
    fork.copy_machines(machines, n, other, m)
    fork.copy_course(jobs, course, n, others, m)


def place_first_that_fits(
    hardware: Hardware, machines: Machines, jobs: JobArrays, changes: GpuChanges, course: Course, n: int, steps: int
) -> None:
    for _ in range(steps):
        if course.status[n] != DECISION:
            return
        for row in range(int(course.waiting_count[n])):
            gpus = range(int(hardware.gpu_count[n]))
            if any(act(hardware, machines, jobs, changes, course, n, row, gpu) for gpu in gpus):
                break


def act(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    row: int,
    gpu: int,
) -> bool:
    action = (np.array([n]), np.array([row]), np.array([[gpu]]), np.zeros(0, dtype=np.bool_))
    return kernel.act_all(hardware, machines, jobs, changes, course, *action) < 0


@pytest.mark.slow  # compiles for some seconds
def test_a_copy_has_all_of_the_state_and_ends_as_its_source_does() -> None:
    scenario = load_scenario("paper")
    lists = [draw_jobs(scenario, load=1.1, rng=np.random.default_rng(seed), count=40) for seed in (1, 2)]
    jobs = pack_jobs(lists, scenario.cluster)
    hardware = hardware_of([scenario.cluster] * 2, scenario.cluster.gpu_models)
    changes = change_arrays([[], [(5.0, 3, 0.0), (9.0, 3, 1.0), (12.0, 0, 0.5)]], hardware.gpu_count)
    machines = empty_machines(hardware)
    course = new_course(hardware, jobs, changes, np.arange(2), start_cost_s=np.array([0.0, 0.25]))
    kernel.begin_all(hardware, machines, jobs, changes, course)
    place_first_that_fits(hardware, machines, jobs, changes, course, 1, 25)
    assert course.status[1] == DECISION
    assert machines.time_s[1] > 9.0

    same, others_machines, others = fork.scratch(hardware, jobs, changes, 3)
    before = [column.copy() for column in (*machines, *course)]
    copy(jobs, machines, course, 1, others_machines, others, 2)
    for name, column in machines._asdict().items():
        np.testing.assert_array_equal(getattr(others_machines, name)[2], column[1], err_msg=name)
    for name, column in course._asdict().items():
        if name in NOT_COPIED:
            continue
        ours, theirs = column[1], getattr(others, name)[2]
        if name == "waiting":
            ours, theirs = ours[: course.waiting_count[1]], theirs[: course.waiting_count[1]]
        np.testing.assert_array_equal(theirs, ours, err_msg=name)

    place_first_that_fits(same, others_machines, jobs, changes, others, 2, 1000)
    for column, earlier in zip((*machines, *course), before, strict=True):
        np.testing.assert_array_equal(column, earlier)  # the source stands where it stood
    place_first_that_fits(hardware, machines, jobs, changes, course, 1, 1000)
    assert others.status[2] == course.status[1] == DONE
    np.testing.assert_array_equal(others.job_end_s[2], course.job_end_s[1])
    np.testing.assert_array_equal(others.job_gpus[2], course.job_gpus[1])
    np.testing.assert_array_equal(others.totals[2], course.totals[1])
