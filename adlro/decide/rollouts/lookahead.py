"""Rollouts from observations alone: the candidates of one decision, simulated in imagined futures. Arrays only.

This module makes a policy of the gated rollouts (gated.py), with observations as the only input. From those of one
cluster, in their order, it records the arrived jobs (`Seen`): the population and the arrival rate of the futures. The
true number of later jobs is no input.

Durations in an observation are those of GPUs, not of GPU models: in the imagined cluster every GPU is a model of its
own.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.hold_greedy import FIXED, HoldGreedySettings
from adlro.decide.present import of_one_gpu_only
from adlro.decide.rollouts.candidates import find_candidates, room_for_candidates
from adlro.decide.rollouts.futures import History, Imagination, draw
from adlro.decide.rollouts.gated import Gate, best_certain
from adlro.decide.rollouts.rule import DECISION_WORK, base_policy
from adlro.sim import fork
from adlro.sim.batch import change_arrays
from adlro.sim.course import DECISION, NOT_HOLDING, RUNNING, WAITING
from adlro.state.cluster_arrays import IDLE, Hardware
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.machines import count_nodes
from adlro.state.observation import HOLD, Floats, Ints, Observation

FEWEST_SEEN = 16
"""With fewer jobs seen, later arrivals can't be estimated: no rollouts."""

MOST_SEEN = 1024
"""Only the newest jobs count: populations change."""

IN_SERVICE = Gate(ahead=24, first_look=8, glance=4, most_work=1_440_000)
"""Bounds the work of a decision instead of its time: the same decisions on each machine under any load."""


class Seen:
    """The jobs that have arrived at one cluster, as far as its observations show them.

    A job is recorded at the first observation in which it waits: no job starts without a decision. Of jobs that are
    submitted at one instant, all that the first observation after it shows are recorded.

    Args:
        gpus: number of the cluster's GPUs.
    """

    def __init__(self, gpus: int) -> None:
        self.jobs = empty_job_arrays(1, MOST_SEEN, gpus)
        self._count = 0
        self._first_s = self._last_s = -np.inf
        self._since_gang = MOST_SEEN

    @property
    def has_gangs(self) -> bool:
        """Whether one of the newest jobs asked for several GPUs; these are not recorded."""
        return self._since_gang < MOST_SEEN

    @property
    def count(self) -> int:
        """Number of jobs that futures are drawn from."""
        return min(self._count, MOST_SEEN)

    def look(self, observation: Observation, row: int) -> None:
        """Records the new jobs in a row of an observation."""
        submit_s = observation.job_submit_s[row]
        new = np.flatnonzero(observation.job_waiting[row] & (submit_s > self._last_s))
        if not len(new):
            return
        if self._count == 0:
            self._first_s = float(submit_s[new].min())
        self._last_s = float(submit_s[new].max())
        for job in new:
            self._since_gang += 1
            if observation.gangs is not None and observation.gangs.gpu_count[row, job] > 1:
                self._since_gang = 0
                continue
            place = self._count % MOST_SEEN
            _copy_job(observation, row, int(job), self.jobs, place)
            self._count += 1

    def history(self, time_s: float) -> History:
        """The jobs that futures are drawn from; their mean gap counts from the first job until now."""
        self.jobs.job_count[0] = self.count
        gap_s = max(time_s - self._first_s, 1e-9) / max(self._count, 1)
        return History(self.jobs, np.array([gap_s * self.count]))


class Lookahead:
    """Replaces an incumbent action only if another one's gain over imagined futures is significant.

    For one cluster, one decision at a time.

    Args:
        settings: settings of the base policy that the futures follow to their end.
        gate: size of the rollouts.
        seed: seed of the futures.
    """

    def __init__(self, settings: HoldGreedySettings = FIXED, gate: Gate | None = None, *, seed: int = 0) -> None:
        self._gate = gate or IN_SERVICE
        self._settings = settings
        self._rng = np.random.default_rng(seed)
        self._room: _Room | None = None
        self.seen: Seen | None = None

    def choose(self, observation: Observation, incumbent: tuple[int, int]) -> tuple[int, int]:
        """The action for the first row: places in the observation, or (HOLD, HOLD).

        Args:
            observation: only its first row is read.
            incumbent: the action without rollouts.
        """
        gpus = observation.gpu_model.shape[1]
        if self.seen is None or self.seen.jobs.expected_s.shape[2] != gpus:
            self.seen = Seen(gpus)
        self.seen.look(observation, 0)
        if self.seen.has_gangs or not of_one_gpu_only(observation)[0] or observation.preemption is not None:
            return incumbent  # the imagined clusters and futures have jobs of one GPU, which run to their end
        if self.seen.count < FEWEST_SEEN or not len(observation.table.of_cluster(0).job):
            return incumbent
        waiting = np.flatnonzero(observation.job_waiting[0])
        room = self._room_for(observation, len(waiting))
        room.fill(observation, waiting)
        count = self._candidates(room, waiting, incumbent)
        if count < 2:
            return incumbent
        draws = draw(self._rng, self._gate.futures, self._gate.ahead)
        # Each waiting or arriving job starts once, with half the queue on average; holds add to that.
        one_future = count * (len(waiting) + self._gate.ahead) * (len(waiting) // 2 + DECISION_WORK) * gpus
        if one_future > self._gate.most_work / 4:
            return incumbent  # at most four futures: too few for a significant gain
        imagined = room.imagined
        # The history has all jobs seen: the present jobs must not count twice.
        source = imagined.course._replace(arrived_count=np.zeros_like(imagined.course.arrived_count))
        chosen = best_certain(
            imagined.machines,
            imagined.jobs,
            source,
            0,
            room.base,
            self.seen.history(float(observation.time_s[0])),
            draws,
            imagined,
            room.candidates,
            count,
            room.gains,
            self._gate.standard_errors,
            self._gate.first_look,
            self._gate.glance,
            self._gate.most_work,
        )
        if chosen == 0:
            return incumbent
        job, gpu = int(room.candidates.job[chosen]), int(room.candidates.gpu[chosen])
        return (HOLD, HOLD) if job == HOLD else (int(waiting[job - room.running]), gpu)

    def _room_for(self, observation: Observation, waiting: int) -> _Room:
        """The scratch memory; reused while the cluster is the same and the queue fits in."""
        room = self._room
        if room is None or not room.fits(observation, waiting):
            room = self._room = _Room(observation, 2 * waiting + 16, self._settings, self._gate)
        return room

    def _candidates(self, room: _Room, waiting: Ints, incumbent: tuple[int, int]) -> int:
        """Fills in the incumbent, the base's action, a hold, and the base's next best pairs; returns their number."""
        imagined, found = room.imagined, room.candidates
        count = find_candidates(room.hardware, imagined.machines, imagined.jobs, imagined.course, 0, room.base, found)
        if incumbent[0] == HOLD:
            wanted = (HOLD, HOLD)
        else:
            wanted = (room.running + int(np.searchsorted(waiting, incumbent[0])), incumbent[1])
        at = next((c for c in range(count) if (found.job[c], found.gpu[c]) == wanted), None)
        if at is None:
            at = min(count, len(found.job) - 1)
            count = at + 1
        for c in range(at, 0, -1):
            found.job[c], found.gpu[c] = found.job[c - 1], found.gpu[c - 1]
        found.job[0], found.gpu[0] = wanted
        return count


class _Room:
    """An imagined cluster with the hardware of an observation's first row; times count from the decision."""

    def __init__(self, observation: Observation, longest: int, settings: HoldGreedySettings, gate: Gate) -> None:
        self.hardware = _hardware(observation)
        gpus = observation.gpu_model.shape[1]
        self.longest = longest
        self.running = 0
        jobs = empty_job_arrays(1, gpus + longest + gate.ahead, gpus)
        changes = change_arrays([[]], self.hardware.gpu_count)
        # Row 0 is the decision, row 1 its continuation.
        rows = fork.scratch(self.hardware, jobs, changes, 2)
        self.imagined = Imagination(jobs, changes, *rows)
        self.base = base_policy(settings, self.hardware)
        self.candidates = room_for_candidates(gate.candidates)
        self.gains = np.zeros((gate.candidates, gate.futures))

    def fits(self, observation: Observation, waiting: int) -> bool:
        """Whether it can be used for an observation."""
        hardware = self.hardware
        return (
            waiting <= self.longest
            and hardware.gpu_memory_mib.shape[1] == observation.gpu_memory_mib.shape[1]
            and np.array_equal(hardware.gpu_memory_mib[0], observation.gpu_memory_mib[0])
            and np.array_equal(hardware.gpu_node[0], observation.gpu_node[0])
            and np.array_equal(hardware.node_cores[0], _node_sums(observation)[0])
        )

    def fill(self, observation: Observation, waiting: Ints) -> None:
        """Sets row 0 to an observation's first row."""
        machines, jobs, course = self.imagined.machines, self.imagined.jobs, self.imagined.course
        remaining_s, held = observation.gpu_remaining_s[0], observation.gpu_cores_held[0]
        there = np.isfinite(remaining_s)
        busy = there & ~observation.gpu_idle[0]
        at = np.flatnonzero(busy)
        known = self.running = len(at)
        machines.time_s[0] = 0.0
        machines.gpu_job[0] = IDLE
        machines.gpu_job[0, at] = np.arange(known)
        machines.gpu_start_s[0] = 0.0
        machines.gpu_end_s[0] = np.where(busy, remaining_s, np.inf)
        machines.gpu_expected_end_s[0] = machines.gpu_end_s[0]
        machines.gpu_cores[0] = np.where(busy, held, 0)
        machines.gpu_memory_mib[0] = np.where(busy, observation.gpu_memory_held_mib[0], 0)
        machines.gpu_speed[0] = there
        machines.idle_count[0] = np.count_nonzero(observation.gpu_idle[0])
        machines.running_count[0] = known
        machines.cores_free[0] = observation.node_cores_free[0]
        machines.memory_free_mib[0] = observation.node_memory_free_mib[0]
        count_nodes(self.hardware, machines, 0)
        course.job_state[0, :known] = RUNNING
        jobs.priority[0, :known] = 0.0
        count = len(waiting)
        here = slice(known, known + count)
        duration_s: Floats = observation.kind_duration_s[0, waiting][:, observation.gpu_kind[0]]
        jobs.duration_s[0, here] = duration_s
        jobs.expected_s[0, here] = duration_s
        jobs.submit_s[0, here] = observation.job_submit_s[0, waiting] - observation.time_s[0]
        jobs.cores[0, here] = observation.job_cores[0, waiting]
        jobs.memory_mib[0, here] = observation.job_memory_mib[0, waiting]
        jobs.gpu_memory_mib[0, here] = observation.job_gpu_memory_mib[0, waiting]
        jobs.priority[0, here] = observation.job_priority[0, waiting]
        jobs.job_count[0] = known + count
        course.job_state[0, here] = WAITING
        course.waiting[0, :count] = np.arange(known, known + count)
        course.known_speed[0] = 1.0
        course.list_of[0] = 0
        course.start_cost_s[0] = 0.0
        course.status[0] = DECISION
        course.waiting_count[0] = count
        course.arrived_count[0] = known + count
        course.finished_count[0] = course.impossible_count[0] = course.next_change[0] = 0
        course.hold_until_s[0] = NOT_HOLDING
        course.last_event_s[0] = 0.0
        course.feasible_idle[0] = 0
        course.priority_sum[0] = 0.0
        course.totals[0] = 0.0


def _node_sums(observation: Observation) -> tuple[Ints, Ints]:
    """(M,) cores and memory of the first row's nodes when empty."""
    node, nodes = observation.gpu_node[0], observation.node_cores_free.shape[1]
    cores = observation.node_cores_free[0] + np.bincount(
        node, weights=observation.gpu_cores_held[0], minlength=nodes
    ).astype(np.int64)
    memory_mib = observation.node_memory_free_mib[0] + np.bincount(
        node, weights=observation.gpu_memory_held_mib[0], minlength=nodes
    ).astype(np.int64)
    return cores, memory_mib


def _hardware(observation: Observation) -> Hardware:
    """The first row's hardware; every GPU is a model of its own. A node's GPUs have consecutive numbers."""
    node, memory_mib = observation.gpu_node[0], observation.gpu_memory_mib[0]
    gpus, nodes = len(node), observation.node_cores_free.shape[1]
    cores, node_memory_mib = _node_sums(observation)
    first = np.searchsorted(node, np.arange(nodes + 1))
    number = np.arange(gpus)
    return Hardware(
        gpu_count=np.array([gpus]),
        gpu_model=number[None].copy(),
        gpu_memory_mib=memory_mib[None].astype(np.int64),
        gpu_node=node[None].astype(np.int64),
        node_cores=cores[None],
        node_memory_mib=node_memory_mib[None],
        node_first_gpu=first[None].astype(np.int64),
        node_model=np.full((1, nodes), -1),
        shape_count=np.array([gpus]),
        shape=np.stack([number, memory_mib, cores[node], node_memory_mib[node]], axis=1)[None].astype(np.int64),
    )


def _copy_job(observation: Observation, row: int, job: int, target: JobArrays, place: int) -> None:
    target.duration_s[0, place] = target.expected_s[0, place] = observation.durations_s(row, job)
    target.cores[0, place] = observation.job_cores[row, job]
    target.memory_mib[0, place] = observation.job_memory_mib[row, job]
    target.gpu_memory_mib[0, place] = observation.job_gpu_memory_mib[row, job]
    target.job_type[0, place] = observation.job_type[row, job]
    target.priority[0, place] = observation.job_priority[row, job]
