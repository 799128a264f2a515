"""Steps N simulated clusters for learning: a window of the queue as arrays, flat actions, reward parts. numpy, numba.

Gymnasium environments on top: services/orchestrator/learn/env.py. For policies that see the whole queue:
adlro/sim/batch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.cluster import Cluster
from adlro.errors import InvalidInput
from adlro.sim import kernel
from adlro.sim.batch import GpuChange, change_arrays, check_jobs
from adlro.sim.compiled import compiled, compiled_part, fixed
from adlro.sim.course import DECISION, STUCK, Changes, Course, new_course
from adlro.sim.job_arrays import JobArrays
from adlro.sim.machines import Hardware, Machines, empty_machines, hardware_of
from adlro.sim.observation import Bools, Floats, Ints
from adlro.sim.observe import Scene, Window, empty_window, fill_fixed, fill_window, job_planes

REWARD_PARTS = (
    "jobs_s",  # integral of the number of jobs in the system: over an episode the sum of all completion times
    "priority_s",  # integral of their priorities: the priority-weighted sum
    "idle_s",  # idle GPU time
    "feasible_idle_s",  # of that: what a hold leaves idle though some waiting job, in the window or not, fits there
)
"""Integrals over the time that a step took. The paper's reward is -(jobs_s + lambda x idle_s); FACTS of learning say
that the idle term should count feasible_idle_s only."""


class Step(NamedTuple):
    """What a step brought, for N clusters.

    Attributes:
        parts: (N, REWARD_PARTS) integrals over the step.
        dt_s: (N,) cluster time that passed: discount by exp(-beta dt_s), since decisions are not equally spaced.
        done: (N,) the list has come to its end; the window is that of the next list's begin, where one has begun.
        stuck: (N,) with `done`: jobs were left that nothing could start.
    """

    parts: Floats
    dt_s: Floats
    done: Bools
    stuck: Bools


class WindowSimulator:
    """N clusters, each running lists of a pool, one after another.

    `window` is overwritten by each step: copy what is to be kept.

    Args:
        cluster: one for all, or one for each of the N.
        jobs: the pool of lists.
        clusters: N.
        size: jobs in the window.
        gpu_models: the models' names, as numbered in `jobs`; those of the first cluster where left out.
        gpu_changes: for each list of the pool, what happens to GPUs.
        start_cost_s: time that each start takes before the work begins.
        next_list: gives the number of the list that cluster n runs next; in turn where left out.
        restart: a cluster whose list ends begins its next one in the same step; else it stays there until `reset`.

    Raises:
        InvalidInput: the window or the batch is empty.
    """

    def __init__(
        self,
        cluster: Cluster | Sequence[Cluster],
        jobs: JobArrays,
        *,
        clusters: int,
        size: int = 32,
        gpu_models: Sequence[str] | None = None,
        gpu_changes: Sequence[Sequence[GpuChange]] | None = None,
        start_cost_s: float = 0.0,
        next_list: Callable[[int], int] | None = None,
        restart: bool = True,
    ) -> None:
        if size < 1 or clusters < 1 or len(jobs.job_count) < 1:
            raise InvalidInput("a window needs at least one job, a batch one cluster, a pool one list", field="size")
        each = [cluster] * clusters if isinstance(cluster, Cluster) else list(cluster)
        if len(each) != clusters:
            raise InvalidInput(f"{len(each)} clusters where {clusters} are asked for", field="cluster")
        lists = len(jobs.job_count)
        self.gpu_models = tuple(each[0].gpu_models if gpu_models is None else gpu_models)
        check_jobs(jobs, self.gpu_models, start_cost_s)
        self.hardware = hardware_of(each, self.gpu_models)
        gpus_of_lists = np.full(lists, self.hardware.gpu_count.min())
        self.changes = change_arrays(gpu_changes or [[]] * lists, gpus_of_lists)
        self.jobs = jobs
        self.machines = empty_machines(self.hardware)
        self._next = 0
        self._restart = restart
        self._next_list = next_list or self._in_turn
        first = np.array([self._next_list(n) for n in range(clusters)], dtype=np.int64)
        self.course = new_course(
            self.hardware,
            jobs,
            self.changes,
            first,
            start_cost_s=np.full(clusters, start_cost_s),
            window=size,
        )
        self.window: Window = empty_window(self.hardware, size)
        fill_fixed(self.hardware, self.course.known_speed, self.window)
        self._parts = np.zeros((clusters, len(REWARD_PARTS)))
        self._dt_s = np.zeros(clusters)
        self._done = np.zeros(clusters, dtype=np.bool_)
        self._stuck = np.zeros(clusters, dtype=np.bool_)
        self._step = Step(self._parts, self._dt_s, self._done, self._stuck)
        self._state = (self.hardware, self.machines, self.jobs, job_planes(jobs), self.changes, self.course)
        self._begin_lists = fixed(begin_some, *self._state, first, first, self.window)
        self._step_all = fixed(step_all, *self._state, first, self.window, self._step)
        self._begin(first)

    @property
    def hold_action(self) -> int:
        """The number of the action that starts nothing."""
        return int(self.window.mask.shape[1]) - 1

    def reset(self) -> Window:
        """Every cluster begins its next list."""
        self._begin(np.array([self._next_list(n) for n in range(len(self._dt_s))], dtype=np.int64))
        return self.window

    def step(self, actions: NDArray[np.integer]) -> Step:
        """One action for each cluster, and on to its next decision; a cluster whose list ends begins its next one.

        Args:
            actions: (N,) as numbered by the mask.

        Raises:
            ValueError: an action that the mask does not allow, hold excepted; then none is carried out.
        """
        step = self._step
        chosen = np.ascontiguousarray(actions, dtype=np.int64)
        if chosen.shape != self._dt_s.shape:
            raise ValueError(f"{self._dt_s.shape[0]} actions are wanted, not an array of shape {chosen.shape}")
        wrong = self._step_all(*self._state, chosen, self.window, step)
        if wrong >= 0:
            raise ValueError(
                f"cluster {wrong}: action {actions[wrong]} is masked, or none; they go from 0 to {self.hold_action}, "
                "which is to hold"
            )
        if self._restart and self._done.any():
            ended = np.flatnonzero(self._done)
            lists = np.array([self._next_list(int(n)) for n in ended], dtype=np.int64)
            self._begin_some(ended, lists)
        return step

    def _in_turn(self, _: int) -> int:
        self._next += 1
        return (self._next - 1) % len(self.jobs.job_count)

    def _begin(self, lists: Ints) -> None:
        self._begin_some(np.arange(len(lists)), lists)

    def _begin_some(self, clusters: Ints, lists: Ints) -> None:
        known = len(self.jobs.job_count)
        if ((lists < 0) | (lists >= known)).any():
            raise ValueError(f"next_list must give a list from 0 to {known - 1}, not one of {lists}")
        self._begin_lists(*self._state, clusters, lists, self.window)


@compiled_part
def _look(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    planes: NDArray[np.float32],
    course: Course,
    n: int,
    out: Window,
) -> None:
    scene = Scene(
        machines.time_s,
        course.list_of,
        machines.gpu_speed,
        machines.gpu_job,
        machines.gpu_start_s,
        machines.gpu_expected_end_s,
        course.known_speed,
        machines.cores_free,
        machines.memory_free_mib,
        machines.gpu_cores,
        machines.gpu_memory_mib,
    )
    fill_window(
        hardware,
        scene,
        jobs,
        planes,
        course.best_expected_s[n],
        course.window[n],
        course.window_count[n],
        course.waiting_count[n],
        machines.running_count[n],
        kernel.hold_is_allowed(machines, jobs, course, n),
        n,
        out,
    )


@compiled
def begin_some(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    planes: NDArray[np.float32],
    changes: Changes,
    course: Course,
    clusters: Ints,
    lists: Ints,
    out: Window,
) -> None:
    """Clusters begin lists, and are looked at."""
    window = course.window.shape[1]
    for i in range(clusters.shape[0]):
        kernel.begin(hardware, machines, jobs, changes, course, clusters[i], lists[i], window)
        _look(hardware, machines, jobs, planes, course, clusters[i], out)


@compiled
def step_all(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    planes: NDArray[np.float32],
    changes: Changes,
    course: Course,
    actions: Ints,
    out: Window,
    step: Step,
) -> int:
    """Carries out an action for each cluster, goes on to its next decision, and looks at it.

    Returns:
        -1, or the first cluster whose action cannot be carried out.
    """
    window, gpus = course.window.shape[1], hardware.gpu_model.shape[1]
    for n in range(actions.shape[0]):
        if not 0 <= actions[n] <= window * gpus or (
            actions[n] < window * gpus and course.status[n] == DECISION and not out.mask[n, actions[n]]
        ):
            return n
    for n in range(actions.shape[0]):
        action = actions[n]
        for part in range(step.parts.shape[1]):
            step.parts[n, part] = -course.totals[n, part]
        step.dt_s[n] = -machines.time_s[n]
        if course.status[n] == DECISION:
            if action == window * gpus:
                kernel.hold(hardware, machines, jobs, course, n)
            else:
                job = course.window[n, action // gpus]
                kernel.start(hardware, machines, jobs, course, n, job, action % gpus)
            kernel.advance(hardware, machines, jobs, changes, course, n, window)
        for part in range(step.parts.shape[1]):
            step.parts[n, part] += course.totals[n, part]
        step.dt_s[n] += machines.time_s[n]
        step.done[n] = course.status[n] != DECISION
        step.stuck[n] = course.status[n] == STUCK
        if step.done[n]:
            kernel.window_rows(course, n, window)  # as it is now, for what can be seen at the end
        _look(hardware, machines, jobs, planes, course, n, out)
    return -1
