"""Runs a generation of job lists under a network, with some random actions, and computes rewards. numpy and torch.

Rewards, in job-seconds (docs/learning.md):

- "jobs": minus the integral of the jobs in the system until the next decision. Over a list it sums to minus the total
  completion time (Little's law).
- "waits": minus the integral of the waiting jobs, and for a start on another GPU than the job's fastest, minus the
  expected additional seconds there. It sums to the same, except for a part that no policy can change (potential-based
  shaping: Ng, Harada and Russell 1999): the cost of a start counts at once, not while the job runs. The generation's
  mean, by time, is subtracted: values stay near 0.

Both subtract lambda times the idle GPU time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from adlro.decide.planes.choice import Margins, actions_of, best_of
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import Float32s, Planes, fullest_window
from adlro.decide.planes.ranges import Ranges
from adlro.decide.planes.session import INPUTS
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import QRecipe
from adlro.lab.learn.replay import Decisions, halved, pack
from adlro.lab.learn.worlds import World
from adlro.numeric.exact import exp_array
from adlro.sim.batch import BatchSimulator
from adlro.sim.course import FEASIBLE_IDLE_S, IDLE_S, JOBS_S, PRIORITY_S
from adlro.state.observation import Floats, Ints, Observation

RANGES_EVERY = 8
"""Steps of a generation between two samples of the ranges of planes."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The results of a generation.

    Attributes:
        decisions: the decisions for training.
        mean_jct_s: mean job completion time.
        holds: share of the decisions that held.
        explored: share of random decisions.
        ranges: ranges of planes, at a part of the decisions.
    """

    decisions: Decisions
    mean_jct_s: float
    holds: float
    explored: float
    ranges: Ranges


def network_q(network: PairNetwork, planes: Planes, device: torch.device) -> tuple[Float32s, Float32s]:
    """(P,) Q of the pairs, (N,) of holding, by torch."""
    window, used = planes.jobs.shape[1], fullest_window(planes.jobs)
    # Most windows are nearly empty: padding would be most of the work.
    planes = planes._replace(jobs=planes.jobs[:, :used], pair_job=planes.pair_cluster * used + planes.pair_job % window)
    with torch.no_grad():
        q_pairs, q_hold = network(*(torch.from_numpy(getattr(planes, name)).to(device) for name in INPUTS))
    return q_pairs.cpu().numpy(), q_hold.cpu().numpy()


def run_generation(
    world: World,
    network: PairNetwork,
    recipe: QRecipe,
    filler: PlaneFiller,
    rng: np.random.Generator,
    epsilon: float,
    device: torch.device,
) -> Generation:
    """Runs a world's lists to their end."""
    simulator = BatchSimulator(world.cluster, world.jobs)
    lists = len(world.jobs.job_count)
    last_arrival_s = world.jobs.submit_s[np.arange(lists), world.jobs.job_count - 1]
    rate = 1.0 / (recipe.horizon * _mean_s(world))
    gpus = sum(1 for _ in world.cluster.gpus())
    seen: list[Planes] = []
    chosen: list[Ints] = []
    longer_s: list[Floats] = []
    clusters: list[Ints] = []
    times: list[Floats] = []
    totals: list[Floats] = []
    explored, ranges = 0, Ranges()
    while len(active := simulator.active):
        observation = simulator.observe()
        planes = filler.fill(observation)
        index = best_of(planes, *network_q(network, planes, device), recipe.margins)
        explored += _explore(planes, index, rng, epsilon, recipe.random_hold)
        if len(seen) % RANGES_EVERY == 0:
            ranges.see(planes)
        seen.append(halved(planes))
        chosen.append(index)
        clusters.append(active)
        times.append(simulator.time_s[active].copy())
        totals.append(simulator.totals[active].copy())
        longer_s.append(_longer_s(observation, planes, index))
        simulator.act(actions_of(planes, index))
    outcome = simulator.outcome()
    cluster, time_s = np.concatenate(clusters), np.concatenate(times)
    following = _following(cluster)
    # After the last arrival a list is unlike any cluster in service: later decisions are not learned.
    within = time_s[following] <= last_arrival_s[cluster]
    following = np.where((following >= 0) & within, following, -1)
    dt_s = np.where(following >= 0, time_s[following] - time_s, 0.0)
    passed = np.concatenate(totals)
    parts = np.where((following >= 0)[:, None], passed[following] - passed, 0.0)
    idle_s = parts[:, FEASIBLE_IDLE_S if recipe.feasible_idle_only else IDLE_S]
    if recipe.by_priority:
        reward_s = -parts[:, PRIORITY_S]
    elif recipe.reward == "jobs":
        reward_s = -parts[:, JOBS_S]
    else:
        busy_s = gpus * dt_s - parts[:, IDLE_S]
        reward_s = -(parts[:, JOBS_S] - busy_s) - np.concatenate(longer_s)
    reward_s = np.where(following >= 0, reward_s - recipe.idle * idle_s, 0.0)
    if recipe.reward == "waits":
        reward_s -= reward_s.sum() / max(dt_s.sum(), 1e-9) * dt_s
    discount = exp_array(-rate * dt_s) if recipe.discount_per_decision == 0.0 else recipe.discount_per_decision
    held = np.concatenate(chosen) < 0
    decisions = Decisions(
        **pack(seen, chosen),  # type: ignore[arg-type]
        following=following,
        reward_s=reward_s,
        discount=np.broadcast_to(discount, dt_s.shape).copy(),
    )
    completion_s = outcome.end_s - world.jobs.submit_s
    there = np.arange(completion_s.shape[1]) < world.jobs.job_count[:, None]
    return Generation(
        decisions, float(np.nanmean(completion_s[there])), float(held.mean()), explored / len(held), ranges
    )


def _mean_s(world: World) -> float:
    """Mean expected duration on the best model, in seconds."""
    there = np.arange(world.jobs.submit_s.shape[1]) < world.jobs.job_count[:, None]
    best_s = world.jobs.expected_s.min(axis=2)[there]
    return float(best_s[np.isfinite(best_s)].mean())


def _longer_s(observation: Observation, planes: Planes, index: Ints) -> Floats:
    """(N,) expected additional seconds of each start relative to the job's fastest GPU."""
    starts = np.flatnonzero(index >= 0)
    pair = index[starts]
    longer_s = np.zeros(len(index))
    shortest_s = observation.kind_duration_s[starts, planes.pair_queue[pair]].min(axis=1)
    longer_s[starts] = observation.table.duration_s[planes.pair_row[pair]] - shortest_s
    return longer_s


def _explore(planes: Planes, index: Ints, rng: np.random.Generator, epsilon: float, random_hold: float) -> int:
    """Replaces some choices by random allowed ones."""
    count = len(index)
    at_random, hold, pick = rng.random(count) < epsilon, rng.random(count) < random_hold, rng.random(count)
    pairs = np.diff(planes.first_pair)
    hold &= planes.hold_allowed
    start = at_random & ~hold & (pairs > 0)
    index[start] = (planes.first_pair[:-1] + (pick * pairs).astype(np.int64))[start]
    index[at_random & hold] = -1
    return int(at_random.sum())


def _following(cluster: Ints) -> Ints:
    """(D,) the next decision of the same cluster; -1: none."""
    following = np.full(len(cluster), -1, dtype=np.int64)
    order = np.argsort(cluster, kind="stable")
    same = cluster[order[1:]] == cluster[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following


def greedy(
    network: PairNetwork, filler: PlaneFiller, margins: Margins, device: torch.device
) -> Callable[[Observation], Ints]:
    """A policy: a function from observations to actions."""

    def act(observation: Observation) -> Ints:
        planes = filler.fill(observation)
        return actions_of(planes, best_of(planes, *network_q(network, planes, device), margins))

    return act
