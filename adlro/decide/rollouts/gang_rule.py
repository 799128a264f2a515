"""The rule `hold_gang`, compiled, on the simulator's own arrays. numpy and numba only.

The rule is that of adlro/decide/gang_rule.py, as for the policy; a test checks that both choose the same, for jobs that
were never stopped. Where neither cores nor memory ever bind and all GPUs of a model are alike, as in most simulations,
adlro/decide/rollouts/gang_plain.py finds a job's candidates, else adlro/decide/rollouts/gang_any.py.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import add_to_queue, counts_queue, empty_queue, look_at_depth
from adlro.decide.reservation import MODEL, SPREAD
from adlro.decide.rollouts.gang_any import set_of, try_any
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_look import fill_plain_durations, look_at_cluster, with_gangs
from adlro.decide.rollouts.gang_plain import find_nodes_not_kept, try_plain
from adlro.decide.rollouts.gang_reserved import reserved_job, shortest_s
from adlro.decide.rollouts.rule import hold_greedy
from adlro.numeric.compiled import compiled_part
from adlro.sim.course import Course
from adlro.sim.fits import is_idle
from adlro.sim.kernel import hold_is_allowed
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD


@compiled_part
def hold_gang(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: GangBase) -> int:
    """The rule's action for cluster n at a decision: the job, or HOLD; its GPUs are in `base.gpus`.

    Sets the cluster's reservation.
    """
    base.calls[0] += 1
    for i in range(base.gpus.shape[0]):
        base.gpus[i] = HOLD
    if not with_gangs(machines, jobs, course, n):
        base.calls[1] += 1
        job, base.gpus[0] = hold_greedy(hardware, machines, jobs, course, n, base.single)
        return job
    may_hold, around, number = hold_is_allowed(machines, jobs, course, n), base.surroundings, course.list_of[n]
    is_plain = look_at_cluster(hardware, machines, jobs, course, n, base)
    _count_queue(hardware, machines, jobs, course, n, is_plain, base)
    reserved = reserved_job(hardware, machines, jobs, course, n, is_plain, base)
    course.reserved_job[n] = reserved
    around.known[0] += 1  # what is kept is new
    if reserved >= 0 and around.kept.start_s[0] == 0.0:
        model, spread = around.kept.figures[MODEL], around.kept.figures[SPREAD]
        if set_of(hardware, machines, jobs, course, n, reserved, model, spread, base.gpus, base):
            return int(reserved)
    if is_plain and reserved >= 0:
        find_nodes_not_kept(base)
    chosen, least, model, spread, node = HOLD, np.inf, -1, 0, -1
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        if jobs.gpu_count[number, job] > machines.idle_count[n]:
            continue
        if is_plain and jobs.max_nodes[number, job] == 0:
            cost = try_plain(hardware, machines, jobs, course, n, job, may_hold, reserved, least, base)
            if cost < least:
                chosen, least, model, spread, node = job, cost, base.pick[0], base.pick[1], base.pick[2]
        else:
            cost = try_any(hardware, machines, jobs, course, n, job, is_plain, may_hold, reserved, least, base)
            if cost < least:
                chosen, least, model = job, cost, -1
                for k in range(base.gpus.shape[0]):
                    base.gpus[k] = base.trial[k]
    if model >= 0:
        _choose(hardware, machines, jobs, course, n, chosen, model, spread, node, base)
    return int(chosen)


@compiled_part
def _count_queue(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, is_plain: bool, base: GangBase
) -> None:
    """Fills in what the rule reads of the queue."""
    around, number = base.surroundings, course.list_of[n]
    empty_queue(around)
    if counts_queue(base.rule):
        for i in range(course.waiting_count[n]):
            job = course.waiting[n, i]
            its_s = shortest_s(hardware, machines, jobs, course, n, job, is_plain, base)
            model, spread = base.best_model[job], jobs.expected_spread[number, job]
            # The shortest may have been worked out before, and the durations with it.
            if is_plain and base.rule.affinity > 0.0:
                fill_plain_durations(jobs, course, n, job, base)
            add_to_queue(around, jobs.gpu_count[number, job], its_s, model, spread)
    look_at_depth(base.rule, around)


@compiled_part
def _choose(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    model: int,
    spread: int,
    node: int,
    base: GangBase,
) -> None:
    """Fills in the GPUs of the chosen candidate; of a job of one GPU the lowest idle one of the node."""
    if jobs.gpu_count[course.list_of[n], job] > 1:
        set_of(hardware, machines, jobs, course, n, job, model, spread, base.gpus, base)
        return
    for i in range(base.gpus.shape[0]):
        base.gpus[i] = HOLD
    gpu = hardware.node_first_gpu[n, node]
    while not is_idle(machines, n, gpu):
        gpu += 1
    base.gpus[0] = gpu
