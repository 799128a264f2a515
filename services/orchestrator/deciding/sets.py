"""Sets of GPUs for a job of several, in explanations: those that it could have, and why it can have none of a model.

Plain data and arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adlro.placement import fewest_nodes, gpus_that_fit
from adlro.records.jobs import JobSpec
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy
from adlro.state.gangs import NEVER, gpus_of
from adlro.state.observation import Bools, Floats, Observation


@dataclass(frozen=True, slots=True)
class ScoredSet:
    """A set of GPUs on which a job of several could start.

    Attributes:
        gpus: in ascending order.
        node_count: number of their nodes.
        spread: that is more than the job needs.
        duration_s: expected duration there.
        score: the policy's; -inf: it refuses the set.
        value: the figure behind the score, where it differs from it; nan: none.
    """

    gpus: tuple[int, ...]
    node_count: int
    spread: bool
    duration_s: float
    score: float
    value: float


def scored_sets(
    scores: Floats, values: Floats | None, observation: Observation, place: int, layout: Layout
) -> tuple[ScoredSet, ...]:
    """The candidate sets of the job at a place of an observation of one cluster.

    Args:
        scores: (C,) of the rows of the observation's table; values: the figures behind them, where they differ.
    """
    table = observation.table
    sets = []
    for row in range(int(table.first[0, place]), int(table.first[0, place + 1])):
        gpus = gpus_of(table.gpus[row])
        sets.append(
            ScoredSet(
                gpus,
                nodes_of(layout, gpus),
                bool(table.spread[row]),
                float(table.duration_s[row]),
                float(scores[row]),
                np.nan if values is None else float(values[row]),
            )
        )
    return tuple(sets)


def nodes_of(layout: Layout, gpus: Sequence[int]) -> int:
    """Number of nodes of some GPUs."""
    return len({int(layout.gpu_node[gpu]) for gpu in gpus})


def why_no_set(spec: JobSpec, occupancy: Occupancy, model: int) -> str:
    """Why a job of several GPUs has no set of a model's GPUs now."""
    layout = occupancy.layout
    if not spec.accepts(layout.gpu_models[model]):
        return "the job does not accept this model"
    fewest = fewest_own_nodes(spec, occupancy, model)
    if fewest == NEVER:
        most = f" on at most {in_nodes(spec.max_node_count)}" if spec.max_node_count else ""
        return f"the cluster can never give it {spec.gpu_count} of these GPUs{most}, with {with_each(spec)}"
    may = occupancy.layout.allowed_nodes(spec) & ~(occupancy.node_busy & spec.exclusive)
    able = given_by_nodes(spec, occupancy, model, occupancy.usable & occupancy.idle & may[layout.gpu_node])
    count = sum(able)
    free = f"{count} {'is' if count == 1 else 'are'} free, on {in_nodes(len(able))}" if able else "none is free"
    if len(able) > 1:
        free += f", at most {max(able)} on one"
    own_nodes = int(np.count_nonzero(layout.allowed_nodes(spec)))
    most_nodes = min(spec.max_node_count or spec.gpu_count, spec.gpu_count, own_nodes)
    more = ", or on more where it runs slower" if fewest < most_nodes else ""
    return f"needs {spec.gpu_count} GPUs on {in_nodes(fewest)}{more}; {free}"


def fewest_own_nodes(spec: JobSpec, occupancy: Occupancy, model: int) -> int:
    """The fewest nodes, of those that a job may run on, that hold it on a model's GPUs when empty; NEVER: none do."""
    layout = occupancy.layout
    packed = int(layout.possible_nodes(spec)[model])
    if packed == NEVER or not spec.chooses_nodes:
        return packed
    own = layout.allowed_nodes(spec)[layout.gpu_node]
    return fewest_nodes(given_by_nodes(spec, occupancy, model, own, empty=True), spec.gpu_count) or NEVER


def given_by_nodes(spec: JobSpec, occupancy: Occupancy, model: int, gpus: Bools, *, empty: bool = False) -> list[int]:
    """How many GPUs of a model each node can give a job; nodes that can give none are left out.

    Args:
        gpus: (G,) those to look at.
        empty: as if no job ran.
    """
    layout, counts = occupancy.layout, []
    cores = layout.node_cores if empty else occupancy.cores_free
    memory_mib = layout.node_memory_mib if empty else occupancy.memory_free_mib
    chosen = np.flatnonzero(gpus & (layout.gpu_model == model))
    for node in np.unique(layout.gpu_node[chosen]).tolist():
        on_node = chosen[layout.gpu_node[chosen] == node]
        count = gpus_that_fit(spec, layout.gpu_memory_mib[on_node].tolist(), int(cores[node]), int(memory_mib[node]))
        if count:
            counts.append(count)
    return counts


def with_each(spec: JobSpec) -> str:
    """What a job needs with each of its GPUs, in words."""
    memory = f"{spec.gpu_memory_mib} MiB of memory, " if spec.gpu_memory_mib else ""
    cores = "1 core" if spec.cpu_cores == 1 else f"{spec.cpu_cores} cores"
    return f"{memory}{cores} and {spec.memory_mib} MiB on its node for each"


def in_nodes(count: int) -> str:
    """A number of nodes, in words."""
    return "1 node" if count == 1 else f"{count} nodes"
