"""The arrays of N decisions: what goes into a network, and what its answers stand for. numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.decide.hold_rule import Surroundings, room_to_look
from adlro.state.observation import Bools, Floats, Ints

Float32s = NDArray[np.float32]


class Planes(NamedTuple):
    """N decisions: M nodes x S slots, a window of W jobs, and the P pairs of all N that can be carried out now.

    The pairs of one decision stand together, in the order of submission, then of the GPUs' numbers. GPUs of a node that
    are the same in everything count once, by the lowest number.

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
        base: (N,) which of the P pairs the base policy would start; -1: it would hold.
        rows: (N, W) the window's jobs by their places in the observation; -1 in padding.
        hold_allowed: (N,) as in the observation, but where the queue is too long for a hold: a waiting job could start
            now that the rule would not refuse for the queue's sake.
        scale_s: (N,) the typical duration that times are compared with.
        clipped: (N,) figures outside the range of their planes.
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
        """Which pair stands for (job, GPU) of cluster n, itself or its twin; -1: none, not in the window or not now.

        Args:
            row: the job's place in the observation.
            gpu: of the GPUs on which the job fits.
        """
        first, last = int(self.first_pair[n]), int(self.first_pair[n + 1])
        found = np.flatnonzero((self.pair_queue[first:last] == row) & (self.pair_gpu[first:last] <= gpu))
        return first + int(found[-1]) if len(found) else -1


def fullest_window(jobs: NDArray[np.floating[Any]]) -> int:
    """Jobs in the fullest window of some decisions, at least 1: what comes behind is padding, and can be left out.

    Args:
        jobs: (N, W, JOB_PLANES), the plane `present` first.
    """
    there = np.flatnonzero((jobs[:, :, 0] != 0).any(axis=0))
    return int(there[-1]) + 1 if len(there) else 1


class Scratch(NamedTuple):
    """Room to work in, for the largest decision so far; one a thread.

    Attributes:
        surroundings: filled by `hold_rule.look_around`.
        queue_drain_s: (1,) time until the queue has drained (hold_rule.py), filled by `window.rank_jobs`.
        drain_s: (1,) the same where something may be refused, inf elsewhere.
        too_long_to_hold: (1,) a waiting job could start now that the rule would not refuse for the queue's sake.
        slot: (G,) of each GPU in its node; -1 where there is none.
        usable: (G,) there, and its node takes jobs.
        node_slots, node_gpus: (M,) GPUs, and those that are usable.
        node_cores, node_memory_mib: (M,) what the node has in all.
        kind_gpus: (S,) usable GPUs of the kind.
        kind_pair: (S,) a job's first pair with a GPU of the kind; -1: none so far.
        kind_clipped: (S,) figures of that pair, of those that are the same for the kind, outside their range.
        best_s: (J,) shortest expected duration on a usable GPU; inf where no job waits.
        key: (J,) how much a job is wanted in the window.
        chosen: (J,) it is in it.
        top, top_key: (W,) the best so far.
        completion_s: (W,) the earliest expected completion of the window's jobs anywhere.
        scores, refused_scores: (W, G) of the rows of a job of the window, by the base's rule, with nothing refused, and
            with what it refuses.
        speed: (S,) over the window, sum of best duration to that on the kind.
        wanted: (S,) jobs of the window to which the kind is about as fast as any.
        fitting, rivals: (G,) jobs of the window that fit on the GPU, and to which it is about as fast as any as well.
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
    """Room for decisions of up to so many jobs, GPUs and nodes."""
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
