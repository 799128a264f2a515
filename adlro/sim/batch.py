"""Runs job lists on N simulated clusters at once. numpy and numba only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.sim import kernel
from adlro.sim.checks import check_jobs, check_nodes, kept_tables
from adlro.sim.course import (
    ASKS_SHARES,
    ASKS_STOPS,
    DECISION,
    JOBS_S,
    STUCK,
    Course,
    GpuChanges,
    new_course,
    with_room_for_stops,
)
from adlro.sim.decision_points import decision_points
from adlro.sim.recent_service import RecentService
from adlro.state.cluster_arrays import Hardware, Machines, empty_machines, hardware_of
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints, Observation

_NO_STOPS = np.zeros(0, dtype=np.bool_)

GpuChange = tuple[float, int, float]
"""(time in s, the GPU's number, its speed from then on relative to its model; 0: lost)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One ended attempt: `completed`, `stopped` for another job, or a GPU of it was lost."""

    job: int
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    completed: bool
    stopped: bool = False

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
        stops: (N,) number of attempts that were stopped.
        stuck: (N,) whether jobs remained that can never start.
        jobs_integral_s: (N,) integral of the number of jobs in the system over time, counted at the events.
    """

    jobs: JobArrays
    start_s: Floats
    end_s: Floats
    gpus: NDArray[np.int32]
    attempts: NDArray[np.int32]
    stops: Ints
    stuck: Bools
    jobs_integral_s: Floats
    _run_job: NDArray[np.int32]
    _run_gpus: NDArray[np.int32]
    _run_start_s: Floats
    _run_end_s: Floats
    _run_completed: Bools
    _run_count: Ints
    _stop_job: NDArray[np.int32]
    _stop_gpus: NDArray[np.int32]
    _stop_start_s: Floats
    _stop_end_s: Floats

    @property
    def gpu(self) -> NDArray[np.int32]:
        """(N, J) the first GPU of each job's last attempt; -1 if it never started."""
        first: NDArray[np.int32] = self.gpus[:, :, 0]
        return first

    def runs(self, number: int) -> Iterator[Run]:
        """The ended attempts of a list, in the order of their ends, then of the GPUs' numbers.

        At one instant those that were stopped come last.
        """
        return heapq.merge(self._ended(number), self._stopped(number), key=lambda run: run.end_s)

    def _ended(self, number: int) -> Iterator[Run]:
        for i in range(int(self._run_count[number])):
            yield Run(
                int(self._run_job[number, i]),
                tuple(int(gpu) for gpu in self._run_gpus[number, i] if gpu >= 0),
                float(self._run_start_s[number, i]),
                float(self._run_end_s[number, i]),
                bool(self._run_completed[number, i]),
            )

    def _stopped(self, number: int) -> Iterator[Run]:
        for i in range(int(self.stops[number])):
            yield Run(
                int(self._stop_job[number, i]),
                tuple(int(gpu) for gpu in self._stop_gpus[number, i] if gpu >= 0),
                float(self._stop_start_s[number, i]),
                float(self._stop_end_s[number, i]),
                False,
                True,
            )

    def busy_s(self) -> Floats:
        """(N,) GPU time of all ended attempts."""
        busy = _held_s(self._run_count, self._run_gpus, self._run_start_s, self._run_end_s)
        if self._stop_job.shape[1]:
            busy += _held_s(self.stops, self._stop_gpus, self._stop_start_s, self._stop_end_s)
        return busy


def _held_s(count: Ints, gpus: NDArray[np.int32], start_s: Floats, end_s: Floats) -> Floats:
    """(N,) GPU time of the first `count` (N,) of some attempts (N, R)."""
    there = np.arange(start_s.shape[1]) < count[:, None]
    held_s: Floats = np.where(there, (gpus >= 0).sum(axis=2) * (end_s - start_s), 0.0).sum(axis=1)
    return held_s


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
        preempts: the policy may stop jobs (`Policy.preempts`): it is asked also where nothing fits, while a job waits
            and one runs that may be stopped, now or later.
        min_run_s: an attempt is stopped only after as long.
        shares: the policy may start a job on a GPU that another has (`Policy.shares`): it is asked also where nothing
            fits, while a job waits and a GPU has one job alone that may share it.
        kept: (F, F, K) [family, partner's family, model] the share of its speed that a job keeps beside a partner; 0:
            they can't share; None: no GPU is shared.
        expected_kept: the same, as a scheduler expects it; the true one if left out.
        half_life_s: after this time GPU time of users counts half, in observations; inf: it is never forgotten.

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
        preempts: bool = False,
        min_run_s: float = 0.0,
        shares: bool = False,
        kept: Floats | None = None,
        expected_kept: Floats | None = None,
        half_life_s: float = math.inf,
    ) -> None:
        lists = len(jobs.job_count)
        first = np.arange(lists) if begin_with is None else np.array(begin_with, dtype=np.int64)
        clusters = [cluster] * len(first) if isinstance(cluster, Cluster) else list(cluster)
        if len(clusters) != len(first):
            raise InvalidInput(f"{len(clusters)} clusters for {len(first)} job lists", field="cluster")
        self.gpu_models = tuple(clusters[0].gpu_models if gpu_models is None else gpu_models) if clusters else ()
        check_jobs(jobs, self.gpu_models, start_cost_s)
        for each in clusters:
            check_nodes(jobs, len(each.nodes))
        kept, told = kept_tables(jobs, kept, expected_kept)
        self._jobs = jobs
        self._hardware = hardware_of(clusters, self.gpu_models)
        # A list may run on any of the clusters.
        gpu_count = self._hardware.gpu_count
        gpus = gpu_count if begin_with is None else np.full(lists, gpu_count.min(initial=np.iinfo(np.int64).max))
        self._changes = change_arrays(gpu_changes or [[]] * lists, gpus)
        self._machines = empty_machines(self._hardware, shares=len(kept) > 0)
        self._course = new_course(
            self._hardware,
            jobs,
            self._changes,
            first,
            start_cost_s=np.full(len(first), start_cost_s),
            asks=(ASKS_STOPS if preempts else 0) + (ASKS_SHARES if shares else 0),
            min_run_s=min_run_s,
            kept=kept,
            told=told,
        )
        self._recent = None
        if half_life_s != math.inf:
            self._recent = RecentService(half_life_s, len(first), self._course.user_service_s.shape[1])
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
        if self._recent is not None:
            self._recent.begin(clusters)
        kernel.begin_some(self._hardware, self._machines, self._jobs, self._changes, self._course, clusters, lists)
        self._active = self._at_decision()

    def _at_decision(self) -> Ints:
        return np.flatnonzero(self._course.status == DECISION)

    @property
    def active(self) -> Ints:
        """Numbers of the clusters at a decision; empty: all have reached their end."""
        return self._active

    @property
    def hardware(self) -> Hardware:
        """The clusters' fixed figures; of this and the next two the caller changes nothing."""
        return self._hardware

    @property
    def machines(self) -> Machines:
        """The state of the clusters' machines."""
        return self._machines

    @property
    def course(self) -> Course:
        """The progress of the lists."""
        return self._course

    @property
    def time_s(self) -> Floats:
        """(N,) cluster time of each cluster, active or not; a view."""
        return self._machines.time_s

    @property
    def totals(self) -> Floats:
        """(N, 4) integrals over each cluster's time so far, by `adlro.sim.course.JOBS_S` and so on; a view."""
        return self._course.totals

    @property
    def share_left(self) -> Floats:
        """(N, J) share of its work that each job had left at the start of its attempt, or has while it waits; a view.

        J is 0 where no job may be stopped.
        """
        return self._course.job_share

    def observe(self) -> Observation:
        """The decision points of the active clusters, one row for each."""
        args = self._hardware, self._machines, self._jobs, self._course
        return decision_points(*args, self._active, self.gpu_models, self._recent)

    def act(self, actions: Ints, reserve: Ints | None = None, stops: Bools | None = None) -> None:
        """Carries out one action for each active cluster, and advances to the next decisions.

        Args:
            actions: (active, 1 + W) the job's place in the observation and its GPUs in ascending order, then -1; or
                HOLD everywhere. W is any number of columns that is enough. A job of one GPU on a busy one shares it.
            reserve: (active,) the place of the job that GPUs are kept free for from now on, -1: none; None: as before.
            stops: (active,) whether whatever runs on the GPUs of the action is stopped for it; None: nothing is.

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
        stops = _NO_STOPS if stops is None else np.ascontiguousarray(stops, dtype=np.bool_)
        if len(stops) and stops.shape != active.shape:
            raise ValueError(f"stops of shape {active.shape} are wanted, not {stops.shape}")
        if stops.any():
            self._course = with_room_for_stops(self._course, 2 * gpus.shape[1])
        wrong = kernel.act_all(
            self._hardware, self._machines, self._jobs, self._changes, self._course, active, rows, gpus, stops
        )
        if wrong >= 0:
            raise ValueError(
                f"cluster {active[wrong]}: job {rows[wrong]} of the queue cannot start on {gpus_of(gpus[wrong])}"
                + (", stopping what runs there" if len(stops) and stops[wrong] else "")
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
            stops=course.stop_count.copy(),
            stuck=self.stuck,
            jobs_integral_s=course.totals[:, JOBS_S].copy(),
            _run_job=course.run_job.copy(),
            _run_gpus=course.run_gpus.copy(),
            _run_start_s=course.run_start_s.copy(),
            _run_end_s=course.run_end_s.copy(),
            _run_completed=course.run_completed.copy(),
            _run_count=course.run_count.copy(),
            _stop_job=course.stop_job.copy(),
            _stop_gpus=course.stop_gpus.copy(),
            _stop_start_s=course.stop_start_s.copy(),
            _stop_end_s=course.stop_end_s.copy(),
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
    act: Callable[[Observation], Ints | tuple[Ints, Ints | None, Bools | None]],
    *,
    gpu_models: Sequence[str] | None = None,
    gpu_changes: Sequence[Sequence[GpuChange]] | None = None,
    start_cost_s: float = 0.0,
    preempts: bool = False,
    min_run_s: float = 0.0,
    shares: bool = False,
    kept: Floats | None = None,
    expected_kept: Floats | None = None,
) -> BatchOutcome:
    """Runs job lists to their end.

    Args:
        act: a policy: (A, 1 + W) actions for the rows of an observation, which keep no GPUs free and stop nobody; or
            these with whom GPUs are kept free for and what is stopped, as `BatchSimulator.act` has them.

    The rest as for `BatchSimulator`.
    """
    simulator = BatchSimulator(
        cluster,
        jobs,
        gpu_models=gpu_models,
        gpu_changes=gpu_changes,
        start_cost_s=start_cost_s,
        preempts=preempts,
        min_run_s=min_run_s,
        shares=shares,
        kept=kept,
        expected_kept=expected_kept,
    )
    while len(simulator.active):
        chosen = act(simulator.observe())
        if isinstance(chosen, tuple):
            simulator.act(*chosen)
        else:
            simulator.act(chosen)
    return simulator.outcome()
