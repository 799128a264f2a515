"""Runs job lists on N simulated clusters at once. numpy and numba only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.sim import kernel
from adlro.sim.course import DECISION, JOBS_S, STUCK, GpuChanges, new_course
from adlro.sim.decision_points import decision_points
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import empty_machines, hardware_of
from adlro.state.observation import Bools, Floats, Ints, Observation

GpuChange = tuple[float, int, float]
"""(time in s, the GPU's number, its speed from then on relative to its model; 0: lost)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One ended attempt; `completed` False: a GPU of it was lost."""

    job: int
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    completed: bool

    @property
    def gpu(self) -> int:
        """The first of its GPUs."""
        return self.gpus[0]


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of N job lists.

    Attributes:
        jobs: the lists.
        start_s, end_s: (N, J) of each job's last attempt; nan if it never started, or never ended.
        gpus: (N, J, W) that attempt's GPUs, then -1; only -1 if it never started.
        attempts: (N, J) number of starts.
        stuck: (N,) whether jobs remained that can never start.
        jobs_integral_s: (N,) integral of the number of jobs in the system over time, counted at the events.
    """

    jobs: JobArrays
    start_s: Floats
    end_s: Floats
    gpus: NDArray[np.int32]
    attempts: NDArray[np.int32]
    stuck: Bools
    jobs_integral_s: Floats
    _run_job: NDArray[np.int32]
    _run_gpus: NDArray[np.int32]
    _run_start_s: Floats
    _run_end_s: Floats
    _run_completed: Bools
    _run_count: Ints

    @property
    def gpu(self) -> NDArray[np.int32]:
        """(N, J) the first GPU of each job's last attempt; -1 if it never started."""
        first: NDArray[np.int32] = self.gpus[:, :, 0]
        return first

    def runs(self, number: int) -> Iterator[Run]:
        """The ended attempts of a list, in the order of their ends, then of the GPUs' numbers."""
        for i in range(int(self._run_count[number])):
            yield Run(
                int(self._run_job[number, i]),
                tuple(int(gpu) for gpu in self._run_gpus[number, i] if gpu >= 0),
                float(self._run_start_s[number, i]),
                float(self._run_end_s[number, i]),
                bool(self._run_completed[number, i]),
            )

    def busy_s(self) -> Floats:
        """(N,) GPU time of all ended attempts."""
        there = np.arange(self._run_job.shape[1]) < self._run_count[:, None]
        held = (self._run_gpus >= 0).sum(axis=2)
        busy: Floats = np.where(there, held * (self._run_end_s - self._run_start_s), 0.0).sum(axis=1)
        return busy


class BatchSimulator:
    """N clusters, each with a job list, advanced from decision to decision.

    Args:
        cluster: one for all, or one for each of the N; all with the models of `gpu_models`.
        jobs: L lists; their models are numbered as in `gpu_models`.
        gpu_models: the models' names; those of the (one) cluster where left out.
        gpu_changes: for each list, the changes of GPUs, ascending in time.
        start_cost_s: seconds that each start takes before the work begins.
        begin_with: (N,) numbers of the clusters' first lists; `begin` starts others; if left out, cluster n has list n,
            and N = L.

    Raises:
        InvalidInput: the numbers of clusters, lists and changes differ, a change is invalid, or a list does not exist.
    """

    def __init__(
        self,
        cluster: Cluster | Sequence[Cluster],
        jobs: JobArrays,
        *,
        gpu_models: Sequence[str] | None = None,
        gpu_changes: Sequence[Sequence[GpuChange]] | None = None,
        start_cost_s: float = 0.0,
        begin_with: Sequence[int] | None = None,
    ) -> None:
        lists = len(jobs.job_count)
        first = np.arange(lists) if begin_with is None else np.array(begin_with, dtype=np.int64)
        clusters = [cluster] * len(first) if isinstance(cluster, Cluster) else list(cluster)
        if len(clusters) != len(first):
            raise InvalidInput(f"{len(clusters)} clusters for {len(first)} job lists", field="cluster")
        self.gpu_models = tuple(clusters[0].gpu_models if gpu_models is None else gpu_models) if clusters else ()
        check_jobs(jobs, self.gpu_models, start_cost_s)
        self._jobs = jobs
        self._hardware = hardware_of(clusters, self.gpu_models)
        # A list may run on any of the clusters.
        gpu_count = self._hardware.gpu_count
        gpus = gpu_count if begin_with is None else np.full(lists, gpu_count.min(initial=np.iinfo(np.int64).max))
        self._changes = change_arrays(gpu_changes or [[]] * lists, gpus)
        self._machines = empty_machines(self._hardware)
        self._course = new_course(
            self._hardware,
            jobs,
            self._changes,
            first,
            start_cost_s=np.full(len(first), start_cost_s),
        )
        self.begin(np.arange(len(first)), first)

    def begin(self, clusters: Ints, lists: Ints) -> None:
        """Starts lists on some clusters, whatever their present state.

        Args:
            clusters, lists: (B,) numbers.

        Raises:
            InvalidInput: no such list, or no such cluster.
        """
        count = len(self._course.list_of)
        if clusters.shape != lists.shape or ((clusters < 0) | (clusters >= count)).any():
            raise InvalidInput(f"a list for each of some of {count} clusters is wanted", field="clusters")
        known = len(self._jobs.job_count)
        wrong = lists[(lists < 0) | (lists >= known)]
        if len(wrong):
            raise InvalidInput(f"there are job lists 0 to {known - 1}, not {wrong[0]}", field="lists")
        kernel.begin_some(self._hardware, self._machines, self._jobs, self._changes, self._course, clusters, lists)
        self._active = self._at_decision()

    def _at_decision(self) -> Ints:
        return np.flatnonzero(self._course.status == DECISION)

    @property
    def active(self) -> Ints:
        """Numbers of the clusters at a decision; empty: all have reached their end."""
        return self._active

    @property
    def time_s(self) -> Floats:
        """(N,) cluster time of each cluster, active or not; a view."""
        return self._machines.time_s

    @property
    def totals(self) -> Floats:
        """(N, 4) integrals over each cluster's time so far, by `adlro.sim.course.JOBS_S` and so on; a view."""
        return self._course.totals

    def observe(self) -> Observation:
        """The decision points of the active clusters, one row for each."""
        args = self._hardware, self._machines, self._jobs, self._course
        return decision_points(*args, self._active, self.gpu_models)

    def act(self, actions: Ints, reserve: Ints | None = None) -> None:
        """Carries out one action for each active cluster, and advances to the next decisions.

        Args:
            actions: (active, 1 + W) the job's place in the observation and its GPUs in ascending order, then -1; or
                HOLD everywhere. W is any number of columns that is enough.
            reserve: (active,) the place of the job that GPUs are kept free for from now on, -1: none; None: as before.

        Raises:
            ValueError: actions of another shape, or an impossible start; the actions before it are carried out.
        """
        active = self._active
        if actions.ndim != 2 or len(actions) != len(active) or actions.shape[1] < 2:
            raise ValueError(f"actions of shape ({len(active)}, 1 + W) are wanted, not {actions.shape}")
        rows = np.ascontiguousarray(actions[:, 0], dtype=np.int64)
        gpus = np.ascontiguousarray(actions[:, 1:], dtype=np.int64)
        if reserve is not None:
            self._reserve(reserve)
        wrong = kernel.act_all(
            self._hardware, self._machines, self._jobs, self._changes, self._course, active, rows, gpus
        )
        if wrong >= 0:
            raise ValueError(
                f"cluster {active[wrong]}: job {rows[wrong]} of the queue cannot start on {gpus_of(gpus[wrong])}"
            )
        self._active = active[self._course.status[active] == DECISION]

    def _reserve(self, places: Ints) -> None:
        course, active = self._course, self._active
        if places.shape != active.shape or (places >= course.waiting_count[active]).any():
            raise ValueError(f"places of waiting jobs of shape {active.shape} are wanted, not {places}")
        jobs = course.waiting[active, np.maximum(places, 0)]
        course.reserved_job[active] = np.where(places >= 0, jobs, -1)

    @property
    def stuck(self) -> Bools:
        """(N,) whether jobs remain that can never start."""
        stuck: Bools = self._course.status == STUCK
        return stuck

    def outcome(self) -> BatchOutcome:
        """The outcome of the lists (so far); each cluster must have its own list."""
        course = self._course
        return BatchOutcome(
            jobs=self._jobs,
            start_s=course.job_start_s.copy(),
            end_s=course.job_end_s.copy(),
            gpus=course.job_gpus.copy(),
            attempts=course.job_attempts.copy(),
            stuck=self.stuck,
            jobs_integral_s=course.totals[:, JOBS_S].copy(),
            _run_job=course.run_job.copy(),
            _run_gpus=course.run_gpus.copy(),
            _run_start_s=course.run_start_s.copy(),
            _run_end_s=course.run_end_s.copy(),
            _run_completed=course.run_completed.copy(),
            _run_count=course.run_count.copy(),
        )


def check_jobs(jobs: JobArrays, gpu_models: Sequence[str], start_cost_s: float) -> None:
    """Checks the input of a simulation: compiled code checks nothing.

    Raises:
        InvalidInput: durations for other models, or not above 0, or of a job that is expected to run where it cannot;
            submissions that are no ascending numbers from 0; a start cost below 0.
    """
    if jobs.duration_s.shape[2] != len(gpu_models):
        raise InvalidInput(
            f"the jobs have durations on {jobs.duration_s.shape[2]} GPU models, and there are {len(gpu_models)}: "
            f"{', '.join(gpu_models)}",
            field="gpu_models",
        )
    if not 0 <= start_cost_s < np.inf:
        raise InvalidInput(f"start_cost_s must be a number from 0, not {start_cost_s}", field="start_cost_s")
    there = np.arange(jobs.submit_s.shape[1]) < jobs.job_count[:, None]
    early = np.pad(jobs.submit_s, ((0, 0), (1, 0)))[:, :-1]
    # Above 1e12 s, floats can't represent single milliseconds.
    wrong = there & ~((jobs.submit_s >= early) & (jobs.submit_s <= 1e12))
    if wrong.any():
        number, job = (int(place[0]) for place in np.nonzero(wrong))
        raise InvalidInput(
            f"list {number}, job {job}: submit_s is {jobs.submit_s[number, job]}; it must be a number from 0 to 1e12, "
            "and not before that of the job in front of it",
            field="submit_s",
        )
    bad = there & ~((jobs.gpu_count >= 1) & (jobs.max_nodes >= 0))
    if bad.any():
        number, job = (int(place[0]) for place in np.nonzero(bad))
        raise InvalidInput(
            f"list {number}, job {job}: gpu_count must be at least 1, not {jobs.gpu_count[number, job]}, and max_nodes "
            f"at least 0, not {jobs.max_nodes[number, job]}",
            field="gpu_count",
        )
    for name in ("spread_speed", "expected_spread_speed"):
        speed = getattr(jobs, name)
        odd = there[:, :, None] & ~((speed >= 0) & (speed <= 1) & ((speed > 0) == (jobs.spread_speed > 0)))
        if odd.any():
            number, job, model = (int(place[0]) for place in np.nonzero(odd))
            raise InvalidInput(
                f"list {number}, job {job}, {gpu_models[model]}: {name} is {speed[number, job, model]}; it must be "
                "from 0 to 1, and above 0 where the job can run spread",
                field=name,
            )
    wrong = there[:, :, None] & ~((jobs.duration_s > 0) & (jobs.expected_s > 0))
    wrong |= there[:, :, None] & np.isinf(jobs.duration_s) & np.isfinite(jobs.expected_s)
    if wrong.any():
        number, job, model = (int(place[0]) for place in np.nonzero(wrong))
        raise InvalidInput(
            f"list {number}, job {job}, {gpu_models[model]}: a job runs {jobs.duration_s[number, job, model]} s and is "
            f"expected to run {jobs.expected_s[number, job, model]} s; both must be above 0, and what cannot run (inf) "
            "cannot be expected to",
            field="duration_s",
        )


def change_arrays(gpu_changes: Sequence[Sequence[GpuChange]], gpu_count: Ints) -> GpuChanges:
    """GpuChanges of GPUs as arrays.

    Raises:
        InvalidInput: the number of sequences is not that of the lists, or a sequence is out of order, or has an unknown
            GPU or a speed below 0.
    """
    if len(gpu_changes) != len(gpu_count):
        raise InvalidInput(f"changes for {len(gpu_changes)} of {len(gpu_count)} clusters", field="gpu_changes")
    size = (len(gpu_changes), max((len(changes) for changes in gpu_changes), default=0))
    arrays = GpuChanges(np.full(size, np.inf), np.zeros(size, dtype=np.int64), np.ones(size))
    for number, changes in enumerate(gpu_changes):
        before_s = 0.0
        for i, (time_s, gpu, speed) in enumerate(changes):
            if not (before_s <= time_s < np.inf and 0 <= gpu < gpu_count[number] and 0 <= speed < np.inf):
                raise InvalidInput(
                    f"list {number}: change {i}: ({time_s}, {gpu}, {speed}) must be a time not before {before_s}, a "
                    f"GPU below {gpu_count[number]}, and a speed from 0",
                    field="gpu_changes",
                )
            arrays.time_s[number, i], arrays.gpu[number, i], arrays.speed[number, i] = time_s, gpu, speed
            before_s = time_s
    return arrays


def simulate(
    cluster: Cluster | Sequence[Cluster],
    jobs: JobArrays,
    act: Callable[[Observation], Ints],
    *,
    gpu_models: Sequence[str] | None = None,
    gpu_changes: Sequence[Sequence[GpuChange]] | None = None,
    start_cost_s: float = 0.0,
) -> BatchOutcome:
    """Runs job lists to their end.

    Args:
        act: a policy: (A, 1 + W) actions for the rows of an observation. It keeps no GPUs free for a job.

    The rest as for `BatchSimulator`.
    """
    simulator = BatchSimulator(cluster, jobs, gpu_models=gpu_models, gpu_changes=gpu_changes, start_cost_s=start_cost_s)
    while len(simulator.active):
        simulator.act(act(simulator.observe()))
    return simulator.outcome()
