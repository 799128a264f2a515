"""Launches on the GPUs of one simulated cluster: each is the first of two jobs on a GPU, or its mate.

The machines are of one cluster, and have launches as job numbers. numpy and numba only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from adlro.sim.runs import RunState
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.machines import occupy_beside, occupy_gang, swap_mates
from adlro.state.observation import Floats

NO_EXPECTED_END_S = math.inf
"""Only a scheduler has an expected end."""

Demand = tuple[int, float, float, float, float, float, int, int]
"""Launch, whole work, share of it, start cost, restart, expected work, cores, memory: as `machines.occupy` has them."""


def occupy(
    hardware: Hardware, machines: Machines, gpus: Sequence[int], demand: Demand, kept: tuple[float, float] | None
) -> None:
    """Starts a job now on idle GPUs, or beside the one that is alone on a GPU.

    Args:
        hardware, machines: of one cluster.
        gpus: their numbers.
        demand: of the job.
        kept: the shares of their speeds that it and the other one keep; None: there is no other.
    """
    if kept is None:
        occupy_gang(hardware, machines, 0, np.array(gpus, dtype=np.int64), *demand)
    else:
        own, other = kept
        occupy_beside(hardware, machines, 0, gpus[0], *demand, own, 1.0, other, 1.0)


def launches_on(machines: Machines, gpu: int) -> list[int]:
    """The launches of what runs on a GPU, in their order."""
    there = int(machines.gpu_job[0, gpu]), int(machines.mate_job[0, gpu])
    return sorted(launch for launch in there if launch != IDLE)


def put_first(machines: Machines, gpu: int, launch: int) -> None:
    """Makes a launch the first of two on its GPU: the one that the physics takes away, or asks about."""
    if machines.gpu_job[0, gpu] != launch:
        swap_mates(machines, 0, gpu)


def run_state(machines: Machines, gpu: int, launch: int) -> RunState:
    """How far a launch on a GPU is."""
    return RunState(*(float(column[0, gpu]) for column in _columns(machines, gpu, launch)))


def set_run_state(machines: Machines, gpus: Iterable[int], launch: int, state: RunState) -> None:
    """Writes how far a launch on GPUs is; `count_nodes` afterwards."""
    for gpu in gpus:
        for column, value in zip(_columns(machines, gpu, launch), state, strict=True):
            column[0, gpu] = value


def _columns(machines: Machines, gpu: int, launch: int) -> tuple[Floats, ...]:
    """The columns of a launch on a GPU, in the order of `RunState`."""
    if machines.gpu_job[0, gpu] == launch:
        return machines.gpu_start_s, machines.gpu_end_s, machines.gpu_work_from_s, machines.gpu_kept
    return machines.mate_start_s, machines.mate_end_s, machines.mate_work_from_s, machines.mate_kept
