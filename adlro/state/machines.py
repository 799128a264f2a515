"""The physics of GPUs: running jobs, their ends and their resources. Arrays over N clusters; numpy and numba only.

simcluster's one cluster (adlro/sim/simulator.py) and the thousands of a training (adlro/sim/kernel.py) both run on
these functions. A gang is one job number on several GPUs with one start and one end; it is as slow as its slowest GPU.

Two jobs of one GPU each may share it: the first, in the order of their starts, and its mate. Each works at the share of
the GPU's speed that it keeps beside the other; when the first ends its mate becomes the first.

A job that was stopped goes on with a share of its work, after a restart. What it has left is in seconds of the whole
work at speed 1 (`full_s`); a change of speed moves all that is to come, the restart too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.observation import Ints
from adlro.state.room import give_back, take

WHOLE_NODES = -1
"""Stands for the cores of a job that is alone on its nodes: it holds all their cores and memory."""

OVERRUN_SHARE = 0.5
"""If runtimes have a lognormal distribution with sigma s and the estimate m as median, jobs that exceed m continue for
(exp(s^2 / 2) Phi(s) / Phi(0) - 1) m on average: 0.42 m at s = 0.4, as the jobs of one user and application have in the
scenario `paper`, 0.57 m at s = 0.5."""

_ROUNDING_S = 1e-6
"""A job that ends at its expected end has not exceeded it, whatever the rounding of sums of floats."""


def time_left_s(restart_s: Any, share: Any, full_s: Any) -> Any:
    """Seconds from the start of a job that was stopped: its restart, and what is left of its whole work.

    Exactly `full_s` for one that never was: no restart, and all of its work left.

    Args:
        restart_s: 0 for a job that was never stopped.
        share: of its work; above 0.
        full_s: of the whole work; inf: never there.
    """
    return restart_s + share * full_s


left_of = compiled_part(time_left_s)


@compiled
def count_nodes(hardware: Hardware, machines: Machines, n: int) -> None:
    """Works out anew what follows from the state of the GPUs of cluster n; for callers that write that state."""
    for node in range(hardware.node_cores.shape[1]):
        machines.node_idle[n, node] = 0
        machines.node_end_s[n, node] = np.inf
    machines.gang_count[n] = machines.lost_count[n] = 0
    for gpu in range(hardware.gpu_count[n]):
        node, gang = hardware.gpu_node[n, gpu], machines.gpu_gang[n, gpu]
        idle, lost = machines.gpu_job[n, gpu] == IDLE, machines.gpu_speed[n, gpu] == 0.0
        machines.node_idle[n, node] += idle and not lost
        machines.lost_count[n] += lost
        machines.node_end_s[n, node] = min(machines.node_end_s[n, node], machines.gpu_end_s[n, gpu])
        if has_mates(machines):
            machines.node_end_s[n, node] = min(machines.node_end_s[n, node], machines.mate_end_s[n, gpu])
        if gang > 1:
            first = gpu
            for other in range(gpu):
                if machines.gpu_gang[n, other] > 1 and machines.gpu_launch[n, other] == machines.gpu_launch[n, gpu]:
                    first = other
                    break
            machines.gang_count[n] += first == gpu


@compiled
def occupy(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpu: int,
    job: int,
    full_s: float,
    share: float,
    start_cost_s: float,
    restart_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Starts a job now on an idle GPU of cluster n.

    The job starts for `start_cost_s`, restores for `restart_s`, and does `share` of its work, which takes `full_s` at
    the model's own speed; a scheduler expects `expected_s` for the whole work, and knows the restart and the share.
    `cores` may be WHOLE_NODES.
    """
    cost_s = start_cost_s + restart_s
    end_s = machines.time_s[n] + (cost_s + share * full_s / machines.gpu_speed[n, gpu])
    left_s = left_of(restart_s, share, expected_s)
    _hold_gpu(hardware, machines, n, gpu, job, 1, end_s, cost_s, left_s, cores, memory_mib)
    machines.launch_count[n] += 1
    machines.running_count[n] += 1


@compiled
def occupy_gang(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpus: Ints,
    job: int,
    full_s: float,
    share: float,
    start_cost_s: float,
    restart_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Starts a job now on several idle GPUs of cluster n: `occupy` on each, with one end, that of the slowest.

    Args:
        gpus: (W,) their numbers, then -1.
        cores, memory_mib: taken with each GPU from its node; WHOLE_NODES, and any memory: all of these nodes.
    """
    size, speed = 0, np.inf
    while size < gpus.shape[0] and gpus[size] >= 0:
        speed = min(speed, machines.gpu_speed[n, gpus[size]])
        size += 1
    cost_s = start_cost_s + restart_s
    end_s = machines.time_s[n] + (cost_s + share * full_s / speed)
    left_s = left_of(restart_s, share, expected_s)
    for i in range(size):
        _hold_gpu(hardware, machines, n, gpus[i], job, size, end_s, cost_s, left_s, cores, memory_mib)
    machines.launch_count[n] += 1
    machines.running_count[n] += 1
    machines.gang_count[n] += size > 1


@compiled_part
def has_mates(machines: Machines) -> bool:
    """Whether two jobs may share a GPU."""
    return bool(machines.mate_job.shape[1] > 0)


@compiled
def occupy_beside(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpu: int,
    job: int,
    full_s: float,
    share: float,
    start_cost_s: float,
    restart_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
    kept: float,
    told: float,
    first_kept: float,
    first_told: float,
) -> None:
    """Starts a job now beside the one that is alone on a GPU of cluster n; the other arguments are those of `occupy`.

    Args:
        kept, told: the share of its speed that the job keeps, and what a scheduler expects of that.
        first_kept, first_told: the same for the one that is there.
    """
    time_s, cost_s = machines.time_s[n], start_cost_s + restart_s
    machines.mate_job[n, gpu] = job
    machines.mate_start_s[n, gpu] = time_s
    machines.mate_end_s[n, gpu] = time_s + (cost_s + share * full_s / (machines.gpu_speed[n, gpu] * kept))
    machines.mate_expected_end_s[n, gpu] = time_s + (restart_s + share * expected_s / told)
    machines.mate_work_from_s[n, gpu] = time_s + cost_s
    machines.mate_launch[n, gpu] = machines.launch_count[n]
    machines.mate_cores[n, gpu] = cores
    machines.mate_memory_mib[n, gpu] = memory_mib
    machines.mate_kept[n, gpu] = kept
    machines.mate_told[n, gpu] = told
    take(machines.cores_free, machines.memory_free_mib, n, hardware.gpu_node[n, gpu], cores, memory_mib)
    machines.launch_count[n] += 1
    machines.running_count[n] += 1
    _keep(machines, n, gpu, first_kept, first_told)
    _find_node_end(hardware, machines, n, hardware.gpu_node[n, gpu])


@compiled_call
def _keep(machines: Machines, n: int, gpu: int, kept: float, told: float) -> None:
    """Changes now the share of its speed that the first job on a GPU of cluster n keeps, and what is expected of it."""
    time_s, speed, told_before = machines.time_s[n], machines.gpu_speed[n, gpu], machines.gpu_told[n, gpu]
    if told_before != told:
        end_s = machines.gpu_expected_end_s[n, gpu]
        machines.gpu_expected_end_s[n, gpu] = _moved_s(end_s, time_s, told_before, told)
    _hasten(machines, n, gpu, speed * machines.gpu_kept[n, gpu], speed * kept)
    machines.gpu_kept[n, gpu] = kept
    machines.gpu_told[n, gpu] = told


@compiled_part
def _hasten(machines: Machines, n: int, gpu: int, before: float, after: float) -> None:
    """Moves all that is to come of the first job on a GPU of cluster n: its speed changes now."""
    if before != after:
        time_s, work_from_s = machines.time_s[n], machines.gpu_work_from_s[n, gpu]
        machines.gpu_end_s[n, gpu] = _moved_s(machines.gpu_end_s[n, gpu], time_s, before, after)
        if work_from_s > time_s:
            machines.gpu_work_from_s[n, gpu] = _moved_s(work_from_s, time_s, before, after)


@compiled
def swap_mates(machines: Machines, n: int, gpu: int) -> None:
    """Lets the two jobs on a GPU of cluster n change places."""
    one, other = machines.gpu_job[n, gpu], machines.mate_job[n, gpu]
    machines.gpu_job[n, gpu], machines.mate_job[n, gpu] = other, one
    one, other = machines.gpu_launch[n, gpu], machines.mate_launch[n, gpu]
    machines.gpu_launch[n, gpu], machines.mate_launch[n, gpu] = other, one
    one, other = machines.gpu_cores[n, gpu], machines.mate_cores[n, gpu]
    machines.gpu_cores[n, gpu], machines.mate_cores[n, gpu] = other, one
    one, other = machines.gpu_memory_mib[n, gpu], machines.mate_memory_mib[n, gpu]
    machines.gpu_memory_mib[n, gpu], machines.mate_memory_mib[n, gpu] = other, one
    at_s, other_s = machines.gpu_start_s[n, gpu], machines.mate_start_s[n, gpu]
    machines.gpu_start_s[n, gpu], machines.mate_start_s[n, gpu] = other_s, at_s
    at_s, other_s = machines.gpu_end_s[n, gpu], machines.mate_end_s[n, gpu]
    machines.gpu_end_s[n, gpu], machines.mate_end_s[n, gpu] = other_s, at_s
    at_s, other_s = machines.gpu_expected_end_s[n, gpu], machines.mate_expected_end_s[n, gpu]
    machines.gpu_expected_end_s[n, gpu], machines.mate_expected_end_s[n, gpu] = other_s, at_s
    at_s, other_s = machines.gpu_work_from_s[n, gpu], machines.mate_work_from_s[n, gpu]
    machines.gpu_work_from_s[n, gpu], machines.mate_work_from_s[n, gpu] = other_s, at_s
    share, other_share = machines.gpu_kept[n, gpu], machines.mate_kept[n, gpu]
    machines.gpu_kept[n, gpu], machines.mate_kept[n, gpu] = other_share, share
    share, other_share = machines.gpu_told[n, gpu], machines.mate_told[n, gpu]
    machines.gpu_told[n, gpu], machines.mate_told[n, gpu] = other_share, share


@compiled_part
def _hold_gpu(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpu: int,
    job: int,
    size: int,
    end_s: float,
    cost_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Gives a GPU of cluster n to a job of `size` GPUs, whose work begins after `cost_s`."""
    node = hardware.gpu_node[n, gpu]
    if cores == WHOLE_NODES:
        # All with the first of its GPUs there, nothing with the others.
        cores, memory_mib = machines.cores_free[n, node], machines.memory_free_mib[n, node]
    machines.gpu_job[n, gpu] = job
    machines.gpu_start_s[n, gpu] = machines.time_s[n]
    machines.gpu_end_s[n, gpu] = end_s
    machines.gpu_expected_end_s[n, gpu] = machines.time_s[n] + expected_s
    machines.gpu_work_from_s[n, gpu] = machines.time_s[n] + cost_s
    machines.gpu_gang[n, gpu] = size
    machines.gpu_launch[n, gpu] = machines.launch_count[n]
    machines.gpu_cores[n, gpu] = cores
    machines.gpu_memory_mib[n, gpu] = memory_mib
    take(machines.cores_free, machines.memory_free_mib, n, node, cores, memory_mib)
    machines.idle_count[n] -= 1
    machines.node_idle[n, node] -= 1
    machines.node_end_s[n, node] = min(machines.node_end_s[n, node], end_s)


@compiled
def vacate(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Removes the job on a GPU of cluster n, now, from all its GPUs; the GPUs stay.

    Where two share the GPU the first goes, and the other is alone from now on.
    """
    if has_mates(machines) and machines.mate_job[n, gpu] != IDLE:
        _leave_mate(hardware, machines, n, gpu)
        return
    if machines.gpu_gang[n, gpu] > 1:
        machines.gang_count[n] -= 1
        _free_others(hardware, machines, n, gpu)
    _free_gpu(hardware, machines, n, gpu)
    machines.running_count[n] -= 1


@compiled_call
def _leave_mate(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Removes the first of the two jobs on a GPU of cluster n."""
    swap_mates(machines, n, gpu)
    node = hardware.gpu_node[n, gpu]
    cores, memory_mib = machines.mate_cores[n, gpu], machines.mate_memory_mib[n, gpu]
    give_back(machines.cores_free, machines.memory_free_mib, n, node, cores, memory_mib)
    machines.mate_job[n, gpu] = IDLE
    machines.mate_end_s[n, gpu] = np.inf
    machines.mate_expected_end_s[n, gpu] = np.inf
    machines.running_count[n] -= 1
    _keep(machines, n, gpu, 1.0, 1.0)
    _find_node_end(hardware, machines, n, node)


@compiled_call
def _free_others(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Takes the other GPUs of the job on a GPU of cluster n from it."""
    launch, count, left = machines.gpu_launch[n, gpu], hardware.gpu_count[n], machines.gpu_gang[n, gpu] - 1
    # From the next one on: mostly the GPU is the first of its job, and the others follow closely.
    member = gpu
    while left > 0:
        member = member + 1 if member + 1 < count else 0
        if machines.gpu_launch[n, member] == launch and machines.gpu_gang[n, member] > 0 and member != gpu:
            _free_gpu(hardware, machines, n, member)
            left -= 1


@compiled_part
def _free_gpu(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Takes a GPU of cluster n from its job."""
    node = hardware.gpu_node[n, gpu]
    cores, memory_mib = machines.gpu_cores[n, gpu], machines.gpu_memory_mib[n, gpu]
    give_back(machines.cores_free, machines.memory_free_mib, n, node, cores, memory_mib)
    machines.gpu_job[n, gpu] = IDLE
    machines.gpu_end_s[n, gpu] = np.inf
    machines.gpu_expected_end_s[n, gpu] = np.inf
    machines.gpu_gang[n, gpu] = 0
    machines.idle_count[n] += 1
    machines.node_idle[n, node] += 1
    _find_node_end(hardware, machines, n, node)


@compiled_part
def _find_node_end(hardware: Hardware, machines: Machines, n: int, node: int) -> None:
    """Fills in the next end of a job on a node, after one there has changed."""
    end_s = np.inf
    for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
        end_s = min(end_s, machines.gpu_end_s[n, gpu])
        if has_mates(machines):
            end_s = min(end_s, machines.mate_end_s[n, gpu])
    machines.node_end_s[n, node] = end_s


@compiled
def set_speed(hardware: Hardware, machines: Machines, n: int, gpu: int, speed: float) -> None:
    """Changes a GPU's speed now, and with it the ends of the jobs on it (the GPU is not lost, before or after).

    A GPU that is lost (0) must be idle.
    """
    before = machines.gpu_speed[n, gpu]
    if before == speed:
        return  # a rounding error must not move an end
    if machines.gpu_gang[n, gpu] > 1:
        _set_gang_speed(hardware, machines, n, gpu, speed)
        return
    node = hardware.gpu_node[n, gpu]
    machines.gpu_speed[n, gpu] = speed
    if machines.gpu_job[n, gpu] != IDLE:
        kept = machines.gpu_kept[n, gpu] if has_mates(machines) else 1.0
        _hasten(machines, n, gpu, before * kept, speed * kept)
        if has_mates(machines) and machines.mate_job[n, gpu] != IDLE:
            kept = machines.mate_kept[n, gpu]
            swap_mates(machines, n, gpu)
            _hasten(machines, n, gpu, before * kept, speed * kept)
            swap_mates(machines, n, gpu)
        _find_node_end(hardware, machines, n, node)
    elif before == 0.0 and speed > 0.0:
        machines.idle_count[n] += 1
        machines.node_idle[n, node] += 1
        machines.lost_count[n] -= 1
    elif before > 0.0 and speed == 0.0:
        machines.idle_count[n] -= 1
        machines.node_idle[n, node] -= 1
        machines.lost_count[n] += 1


@compiled_call
def _set_gang_speed(hardware: Hardware, machines: Machines, n: int, gpu: int, speed: float) -> None:
    """Changes the speed of a GPU of a gang: the gang's end moves only if its slowest GPU is another speed now."""
    before, after, launch = np.inf, np.inf, machines.gpu_launch[n, gpu]
    for member in range(machines.gpu_job.shape[1]):
        if machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
            before = min(before, machines.gpu_speed[n, member])
            after = min(after, speed if member == gpu else machines.gpu_speed[n, member])
    machines.gpu_speed[n, gpu] = speed
    if before == after:
        return
    time_s, work_from_s = machines.time_s[n], machines.gpu_work_from_s[n, gpu]
    end_s = _moved_s(machines.gpu_end_s[n, gpu], time_s, before, after)
    if work_from_s > time_s:
        work_from_s = _moved_s(work_from_s, time_s, before, after)
    for member in range(machines.gpu_job.shape[1]):
        if machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
            machines.gpu_end_s[n, member] = end_s
            machines.gpu_work_from_s[n, member] = work_from_s
            _find_node_end(hardware, machines, n, hardware.gpu_node[n, member])


@compiled_part
def _moved_s(at_s: float, time_s: float, before: float, after: float) -> float:
    """A moment to come, moved by a change of speed now."""
    return time_s + (at_s - time_s) * (before / after)


@compiled
def works(machines: Machines, n: int, gpu: int) -> bool:
    """Whether the job on a GPU of cluster n neither starts nor restores now: until then it can't be stopped."""
    return bool(machines.time_s[n] >= machines.gpu_work_from_s[n, gpu])


@compiled
def share_at_stop(machines: Machines, n: int, gpu: int, share: float, full_s: float, lost_s: float) -> float:
    """The share of its work that the job on a GPU of cluster n would have left if it were stopped now, while it works.

    Args:
        share: at the start of its attempt; a stop never loses more than the attempt has done.
        full_s: its whole work on these GPUs, at speed 1.
        lost_s: work that a stop loses.
    """
    left_s = (machines.gpu_end_s[n, gpu] - machines.time_s[n]) * speed_of_run(machines, n, gpu)
    return float(min(share, (left_s + lost_s) / full_s))


@compiled
def speed_of_run(machines: Machines, n: int, gpu: int) -> float:
    """The speed at which the job on a GPU of cluster n works: that of its slowest GPU, or what it keeps of it."""
    speed = machines.gpu_speed[n, gpu]
    if has_mates(machines):
        speed *= machines.gpu_kept[n, gpu]
    if machines.gpu_gang[n, gpu] > 1:
        launch = machines.gpu_launch[n, gpu]
        for member in range(machines.gpu_job.shape[1]):
            if machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
                speed = min(speed, machines.gpu_speed[n, member])
    return float(speed)


def expected_rest_s(time_s: float, start_s: float, expected_end_s: float) -> float:
    """The expected remaining time of a running job on its GPU, in seconds.

    A job that exceeds its expected duration is expected to continue for OVERRUN_SHARE of its run so far.
    """
    left_s = expected_end_s - time_s
    if left_s >= -_ROUNDING_S:
        return max(left_s, 0.0)
    return OVERRUN_SHARE * (time_s - start_s)


remaining_s = compiled_part(expected_rest_s)


@compiled
def next_end_s(machines: Machines, n: int) -> float:
    """The next end of a job of cluster n, cluster time; inf if none runs."""
    if machines.running_count[n] == 0:
        return np.inf
    ends = machines.node_end_s[n]
    nodes = ends.shape[0]
    # Four minima side by side: each alone waits for the one before.
    first_s = second_s = third_s = fourth_s = np.inf
    for i in range(0, nodes - 3, 4):
        first_s, second_s = min(first_s, ends[i]), min(second_s, ends[i + 1])
        third_s, fourth_s = min(third_s, ends[i + 2]), min(fourth_s, ends[i + 3])
    for i in range(nodes - nodes % 4, nodes):
        first_s = min(first_s, ends[i])
    return min(first_s, second_s, third_s, fourth_s)
