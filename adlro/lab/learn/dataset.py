"""States with the gains of their candidates as batches for a network. numpy and torch.

Chunks of states of one world are in memory as planes in half precision (planes are within -4..4: the error of half
precision is at most 0.002 there); a batch has some chunks of different worlds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import Planes
from adlro.lab.learn.advantages import States

CHUNK = 64
_HOLD = -1


class Chunk(NamedTuple):
    """Some states of one world; indices are relative to the chunk.

    Attributes:
        gpus, jobs, cluster, pairs, pair_cluster, pair_job, pair_place: as in `Planes`, only candidates' pairs.
        state: (C,) state of each candidate.
        pair: (C,) the candidate's pair; -1: hold.
        base_pair: (C,) the pair of the base's choice in the same state; -1: hold.
        gain: (C,) gain over the base's choice, in units of the state's scale.
        error: (N,) standard error of the state's gains (root mean square), in the same units.
    """

    gpus: NDArray[np.float16]
    jobs: NDArray[np.float16]
    cluster: NDArray[np.float16]
    pairs: NDArray[np.float16]
    pair_cluster: NDArray[np.int64]
    pair_job: NDArray[np.int64]
    pair_place: NDArray[np.int64]
    state: NDArray[np.int64]
    pair: NDArray[np.int64]
    base_pair: NDArray[np.int64]
    gain: NDArray[np.float32]
    error: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.cluster)


class StateBatch(NamedTuple):
    """Several chunks as tensors: `inputs` are a network's, in its order; the rest as in `Chunk`."""

    inputs: tuple[torch.Tensor, ...]
    state: torch.Tensor
    pair: torch.Tensor
    base_pair: torch.Tensor
    gain: torch.Tensor
    error: torch.Tensor

    def to(self, device: torch.device) -> StateBatch:
        """The same batch on a device."""
        return StateBatch(tuple(each.to(device) for each in self.inputs), *(each.to(device) for each in self[1:]))


@dataclass(frozen=True)
class Dataset:
    """Chunks for training, and chunks of other worlds for tests."""

    train: list[Chunk]
    test: list[Chunk]

    @property
    def states(self) -> int:
        """Number of states for training."""
        return sum(len(chunk) for chunk in self.train)


def load(folders: Sequence[Path], filler: PlaneFiller, *, test_every: int = 16, limit: int | None = None) -> Dataset:
    """Reads the files of `advantages.collect_world`; every `test_every`-th is for tests."""
    files = sorted((file for folder in folders for file in folder.glob("world-*.npz")), key=lambda file: file.name)
    files = [file for file in files if ".part." not in file.name][:limit]
    found = Dataset([], [])
    for number, file in enumerate(files):
        target = found.test if number % test_every == test_every - 1 else found.train
        target += chunks_of(States.load(file), filler, np.random.default_rng(number))
    return found


def chunks_of(states: States, filler: PlaneFiller, rng: np.random.Generator) -> list[Chunk]:
    """The states of a world, shuffled."""
    order = rng.permutation(len(states))
    return [_chunk(states, order[i : i + CHUNK], filler) for i in range(0, len(order), CHUNK)]


def _chunk(states: States, rows: NDArray[np.int64], filler: PlaneFiller) -> Chunk:
    planes = filler.fill(states.observation_of(rows))
    state, pair, base_pair, gain = _candidates(states, rows, planes)
    used = np.zeros(len(planes.pairs), dtype=np.bool_)
    used[pair[pair >= 0]] = True
    used[base_pair[base_pair >= 0]] = True
    new = np.cumsum(used) - 1
    window = max(int((planes.rows >= 0).sum(axis=1).max(initial=1)), 1)
    before = planes.rows.shape[1]
    job = planes.pair_job[used]
    count, errors_s = states.sampled.played[rows], states.sampled.error_s[rows]
    error = np.sqrt(np.square(errors_s).sum(axis=1) / np.maximum(count - 1, 1)) / planes.scale_s
    return Chunk(
        gpus=planes.gpus.astype(np.float16),
        jobs=planes.jobs[:, :window].astype(np.float16),
        cluster=planes.cluster.astype(np.float16),
        pairs=planes.pairs[used].astype(np.float16),
        pair_cluster=planes.pair_cluster[used],
        pair_job=job // before * window + job % before,
        pair_place=planes.pair_place[used],
        state=state,
        pair=np.where(pair >= 0, new[pair], _HOLD),
        base_pair=np.where(base_pair >= 0, new[base_pair], _HOLD),
        gain=gain.astype(np.float32),
        error=error.astype(np.float32),
    )


def _candidates(
    states: States, rows: NDArray[np.int64], planes: Planes
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Candidates other than the base's: (state, pair, the base's pair, gain) of those with a pair."""
    sampled = states.sampled
    found: list[tuple[int, int, int, float]] = []
    for n, row in enumerate(rows):
        base = int(planes.base[n])
        gains = sampled.gain_s[row] / planes.scale_s[n]
        for c in range(1, int(sampled.played[row])):
            place, gpu = int(sampled.place[row, c]), int(sampled.gpu[row, c])
            pair = planes.pair_of(n, place, gpu) if place >= 0 else _HOLD
            if (place >= 0 and pair < 0) or pair == base:
                continue
            found.append((n, pair, base, float(gains[c])))
    columns = list(zip(*found, strict=True)) if found else [(), (), (), ()]
    ints = [np.array(column, dtype=np.int64) for column in columns[:3]]
    return ints[0], ints[1], ints[2], np.array(columns[3], dtype=np.float64)


def batch_of(chunks: Sequence[Chunk]) -> StateBatch:
    """Several chunks as a batch; nodes, slots and windows are padded to the largest."""
    nodes, slots = (max(chunk.gpus.shape[axis] for chunk in chunks) for axis in (2, 3))
    window = max(chunk.jobs.shape[1] for chunk in chunks)
    total = sum(len(chunk) for chunk in chunks)
    gpus = np.zeros((total, chunks[0].gpus.shape[1], nodes, slots), dtype=np.float32)
    jobs = np.zeros((total, window, chunks[0].jobs.shape[2]), dtype=np.float32)
    parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in Chunk._fields}
    first, first_pair = 0, 0
    for chunk in chunks:
        last, own_nodes, own_slots = first + len(chunk), chunk.gpus.shape[2], chunk.gpus.shape[3]
        gpus[first:last, :, :own_nodes, :own_slots] = chunk.gpus
        jobs[first:last, : chunk.jobs.shape[1]] = chunk.jobs
        own_window = chunk.jobs.shape[1]
        n, rest = chunk.pair_place // (own_nodes * own_slots), chunk.pair_place % (own_nodes * own_slots)
        node, slot = rest // own_slots, rest % own_slots
        parts["pair_place"].append((n + first) * nodes * slots + node * slots + slot)
        parts["pair_job"].append((chunk.pair_job // own_window + first) * window + chunk.pair_job % own_window)
        parts["pair_cluster"].append(chunk.pair_cluster + first)
        parts["state"].append(chunk.state + first)
        for name in ("pair", "base_pair"):
            index = getattr(chunk, name)
            parts[name].append(np.where(index >= 0, index + first_pair, _HOLD))
        for name in ("cluster", "pairs", "gain", "error"):
            parts[name].append(getattr(chunk, name))
        first, first_pair = last, first_pair + len(chunk.pairs)
    joined = {name: torch.from_numpy(np.concatenate(column)) for name, column in parts.items() if column}
    inputs = (
        torch.from_numpy(gpus),
        torch.from_numpy(jobs),
        joined["cluster"].float(),
        joined["pairs"].float(),
        joined["pair_cluster"],
        joined["pair_job"],
        joined["pair_place"],
    )
    return StateBatch(inputs, joined["state"], joined["pair"], joined["base_pair"], joined["gain"], joined["error"])


def batches(chunks: Sequence[Chunk], size: int, rng: np.random.Generator | None) -> Iterator[StateBatch]:
    """All chunks once, in batches; in random order with a generator."""
    order = np.arange(len(chunks)) if rng is None else rng.permutation(len(chunks))
    step = max(1, size // CHUNK)
    for i in range(0, len(order), step):
        yield batch_of([chunks[int(place)] for place in order[i : i + step]])
