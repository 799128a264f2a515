"""Worlds like a cluster's past: its jobs in other orders and at other loads. numpy only.

A list is made of blocks of consecutive jobs with the gaps before them, as a resampled history is
(adlro/lab/compare/resampling.py): what users do in a row stays together. Jobs keep their true durations, and what was
known of these. Gaps are longer or shorter by one factor for all of a world, so that a candidate also learns from more
and from less load than there was; and in some worlds longer lists begin with a queue, as after a busy day.
"""

from __future__ import annotations

import numpy as np

from adlro.errors import InvalidInput
from adlro.lab.candidates.past import Past
from adlro.lab.compare.resampling import block_size
from adlro.lab.learn.gang_worlds import sized
from adlro.lab.learn.worlds import World
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Ints

LOWEST_FACTOR, HIGHEST_FACTOR = 0.6, 1.5
"""Of the rate of submissions, relative to the past's."""
BACKLOG_SHARE, MOST_BACKLOG, LONGER, FEWER = 0.25, 0.6, 2, 8
"""Share of the worlds that begin with a queue, its greatest share of a list, how much longer lists are then, and how
many times fewer: a rollout takes as long as the queue."""
LONGEST_GAP_RATIO = 50.0
"""Gaps of more mean gaps than that are cut: the cluster is empty by then, and the list would hold little else."""


class PastWorlds:
    """Draws worlds like a past.

    Args:
        past: with at least two jobs.
        one_gpu: only its jobs of one GPU come, at its rate of all submissions.

    Raises:
        InvalidInput: fewer than two jobs.
    """

    def __init__(self, past: Past, *, one_gpu: bool = False) -> None:
        chosen = np.flatnonzero(past.jobs.gpu_count[0] == 1) if one_gpu else np.arange(len(past))
        if len(chosen) < 2:
            raise InvalidInput(f"jobs: worlds need two of the past's jobs, and it has {len(chosen)}", field="jobs")
        self._past = past
        self._chosen = chosen
        submit_s = past.jobs.submit_s[0]
        gap_s = np.diff(submit_s, prepend=submit_s[0])
        mean_s = max(float(gap_s[1:].mean()), 1e-6)
        gap_s[0] = np.median(gap_s[1:])
        self._gap_s = np.minimum(gap_s, LONGEST_GAP_RATIO * mean_s)[chosen]
        self._name = past.cluster.name or "cluster"

    def __call__(self, rng: np.random.Generator, *, lists: int, jobs: int) -> World:
        """A world with so many lists of so many jobs, fewer and longer ones on large clusters."""
        lists, jobs = sized(lists, jobs, sum(1 for _ in self._past.cluster.gpus()))
        factor = LOWEST_FACTOR + (HIGHEST_FACTOR - LOWEST_FACTOR) * rng.random()
        backlog = 0
        if rng.random() < BACKLOG_SHARE:
            lists, jobs = max(lists // FEWER, 1), jobs * LONGER
            backlog = int(jobs * MOST_BACKLOG * rng.random())
        places = self._places(rng, lists, jobs)
        gap_s = self._gap_s[places] / factor
        gap_s[:, : backlog + 1] = 0.0
        submit_s = np.round(np.cumsum(gap_s, axis=1), 6)
        of_past = self._past.jobs
        rows = self._chosen[places]
        fields = {name: getattr(of_past, name)[0][rows] for name in JobArrays._fields if name != "job_count"}
        fields |= {
            "submit_s": submit_s,
            # Rollouts know neither stops nor shared GPUs, nor nodes that a job chooses.
            "preemptible": np.zeros((lists, jobs), dtype=np.bool_),
            "shareable": np.zeros((lists, jobs), dtype=np.bool_),
            "exclusive": np.zeros((lists, jobs), dtype=np.bool_),
            "node_allowed": np.ones((lists, jobs, 0), dtype=np.bool_),
        }
        return World(
            text=f"{self._name} at {factor:.2f} times its rate, backlog {backlog}",
            cluster=self._past.cluster,
            jobs=JobArrays(job_count=np.full(lists, jobs), **fields),
            mean_gap_s=max(float(gap_s[:, backlog + 1 :].mean()), 1e-6),
            load=factor,
            runtime="past",
        )

    def _places(self, rng: np.random.Generator, lists: int, jobs: int) -> Ints:
        count = len(self._chosen)
        size = block_size(count)
        blocks = -(-jobs // size)
        starts = rng.integers(0, count, size=(lists, blocks))
        places: Ints = ((starts[:, :, None] + np.arange(size)) % count).reshape(lists, -1)[:, :jobs]
        return places
