"""A suite's jobs as a list for the simulator: what they asked for, and what they truly ran. Plain records and arrays.

A job's work is what its program ran, at the speed of the GPU model where it ran, in seconds on the reference GPU: of an
attempt beside another job the share of its speed that it kept counts, of a job that was stopped the work of all its
attempts but what the stops lost; on more nodes than needed, its speed there. The time between an attempt's start and
its program's is the same on every model.

Who is replayed, and who counts:

- jobs that succeeded are replayed and measured;
- jobs that failed, or were cancelled while they ran, are replayed for as long as they ran, so that others wait for
  them, and are not measured; those that reached their time limit run as long on every model;
- jobs that never ran, that have not ended, or that fit no more are left out, and counted.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.hardware.gang_speeds import spread_speed
from adlro.hardware.shared_speeds import TURN_SHARE, simulated_shares
from adlro.hardware.speeds import REFERENCE_GPU_MODEL, SpeedTable
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats, Ints
from adlro.workload.demand import NodeKind, holding_models, node_kinds, packed_node_counts
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.pairs import PairTable

DIGITS = 6
"""Times count as whole microseconds: differences of floats must not move what was at one instant."""
_LEAST_S = 1e-6

NOT_ENDED = "not ended yet"
NEVER_RAN = "cancelled or failed before they ran"
NO_RECORD = "without a record of when or where they ran"
NO_SPEED = "ran on a GPU model without known speeds"
NO_ROOM = "fit on no GPUs of the cluster as it is now"

FAILED = "failed: replayed as long as they ran, not measured"
CANCELLED = "cancelled while they ran: replayed as long as they ran, not measured"
STOPPED = "stopped for other jobs: the work of all attempts"
REPEATED = "ran again after a lost attempt: replayed without the loss"
GANG = "of several GPUs"
SHARED = "shared a GPU: their speed beside others by the table of pairs"
ASSUMED = "shared a GPU with a job of which no figures exist: half of the speed assumed"


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ran, ready for a replay.

    Attributes:
        job_id: its id.
        asks: its demands, its work, and its submission (cluster time, seconds).
        start_s, end_s: start of its last attempt, and its end.
        overhead_s: between the start and its program's.
        fixed_s: it runs as long on every model; None: by the model's speed.
        estimate: the user's: GPU model and seconds.
        measured: whether it counts in the figures.
    """

    job_id: str
    asks: WorkloadJob
    start_s: float
    end_s: float
    overhead_s: float
    fixed_s: float | None
    estimate: tuple[str, float] | None
    measured: bool

    @property
    def submit_s(self) -> float:
        """Cluster time of its submission, or its begin time."""
        return self.asks.submit_s


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Jobs that are not replayed, and the GPU time that they held, in seconds."""

    why: str
    jobs: int
    gpu_time_s: float


@dataclass(frozen=True, slots=True)
class History:
    """What ran, in the order of submission.

    Attributes:
        jobs: the replayed ones.
        left_out: the others.
        handled: number of replayed jobs by what is special with them.
        gpu_time_s: that the replayed ones held.
    """

    jobs: tuple[PastJob, ...]
    left_out: tuple[LeftOut, ...]
    handled: Mapping[str, int]
    gpu_time_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a history.

    Attributes:
        first, last: replayed are jobs `first` to `last` - 1.
        measured: (last - first,) whether each counts.
        warm_up: jobs replayed before the first that counts.
    """

    first: int
    last: int
    measured: np.ndarray[tuple[int], np.dtype[np.bool_]]
    warm_up: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """A cluster's nodes: numbers of each kind, and the node of each GPU."""

    kinds: Mapping[NodeKind, int]
    node_of: Mapping[str, str]

    @classmethod
    def of(cls, cluster: Cluster) -> _Layout:
        """That of a cluster."""
        return cls(node_kinds(cluster), {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()})

    def is_spread(self, asks: WorkloadJob, attempt: JobAttempt) -> bool:
        """Whether an attempt had its GPUs on more nodes than needed; not of GPUs that have left the cluster."""
        if asks.gpu_count < 2:
            return False
        nodes = {self.node_of.get(gpu_id) for gpu_id in attempt.placement.gpu_ids}
        packed = packed_node_counts(self.kinds, asks).get(attempt.gpu_model)
        return None not in nodes and packed is not None and len(nodes) > packed


def history_of(jobs: Sequence[Job], cluster: Cluster, speeds: SpeedTable, now_s: float) -> History:
    """The history of a suite's jobs.

    Args:
        jobs: all jobs that the suite knows.
        cluster: where they are replayed.
        speeds: of applications on GPU models.
        now_s: cluster time of the reading.
    """
    layout = _Layout.of(cluster)
    found: list[tuple[float, int, PastJob]] = []
    left: dict[str, list[float]] = {}
    handled: Counter[str] = Counter()
    whole_s = 0.0
    for number, job in enumerate(jobs):
        held_s = _held_s(job, now_s)
        past: PastJob | str = _why_not(job, speeds)
        special: list[str] = []
        if not past:
            past = _past_job(job, layout, speeds, special)
            if not holding_models(layout.kinds, past.asks):
                past = NO_ROOM
        if isinstance(past, str):
            left.setdefault(past, []).append(held_s)
            continue
        handled.update(special)
        whole_s += held_s
        found.append((past.submit_s, number, past))
    found.sort(key=lambda each: each[:2])
    return History(
        tuple(past for _, _, past in found),
        tuple(LeftOut(why, len(held), math.fsum(held)) for why, held in left.items()),
        handled,
        whole_s,
    )


def window_of(jobs: Sequence[PastJob], since_s: float | None, until_s: float | None, limit: int | None) -> Window:
    """The jobs that count, with all that ran since the cluster was last empty before them, and until it is empty again.

    Args:
        jobs: in the order of submission.
        since_s, until_s: count those that were submitted from the one to before the other; None: no bound.
        limit: count at most so many, the newest; None: all.
    """
    low = -math.inf if since_s is None else since_s
    high = math.inf if until_s is None else until_s
    counts = [place for place, job in enumerate(jobs) if job.measured and low <= job.submit_s < high]
    if limit is not None:
        counts = counts[-limit:]
    if not counts:
        return Window(0, 0, np.zeros(0, dtype=np.bool_), 0)
    points = _empty_at(jobs)
    first = int(points[points <= counts[0]][-1])
    after = points[points > counts[-1]]
    last = int(after[0]) if len(after) else len(jobs)
    measured = np.zeros(last - first, dtype=np.bool_)
    measured[np.array(counts) - first] = True
    return Window(first, last, measured, counts[0] - first)


def _empty_at(jobs: Sequence[PastJob]) -> Ints:
    """The jobs that came when all before them had ended."""
    free_s = np.maximum.accumulate(np.array([-math.inf, *(job.end_s for job in jobs[:-1])]))
    return np.flatnonzero(np.array([job.submit_s for job in jobs]) >= free_s)


def arrays_of(
    jobs: Sequence[PastJob], cluster: Cluster, speeds: SpeedTable, expected_s: Floats, pairs: PairTable
) -> JobArrays:
    """One list for the simulator; its time 0 is a whole second of cluster time.

    Args:
        jobs: J jobs in the order of submission.
        cluster: with K models.
        speeds: of applications on them.
        expected_s: (J, K) runtimes that policies expect.
        pairs: of jobs that share a GPU.
    """
    models = cluster.gpu_models
    zero_s = math.floor(jobs[0].submit_s)
    asks = [dataclasses.replace(job.asks, submit_s=round(job.submit_s - zero_s, DIGITS)) for job in jobs]
    packed = pack_jobs([asks], cluster, [expected_s], speed_table=speeds)
    able = np.isfinite(packed.duration_s[0])
    packed.duration_s[0] = np.where(able, durations_s(jobs, models, speeds), np.inf)
    packed.family[0] = pairs.families([job.asks.application for job in jobs])
    return packed


def durations_s(jobs: Sequence[PastJob], gpu_models: Sequence[str], speeds: SpeedTable) -> Floats:
    """(J, K) how long jobs hold GPUs of each model, packed, alone and never stopped."""
    speed = speeds.speeds([job.asks.application for job in jobs], [job.asks.job_type for job in jobs], gpu_models)
    work_s = np.array([job.asks.work_s for job in jobs])
    found = work_s[:, None] / speed + np.array([job.overhead_s for job in jobs])[:, None]
    for place, job in enumerate(jobs):
        if job.fixed_s is not None:
            found[place] = job.fixed_s
    whole: Floats = np.maximum(np.round(found, DIGITS), _LEAST_S)
    return whole


def _why_not(job: Job, speeds: SpeedTable) -> str:
    if not job.state.final:
        return NOT_ENDED
    if job.start_s is None or not any(each.start_s is not None for each in job.attempts):
        return NEVER_RAN
    last = job.attempts[-1]
    if job.submit_s is None or job.end_s is None or last.start_s is None or not last.gpu_model:
        return NO_RECORD
    if job.end_s < job.submit_s:
        return NO_RECORD
    ran = {last.gpu_model, *(each.gpu_model for each in job.attempts if each.preempted and each.start_s is not None)}
    return "" if ran <= set(speeds.gpu_models) else NO_SPEED


def _held_s(job: Job, now_s: float) -> float:
    """GPU time that its attempts held."""
    return math.fsum(
        max((now_s if each.end_s is None else each.end_s) - each.start_s, 0.0) * len(each.placement.gpus)
        for each in job.attempts
        if each.start_s is not None
    )


def _past_job(job: Job, layout: _Layout, speeds: SpeedTable, special: list[str]) -> PastJob:
    """The job; adds to `special` what must be said of it."""
    spec, last = job.spec, job.attempts[-1]
    assert job.submit_s is not None
    assert job.end_s is not None
    assert last.start_s is not None
    asks = _asks(spec, job.submit_s)
    work_s = overhead_s = 0.0
    stopped = [each for each in job.attempts[:-1] if each.preempted and each.start_s is not None]
    for number, attempt in enumerate((*stopped, last)):
        end_s = job.end_s if attempt is last else attempt.end_s
        began_s = attempt.runs_from_s
        assert began_s is not None
        if attempt is last:
            overhead_s = max(began_s - last.start_s, 0.0)
        ran_s = max((began_s if end_s is None else end_s) - began_s, 0.0) - _lost_beside_s(spec, attempt, special)
        costs = spec.preemptible
        if costs is not None:
            ran_s -= (costs.restart_s if number else 0.0) + (0.0 if attempt is last else costs.lost_s)
        speed = speeds.speed(spec.application, spec.job_type, attempt.gpu_model)
        if layout.is_spread(asks, attempt):
            speed *= spread_speed(spec.application, spec.job_type, spec.gpu_count, attempt.gpu_model)
        work_s += max(ran_s, 0.0) * speed
    # A run that ended at its limit would have reached it on any model.
    held_s = job.end_s - last.start_s
    limit_s = spec.time_limit_s
    fixed_s = held_s if job.state is JobState.FAILED and limit_s is not None and held_s >= limit_s else None
    expected = spec.expected_runtime
    special += _specialities(job, bool(stopped))
    return PastJob(
        job_id=job.job_id,
        asks=dataclasses.replace(asks, work_s=work_s),
        start_s=last.start_s,
        end_s=job.end_s,
        overhead_s=overhead_s,
        fixed_s=fixed_s,
        estimate=None if expected is None else (expected.gpu_model, expected.runtime_s),
        measured=job.state is JobState.SUCCEEDED,
    )


def _specialities(job: Job, stopped: bool) -> list[str]:
    found = []
    if job.state is not JobState.SUCCEEDED:
        found.append(FAILED if job.state is JobState.FAILED else CANCELLED)
    if stopped:
        found.append(STOPPED)
    if any(not each.preempted and each.start_s is not None for each in job.attempts[:-1]):
        found.append(REPEATED)
    if job.spec.gpu_count > 1:
        found.append(GANG)
    return found


def _asks(spec: JobSpec, submit_s: float) -> WorkloadJob:
    return WorkloadJob(
        submit_s=submit_s,
        user=spec.user,
        application=spec.application,
        job_type=spec.job_type,
        work_s=0.0,
        gpu_memory_mib=spec.gpu_memory_mib,
        cpu_cores=spec.cpu_cores,
        memory_mib=spec.memory_mib,
        priority=spec.priority,
        gpu_count=spec.gpu_count,
        max_node_count=spec.max_node_count,
        gpu_models=spec.gpu_models,
        preemptible=spec.preemptible,
        shareable=spec.shareable,
        exclusive=spec.exclusive,
        node_ids=spec.node_ids,
        excluded_node_ids=spec.excluded_node_ids,
    )


def _lost_beside_s(spec: JobSpec, attempt: JobAttempt, special: list[str]) -> float:
    """What an attempt lost beside those that shared its GPU."""
    if not attempt.neighbours:
        return 0.0
    lost_s = 0.0
    said = SHARED
    for beside in attempt.neighbours:
        other = beside.neighbour.application
        kept = simulated_shares(attempt.gpu_model, spec.application, other)
        if kept is None or kept == (TURN_SHARE, TURN_SHARE):
            kept, said = (TURN_SHARE, TURN_SHARE), ASSUMED
        lost_s += beside.time_s * (1.0 - kept[0])
    if said not in special:
        special.append(said)
    return lost_s


def estimate_on(
    estimate: tuple[str, float], asks: WorkloadJob, gpu_models: Sequence[str], speeds: SpeedTable
) -> Floats:
    """(K,) a user's estimate, which names one GPU model, on all models."""
    named, runtime_s = estimate
    known = named if named in speeds.gpu_models else REFERENCE_GPU_MODEL
    of_named = speeds.speed(asks.application, asks.job_type, known)
    speed = speeds.speeds([asks.application], [asks.job_type], gpu_models)[0]
    found: Floats = runtime_s * of_named / speed
    return found
