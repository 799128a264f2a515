"""An upper bound on the throughput of a finite job list that no scheduler can beat. Arrays only.

Whatever is submitted from job k on starts at its submission s_k or later. So the list ends no earlier than
s_k + T_k, where T_k is the least time in which the cluster could do those jobs if they could be cut in pieces, run on
several GPUs at once and packed without gaps: a linear program with GPU time, core time and memory time of each kind of
node as capacities. Nor does it end before any single job could. The greatest of these over k bounds the makespan from
below, and jobs / makespan from above.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.sparse

from adlro.records.cluster import Cluster
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats

SUFFIXES = 32
"""So many k are tried, evenly spaced; fewer cost sharpness, never truth."""


def makespan_bound_s(cluster: Cluster, jobs: JobArrays, number: int) -> float:
    """A lower bound on the makespan of one list, from its first submission on.

    Args:
        cluster: on which it runs.
        jobs: the lists.
        number: of the list.

    Raises:
        ValueError: a node has several kinds of GPUs.
    """
    count = int(jobs.job_count[number])
    submit_s = jobs.submit_s[number, :count]
    duration_s, capacities, cores, memory_mib = _kinds(cluster, jobs, number, count)
    best_s = duration_s.min(axis=1)
    ends_s = float((submit_s + best_s).max())
    for first in range(0, count, max(1, count // SUFFIXES)):
        here = slice(first, count)
        work_s = _least_time_s(duration_s[here], capacities, cores[here], memory_mib[here])
        ends_s = max(ends_s, float(submit_s[first]) + work_s)
    return ends_s - float(submit_s[0])


def _kinds(cluster: Cluster, jobs: JobArrays, number: int, count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """What the program is made of.

    Returns:
        (J, K) durations on each kind of node, inf where it cannot hold the job; (3, K) GPUs, cores and memory of all
        nodes of a kind; (J,) cores and (J,) memory of the jobs.
    """
    models = list(cluster.gpu_models)
    cores = jobs.cores[number, :count].astype(np.float64)
    memory_mib = jobs.memory_mib[number, :count].astype(np.float64)
    capacity: dict[tuple[str, int, int, int], list[float]] = {}
    for node in cluster.nodes:
        kinds = {(gpu.gpu_model, gpu.memory_mib, node.cpu_cores, node.memory_mib) for gpu in node.gpus}
        if len(kinds) > 1:
            raise ValueError(f"node {node.node_id} has several kinds of GPUs; the bound counts cores by kind of GPU")
        for kind in kinds:
            total = capacity.setdefault(kind, [0.0, 0.0, 0.0])
            for place, more in enumerate((len(node.gpus), node.cpu_cores, node.memory_mib)):
                total[place] += more
    columns = []
    for model, gpu_memory_mib, node_cores, node_memory_mib in capacity:
        holds = (
            (jobs.gpu_memory_mib[number, :count] <= gpu_memory_mib)
            & (cores <= node_cores)
            & (memory_mib <= node_memory_mib)
        )
        columns.append(np.where(holds, jobs.duration_s[number, :count, models.index(model)], np.inf))
    return np.stack(columns, axis=1), np.array(list(capacity.values())).T, cores, memory_mib


def _least_time_s(duration_s: Floats, capacities: Floats, cores: Floats, memory_mib: Floats) -> float:
    """Of jobs that can be cut in pieces: the program's value, proven by its dual prices."""
    job, kind = np.nonzero(np.isfinite(duration_s))
    took_s = duration_s[job, kind]
    kinds = capacities.shape[1]
    column = np.arange(len(job))
    uses = [np.ones(len(job)), cores[job], memory_mib[job]]
    rows, limits = [], []
    for use, capacity in zip(uses, capacities, strict=True):
        rows.append(scipy.sparse.csr_matrix((took_s * use / capacity[kind], (kind, column)), (kinds, len(job))))
        limits.append(np.ones(kinds))
    used = scipy.sparse.vstack(rows)
    time = scipy.sparse.csr_matrix(-np.concatenate(limits)[:, None])
    once = scipy.sparse.csr_matrix((np.ones(len(job)), (job, column)), (len(duration_s), len(job) + 1))
    cost = np.zeros(len(job) + 1)
    cost[-1] = 1.0
    solved = scipy.optimize.linprog(
        cost,
        A_ub=scipy.sparse.hstack([used, time]),
        b_ub=np.zeros(used.shape[0]),
        A_eq=once,
        b_eq=np.ones(len(duration_s)),
        method="highs",
    )
    if solved.status != 0:
        raise RuntimeError(f"the linear program was not solved: {solved.message}")
    # Prices of the resources that sum to 1: each job pays at least its cheapest kind, in whatever pieces. So the bound
    # holds whatever the solver's tolerances.
    price = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0)
    if not price.sum() > 0.0:
        return 0.0
    paid = np.full(duration_s.shape, np.inf)
    paid[job, kind] = used.T @ (price / price.sum())
    return float(paid.min(axis=1).sum())
