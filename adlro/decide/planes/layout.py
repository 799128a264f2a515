"""The arrays of N decisions: a network's input, and the meaning of its output. numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.decide.hold_rule import Surroundings, room_to_look
from adlro.state.observation import Bools, Floats, Ints

Float32s = NDArray[np.float32]


class Planes(NamedTuple):
    """N decisions: M nodes x S slots, a window of W jobs, and the P possible pairs of all N.

    The pairs of one decision are consecutive, in the order of submission, then of the GPUs' numbers. Identical GPUs of
    a node count once, by the lowest number.

    Attributes:
        gpus: (N, GPU_PLANES, M, S) the GPU matrix.
        jobs: (N, W, JOB_PLANES) the window, in the order of submission.
        cluster: (N, CLUSTER_PLANES).
        pairs: (P, PAIR_PLANES).
        pair_cluster: (P,) n.
        pair_job: (P,) n x W + w.
        pair_place: (P,) n x M x S + node x S + slot.
        pair_queue: (P,) the job's place in the observation.
        pair_gpu: (P,) the GPU's number.
        pair_row: (P,) the pair's row in the observation's table.
        first_pair: (N + 1,) the pairs of n go from first_pair[n] to below first_pair[n + 1].
        base: (N,) the pair that the base policy would start, of P; -1: it would hold.
        rows: (N, W) the window's jobs by their places in the observation; -1 in padding.
        hold_allowed: (N,) as in the observation, but False if the queue is too long for a hold: if the queue's drain
            would justify the start of a waiting job.
        scale_s: (N,) the typical duration to which times are relative.
        clipped: (N,) number of figures outside the range of their planes.
    """

    gpus: Float32s
    jobs: Float32s
    cluster: Float32s
    pairs: Float32s
    pair_cluster: Ints
    pair_job: Ints
    pair_place: Ints
    pair_queue: Ints
    pair_gpu: Ints
    pair_row: Ints
    first_pair: Ints
    base: Ints
    rows: Ints
    hold_allowed: Bools
    scale_s: Floats
    clipped: Ints

    def pair_of(self, n: int, row: int, gpu: int) -> int:
        """The pair of (job, GPU) of cluster n, itself or an identical one; -1: not in the window, or not possible now.

        Args:
            row: the job's place in the observation.
            gpu: a GPU on which the job fits.
        """
        first, last = int(self.first_pair[n]), int(self.first_pair[n + 1])
        found = np.flatnonzero((self.pair_queue[first:last] == row) & (self.pair_gpu[first:last] <= gpu))
        return first + int(found[-1]) if len(found) else -1


def fullest_window(jobs: NDArray[np.floating[Any]]) -> int:
    """Number of jobs in the fullest window of some decisions, at least 1: the rest is padding, and can be left out.

    Args:
        jobs: (N, W, JOB_PLANES), the plane `present` first.
    """
    there = np.flatnonzero((jobs[:, :, 0] != 0).any(axis=0))
    return int(there[-1]) + 1 if len(there) else 1


class Scratch(NamedTuple):
    """Scratch memory for the largest decision so far; one per thread.

    Attributes:
        surroundings: filled by `hold_rule.look_around`.
        queue_drain_s: (1,) time until the queue has drained (hold_rule.py), filled by `window.rank_jobs`.
        drain_s: (1,) the drain if a pair may be refused, inf otherwise.
        too_long_to_hold: (1,) whether the queue's drain would justify the start of a waiting job now.
        slot: (G,) slot of each GPU in its node; -1 for padding.
        usable: (G,) whether the GPU is present and its node accepts jobs.
        node_slots, node_gpus: (M,) numbers of GPUs, and of usable ones.
        node_cores, node_memory_mib: (M,) the node's total cores and memory.
        kind_gpus: (S,) usable GPUs of the kind.
        kind_pair: (S,) a job's first pair with a GPU of the kind; -1: none so far.
        kind_clipped: (S,) number of that pair's figures outside their range, of those that are the same for the kind.
        best_s: (J,) shortest expected duration on a usable GPU; inf without a waiting job.
        key: (J,) rank of a job for the window, higher is better.
        chosen: (J,) whether the job is in the window.
        top, top_key: (W,) the best so far.
        completion_s: (W,) the earliest expected completion of the window's jobs anywhere.
        scores, refused_scores: (W, G) scores of the rows of a job of the window by the base's rule, without and with
            its refusals.
        speed: (S,) sum over the window of the best duration relative to the duration on the kind.
        wanted: (S,) number of jobs of the window for which the kind is about as fast as the fastest.
        fitting, rivals: (G,) numbers of jobs of the window that fit on the GPU, and of those for which it is also about
        as fast.
        cheapest: (G,) highest score of a pair of the GPU.
    """

    surroundings: Surroundings
    queue_drain_s: Floats
    drain_s: Floats
    too_long_to_hold: Bools
    slot: Ints
    usable: Bools
    node_slots: Ints
    node_gpus: Ints
    node_cores: Ints
    node_memory_mib: Ints
    kind_gpus: Ints
    kind_pair: Ints
    kind_clipped: Ints
    best_s: Floats
    key: Floats
    chosen: Bools
    top: Ints
    top_key: Floats
    completion_s: Floats
    scores: Floats
    refused_scores: Floats
    speed: Floats
    wanted: Floats
    fitting: Floats
    rivals: Floats
    cheapest: Floats


def room(jobs: int, gpus: int, nodes: int, window: int) -> Scratch:
    """Scratch memory for decisions of up to this size."""
    return Scratch(
        surroundings=room_to_look(gpus, nodes),
        queue_drain_s=np.zeros(1),
        drain_s=np.zeros(1),
        too_long_to_hold=np.zeros(1, dtype=np.bool_),
        slot=np.zeros(gpus, dtype=np.int64),
        usable=np.zeros(gpus, dtype=np.bool_),
        node_slots=np.zeros(nodes, dtype=np.int64),
        node_gpus=np.zeros(nodes, dtype=np.int64),
        node_cores=np.zeros(nodes, dtype=np.int64),
        node_memory_mib=np.zeros(nodes, dtype=np.int64),
        # There may be as many kinds as GPUs.
        kind_gpus=np.zeros(gpus, dtype=np.int64),
        kind_pair=np.zeros(gpus, dtype=np.int64),
        kind_clipped=np.zeros(gpus, dtype=np.int64),
        best_s=np.zeros(jobs),
        key=np.zeros(jobs),
        chosen=np.zeros(jobs, dtype=np.bool_),
        top=np.zeros(window, dtype=np.int64),
        top_key=np.zeros(window),
        completion_s=np.zeros(window),
        scores=np.zeros((window, gpus)),
        refused_scores=np.zeros((window, gpus)),
        speed=np.zeros(gpus),
        wanted=np.zeros(gpus),
        fitting=np.zeros(gpus),
        rivals=np.zeros(gpus),
        cheapest=np.zeros(gpus),
    )
