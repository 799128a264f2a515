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
from adlro.errors import InvalidInput
from adlro.lab.learn.gang_sampling import AskedActions, Gains, room_for_gains, sample_gangs
from adlro.lab.learn.gang_worlds import draw_gang_world
from adlro.lab.learn.sampling import FutureDraws
from adlro.lab.learn.worlds import DrawWorld, World
from adlro.numeric.draws import standard_exponentials
from adlro.numeric.exact import exp_array, log
from adlro.sim.batch import BatchSimulator
from adlro.state.cluster_arrays import Hardware
from adlro.state.observation import HOLD, Floats, Ints, Observation

ActGangs = Callable[[GangActions], int]
"""Chooses the number of an action."""

HIGHEST_PRICE = 1.0
LOWEST_PRICE = 0.01


@dataclass(frozen=True)
class GangSampling:
    """The size of the sampling.

    Attributes:
        lists, jobs: number of lists of a world, and of jobs a list, on 16 GPUs.
        share: share of the decisions with rollouts where a job fits nowhere, or GPUs are kept free.
        other_share: of the other decisions with waiting jobs of several GPUs.
        futures: futures of each rollout.
        ahead: arrivals in each future on 16 GPUs; on more they grow as the root of the GPUs' number, up to three times.
        random_share: share of these decisions that continue with a random action.
        improved_share: share that continue with the action of the highest gain, if that exceeds two standard errors.
        doubt: of the `hold_gang` in these worlds and futures.
    """

    lists: int = 24
    jobs: int = 256
    share: float = 0.35
    other_share: float = 0.1
    futures: int = 6
    ahead: int = 20
    random_share: float = 0.1
    improved_share: float = 0.5
    doubt: float = 0.0


@dataclass(frozen=True)
class GangStates:
    """S decisions with A actions in all.

    Attributes:
        count: (S,) actions of each decision; the first is the base's.
        kind: (A,) `adlro.decide.gang_actions.BASE` and so on.
        cluster: (S, CLUSTER_FIGURES).
        figures: (A, ACTION_FIGURES).
        gain: (A,) mean gain against the base's action in units of the decision's typical duration.
        of_waits: (A,) what it saves of half of the waits' squares, in squares of this unit.
        variance, covariance, waits_variance: (A,) of the two means, over the futures.
    """

    count: Ints
    kind: Ints
    cluster: NDArray[np.float32]
    figures: NDArray[np.float32]
    gain: NDArray[np.float32]
    of_waits: NDArray[np.float32]
    variance: NDArray[np.float32]
    covariance: NDArray[np.float32]
    waits_variance: NDArray[np.float32]

    @property
    def state_of(self) -> Ints:
        """(A,) the decision of each action."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def gains(self) -> Gains:
        """(A,) each, in units of the typical duration."""
        columns = (self.gain, self.of_waits, self.variance, self.covariance, self.waits_variance)
        return Gains(*(column.astype(np.float64) for column in columns))

    def save(self, path: Path) -> None:
        """Writes a file, as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        part.replace(path)


def load_gang_states(path: Path) -> GangStates:
    """Reads a file of `GangStates.save`.

    Raises:
        InvalidInput: it is of another version of ADLRO.
    """
    names = [field.name for field in dataclasses.fields(GangStates)]
    with np.load(path, allow_pickle=False) as found:
        if not set(names) <= set(found.files):
            raise InvalidInput(f"{path} is of another version of ADLRO: name another folder", field="folder")
        return GangStates(**{name: found[name] for name in names})


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
    ahead = round(sampling.ahead * min(max(float(np.sqrt(hardware.gpu_model.shape[1] / 16.0)), 1.0), 3.0))
    room = room_for_gangs(hardware, longest, models, jobs.widest, ahead)
    setting = dataclasses.replace(ONE_SETTING, doubt=sampling.doubt)
    base = gang_base(setting, room.hardware, room.jobs)
    finder, policy = GangActionFinder(setting.rule()), HoldGang(setting)
    policy.wait_ratio = np.inf
    costs = np.zeros((2, ACTIONS_AT_MOST, sampling.futures))
    chance = rng.spawn(1)[0]
    parts: list[tuple[GangActions, Gains]] = []
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
                asked = _asked(seen, [(int(n), found[int(n)]) for n in at])
                gains = room_for_gains(len(at), ACTIONS_AT_MOST)
                shape = (len(at), sampling.futures, ahead)
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
                    gains,
                )
                prices = draw_prices(rng, len(at))
                for s, n in enumerate(at):
                    actions = found[int(n)]
                    its = in_units(gains, s, len(actions.row), actions.scale_s)
                    if np.isfinite(its.gain_s).all():
                        parts.append((actions, its))
                    chosen[int(n)] = _explored(rng, sampling, its, float(prices[s]), chosen[int(n)])
            for cluster, number in chosen.items():
                if number:
                    _put(seen, cluster, found[cluster], number, acts, reserve)
        simulator.act(acts, reserve)
    kinds = [actions.kind for actions, _ in parts]
    clusters = [actions.cluster for actions, _ in parts]
    figures = [actions.figures for actions, _ in parts]
    columns = [np.concatenate([np.zeros(0), *(its[i] for _, its in parts)]) for i in range(len(Gains._fields))]
    gain, of_waits, variance, covariance, waits_variance = (column.astype(np.float32) for column in columns)
    return GangStates(
        count=np.array([len(kind) for kind in kinds], dtype=np.int64),
        kind=np.concatenate([np.zeros(0, dtype=np.int64), *kinds]),
        cluster=np.array(clusters, dtype=np.float32).reshape(-1, CLUSTER_FIGURES),
        figures=np.concatenate([np.zeros((0, ACTION_FIGURES)), *figures]).astype(np.float32),
        gain=gain,
        of_waits=of_waits,
        variance=variance,
        covariance=covariance,
        waits_variance=waits_variance,
    )


def draw_prices(rng: np.random.Generator, count: int) -> Floats:
    """(count,) prices of waits: 0 for a few, otherwise between the bounds, uniform in the logarithm."""
    found = LOWEST_PRICE * exp_array(log(HIGHEST_PRICE / LOWEST_PRICE) * rng.random(count))
    return np.where(rng.random(count) < 0.1, 0.0, found)


def in_units(gains: Gains, s: int, size: int, scale_s: float) -> Gains:
    """The gains of state s, (size,) each, in units of the decision's typical duration."""
    square = scale_s * scale_s
    units = (scale_s, square, square, square * scale_s, square * square)
    return Gains(*(column[s, :size] / unit for column, unit in zip(gains, units, strict=True)))


def _asked(seen: Observation, found: list[tuple[int, GangActions]]) -> AskedActions:
    width, size = seen.table.gpus.shape[1], len(found)
    asked = AskedActions(
        size=np.array([len(actions.row) for _, actions in found]),
        place=np.full((size, ACTIONS_AT_MOST), HOLD),
        gpus=np.full((size, ACTIONS_AT_MOST, width), HOLD),
        reserve=np.full((size, ACTIONS_AT_MOST), -1),
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
    its: Gains,
    price: float,
    chosen: int,
) -> int:
    """The action with which a sampled decision continues."""
    chance = rng.random()
    if chance < sampling.random_share:
        return int(rng.integers(len(its.gain_s)))
    if chance < sampling.random_share + sampling.improved_share:
        gain = its.gain_at(price)
        return int(np.argmax(np.where(gain > 2.0 * np.sqrt(its.variance_at(price)), gain, 0.0)))
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
