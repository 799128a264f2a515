"""The waiting jobs in a network's window, compiled: the base's, the oldest, the shortest. numpy and numba only.

A window in the order of submission would, in a long queue, lack the jobs that every good rule would start next.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.hold_rule import HoldRule, best_duration_s, is_short, look_around, queue_drain_s, score_job
from adlro.decide.looked import Looked
from adlro.decide.planes.layout import Scratch
from adlro.numeric.compiled import compiled_part
from adlro.numeric.exact_compiled import log
from adlro.state.observation import Ints

OLDEST = 4
"""Jobs in the window for their age: a policy that never scores them could let them wait for ever."""

NOT_NOW = 1.0
"""Penalty in nats of duration for a job that fits nowhere now."""


@compiled_part
def look_at_machines(looked: Looked, n: int, scratch: Scratch) -> None:
    """Fills the scratch arrays that are the same for each job of cluster n."""
    nodes, gpus = looked.node_cores_free.shape[1], looked.gpu_node.shape[1]
    for node in range(nodes):
        scratch.node_gpus[node] = 0
        scratch.node_slots[node] = 0
        scratch.node_cores[node] = looked.node_cores_free[n, node]
        scratch.node_memory_mib[node] = looked.node_memory_free_mib[n, node]
    for gpu in range(gpus):
        scratch.kind_gpus[gpu] = 0
    for gpu in range(gpus):
        node = looked.gpu_node[n, gpu]
        if looked.gpu_memory_mib[n, gpu] < 0:  # padding
            scratch.slot[gpu] = -1
            scratch.usable[gpu] = False
            continue
        scratch.slot[gpu] = scratch.node_slots[node]
        scratch.node_slots[node] += 1
        usable = looked.gpu_idle[n, gpu] or looked.gpu_remaining_s[n, gpu] < np.inf
        scratch.usable[gpu] = usable
        if usable:
            scratch.node_gpus[node] += 1
            scratch.kind_gpus[looked.gpu_kind[n, gpu]] += 1
        scratch.node_cores[node] += looked.gpu_cores_held[n, gpu]
        scratch.node_memory_mib[node] += looked.gpu_memory_held_mib[n, gpu]
    look_around(
        looked.gpu_kind[n],
        looked.gpu_node[n],
        looked.gpu_idle[n],
        looked.gpu_remaining_s[n],
        looked.node_cores_free[n],
        scratch.surroundings,
    )


@compiled_part
def rank_jobs(rule: HoldRule, looked: Looked, n: int, scratch: Scratch) -> tuple[int, int, int]:
    """Fills `best_s` and `key` of the waiting jobs of cluster n, and the queue's scratch arrays.

    Returns:
        The number of waiting jobs; the base's job and GPU, -1 if it holds.
    """
    waiting, base_job, base_gpu, base_score = 0, -1, -1, -np.inf
    scores, table = scratch.scores[0], looked.table
    around, too_long = scratch.surroundings, False
    queue_s = queue_drain_s(around, looked, n, to_the_end=True)
    drain_s = queue_s if looked.hold_allowed[n] else np.inf
    for job in range(looked.job_waiting.shape[1]):
        scratch.chosen[job] = False
        scratch.best_s[job] = np.inf
        scratch.key[job] = -np.inf
        if not looked.job_waiting[n, job]:
            continue
        waiting += 1
        duration_s, gpus = looked.kind_duration_s[n, job], table.gpu[table.first[n, job] : table.first[n, job + 1]]
        best_s = best_duration_s(around, duration_s, gpus)
        scratch.best_s[job] = best_s
        scratch.key[job] = -log(best_s) - NOT_NOW if best_s < np.inf else -1e300
        if gpus.shape[0] == 0:
            continue
        waited_s = looked.time_s[n] - looked.job_submit_s[n, job]
        cores = looked.job_cores[n, job]
        score_job(rule, around, duration_s, gpus, cores, waited_s, drain_s, scores)
        for kind in range(duration_s.shape[0]):
            if around.kind_fits[kind] and not too_long:
                too_long = is_short(rule, around, kind, duration_s[kind], best_s, queue_s)
        for i in range(gpus.shape[0]):
            scratch.key[job] = max(scratch.key[job], scores[i])
            if scores[i] > base_score:
                base_job, base_gpu, base_score = job, gpus[i], scores[i]
    scratch.queue_drain_s[0], scratch.drain_s[0], scratch.too_long_to_hold[0] = queue_s, drain_s, too_long
    return waiting, base_job, base_gpu


@compiled_part
def choose_window(looked: Looked, n: int, waiting: int, base_job: int, scratch: Scratch, rows: Ints) -> int:
    """Fills (W,) rows: places in the observation, in the order of submission; -1 after them.

    Returns:
        The number of these places.
    """
    window, jobs = rows.shape[0], looked.job_waiting.shape[1]
    left = window
    if waiting > window:
        if base_job >= 0:
            scratch.chosen[base_job] = True
            left -= 1
        oldest = 0
        for job in range(jobs):
            if oldest == OLDEST or left == 0:
                break
            if looked.job_waiting[n, job]:
                oldest += 1
                if not scratch.chosen[job]:
                    scratch.chosen[job] = True
                    left -= 1
        _mark_best(jobs, left, scratch)
    count = 0
    for job in range(jobs):
        if looked.job_waiting[n, job] and (waiting <= window or scratch.chosen[job]):
            rows[count] = job
            count += 1
    for w in range(count, window):
        rows[w] = -1
    return count


@compiled_part
def _mark_best(jobs: int, left: int, scratch: Scratch) -> None:
    """Marks as chosen the `left` unchosen jobs with the highest keys; on a tie the earlier."""
    found = 0
    for job in range(jobs):
        key = scratch.key[job]
        if scratch.chosen[job] or key == -np.inf or left == 0 or (found == left and key <= scratch.top_key[left - 1]):
            continue
        place = min(found, left - 1)
        while place > 0 and scratch.top_key[place - 1] < key:
            scratch.top_key[place] = scratch.top_key[place - 1]
            scratch.top[place] = scratch.top[place - 1]
            place -= 1
        scratch.top_key[place], scratch.top[place] = key, job
        found = min(found + 1, left)
    for i in range(found):
        scratch.chosen[scratch.top[i]] = True
