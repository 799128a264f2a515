"""Decisions of generations with their rewards, and batches of them for training. Arrays only.

torch converts the precision: it is several times faster than numpy.

Generations of different clusters have arrays of different shapes: a batch is drawn from one generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlro.decide.planes.layout import Planes, fullest_window
from adlro.state.observation import Bools, Floats, Ints

Halves = NDArray[np.float16]


class Decisions(NamedTuple):
    """D decisions of one generation, with P pairs in their order; planes in half precision.

    Attributes:
        gpus, jobs, cluster, pairs: as in `Planes`.
        pair_job, pair_place: (P,) relative to the decision: the window's job, and node x S + slot.
        first_pair: (D + 1,).
        base: (D,) the pair of the decision that the base would start; -1: it would hold.
        hold_allowed: (D,).
        scale_s: (D,).
        action: (D,) the pair of the decision that was started; -1: a hold.
        following: (D,) the cluster's next decision; -1: none.
        reward_s: (D,) reward until then, in job-seconds.
        discount: (D,) discount of later rewards.
    """

    gpus: Halves
    jobs: Halves
    cluster: Halves
    pairs: Halves
    pair_job: NDArray[np.int16]
    pair_place: NDArray[np.int16]
    first_pair: Ints
    base: NDArray[np.int32]
    hold_allowed: Bools
    scale_s: Floats
    action: NDArray[np.int32]
    following: Ints
    reward_s: Floats
    discount: Floats

    @property
    def usable(self) -> Ints:
        """The decisions that have a next one."""
        return np.flatnonzero(self.following >= 0)


class Inputs(NamedTuple):
    """Some decisions as a network's input, with further columns."""

    gpus: NDArray[np.float32]
    jobs: NDArray[np.float32]
    cluster: NDArray[np.float32]
    pairs: NDArray[np.float32]
    pair_cluster: Ints
    pair_job: Ints
    pair_place: Ints
    first_pair: Ints


def halved(planes: Planes) -> Planes:
    """The planes in half precision, for `pack`: a generation in full precision would take twice the memory."""
    return planes._replace(
        **{
            name: torch.from_numpy(getattr(planes, name)).half().numpy()
            for name in ("gpus", "jobs", "cluster", "pairs")
        }
    )


def _whole(values: Halves) -> NDArray[np.float32]:
    whole: NDArray[np.float32] = torch.from_numpy(values).float().numpy()
    return whole


def pack(seen: Sequence[Planes], chosen: Sequence[Ints]) -> dict[str, NDArray[np.generic]]:
    """The planes of a generation's steps, concatenated to columns of `Decisions`.

    Args:
        seen: the planes of each step, `halved`.
        chosen: for each step, the started pairs, of all pairs; -1: a hold.
    """
    window, places = seen[0].jobs.shape[1], seen[0].gpus.shape[2] * seen[0].gpus.shape[3]
    counts = np.concatenate([np.diff(planes.first_pair) for planes in seen])

    def within(pairs: Sequence[Ints]) -> NDArray[np.int32]:
        of_step = [
            np.where(each < 0, -1, each - planes.first_pair[:-1]) for each, planes in zip(pairs, seen, strict=True)
        ]
        return np.concatenate(of_step).astype(np.int32)

    return {
        "gpus": np.concatenate([planes.gpus for planes in seen]),
        "jobs": np.concatenate([planes.jobs for planes in seen]),
        "cluster": np.concatenate([planes.cluster for planes in seen]),
        "pairs": np.concatenate([planes.pairs for planes in seen]),
        "pair_job": np.concatenate([planes.pair_job % window for planes in seen]).astype(np.int16),
        "pair_place": np.concatenate([planes.pair_place % places for planes in seen]).astype(np.int16),
        "first_pair": np.concatenate([[0], np.cumsum(counts)]),
        "base": within([planes.base for planes in seen]),
        "hold_allowed": np.concatenate([planes.hold_allowed for planes in seen]),
        "scale_s": np.concatenate([planes.scale_s for planes in seen]),
        "action": within(chosen),
    }


def taken(decisions: Decisions, rows: Ints) -> Inputs:
    """Some decisions as a network's input, without the window's common padding.

    Args:
        decisions: decisions of a generation.
        rows: (B,) their rows.
    """
    count = len(rows)
    first, counts = decisions.first_pair[rows], decisions.first_pair[rows + 1] - decisions.first_pair[rows]
    ends = np.cumsum(counts)
    cluster = np.repeat(np.arange(count), counts)
    pair = np.arange(ends[-1] if count else 0) + np.repeat(first - (ends - counts), counts)
    jobs = decisions.jobs[rows]
    window, places = fullest_window(jobs), decisions.gpus.shape[2] * decisions.gpus.shape[3]
    return Inputs(
        gpus=_whole(decisions.gpus[rows]),
        jobs=_whole(jobs[:, :window]),
        cluster=_whole(decisions.cluster[rows]),
        pairs=_whole(decisions.pairs[pair]),
        pair_cluster=cluster,
        pair_job=cluster * window + decisions.pair_job[pair],
        pair_place=cluster * places + decisions.pair_place[pair],
        first_pair=np.concatenate([[0], ends]),
    )


class Replay:
    """The newest generations, up to a number of decisions; at least the newest.

    Args:
        capacity: largest number of decisions.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: list[Decisions] = []

    def __len__(self) -> int:
        return sum(len(each.action) for each in self._kept)

    @property
    def generations(self) -> int:
        """Number of stored generations."""
        return len(self._kept)

    @property
    def newest(self) -> int:
        """Number of decisions of the newest generation; 0 without one."""
        return len(self._kept[-1].action) if self._kept else 0

    def add(self, decisions: Decisions) -> None:
        """Adds a generation, and drops the oldest beyond the capacity."""
        self._kept.append(decisions)
        while len(self._kept) > 1 and len(self) > self._capacity:
            self._kept.pop(0)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Decisions, Ints]:
        """A generation, drawn by its size, and rows of its decisions that have a next one."""
        sizes = np.array([len(each.usable) for each in self._kept], dtype=np.float64)
        decisions = self._kept[int(rng.choice(len(sizes), p=sizes / sizes.sum()))]
        usable = decisions.usable
        return decisions, usable[rng.integers(len(usable), size=batch)]
