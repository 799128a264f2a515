"""What the compiled rule `hold_gang` sees of a cluster at a decision. numpy and numba only.

A pass over all GPUs is made only where the counts by node (`Machines.node_idle`) do not say enough.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import fill_model_s
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.rule import remaining_s
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.sim.course import Course
from adlro.sim.fits import is_idle
from adlro.state.candidate_table import find_kinds
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.gangs import NEVER
from adlro.state.job_arrays import JobArrays
from adlro.state.room import has_room


@compiled_part
def with_gangs(machines: Machines, jobs: JobArrays, course: Course, n: int) -> bool:
    """Whether a job of several GPUs waits or runs, or some job has a reservation."""
    if course.job_nodes.shape[2] == 0:
        return False
    number, found, i = course.list_of[n], course.reserved_job[n] >= 0 or machines.gang_count[n] > 0, 0
    while i < course.waiting_count[n] and not found:
        found = jobs.gpu_count[number, course.waiting[n, i]] > 1
        i += 1
    return bool(found)


@compiled_part
def look_at_cluster(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: GangBase
) -> bool:
    """Fills in the rule's input about cluster n, but what `look_ahead` and `look_at_kinds` fill.

    Returns:
        Whether it is plain: neither cores nor memory ever bind, and all GPUs of a model are alike.
    """
    around, plain, count = base.surroundings, base.plain, hardware.gpu_count[n]
    around.known[0] += 1
    base.looked[1] = base.looked[3] = 0
    if base.looked[0] != n:
        base.looked[0] = n
        _copy_hardware(hardware, n, base)
        base.looked[2] = 0
    number, cores, memory_mib = course.list_of[n], 0, 0
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        cores = max(cores, jobs.cores[number, job])
        memory_mib = max(memory_mib, jobs.memory_mib[number, job])
    # What an idle GPU's last job held counts too: that is quicker, and at most makes a plain cluster a common one.
    other_speeds = 0
    for gpu in range(count):
        cores = max(cores, machines.gpu_cores[n, gpu])
        memory_mib = max(memory_mib, machines.gpu_memory_mib[n, gpu])
        other_speeds += course.known_speed[n, gpu] != 1.0
    is_plain = other_speeds == 0 and cores <= plain.cores_each[n] and memory_mib <= plain.memory_each_mib[n]
    for model in range(plain.idle.shape[0]):
        around.model_there[model] = plain.model_there[model]
        plain.holders[model] = plain.idle[model] = plain.most[model] = 0
        plain.one[model, 0] = plain.one[model, 1] = -1
    for node in range(hardware.node_cores.shape[1]):
        idle = machines.node_idle[n, node]
        around.node_idle[node], around.node_there[node] = idle, plain.node_there[node]
        if idle > 0 and is_plain:
            model = plain.node_model[n, node]
            place = plain.holders[model]
            plain.node[model, place], plain.gives[model, place] = node, idle
            if place == 0 or idle < around.node_idle[plain.one[model, 0]]:
                plain.one[model, 0] = node
            plain.holders[model] = place + 1
            plain.idle[model] += idle
            plain.most[model] = max(plain.most[model], idle)
    if machines.lost_count[n] > 0:
        _leave_out_lost(hardware, machines, n, base)
    return bool(is_plain)


@compiled_call
def _copy_hardware(hardware: Hardware, n: int, base: GangBase) -> None:
    """Fills in what never changes of cluster n."""
    outlook, plain = base.surroundings.outlook, base.plain
    for model in range(plain.nodes.shape[0]):
        plain.nodes[model] = plain.model_there[model] = 0
    for node in range(hardware.node_cores.shape[1]):
        first, after = hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]
        outlook.node_first_gpu[node + 1] = after
        plain.node_there[node] = after - first
        model = plain.node_model[n, node]
        if model >= 0:
            plain.node_of[model, plain.nodes[model]] = node
            plain.nodes[model] += 1
        for gpu in range(first, after):
            plain.model_there[hardware.gpu_model[n, gpu]] += 1
    for gpu in range(outlook.gpu_free_s.shape[0]):
        outlook.gpu_model[gpu] = hardware.gpu_model[n, gpu]
        outlook.gpu_memory_mib[gpu] = hardware.gpu_memory_mib[n, gpu]
        outlook.gpu_node[gpu] = hardware.gpu_node[n, gpu]


@compiled_call
def _leave_out_lost(hardware: Hardware, machines: Machines, n: int, base: GangBase) -> None:
    """Takes lost GPUs from the numbers of present ones."""
    around = base.surroundings
    for gpu in range(hardware.gpu_count[n]):
        if machines.gpu_speed[n, gpu] == 0.0:
            around.node_there[hardware.gpu_node[n, gpu]] -= 1
            around.model_there[hardware.gpu_model[n, gpu]] -= 1


@compiled_call
def look_ahead(hardware: Hardware, machines: Machines, n: int, base: GangBase) -> None:
    """Fills in when GPUs, cores and memory are expected to be free, once in a decision."""
    if base.looked[1] == 1:
        return
    base.looked[1] = 1
    outlook, count = base.surroundings.outlook, hardware.gpu_count[n]
    for gpu in range(count):
        busy = machines.gpu_job[n, gpu] != IDLE
        outlook.gpu_free_s[gpu] = 0.0 if is_idle(machines, n, gpu) else remaining_s(machines, n, gpu)
        outlook.gpu_cores_held[gpu] = machines.gpu_cores[n, gpu] * busy
        outlook.gpu_memory_held_mib[gpu] = machines.gpu_memory_mib[n, gpu] * busy
    for gpu in range(count, outlook.gpu_free_s.shape[0]):
        outlook.gpu_free_s[gpu] = np.inf
    for node in range(outlook.node_cores_free.shape[0]):
        outlook.node_cores_free[node] = machines.cores_free[n, node]
        outlook.node_memory_free_mib[node] = machines.memory_free_mib[n, node]


@compiled_call
def look_at_kinds(hardware: Hardware, machines: Machines, course: Course, n: int, base: GangBase) -> None:
    """Fills in the kinds of GPUs, once in a decision; while all known speeds are 1 they stay those of the cluster."""
    if base.looked[3] == 1:
        return
    base.looked[3] = 1
    around, count, as_stated = base.surroundings, hardware.gpu_count[n], 1
    for gpu in range(count):
        as_stated &= course.known_speed[n, gpu] == 1.0
    if base.looked[2] == 0 or as_stated == 0:
        base.kinds[0] = find_kinds(hardware, course.known_speed, n, count, base.gpu_kind, base.kind_gpu)
        base.looked[2] = as_stated
        for kind in range(base.kinds[0]):
            around.kind_model[kind] = hardware.gpu_model[n, base.kind_gpu[kind]]
    for kind in range(base.kinds[0]):
        around.kind_there[kind] = False
    for gpu in range(count):
        if machines.gpu_speed[n, gpu] > 0.0:
            around.kind_there[base.gpu_kind[gpu]] = True


@compiled_part
def fill_durations(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, base: GangBase
) -> float:
    """Fills in a job's expected duration on each kind and model; returns the shortest; inf: on none."""
    look_at_kinds(hardware, machines, course, n, base)
    number = course.list_of[n]
    gpu_count = jobs.gpu_count[number, job]
    for kind in range(base.kinds[0]):
        gpu = base.kind_gpu[kind]
        node, model = hardware.gpu_node[n, gpu], hardware.gpu_model[n, gpu]
        possible = has_room(
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            hardware.node_cores[n, node],
            hardware.node_memory_mib[n, node],
            hardware.gpu_memory_mib[n, gpu],
        ) and (gpu_count == 1 or course.job_nodes[n, job, model] != NEVER)
        expected_s = jobs.expected_s[number, job, model] / course.known_speed[n, gpu]
        base.duration_s[kind] = expected_s if possible else np.inf
    return float(fill_model_s(base.surroundings, gpu_count, base.duration_s[: base.kinds[0]], course.job_nodes[n, job]))


@compiled_part
def fill_plain_durations(jobs: JobArrays, course: Course, n: int, job: int, base: GangBase) -> float:
    """`fill_durations` in a plain cluster, by model."""
    number, best_s = course.list_of[n], np.inf
    gpu_count, gpu_memory_mib = jobs.gpu_count[number, job], jobs.gpu_memory_mib[number, job]
    around = base.surroundings
    for model in range(around.model_s.shape[0]):
        around.model_s[model] = np.inf
        if (
            around.model_there[model] >= gpu_count
            and gpu_memory_mib <= base.plain.model_memory_mib[n, model]
            and (gpu_count == 1 or course.job_nodes[n, job, model] != NEVER)
        ):
            around.model_s[model] = jobs.expected_s[number, job, model]
            best_s = min(best_s, around.model_s[model])
    return best_s
