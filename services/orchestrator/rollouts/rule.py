"""The base policy of rollouts: `hold_greedy`, compiled, on the simulator's own arrays. numpy and numba only.

The rule, its terms and its figures are those of services/orchestrator/policies/hold_greedy.py, which sees an
observation; a test holds both to the same choices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adlro.sim.compiled import compiled_part
from adlro.sim.job_arrays import JobArrays
from adlro.sim.kernel import Course, hold_is_allowed
from adlro.sim.machines import IDLE, Hardware, Machines
from adlro.sim.machines import remaining_s as run_remaining_s
from adlro.sim.observation import HOLD, Floats
from services.orchestrator.policies.hold_greedy import HoldGreedySettings


class Base(NamedTuple):
    """The settings of `hold_greedy` (`HoldGreedySettings` says what they mean), with room to work in: one a thread.

    Attributes:
        node_idle: (M,) scratch: idle GPUs of each node.
        node_next_end_s: (M,) scratch: expected time until a job of the node ends.
    """

    alpha: float
    theta: float
    s_max: float
    kappa: float
    packing: float
    ageing: float
    node_idle: Floats
    node_next_end_s: Floats


def base_policy(settings: HoldGreedySettings, hardware: Hardware) -> Base:
    """The base policy for clusters of up to as many nodes as these."""
    nodes = hardware.node_cores.shape[1]
    return Base(
        settings.alpha,
        settings.theta,
        settings.s_max,
        settings.kappa,
        settings.packing,
        settings.ageing,
        np.zeros(nodes),
        np.zeros(nodes),
    )


@compiled_part
def possible(hardware: Hardware, jobs: JobArrays, n: int, number: int, job: int, gpu: int) -> bool:
    """The GPU, on an empty node, can hold the job."""
    node = hardware.gpu_node[n, gpu]
    return bool(
        jobs.gpu_memory_mib[number, job] <= hardware.gpu_memory_mib[n, gpu]
        and jobs.cores[number, job] <= hardware.node_cores[n, node]
        and jobs.memory_mib[number, job] <= hardware.node_memory_mib[n, node]
    )


@compiled_part
def fits_now(hardware: Hardware, machines: Machines, jobs: JobArrays, n: int, number: int, job: int, gpu: int) -> bool:
    """A waiting job can start there now."""
    node = hardware.gpu_node[n, gpu]
    return bool(
        machines.gpu_job[n, gpu] == IDLE
        and machines.gpu_speed[n, gpu] > 0.0
        and jobs.gpu_memory_mib[number, job] <= hardware.gpu_memory_mib[n, gpu]
        and jobs.cores[number, job] <= machines.cores_free[n, node]
        and jobs.memory_mib[number, job] <= machines.memory_free_mib[n, node]
        and jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] < np.inf
    )


@compiled_part
def expected_duration_s(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int, gpu: int) -> float:
    """What a scheduler expects the job to take on the GPU."""
    return float(jobs.expected_s[course.list_of[n], job, hardware.gpu_model[n, gpu]] / course.known_speed[n, gpu])


@compiled_part
def remaining_s(machines: Machines, n: int, gpu: int) -> float:
    """Expected time until a GPU that is busy or lost could take a job."""
    if machines.gpu_speed[n, gpu] == 0.0:
        return np.inf
    return run_remaining_s(machines.time_s[n], machines.gpu_start_s[n, gpu], machines.gpu_expected_end_s[n, gpu])


@compiled_part
def look_at_nodes(hardware: Hardware, machines: Machines, n: int, base: Base) -> None:
    """Fills in what the rule needs to know of each node; comes before `outlook` and `pair_cost`."""
    for node in range(hardware.node_cores.shape[1]):
        base.node_idle[node] = 0.0
        base.node_next_end_s[node] = np.inf
    for gpu in range(hardware.gpu_count[n]):
        node = hardware.gpu_node[n, gpu]
        if machines.gpu_job[n, gpu] == IDLE and machines.gpu_speed[n, gpu] > 0.0:
            base.node_idle[node] += 1.0
        else:
            base.node_next_end_s[node] = min(base.node_next_end_s[node], remaining_s(machines, n, gpu))


@compiled_part
def outlook(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, base: Base
) -> tuple[float, float]:
    """A waiting job's shortest expected duration, and its earliest expected completion from now, in s, anywhere."""
    number = course.list_of[n]
    best_s, completion_s = np.inf, np.inf
    for gpu in range(hardware.gpu_count[n]):
        if not possible(hardware, jobs, n, number, job, gpu):
            continue
        duration_s = expected_duration_s(hardware, jobs, course, n, job, gpu)
        best_s = min(best_s, duration_s)
        if machines.gpu_job[n, gpu] != IDLE or machines.gpu_speed[n, gpu] == 0.0:
            wait_s = remaining_s(machines, n, gpu)
        elif fits_now(hardware, machines, jobs, n, number, job, gpu):
            wait_s = 0.0
        else:
            wait_s = base.node_next_end_s[hardware.gpu_node[n, gpu]]
        completion_s = min(completion_s, base.kappa * wait_s + duration_s)
    return best_s, completion_s


@compiled_part
def pair_cost(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    gpu: int,
    best_s: float,
    duration_s: float,
    base: Base,
) -> float:
    """The lower, the sooner the pair starts."""
    number, node = course.list_of[n], hardware.gpu_node[n, gpu]
    share = machines.cores_free[n, node] / max(base.node_idle[node], 1.0)
    misfit = abs(jobs.cores[number, job] - share) / max(share, 1.0)
    waited_s = machines.time_s[n] - jobs.submit_s[number, job]
    cost = math.log(best_s) + base.alpha * math.log(duration_s / best_s)
    cost += base.packing * misfit
    cost -= base.ageing * math.log1p(max(waited_s, 0.0) / best_s)
    return float(cost)


@compiled_part
def refused(best_s: float, completion_s: float, duration_s: float, base: Base) -> bool:
    """The pair is so slow that the job had better wait."""
    return duration_s / best_s > base.s_max or duration_s > base.theta * completion_s


@compiled_part
def like_the_one_before(hardware: Hardware, machines: Machines, course: Course, n: int, gpu: int) -> bool:
    """The GPU with the next lower number is idle too, and the same in everything: that one counts for both."""
    return bool(
        gpu > 0
        and machines.gpu_job[n, gpu - 1] == IDLE
        and machines.gpu_speed[n, gpu - 1] == machines.gpu_speed[n, gpu]
        and course.known_speed[n, gpu - 1] == course.known_speed[n, gpu]
        and hardware.gpu_node[n, gpu - 1] == hardware.gpu_node[n, gpu]
        and hardware.gpu_model[n, gpu - 1] == hardware.gpu_model[n, gpu]
        and hardware.gpu_memory_mib[n, gpu - 1] == hardware.gpu_memory_mib[n, gpu]
    )


@compiled_part
def hold_greedy(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: Base
) -> tuple[int, int]:
    """The base's action for cluster n, which stands at a decision: (job, GPU), or (HOLD, HOLD).

    Ties: the earlier submitted job, then the lower-numbered GPU. Where a hold is not allowed nothing is refused.
    """
    number = course.list_of[n]
    may_hold = hold_is_allowed(machines, jobs, course, n)
    look_at_nodes(hardware, machines, n, base)
    best_job, best_gpu, best = HOLD, HOLD, np.inf
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        best_s, completion_s = -1.0, 0.0
        for gpu in range(hardware.gpu_count[n]):
            if not fits_now(hardware, machines, jobs, n, number, job, gpu) or like_the_one_before(
                hardware, machines, course, n, gpu
            ):
                continue
            if best_s < 0.0:
                best_s, completion_s = outlook(hardware, machines, jobs, course, n, job, base)
            duration_s = expected_duration_s(hardware, jobs, course, n, job, gpu)
            if may_hold and refused(best_s, completion_s, duration_s, base):
                continue
            cost = pair_cost(hardware, machines, jobs, course, n, job, gpu, best_s, duration_s, base)
            if cost < best:
                best_job, best_gpu, best = job, gpu, cost
    return best_job, best_gpu
