"""Plays lists of a grid's cell with runtimes that nobody tells: a decompose learns them from the list's own ended jobs.

As `adlro evaluate --runtime learned` does: for each list a new decompose, which knows nothing at its beginning, and
between it and the policy the code that serves. A list takes seconds instead of milliseconds.
"""

from __future__ import annotations

import asyncio

from adlro.decide.policies import Policy
from adlro.lab.evaluate.learning import simulate_learned
from adlro.lab.evaluate.own_decompose import OwnDecompose
from adlro.lab.evaluate.tally import Tally
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchOutcome
from benchmarks.grid_cells import Cell, drawn_lists, lists_of


def simulate_list(
    cell: Cell, seed: int, number: int, policy: Policy, source: OwnDecompose
) -> tuple[Cluster, BatchOutcome, Tally]:
    """Runs one list of a cell to its end: its cluster, what came of it, and the policy's decisions."""
    (jobs,) = drawn_lists(cell, seed, number, 1)
    cluster, arrays = lists_of(cell, seed, number, 1)
    tally = Tally(policy, 1)

    async def simulated() -> BatchOutcome:
        async with source.fresh() as decompose:
            return await simulate_learned(cluster, jobs, arrays, tally.of_one_list(), decompose)

    return cluster, asyncio.run(simulated()), tally
