"""The base policy of rollouts: `hold_greedy`, compiled, on the simulator's own arrays. numpy and numba only.

The rule is that of adlro/decide/hold_rule.py, as for the policy. Here it reads the figures that the policy reads in its
observation (adlro/state/scene.py); a test checks that both choose the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.hold_rule import (
    HoldRule,
    Surroundings,
    look_around,
    look_at_job,
    plan_job,
    room_to_look,
    score_job,
)
from adlro.decide.policies.hold_greedy import HoldGreedySettings
from adlro.numeric.compiled import compiled_part
from adlro.sim.course import Course
from adlro.sim.kernel import hold_is_allowed
from adlro.state.candidate_table import find_kinds
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import remaining_s as run_remaining_s
from adlro.state.observation import HOLD, Bools, Floats, Ints
from adlro.state.room import has_room


class Base(NamedTuple):
    """The rule's parameters, with scratch memory: one per thread.

    Attributes:
        rule: the parameters.
        surroundings: filled by `look_at_cluster`.
        idle: (G,) scratch: numbers of the present idle GPUs, at its front.
        gpu_idle: (G,) scratch: whether the GPU is one of them.
        gpu_remaining_s: (G,) scratch: expected time until it is idle.
        gpu_kind: (G,) scratch: its kind (adlro/state/candidate_table.py).
        kind_gpu: (G,) scratch: the lowest GPU of each kind.
        kind_count: (1,) scratch: kinds.
        duration_s: (G,) scratch: a job's expected duration on each kind.
        fitting: (G,) scratch: numbers of the GPUs on which that job can start now, at its front.
        scores: (G,) the job's scores on these, higher is better; -inf: refused.
        work: (1,) work of its decisions so far, in pairs of waiting jobs and GPUs, scored or planned.
    """

    rule: HoldRule
    surroundings: Surroundings
    idle: Ints
    gpu_idle: Bools
    gpu_remaining_s: Floats
    gpu_kind: Ints
    kind_gpu: Ints
    kind_count: Ints
    duration_s: Floats
    fitting: Ints
    scores: Floats
    work: Ints


DECISION_WORK = 8
"""Work of a decision and the events before it, apart from the scoring, as a number of waiting jobs."""


def base_policy(settings: HoldGreedySettings, hardware: Hardware) -> Base:
    """The base policy for clusters of up to this hardware's GPUs and nodes."""
    gpus, nodes = hardware.gpu_model.shape[1], hardware.node_cores.shape[1]
    return Base(
        rule=settings.rule(),
        surroundings=room_to_look(gpus, nodes),
        idle=np.zeros(gpus, dtype=np.int64),
        gpu_idle=np.zeros(gpus, dtype=np.bool_),
        gpu_remaining_s=np.zeros(gpus),
        gpu_kind=np.zeros(gpus, dtype=np.int64),
        kind_gpu=np.zeros(gpus, dtype=np.int64),
        kind_count=np.zeros(1, dtype=np.int64),
        duration_s=np.zeros(gpus),
        fitting=np.zeros(gpus, dtype=np.int64),
        scores=np.zeros(gpus),
        work=np.zeros(1, dtype=np.int64),
    )


@compiled_part
def remaining_s(machines: Machines, n: int, gpu: int) -> float:
    """Expected time until a GPU that is busy or lost could take a job."""
    if machines.gpu_speed[n, gpu] == 0.0:
        return np.inf
    return run_remaining_s(machines.time_s[n], machines.gpu_start_s[n, gpu], machines.gpu_expected_end_s[n, gpu])


@compiled_part
def look_at_cluster(hardware: Hardware, machines: Machines, course: Course, n: int, base: Base) -> None:
    """Fills in the rule's input about cluster n; call it before `score_waiting`."""
    count, idle_count = hardware.gpu_count[n], 0
    for gpu in range(count):
        idle = machines.gpu_job[n, gpu] == IDLE and machines.gpu_speed[n, gpu] > 0.0
        base.gpu_idle[gpu] = idle
        base.gpu_remaining_s[gpu] = 0.0 if idle else remaining_s(machines, n, gpu)
        if idle:
            base.idle[idle_count] = gpu
            idle_count += 1
    base.kind_count[0] = find_kinds(hardware, course.known_speed, n, count, base.gpu_kind, base.kind_gpu)
    look_around(
        base.gpu_kind[:count],
        hardware.gpu_node[n, :count],
        base.gpu_idle[:count],
        base.gpu_remaining_s[:count],
        machines.cores_free[n],
        base.surroundings,
    )


@compiled_part
def find_fitting(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, base: Base
) -> int:
    """Fills in the GPUs on which a waiting job of cluster n can start now; returns their number."""
    number, count = course.list_of[n], 0
    cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
    gpu_memory_mib = jobs.gpu_memory_mib[number, job]
    for i in range(machines.idle_count[n]):  # mostly few
        gpu = base.idle[i]
        node = hardware.gpu_node[n, gpu]
        base.fitting[count] = gpu
        count += (
            has_room(
                cores,
                memory_mib,
                gpu_memory_mib,
                machines.cores_free[n, node],
                machines.memory_free_mib[n, node],
                hardware.gpu_memory_mib[n, gpu],
            )
            and jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] < np.inf
        )
    return count


@compiled_part
def fill_durations(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int, base: Base) -> None:
    """Fills in a job's expected duration on each kind of GPU; inf if the GPU, or its node, is too small."""
    number = course.list_of[n]
    cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
    gpu_memory_mib = jobs.gpu_memory_mib[number, job]
    for kind in range(base.kind_count[0]):
        gpu = base.kind_gpu[kind]
        node = hardware.gpu_node[n, gpu]
        possible = has_room(
            cores,
            memory_mib,
            gpu_memory_mib,
            hardware.node_cores[n, node],
            hardware.node_memory_mib[n, node],
            hardware.gpu_memory_mib[n, gpu],
        )
        expected_s = jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] / course.known_speed[n, gpu]
        base.duration_s[kind] = expected_s if possible else np.inf


@compiled_part
def queue_drain_s(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: Base) -> float:
    """The drain of cluster n's queue (adlro/decide/hold_rule.py), as far as the rule needs it."""
    number, count, longest_s = course.list_of[n], hardware.gpu_count[n], 0.0
    duration_s = base.duration_s[: base.kind_count[0]]
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        fitting = base.fitting[: find_fitting(hardware, machines, jobs, course, n, job, base)]
        fill_durations(hardware, jobs, course, n, job, base)
        longest_s = look_at_job(base.surroundings, duration_s, fitting, longest_s)
    base.work[0] += course.waiting_count[n] * count  # with the plan about as much work as the scoring
    drain_s, i = 0.0, 0
    while i < course.waiting_count[n] and drain_s < longest_s:
        job = course.waiting[n, i]
        fill_durations(hardware, jobs, course, n, job, base)
        start_s = plan_job(
            base.surroundings,
            duration_s,
            hardware.gpu_node[n, :count],
            machines.cores_free[n],
            machines.memory_free_mib[n],
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
        )
        drain_s = max(drain_s, start_s)
        i += 1
    return drain_s


@compiled_part
def score_waiting(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    drain_s: float,
    base: Base,
) -> int:
    """Fills in the GPUs on which a waiting job of cluster n can start now, and its scores there; returns their number.

    Pairs that take no longer than `drain_s` are not refused.
    """
    count = find_fitting(hardware, machines, jobs, course, n, job, base)
    if count > 0:
        fill_durations(hardware, jobs, course, n, job, base)
        number = course.list_of[n]
        waited_s = machines.time_s[n] - jobs.submit_s[number, job]
        duration_s, fitting, cores = (
            base.duration_s[: base.kind_count[0]],
            base.fitting[:count],
            jobs.cores[number, job],
        )
        score_job(base.rule, base.surroundings, duration_s, fitting, cores, waited_s, drain_s, base.scores)
    return count


@compiled_part
def like_the_one_before(hardware: Hardware, machines: Machines, course: Course, n: int, gpu: int) -> bool:
    """Whether the GPU with the next lower number is idle too and identical: then that one counts for both."""
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
    """The base's action for cluster n at a decision: (job, GPU), or (HOLD, HOLD).

    On a tie the earlier submitted job, then the lower-numbered GPU. If a hold is not allowed, no pair is refused.
    """
    may_hold = hold_is_allowed(machines, jobs, course, n)
    base.work[0] += (course.waiting_count[n] + DECISION_WORK) * hardware.gpu_count[n]
    look_at_cluster(hardware, machines, course, n, base)
    drain_s = queue_drain_s(hardware, machines, jobs, course, n, base) if may_hold else np.inf
    best_job, best_gpu, best = HOLD, HOLD, -np.inf
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        for k in range(score_waiting(hardware, machines, jobs, course, n, job, drain_s, base)):
            if base.scores[k] > best:
                best_job, best_gpu, best = job, base.fitting[k], base.scores[k]
    return best_job, best_gpu
