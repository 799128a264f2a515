"""Creates a data set where jobs of several GPUs wait: decisions, their actions, and what each action gains. numpy only.

One file per world (adlro/lab/learn/gang_worlds.py). Clusters run under `hold_gang`, or a network, with some random
actions and some that the rollouts prefer. Only a few of a hundred decisions have a better action than the base's: most
of the sampled ones are those where a job of several GPUs fits nowhere, or GPUs are kept free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adlro.decide.gang_actions import ACTION_FIGURES, ACTIONS_AT_MOST, CLUSTER_FIGURES, GangActionFinder, GangActions
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.rollouts.gang_base import gang_base
from adlro.decide.rollouts.gang_futures import room_for_gangs
from adlro.lab.learn.gang_sampling import AskedActions, sample_gangs
from adlro.lab.learn.gang_worlds import draw_gang_world
from adlro.lab.learn.sampling import FutureDraws
from adlro.lab.learn.worlds import DrawWorld, World
from adlro.numeric.draws import standard_exponentials
from adlro.sim.batch import BatchSimulator
from adlro.state.cluster_arrays import Hardware
from adlro.state.observation import HOLD, Ints, Observation

ActGangs = Callable[[GangActions], int]
"""Chooses the number of an action."""


WAIT_PRICE = 0.05


@dataclass(frozen=True)
class GangSampling:
    """The size of the sampling.

    Attributes:
        lists, jobs: number of lists of a world, and of jobs a list, on 16 GPUs.
        share: share of the decisions with rollouts where a job fits nowhere, or GPUs are kept free.
        other_share: of the other decisions with waiting jobs of several GPUs.
        futures: futures of each rollout.
        ahead: arrivals in each future.
        random_share: share of these decisions that continue with a random action.
        improved_share: share that continue with the action of the highest gain, if that exceeds two standard errors.
        wait_price: a second of waiting counts 1 + `wait_price` x the job's wait so far in units of the decision's
            typical duration. Without it the widest jobs wait twice as long where durations are guessed badly.
    """

    lists: int = 24
    jobs: int = 256
    share: float = 0.35
    other_share: float = 0.1
    futures: int = 6
    ahead: int = 20
    random_share: float = 0.1
    improved_share: float = 0.5
    wait_price: float = WAIT_PRICE


@dataclass(frozen=True)
class GangStates:
    """S decisions with A actions in all.

    Attributes:
        count: (S,) actions of each decision; the first is the base's.
        kind: (A,) `adlro.decide.gang_actions.BASE` and so on.
        cluster: (S, CLUSTER_FIGURES).
        figures: (A, ACTION_FIGURES).
        gain: (A,) mean gain against the base's action in units of the decision's typical duration.
        error: (A,) its standard error.
    """

    count: Ints
    kind: Ints
    cluster: NDArray[np.float32]
    figures: NDArray[np.float32]
    gain: NDArray[np.float32]
    error: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Writes a file, as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        part.replace(path)


def load_gang_states(path: Path) -> GangStates:
    """Reads a file of `GangStates.save`."""
    with np.load(path, allow_pickle=False) as found:
        return GangStates(**{field.name: found[field.name] for field in dataclasses.fields(GangStates)})


def wanted_decisions(observation: Observation) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) whether jobs of several GPUs wait, and whether one fits nowhere or GPUs are kept free."""
    gangs = observation.gangs
    if gangs is None:
        nothing = np.zeros(len(observation.time_s), dtype=np.bool_)
        return nothing, nothing
    waits = (gangs.gpu_count > 1) & observation.job_waiting
    any_waits: NDArray[np.bool_] = np.asarray(waits.any(axis=1), dtype=np.bool_)
    unfit: NDArray[np.bool_] = (waits & (observation.table.rows_of_job == 0)).any(axis=1)
    kept: NDArray[np.bool_] = gangs.reserved >= 0
    return any_waits, (unfit | kept) & any_waits


def collect_gangs(
    world: World, rng: np.random.Generator, sampling: GangSampling, act: ActGangs | None = None
) -> GangStates:
    """Runs a world's lists to their end, and samples decisions.

    Args:
        world: with jobs of several GPUs.
        rng: generator of all random choices.
        sampling: its size.
        act: a network's choice; None: `hold_gang`.
    """
    jobs = world.jobs
    simulator = BatchSimulator(world.cluster, jobs)
    hardware = Hardware(*(column[:1] for column in simulator.hardware))
    models, longest = len(simulator.gpu_models), jobs.submit_s.shape[1]
    room = room_for_gangs(hardware, longest, models, jobs.widest, sampling.ahead)
    base = gang_base(ONE_SETTING, room.hardware, room.jobs)
    finder, policy = GangActionFinder(ONE_SETTING.rule()), HoldGang()
    policy.wait_ratio = np.inf
    costs = np.zeros((ACTIONS_AT_MOST, sampling.futures))
    chance = rng.spawn(1)[0]
    parts: list[tuple[GangActions, NDArray[np.float64], NDArray[np.float64]]] = []
    while len(simulator.active):
        seen, active, course = simulator.observe(), simulator.active, simulator.course
        judgement = policy.weigh(seen)
        acts = policy.choose(seen, judgement)
        reserve = judgement.reserve
        waits, unfit = wanted_decisions(seen)
        # After the last arrival the true future differs from the simulated one.
        goes_on = course.arrived_count[active] < jobs.job_count[course.list_of[active]]
        share = np.where(unfit, sampling.share, sampling.other_share) * (waits & goes_on)
        sampled = rng.random(len(active)) < share
        looks = np.flatnonzero(waits if act is not None else sampled)
        if len(looks) and reserve is not None:
            found = {int(n): finder.find(seen.of_cluster(int(n))) for n in looks}
            width = seen.table.gpus.shape[1]
            acts = np.pad(acts, ((0, 0), (0, max(width + 1 - acts.shape[1], 0))), constant_values=HOLD)
            chosen = {n: 0 if act is None else act(actions) for n, actions in found.items()}
            at = np.flatnonzero(sampled)
            if len(at):
                asked = _asked(seen, [(int(n), found[int(n)]) for n in at], sampling.wait_price)
                gain, error = np.zeros((2, len(at), ACTIONS_AT_MOST))
                shape = (len(at), sampling.futures, sampling.ahead)
                draws = FutureDraws(
                    standard_exponentials(chance, shape).astype(np.float32),
                    chance.random(shape, dtype=np.float32),
                    np.zeros((1, 1), dtype=np.float32),
                )
                sample_gangs(
                    simulator.machines,
                    jobs,
                    course,
                    active[at],
                    asked,
                    world.mean_gap_s,
                    base,
                    draws,
                    room,
                    costs,
                    gain,
                    error,
                )
                for s, n in enumerate(at):
                    actions = found[int(n)]
                    size = len(actions.row)
                    its_gain, its_error = gain[s, :size], error[s, :size]
                    if np.isfinite(its_gain).all():
                        parts.append((actions, its_gain / actions.scale_s, its_error / actions.scale_s))
                    chosen[int(n)] = _explored(rng, sampling, its_gain, its_error, chosen[int(n)])
            for cluster, number in chosen.items():
                if number:
                    _put(seen, cluster, found[cluster], number, acts, reserve)
        simulator.act(acts, reserve)
    kinds, clusters, figures, gains, errors = ([] for _ in range(5))
    for actions, its_gain, its_error in parts:
        kinds.append(actions.kind)
        clusters.append(actions.cluster)
        figures.append(actions.figures)
        gains.append(its_gain)
        errors.append(its_error)
    return GangStates(
        count=np.array([len(kind) for kind in kinds], dtype=np.int64),
        kind=np.concatenate([np.zeros(0, dtype=np.int64), *kinds]),
        cluster=np.array(clusters, dtype=np.float32).reshape(-1, CLUSTER_FIGURES),
        figures=np.concatenate([np.zeros((0, ACTION_FIGURES)), *figures]).astype(np.float32),
        gain=np.concatenate([np.zeros(0), *gains]).astype(np.float32),
        error=np.concatenate([np.zeros(0), *errors]).astype(np.float32),
    )


def _asked(seen: Observation, found: list[tuple[int, GangActions]], wait_price: float) -> AskedActions:
    width, size = seen.table.gpus.shape[1], len(found)
    asked = AskedActions(
        size=np.array([len(actions.row) for _, actions in found]),
        place=np.full((size, ACTIONS_AT_MOST), HOLD),
        gpus=np.full((size, ACTIONS_AT_MOST, width), HOLD),
        reserve=np.full((size, ACTIONS_AT_MOST), -1),
        price_per_s=np.array([wait_price / actions.scale_s for _, actions in found]),
    )
    for s, (n, actions) in enumerate(found):
        first = int(seen.table.first[n, 0])
        for a, row in enumerate(actions.row):
            if row != HOLD:
                asked.place[s, a] = seen.table.job[first + row]
                asked.gpus[s, a] = seen.table.gpus[first + row]
            asked.reserve[s, a] = actions.reserve[a]
    return asked


def _explored(
    rng: np.random.Generator,
    sampling: GangSampling,
    gain_s: NDArray[np.float64],
    error_s: NDArray[np.float64],
    chosen: int,
) -> int:
    """The action with which a sampled decision continues."""
    chance = rng.random()
    if chance < sampling.random_share:
        return int(rng.integers(len(gain_s)))
    if chance < sampling.random_share + sampling.improved_share:
        return int(np.argmax(np.where(gain_s > 2.0 * error_s, gain_s, 0.0)))
    return chosen


def _put(seen: Observation, n: int, actions: GangActions, number: int, acts: Ints, reserve: Ints) -> None:
    """Replaces the action of cluster n."""
    row = int(actions.row[number])
    acts[n] = HOLD
    if row != HOLD:
        row += int(seen.table.first[n, 0])
        gpus = seen.table.gpus[row]
        acts[n, 0], acts[n, 1 : 1 + len(gpus)] = seen.table.job[row], gpus
    reserve[n] = actions.reserve[number]


def collect_gang_world(
    path: Path,
    seed: int,
    number: int,
    sampling: GangSampling,
    act: ActGangs | None = None,
    draw: DrawWorld = draw_gang_world,
) -> tuple[World, GangStates]:
    """Creates a world's file."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    world = draw(rng, lists=sampling.lists, jobs=sampling.jobs)
    states = collect_gangs(world, rng, sampling, act)
    states.save(path)
    return world, states
