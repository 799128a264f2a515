"""Figures of simulated job lists, one value a list; Little's law is checked on every one. numpy only.

Definitions, for a list of J jobs with submission s, start t of the last attempt, end e, all in seconds:

- JCT = e - s; wait = t - s; makespan = last end - first submission; throughput = J / makespan
- late JCT = mean JCT of the later half of the jobs, by submission, from job J/2 on: by then most of what can be learned
  on the way has been
- weighted JCT = sum(priority x JCT) / sum(priority)
- best = the job's shortest true duration on any GPU of the cluster that can hold it
- bounded slowdown = max(1, JCT / max(best, 10 s)): D. G. Feitelson, "Metrics for Parallel Job Scheduling and Their
  Convergence", JSSPP 2001, with its threshold of 10 s
- busy utilization = GPU time of all attempts / (GPUs x makespan), that of two on one GPU counted once; useful
  utilization = sum(best) / (GPUs x makespan): what part of the GPU time a cluster would need that ran every job where
  it is fastest, and alone
- fairness = Jain's index (sum x)^2 / (n sum x^2) over the users' mean bounded slowdowns x; 1: all users alike (R. Jain,
  D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984)

A row's figure is the mean over the lists of the list's figure: p95, p99, the longest wait and the makespan too.

Who decided is counted over all decisions of all lists, to start nothing included:

- overdue share = share in which the limit on waits (`policies/bounded_wait.py`) changed what the policy wanted: a job
  had waited too long
- fallback share = share in which `hold_greedy_fixed` decided in the policy's place: what that saw was out of the range
  of its training, or it failed

Little's law: the mean number of jobs in the system x the makespan is the sum of the JCTs. The kernel counts the first
at its events, the second comes from the jobs' own times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InternalError
from adlro.lab.evaluate.tally import BASES
from adlro.numeric.exact import power
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchOutcome
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints
from adlro.state.room import room

METRICS = (
    "mean_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "weighted_jct_s",
    "throughput_jobs_per_h",
    "utilization_busy",
    "utilization_useful",
    "makespan_s",
    "max_wait_s",
    "bounded_slowdown",
    "fairness_jain",
    "late_jct_s",
)

SLOWDOWN_BOUND_S = 10.0
LITTLE_TOLERANCE = 0.01

JCT_EDGES_S: Floats = np.array([power(10.0, bin_ / 40 - 3) for bin_ in range(12 * 40 + 1)])
"""Edges of the distribution of JCTs: 40 bins per decade."""
TIME_BINS = 60
"""Number of bins of a GPU's utilization over the makespan."""
GANTT_RUNS = 3000
"""Number of an episode's first attempts that are stored for its Gantt chart."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of N lists under one policy.

    Attributes:
        metrics: (N, METRICS); nan for stuck lists.
        stuck: (N,) number of jobs that never ended; 0: all did.
        jct_counts: (JCT_EDGES_S - 1,) number of jobs of all lists by JCT.
        gpu_busy: (G, TIME_BINS) share of the time that a GPU was busy, over the course of the makespan, summed over the
            lists that were not stuck.
        gantt: (R, 5) attempts of the first list: job type, GPU, start and end since the first submission, completed.
        basis_counts: (N, BASES) numbers of decisions by basis; 0 in a whole row: they were not counted.
    """

    metrics: Floats
    stuck: Ints
    jct_counts: Ints
    gpu_busy: Floats
    gantt: Floats
    basis_counts: Ints


def best_duration_s(cluster: Cluster, jobs: JobArrays) -> Floats:
    """(N, J) shortest true duration on a GPU of the cluster that can hold the job; inf if none can."""
    best = np.full(jobs.submit_s.shape, np.inf)
    models = cluster.gpu_models
    kinds: dict[tuple[str, int, int, int], set[int]] = {}
    for number, node in enumerate(cluster.nodes):
        for gpu in node.gpus:
            kind = gpu.gpu_model, gpu.memory_mib, node.cpu_cores, node.memory_mib
            kinds.setdefault(kind, set()).add(number)
    for (model, gpu_memory_mib, cores, memory_mib), nodes in sorted(kinds.items()):
        holds = room(jobs.cores, jobs.memory_mib, jobs.gpu_memory_mib, cores, memory_mib, gpu_memory_mib)
        if jobs.node_allowed.shape[2]:
            holds &= jobs.node_allowed[:, :, sorted(nodes)].any(axis=2)
        best = np.where(holds, np.minimum(best, jobs.duration_s[:, :, models.index(model)]), best)
    return best


def figures_of(
    cluster: Cluster, outcome: BatchOutcome, *, policy: str, first_list: int = 0, basis_counts: Ints | None = None
) -> Figures:
    """Figures of all lists of an outcome.

    Args:
        cluster: the lists' cluster.
        outcome: outcome of the lists.
        policy: its name, for messages.
        first_list: number of the first list, for messages.
        basis_counts: (N, BASES) bases of its decisions; None: they were not counted.

    Raises:
        InternalError: Little's law does not hold: the simulator is faulty.
    """
    jobs, lists = outcome.jobs, len(outcome.jobs.job_count)
    gpus = sum(1 for _ in cluster.gpus())
    best_s = best_duration_s(cluster, jobs)
    busy_s = outcome.busy_s()
    metrics = np.full((lists, len(METRICS)), np.nan)
    stuck = np.zeros(lists, dtype=np.int64)
    jct_counts = np.zeros(len(JCT_EDGES_S) - 1, dtype=np.int64)
    gpu_busy = np.zeros((gpus, TIME_BINS))
    for number in range(lists):
        here = slice(0, int(jobs.job_count[number]))
        submit_s, end_s = jobs.submit_s[number, here], outcome.end_s[number, here]
        stuck[number] = np.isnan(end_s).sum()
        if stuck[number]:
            continue
        jct_s = end_s - submit_s
        check_little(
            float(outcome.jobs_integral_s[number]), float(jct_s.sum()), policy=policy, number=first_list + number
        )
        makespan_s = float(end_s.max() - submit_s[0])
        slowdown = np.maximum(1.0, jct_s / np.maximum(best_s[number, here], SLOWDOWN_BOUND_S))
        gpu_time_s = gpus * makespan_s
        runs = _runs(outcome, number)
        if jobs.shareable[number].any():
            busy_s[number] -= _cut_shared(runs)
        metrics[number] = (
            jct_s.mean(),
            *np.percentile(jct_s, (95, 99)),
            _weighted_mean(jct_s, jobs.priority[number, here]),
            3600.0 * len(jct_s) / makespan_s,
            busy_s[number] / gpu_time_s,
            best_s[number, here].sum() / gpu_time_s,
            makespan_s,
            (outcome.start_s[number, here] - submit_s).max(),
            slowdown.mean(),
            jain_of_users(slowdown, jobs.user[number, here]),
            jct_s[len(jct_s) // 2 :].mean(),
        )
        jct_counts += np.histogram(np.clip(jct_s, JCT_EDGES_S[0], JCT_EDGES_S[-1]), JCT_EDGES_S)[0]
        gpu_busy += _busy_shares(runs, float(submit_s[0]), makespan_s, gpus)
    if basis_counts is None:
        basis_counts = np.zeros((lists, len(BASES)), dtype=np.int64)
    return Figures(metrics, stuck, jct_counts, gpu_busy, _gantt(outcome), basis_counts)


def check_little(jobs_integral_s: float, jct_sum_s: float, *, policy: str, number: int) -> None:
    """Raises InternalError if the two sides of Little's law differ by more than 1 %."""
    if not abs(jobs_integral_s - jct_sum_s) <= LITTLE_TOLERANCE * jct_sum_s:
        raise InternalError(
            f"Little's law does not hold for policy {policy}, list {number}: the time integral of the number of jobs "
            f"in the system is {jobs_integral_s:.6g} s, the sum of the completion times {jct_sum_s:.6g} s. This is a "
            "bug in the simulator; no figure of this evaluation can be trusted"
        )


def jain_of_users(slowdown: Floats, user: NDArray[np.int64]) -> float:
    """Jain's index over the users' means of `slowdown`."""
    _, number = np.unique(user, return_inverse=True)
    mean = np.bincount(number, weights=slowdown) / np.bincount(number)
    return float(np.square(mean.sum()) / (len(mean) * np.square(mean).sum()))


def _weighted_mean(values: Floats, weights: Floats) -> float:
    # Without any priority every job has the same weight.
    return float(np.average(values, weights=weights if weights.sum() > 0 else None))


def _runs(outcome: BatchOutcome, number: int) -> Floats:
    """(R, 4) GPU, start, end, completed of a list's attempts."""
    runs = [(run.gpu, run.start_s, run.end_s, run.completed) for run in outcome.runs(number)]
    return np.array(runs, dtype=np.float64).reshape(-1, 4)


def _cut_shared(runs: Floats) -> float:
    """Lets runs on a GPU begin where those that began before have ended; returns by how much they were cut."""
    cut_s, busy_until_s = 0.0, dict[float, float]()
    for row in np.argsort(runs[:, 1], kind="stable").tolist():
        gpu, start_s, end_s, _ = runs[row].tolist()
        begin_s = min(max(start_s, busy_until_s.get(gpu, start_s)), end_s)
        runs[row, 1] = begin_s
        cut_s += begin_s - start_s
        busy_until_s[gpu] = max(busy_until_s.get(gpu, end_s), end_s)
    return cut_s


def _busy_shares(runs: Floats, begin_s: float, makespan_s: float, gpus: int) -> Floats:
    """(gpus, TIME_BINS) share of each bin of the makespan in which a GPU is busy."""
    edges_s = begin_s + makespan_s * np.arange(TIME_BINS + 1) / TIME_BINS
    shares = np.zeros((gpus, TIME_BINS))
    for part in np.array_split(runs, max(1, len(runs) // 10_000)):  # chunks limit the memory
        done_s = np.clip(edges_s, part[:, 1:2], part[:, 2:3])  # (R, edges)
        np.add.at(shares, part[:, 0].astype(np.int64), np.diff(done_s, axis=1))
    shares /= makespan_s / TIME_BINS
    return shares


def _gantt(outcome: BatchOutcome) -> Floats:
    begin_s = outcome.jobs.submit_s[0, 0] if outcome.jobs.job_count[0] else 0.0
    rows = [
        (outcome.jobs.job_type[0, run.job], run.gpu, run.start_s - begin_s, run.end_s - begin_s, run.completed)
        for run in outcome.runs(0)
    ]
    rows.sort(key=lambda row: row[2])
    return np.array(rows[:GANTT_RUNS], dtype=np.float64).reshape(-1, 5)
