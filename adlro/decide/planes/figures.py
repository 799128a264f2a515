"""The planes of one cluster, compiled. numpy and numba only.

Raw figures, in the units and the order of table.py, which also gives their normalisation: a new or removed plane
changes both files.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.hold_rule import HoldRule, best_duration_s, score_job
from adlro.decide.looked import Looked, is_alike
from adlro.decide.planes.layout import Float32s, Planes, Scratch
from adlro.decide.planes.table import normalised
from adlro.decide.planes.window import choose_window, look_at_machines, rank_jobs
from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.exact_compiled import exp, log
from adlro.state.observation import Floats

NEAR = 1.1
"""A GPU with a job's duration up to this many times its shortest counts as about as fast."""

LEAST_REMAINING = 0.1
"""As a share of the mean: a job that is about to end does not lower the typical duration."""

_MIB = 1.0 / 1024.0


@compiled
def fill_planes(
    rule: HoldRule,
    looked: Looked,
    gpu_rules: Floats,
    job_rules: Floats,
    pair_rules: Floats,
    cluster_rules: Floats,
    scratch: Scratch,
    out: Planes,
) -> None:
    """Fills in all planes; `out` has room for all pairs, and zeros in its matrices."""
    count = 0
    for n in range(looked.time_s.shape[0]):
        out.first_pair[n] = count
        look_at_machines(looked, n, scratch)
        waiting, base_job, base_gpu = rank_jobs(rule, looked, n, scratch)
        size = choose_window(looked, n, waiting, base_job, scratch, out.rows[n])
        scale_s = _typical_s(looked, n, scratch)
        out.scale_s[n] = scale_s
        out.hold_allowed[n] = looked.hold_allowed[n] and not scratch.too_long_to_hold[0]
        out.clipped[n] = _fill_jobs(rule, looked, n, size, waiting, scale_s, job_rules, scratch, out)
        out.clipped[n] += _fill_gpus(looked, n, size, scale_s, gpu_rules, scratch, out)
        out.clipped[n] += _fill_cluster(looked, n, waiting, base_job, scale_s, cluster_rules, scratch, out)
        before = count
        count = _fill_pairs(looked, n, size, count, base_job, base_gpu, scale_s, pair_rules, scratch, out)
        for pair in range(before, count):
            out.pair_cluster[pair] = n
    out.first_pair[looked.time_s.shape[0]] = count


@compiled_part
def _typical_s(looked: Looked, n: int, scratch: Scratch) -> float:
    """Geometric mean of the waiting jobs' best durations and the remaining times; 1 without any."""
    total, count = 0.0, 0
    for job in range(looked.job_waiting.shape[1]):
        if scratch.best_s[job] < np.inf:
            total += scratch.best_s[job]
            count += 1
    for gpu in range(looked.gpu_idle.shape[1]):
        if scratch.usable[gpu] and not looked.gpu_idle[n, gpu]:
            total += looked.gpu_remaining_s[n, gpu]
            count += 1
    if count == 0 or total <= 0.0:
        return 1.0
    least_s, logs = LEAST_REMAINING * total / count, 0.0
    for job in range(looked.job_waiting.shape[1]):
        if scratch.best_s[job] < np.inf:
            logs += log(scratch.best_s[job])
    for gpu in range(looked.gpu_idle.shape[1]):
        if scratch.usable[gpu] and not looked.gpu_idle[n, gpu]:
            logs += log(max(looked.gpu_remaining_s[n, gpu], least_s))
    return float(exp(logs / count))


@compiled_part
def _put(values: Float32s, plane: int, raw: float, rules: Floats) -> int:
    """Fills in one figure; returns 1 if it is outside the plane's range."""
    value, clipped = normalised(raw, rules, plane)
    values[plane] = value
    return clipped


@compiled_part
def _fill_jobs(
    rule: HoldRule,
    looked: Looked,
    n: int,
    size: int,
    waiting: int,
    scale_s: float,
    rules: Floats,
    scratch: Scratch,
    out: Planes,
) -> int:
    """Fills in the window's jobs, the scores of their pairs, and counts for each GPU."""
    gpus, clipped, usable, around, table = looked.gpu_node.shape[1], 0, 0, scratch.surroundings, looked.table
    for gpu in range(gpus):
        # There are no more kinds than GPUs.
        scratch.speed[gpu] = scratch.wanted[gpu] = scratch.fitting[gpu] = scratch.rivals[gpu] = 0.0
        scratch.cheapest[gpu] = -np.inf
        usable += scratch.usable[gpu]
    for w in range(size):
        job = out.rows[n, w]
        begin, end = table.first[n, job], table.first[n, job + 1]
        duration_s, rows, best_s = looked.kind_duration_s[n, job], table.gpu[begin:end], scratch.best_s[job]
        waited_s, somewhere = max(looked.time_s[n] - looked.job_submit_s[n, job], 0.0), begin < end
        if somewhere:
            cores, drain_s = looked.job_cores[n, job], scratch.drain_s[0]
            score_job(rule, around, duration_s, rows, cores, waited_s, np.inf, scratch.scores[w])
            score_job(rule, around, duration_s, rows, cores, waited_s, drain_s, scratch.refused_scores[w])
        else:
            best_duration_s(around, duration_s, rows)  # marks that it fits on no kind
        completion_s, best_wait_s, possible = np.inf, np.inf, 0
        for kind in range(duration_s.shape[0]):
            if scratch.kind_gpus[kind] == 0 or duration_s[kind] == np.inf:
                continue
            possible += scratch.kind_gpus[kind]
            wait_s = 0.0 if around.kind_fits[kind] else around.kind_wait_s[kind]
            completion_s = min(completion_s, wait_s + duration_s[kind])
            scratch.speed[kind] += best_s / duration_s[kind]
            if duration_s[kind] <= NEAR * best_s:
                best_wait_s = min(best_wait_s, wait_s)
                scratch.wanted[kind] += 1.0
        scratch.completion_s[w] = completion_s
        for row in range(begin, end):
            near, gpu, left = table.duration_s[row] <= NEAR * best_s, table.gpu[row], table.size[row]
            while left > 0:
                if is_alike(looked, n, table.gpu[row], gpu):
                    scratch.fitting[gpu] += 1.0
                    scratch.rivals[gpu] += near
                    scratch.cheapest[gpu] = max(scratch.cheapest[gpu], scratch.scores[w, row - begin])
                    left -= 1
                gpu += 1
        shorter = 0
        for other in range(looked.job_waiting.shape[1]):
            shorter += scratch.best_s[other] < best_s
        known = best_s < np.inf
        values, job_type = out.jobs[n, w], looked.job_type[n, job]
        clipped += _put(values, 0, 1.0, rules)
        clipped += _put(values, 1, best_s / scale_s, rules)
        clipped += _put(values, 2, looked.job_priority[n, job], rules)
        for each in range(3):
            clipped += _put(values, 3 + each, 1.0 if job_type == each + 1 else 0.0, rules)
        clipped += _put(values, 6, looked.job_cores[n, job], rules)
        clipped += _put(values, 7, looked.job_memory_mib[n, job] * _MIB, rules)
        clipped += _put(values, 8, looked.job_gpu_memory_mib[n, job] * _MIB, rules)
        clipped += _put(values, 9, waited_s / best_s, rules)
        clipped += _put(values, 10, waited_s / scale_s, rules)
        clipped += _put(values, 11, completion_s / best_s if known else 1.0, rules)
        clipped += _put(values, 12, best_wait_s / best_s if known else 0.0, rules)
        clipped += _put(values, 13, possible / max(usable, 1), rules)
        clipped += _put(values, 14, shorter / max(waiting - 1, 1), rules)
        clipped += _put(values, 15, 1.0 if somewhere else 0.0, rules)
    return clipped


@compiled_part
def _fill_gpus(looked: Looked, n: int, size: int, scale_s: float, rules: Floats, scratch: Scratch, out: Planes) -> int:
    clipped, around, share = 0, scratch.surroundings, 1.0 / max(size, 1)
    for gpu in range(looked.gpu_node.shape[1]):
        if not scratch.usable[gpu]:
            continue
        node, kind, idle = looked.gpu_node[n, gpu], looked.gpu_kind[n, gpu], looked.gpu_idle[n, gpu]
        cores, memory_mib = looked.node_cores_free[n, node], looked.node_memory_free_mib[n, node]
        node_idle = around.node_idle[node]
        values = out.gpus[n, :, node, scratch.slot[gpu]]
        clipped += _put(values, 0, 1.0, rules)
        clipped += _put(values, 1, 0.0 if idle else 1.0, rules)
        clipped += _put(values, 2, 0.0 if idle else looked.gpu_remaining_s[n, gpu] / scale_s, rules)
        next_end_s = around.node_next_end_s[node]
        clipped += _put(values, 3, 0.0 if node_idle > 0 or next_end_s == np.inf else next_end_s / scale_s, rules)
        clipped += _put(values, 4, looked.gpu_memory_mib[n, gpu] * _MIB, rules)
        clipped += _put(values, 5, cores, rules)
        clipped += _put(values, 6, cores / max(scratch.node_cores[node], 1), rules)
        clipped += _put(values, 7, looked.gpu_cores_held[n, gpu], rules)
        clipped += _put(values, 8, cores / max(node_idle, 1.0), rules)
        clipped += _put(values, 9, memory_mib / max(scratch.node_memory_mib[node], 1), rules)
        clipped += _put(values, 10, node_idle / scratch.node_gpus[node], rules)
        clipped += _put(values, 11, scratch.speed[kind] * share, rules)
        clipped += _put(values, 12, scratch.wanted[kind] * share, rules)
        clipped += _put(values, 13, scratch.fitting[gpu] * share, rules)
    return clipped


@compiled_part
def _fill_cluster(
    looked: Looked,
    n: int,
    waiting: int,
    base_job: int,
    scale_s: float,
    rules: Floats,
    scratch: Scratch,
    out: Planes,
) -> int:
    usable, busy, work_s = 0, 0, 0.0
    for gpu in range(looked.gpu_node.shape[1]):
        usable += scratch.usable[gpu]
        if scratch.usable[gpu] and not looked.gpu_idle[n, gpu]:
            busy += 1
            work_s += looked.gpu_remaining_s[n, gpu]
    fitting, oldest_s, priority = 0, 0.0, 0.0
    for job in range(looked.job_waiting.shape[1]):
        if not looked.job_waiting[n, job]:
            continue
        fitting += looked.table.first[n, job] < looked.table.first[n, job + 1]
        oldest_s = max(oldest_s, looked.time_s[n] - looked.job_submit_s[n, job])
        priority += looked.job_priority[n, job]
        if scratch.best_s[job] < np.inf:
            work_s += scratch.best_s[job]
    values, clipped, jobs = out.cluster[n], 0, max(waiting, 1)
    gpus = max(usable, 1)
    clipped += _put(values, 0, waiting, rules)
    clipped += _put(values, 1, waiting / gpus, rules)
    clipped += _put(values, 2, busy / gpus, rules)
    clipped += _put(values, 3, work_s / scale_s / gpus, rules)
    clipped += _put(values, 4, fitting / jobs, rules)
    clipped += _put(values, 5, oldest_s / scale_s, rules)
    clipped += _put(values, 6, priority / jobs, rules)
    clipped += _put(values, 7, scratch.queue_drain_s[0] / scale_s, rules)
    clipped += _put(values, 8, 1.0 if base_job < 0 else 0.0, rules)
    return clipped


@compiled_part
def _fill_pairs(
    looked: Looked,
    n: int,
    size: int,
    first: int,
    base_job: int,
    base_gpu: int,
    scale_s: float,
    rules: Floats,
    scratch: Scratch,
    out: Planes,
) -> int:
    """Fills in the pairs of cluster n from place `first` on; returns the place after them."""
    gpus, window, slots, table = looked.gpu_node.shape[1], out.rows.shape[1], out.gpus.shape[3], looked.table
    nodes, around, count, best = out.gpus.shape[2], scratch.surroundings, first, -np.inf
    for gpu in range(gpus):
        best = max(best, scratch.cheapest[gpu])
    out.base[n] = -1
    for w in range(size):
        job = out.rows[n, w]
        begin, end = table.first[n, job], table.first[n, job + 1]
        best_s, completion_s, cheapest = scratch.best_s[job], scratch.completion_s[w], -np.inf
        for kind in range(looked.kind_duration_s.shape[2]):
            scratch.kind_pair[kind] = -1
        for i in range(end - begin):
            cheapest = max(cheapest, scratch.scores[w, i])
        for i in range(end - begin):
            gpu, duration_s = table.gpu[begin + i], table.duration_s[begin + i]
            node = looked.gpu_node[n, gpu]
            out.pair_job[count] = n * window + w
            out.pair_place[count] = (n * nodes + node) * slots + scratch.slot[gpu]
            out.pair_queue[count] = job
            out.pair_gpu[count] = gpu
            out.pair_row[count] = begin + i
            is_base = job == base_job and gpu == base_gpu
            if is_base:
                out.base[n] = count
            score, cores, others = scratch.scores[w, i], looked.job_cores[n, job], around.node_idle[node] - 1.0
            share, near = around.gpu_core_share[gpu], duration_s <= NEAR * best_s
            values, kind = out.pairs[count], looked.gpu_kind[n, gpu]
            like, clipped = scratch.kind_pair[kind], 0
            if like < 0:
                scratch.kind_pair[kind] = count
                clipped += _put(values, 0, duration_s / best_s, rules)
                clipped += _put(values, 1, duration_s / scale_s, rules)
                clipped += _put(values, 2, duration_s / completion_s, rules)
                clipped += _put(values, 3, scratch.queue_drain_s[0] / duration_s, rules)
                scratch.kind_clipped[kind] = clipped
            else:  # logarithms are slow
                clipped = scratch.kind_clipped[kind]
                for plane in range(4):
                    values[plane] = out.pairs[like, plane]
            clipped += _put(values, 4, best - score, rules)
            clipped += _put(values, 5, 1.0 if scratch.refused_scores[w, i] == -np.inf else 0.0, rules)
            clipped += _put(values, 6, 1.0 if is_base else 0.0, rules)
            clipped += _put(values, 7, (cores - share) / max(share, 1.0), rules)
            clipped += _put(values, 8, (looked.node_cores_free[n, node] - cores) / max(others, 1.0), rules)
            clipped += _put(values, 9, 1.0 if others == 0.0 else 0.0, rules)
            clipped += _put(values, 10, table.size[begin + i] - 1, rules)
            clipped += _put(values, 11, scratch.rivals[gpu] - (1.0 if near else 0.0), rules)
            clipped += _put(values, 12, 1.0 if score == cheapest else 0.0, rules)
            clipped += _put(values, 13, 1.0 if score == scratch.cheapest[gpu] else 0.0, rules)
            out.clipped[n] += clipped
            count += 1
    return count
