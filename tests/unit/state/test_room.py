"""One meaning of "it fits": placements as values, the functions on arrays and the compiled ones give one answer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adlro.numeric.compiled import compiled
from adlro.placement import SHARED, Free, FreeGpu, FreeNode, GpuShare, Placement, shortage
from adlro.records.jobs import JobSpec, JobType
from adlro.state.room import gpu_has_memory, gpu_memory_room, has_room, node_has_room, node_room, room

AMOUNTS = st.integers(0, 4)
PAIRS = st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.integers(-1, 4))


def spec(cores: int, memory_mib: int, gpu_memory_mib: int) -> JobSpec:
    return JobSpec(
        "job", "ann", JobType.SIMULATION, cpu_cores=cores, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib
    )


@compiled
def answers(pair):
    cores, memory, gpu_memory, cores_left, memory_left, of_gpu = pair
    on_node = node_has_room(cores, memory, cores_left, memory_left)
    return has_room(cores, memory, gpu_memory, cores_left, memory_left, of_gpu), on_node and gpu_has_memory(
        gpu_memory, of_gpu
    )


@given(PAIRS)
def test_values_arrays_and_compiled_code_agree(pair: tuple[int, int, int, int, int, int]) -> None:
    cores, memory, gpu_memory, cores_left, memory_left, of_gpu = pair
    fits = shortage(spec(cores, memory, gpu_memory), of_gpu, cores_left, memory_left) is None
    free = Free({"gpu": FreeGpu("node", of_gpu)}, {"node": FreeNode(cores_left, memory_left)})
    assert (Placement.on("gpu").fits(free, spec(cores, memory, gpu_memory)) is None) is fits
    assert answers(pair) == (fits, fits)
    columns = [np.array([value]) for value in pair]
    assert room(*columns).tolist() == [fits]
    assert (node_room(columns[0], columns[1], columns[3], columns[4]) & gpu_memory_room(columns[2], columns[5])) == fits


@given(PAIRS, st.integers(0, 4))
def test_of_a_gpu_that_another_job_has_they_count_what_both_need(
    pair: tuple[int, int, int, int, int, int], beside: int
) -> None:
    cores, memory, gpu_memory, cores_left, memory_left, of_gpu = pair
    half = Placement((GpuShare("gpu", SHARED),))
    free = Free({"gpu": FreeGpu("node", of_gpu)}, {"node": FreeNode(cores_left, memory_left)})
    half.take(free, spec(0, 0, beside), overdrawn=True)
    fits = half.fits(free, spec(cores, memory, gpu_memory)) is None
    both = (cores, memory, gpu_memory + beside, cores_left, memory_left, of_gpu)
    assert answers(both) == (fits, fits)
    assert room(*(np.array([value]) for value in both)).tolist() == [fits]
