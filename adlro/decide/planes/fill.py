"""Observations to planes: the same in the simulator, in training and in service. numpy and numba only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adlro.decide.hold_rule import HoldRule
from adlro.decide.looked import looked_at
from adlro.decide.planes.figures import fill_planes
from adlro.decide.planes.layout import Planes, Scratch, room
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES, rules_of
from adlro.decide.present import waiting_gangs
from adlro.errors import InvalidInput, Unsupported
from adlro.numeric.compiled import compiled, fixed
from adlro.state.observation import Ints, Observation

WINDOW = 32


class PlaneFiller:
    """Computes the planes of observations; it has scratch memory, so each thread needs its own.

    Args:
        rule: the rule of the base policy, whose choice and costs are among the planes.
        window: largest number of waiting jobs in the window.

    Raises:
        InvalidInput: the window is below 1.
    """

    def __init__(self, rule: HoldRule, window: int = WINDOW) -> None:
        if window < 1:
            raise InvalidInput(f"a window has at least one job, not {window}", field="window")
        self.rule = HoldRule(*map(float, rule))
        self.window = window
        self._gpu, self._job = rules_of(GPU_PLANES), rules_of(JOB_PLANES)
        self._pair, self._cluster = rules_of(PAIR_PLANES), rules_of(CLUSTER_PLANES)
        self._size = (0, 0, 0)
        self._scratch: Scratch | None = None
        self._fill: Callable[..., None] | None = None
        no_gpus = np.zeros((0, 0), dtype=np.int64)
        self._most_slots: Callable[..., int] = fixed(_most_slots, no_gpus, no_gpus, no_gpus.ravel())

    def fill(self, observation: Observation) -> Planes:
        """The planes of N decisions, in new arrays.

        Raises:
            Unsupported: a job of several GPUs waits; planes have none of their figures.
        """
        if waiting_gangs(observation).any():
            raise Unsupported("the planes of networks have no jobs of several GPUs, and one waits")
        looked = looked_at(observation)
        (count, jobs), gpus = looked.job_waiting.shape, looked.gpu_node.shape[1]
        nodes, window = looked.node_cores_free.shape[1], self.window
        scratch = self._room(jobs, gpus, nodes)
        slots = self._most_slots(looked.gpu_node, looked.gpu_memory_mib, scratch.node_slots)
        room_for = min(len(looked.table.job), count * window * gpus)
        planes = Planes(
            gpus=np.zeros((count, len(GPU_PLANES), nodes, slots), dtype=np.float32),
            jobs=np.zeros((count, window, len(JOB_PLANES)), dtype=np.float32),
            cluster=np.zeros((count, len(CLUSTER_PLANES)), dtype=np.float32),
            pairs=np.empty((room_for, len(PAIR_PLANES)), dtype=np.float32),
            pair_cluster=np.empty(room_for, dtype=np.int64),
            pair_job=np.empty(room_for, dtype=np.int64),
            pair_place=np.empty(room_for, dtype=np.int64),
            pair_queue=np.empty(room_for, dtype=np.int64),
            pair_gpu=np.empty(room_for, dtype=np.int64),
            pair_row=np.empty(room_for, dtype=np.int64),
            first_pair=np.zeros(count + 1, dtype=np.int64),
            base=np.zeros(count, dtype=np.int64),
            rows=np.zeros((count, window), dtype=np.int64),
            hold_allowed=np.zeros(count, dtype=np.bool_),
            scale_s=np.zeros(count),
            clipped=np.zeros(count, dtype=np.int64),
        )
        arguments = (self.rule, looked, self._gpu, self._job, self._pair, self._cluster, scratch, planes)
        if self._fill is None:
            # For one decision, numba's dispatch on the types of so many arrays would take longer than filling them.
            self._fill = fixed(fill_planes, *arguments)
        self._fill(*arguments)
        pairs = int(planes.first_pair[-1])
        if pairs == room_for:
            return planes
        return planes._replace(
            pairs=planes.pairs[:pairs],
            pair_cluster=planes.pair_cluster[:pairs],
            pair_job=planes.pair_job[:pairs],
            pair_place=planes.pair_place[:pairs],
            pair_queue=planes.pair_queue[:pairs],
            pair_gpu=planes.pair_gpu[:pairs],
            pair_row=planes.pair_row[:pairs],
        )

    def _room(self, jobs: int, gpus: int, nodes: int) -> Scratch:
        wanted = (jobs, gpus, nodes)
        if self._scratch is None or any(more > have for more, have in zip(wanted, self._size, strict=True)):
            self._size = tuple(max(pair) for pair in zip(wanted, self._size, strict=True))  # type: ignore[assignment]
            self._scratch = room(*self._size, self.window)
        return self._scratch


@compiled
def _most_slots(gpu_node: Ints, gpu_memory_mib: Ints, slots: Ints) -> int:
    """Largest number of GPUs of a node; 1 without GPUs. `slots` is scratch with a figure for each node."""
    most = 1
    for n in range(gpu_node.shape[0]):
        slots[:] = 0
        for gpu in range(gpu_node.shape[1]):
            if gpu_memory_mib[n, gpu] >= 0:  # else padding
                slots[gpu_node[n, gpu]] += 1
                most = max(most, slots[gpu_node[n, gpu]])
    return most
