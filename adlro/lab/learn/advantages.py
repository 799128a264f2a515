"""Creates a data set for approximate policy iteration: states, candidate actions, and their gains. numpy only.

One file per world (adlro/lab/learn/worlds.py), written as a whole or not at all: a run continues after the last file.
Many clusters run in parallel under a behaviour policy: the base with varied settings, with some random actions, and
some that the rollouts prefer; or a network. At a part of the decisions the candidates are simulated
(adlro/lab/learn/sampling.py).

States are stored as the simulator's own columns, some hundred bytes each: `observation_of` gives a policy's
observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies.hold_greedy import FIXED, HoldGreedySettings
from adlro.decide.rollouts.candidates import room_for_candidates
from adlro.decide.rollouts.futures import room_to_imagine
from adlro.decide.rollouts.rule import base_policy
from adlro.errors import InvalidInput
from adlro.lab.learn.sampling import FutureDraws, Sampled, base_actions, sample
from adlro.lab.learn.worlds import DrawWorld, World, draw_world
from adlro.numeric.draws import standard_exponentials, standard_normal
from adlro.numeric.exact import exp
from adlro.sim import kernel
from adlro.sim.batch import change_arrays
from adlro.sim.course import DECISION, Course, new_course
from adlro.sim.decision_points import decision_points
from adlro.state.cluster_arrays import IDLE, Hardware, Machines, empty_machines, hardware_of
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Ints, Observation
from adlro.state.scene import Scene, whole_queue

Act = Callable[[Observation], Ints]
"""A policy: (A, 2) places in the queue and GPUs, or HOLD, for the rows of an observation."""

_NOTHING_ASKED = -2


@dataclass(frozen=True, slots=True)
class Sampling:
    """The size of the sampling.

    Attributes:
        lists: number of parallel lists in a world.
        jobs: number of jobs of each.
        share: share of the decisions with rollouts of candidates.
        futures: futures of each rollout.
        ahead: arrivals in each future.
        candidates: largest number of candidates of a decision.
        sure: number of the best by the base's cost among them.
        considered: number of candidates from which the others are drawn.
        random_share: share of these decisions that continue with a random candidate.
        improved_share: share that continue with the candidate of the highest gain, if that exceeds two standard errors.
        by_priority: jobs are weighted by their priority instead of equally.
    """

    lists: int = 32
    jobs: int = 192
    share: float = 0.25
    futures: int = 6
    ahead: int = 24
    candidates: int = 8
    sure: int = 5
    considered: int = 16
    random_share: float = 0.15
    improved_share: float = 0.5
    by_priority: bool = False


@dataclass(frozen=True)
class States:
    """S decisions of one world, and their candidates' gains.

    Attributes:
        jobs, hardware: the world's; `hardware` of one cluster.
        gpu_models: the world's GPU models.
        mean_gap_s: the world's mean gap.
        list_of: (S,) the list.
        time_s: (S,).
        gpu_busy: (S, G).
        gpu_start_s, gpu_expected_end_s, gpu_cores, gpu_memory_mib: (S, G).
        cores_free, memory_free_mib: (S, M).
        waiting: (S, Q) numbers of the waiting jobs.
        waiting_count: (S,).
        hold_allowed: (S,).
        sampled: candidates and gains.
    """

    jobs: JobArrays
    hardware: Hardware
    gpu_models: tuple[str, ...]
    mean_gap_s: float
    list_of: Ints
    time_s: NDArray[np.float64]
    gpu_busy: NDArray[np.bool_]
    gpu_start_s: NDArray[np.float64]
    gpu_expected_end_s: NDArray[np.float64]
    gpu_cores: Ints
    gpu_memory_mib: Ints
    cores_free: Ints
    memory_free_mib: Ints
    waiting: NDArray[np.int16]
    waiting_count: Ints
    hold_allowed: NDArray[np.bool_]
    sampled: Sampled

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def numbers(self) -> Ints:
        """0 to S - 1."""
        return np.arange(len(self))

    def observation_of(self, rows: Ints) -> Observation:
        """A policy's observation; fields that no network uses (users' service, submission of running jobs) are 0."""
        count = len(rows)
        scene = Scene(
            time_s=self.time_s[rows],
            list_of=self.list_of[rows],
            gpu_speed=np.ones(self.gpu_start_s[rows].shape),
            gpu_job=np.where(self.gpu_busy[rows], 0, IDLE),
            gpu_start_s=self.gpu_start_s[rows],
            gpu_expected_end_s=self.gpu_expected_end_s[rows],
            known_speed=np.ones(self.gpu_start_s[rows].shape),
            cores_free=self.cores_free[rows],
            memory_free_mib=self.memory_free_mib[rows],
            gpu_cores=self.gpu_cores[rows],
            gpu_memory_mib=self.gpu_memory_mib[rows],
        )
        return whole_queue(
            Hardware(*(np.repeat(column[:1], count, axis=0) for column in self.hardware)),
            scene,
            self.jobs,
            self.waiting[rows].astype(np.int64),
            self.waiting_count[rows],
            gpu_submit_s=np.zeros(self.gpu_start_s[rows].shape),
            user_service_s=np.zeros((count, int(self.jobs.user.max()) + 1)),
            hold_allowed=self.hold_allowed[rows],
            gpu_models=self.gpu_models,
        )

    def save(self, path: Path) -> None:
        """Writes a file, as a whole or not at all."""
        columns: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (JobArrays, Hardware, Sampled)):
                columns |= {f"{field.name}.{name}": column for name, column in value._asdict().items()}
            else:
                columns[field.name] = np.array(value)
        part = path.with_suffix(".part.npz")
        np.savez(part, **columns)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> States:
        """Reads a file of `save`."""
        with np.load(path, allow_pickle=False) as found:
            columns = {name: found[name] for name in found.files}
        groups: dict[str, Any] = {"jobs": JobArrays, "hardware": Hardware, "sampled": Sampled}
        values: dict[str, Any] = {
            name: kind(**{field: columns.pop(f"{name}.{field}") for field in kind._fields})
            for name, kind in groups.items()
        }
        values |= columns
        values["gpu_models"] = tuple(str(model) for model in columns["gpu_models"])
        values["mean_gap_s"] = float(columns["mean_gap_s"])
        return cls(**values)


def collect(world: World, rng: np.random.Generator, sampling: Sampling, act: Act | None = None) -> States:
    """Simulates a world's lists to their end, with rollouts of candidates on the way.

    Args:
        world: lists and clusters.
        rng: generator of all random choices.
        sampling: size of the sampling.
        act: the behaviour policy, whose action is always a candidate; if left out the base, with varied settings in
            half of the worlds.
    """
    clusters = [world.cluster] * len(world.jobs.job_count)
    jobs, models = world.jobs, world.cluster.gpu_models
    hardware = hardware_of(clusters, models)
    lists, longest = jobs.submit_s.shape
    changes = change_arrays([[]] * lists, hardware.gpu_count)
    machines = empty_machines(hardware)
    course = new_course(hardware, jobs, changes, np.arange(lists), start_cost_s=np.zeros(lists))
    kernel.begin_all(hardware, machines, jobs, changes, course)
    base = base_policy(FIXED, hardware)
    behaviour = base_policy(_perturbed(rng) if rng.random() < 0.5 else FIXED, hardware)
    one, candidates = room_for_candidates(1), room_for_candidates(sampling.considered)
    room = room_to_imagine(hardware, longest, len(models), sampling.ahead)
    costs = np.zeros((sampling.considered, sampling.futures))
    chance = rng.spawn(1)[0]  # separate, so that the states do not depend on the number of futures
    records: list[_Record] = []
    while len(active := np.flatnonzero(course.status == DECISION)):
        rows, gpus = np.empty(len(active), dtype=np.int64), np.empty(len(active), dtype=np.int64)
        if act is None:
            base_actions(hardware, machines, jobs, course, active, behaviour, one, rows, gpus)
        else:
            actions = act(decision_points(hardware, machines, jobs, course, active, models))
            rows[:], gpus[:] = actions[:, 0], actions[:, 1]
        # After the last arrival the true future differs from the simulated one.
        wanted = (rng.random(len(active)) < sampling.share) & (course.arrived_count[active] < longest)
        at = np.flatnonzero(wanted)
        if len(at):
            chosen = active[at]
            asked = np.full((2, len(at)), _NOTHING_ASKED, dtype=np.int64)
            if act is not None:
                asked[0] = np.where(rows[at] >= 0, course.waiting[chosen, rows[at]], HOLD)
                asked[1] = gpus[at]
            sampled = _room_for_samples(len(at), sampling.candidates)
            shape = (len(at), sampling.futures, sampling.ahead)
            draws = FutureDraws(
                standard_exponentials(chance, shape).astype(np.float32),
                chance.random(shape, dtype=np.float32),
                chance.random((len(at), sampling.considered), dtype=np.float32),
            )
            sample(
                hardware,
                machines,
                jobs,
                course,
                chosen,
                asked[0],
                asked[1],
                world.mean_gap_s,
                base,
                draws,
                room,
                candidates,
                sampling.sure,
                costs,
                sampled,
                0,
                sampling.by_priority,
            )
            kept = np.flatnonzero(sampled.played > 1)
            records.append(_record(machines, jobs, course, chosen[kept], _rows(sampled, kept)))
            _explore(rng, sampling, sampled, at, rows, gpus)
        stops = np.zeros(0, dtype=np.bool_)
        wrong = kernel.act_all(hardware, machines, jobs, changes, course, active, rows, gpus[:, None], stops)
        if wrong >= 0:
            raise ValueError(f"{world.text}: job {rows[wrong]} of the queue cannot start on GPU {gpus[wrong]}")
    if not records:
        raise InvalidInput(
            f"{world.text}: no decision with two candidates; more lists and jobs have some", field="jobs"
        )
    columns: list[Any] = [np.concatenate(column) for column in zip(*records, strict=True)]
    names = [field.name for field in dataclasses.fields(States)]
    of_world = (jobs, Hardware(*(column[:1] for column in hardware)), tuple(models), world.mean_gap_s)
    own, taken = names[len(of_world) : -1], len(columns) - len(Sampled._fields)
    values: dict[str, Any] = dict(zip(names, of_world, strict=False)) | dict(zip(own, columns[:taken], strict=True))
    return States(**values, sampled=Sampled(*columns[taken:]))


def _rows(sampled: Sampled, rows: Ints) -> Sampled:
    columns: list[Any] = [column[rows] for column in sampled]
    return Sampled(*columns)


_Record = tuple[NDArray[Any], ...]


def _record(machines: Machines, jobs: JobArrays, course: Course, n: Ints, sampled: Sampled) -> _Record:
    m, c = machines, course
    arrived = c.arrived_count[n] < jobs.job_count[c.list_of[n]]
    return (
        c.list_of[n],
        m.time_s[n],
        m.gpu_job[n] != IDLE,
        m.gpu_start_s[n],
        m.gpu_expected_end_s[n],
        m.gpu_cores[n],
        m.gpu_memory_mib[n],
        m.cores_free[n],
        m.memory_free_mib[n],
        c.waiting[n].astype(np.int16),
        c.waiting_count[n],
        (m.running_count[n] > 0) | arrived,
        *sampled,
    )


def _room_for_samples(states: int, candidates: int) -> Sampled:
    shape = (states, candidates)
    return Sampled(
        np.zeros(states, dtype=np.int64),
        np.zeros(shape, dtype=np.int16),
        np.zeros(shape, dtype=np.int16),
        np.zeros(shape, dtype=np.float32),
        np.zeros(shape, dtype=np.float32),
    )


def _explore(rng: np.random.Generator, sampling: Sampling, sampled: Sampled, at: Ints, rows: Ints, gpus: Ints) -> None:
    """Changes some of the actions at the places `at` with rollouts."""
    chance = rng.random(len(at))
    for i, place in enumerate(at):
        count = int(sampled.played[i])
        if count < 2 or chance[i] >= sampling.random_share + sampling.improved_share:
            continue
        if chance[i] < sampling.random_share:
            best = int(rng.integers(count))
        else:
            gain_s, error_s = sampled.gain_s[i, :count], sampled.error_s[i, :count]
            best = int(np.argmax(np.where(gain_s > 2.0 * error_s, gain_s, 0.0)))
            if best == 0:
                continue
        rows[place], gpus[place] = sampled.place[i, best], sampled.gpu[i, best]


def _perturbed(rng: np.random.Generator) -> HoldGreedySettings:
    """The base's settings, each randomly changed."""

    def near(value: float, spread: float) -> float:
        return value * exp(spread * standard_normal(rng))

    return HoldGreedySettings(
        alpha=near(FIXED.alpha, 0.3),
        theta=max(1.01, near(FIXED.theta, 0.15)),
        kappa=near(FIXED.kappa, 0.3),
        backlog=near(FIXED.backlog, 0.3),
        affinity=near(FIXED.affinity, 0.3),
        packing=near(FIXED.packing, 0.7),
        ageing=near(FIXED.ageing, 0.7),
    )


def collect_world(
    path: Path, seed: int, number: int, sampling: Sampling, act: Act | None = None, draw: DrawWorld = draw_world
) -> tuple[World, States]:
    """Creates a world's file."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    world = draw(rng, lists=sampling.lists, jobs=sampling.jobs)
    states = collect(world, rng, sampling, act)
    path.parent.mkdir(parents=True, exist_ok=True)
    states.save(path)
    return world, states


def states_in(path: Path) -> int:
    """The number of states of a file."""
    with np.load(path, allow_pickle=False) as found:
        return len(found["time_s"])
