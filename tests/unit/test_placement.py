"""Placements as values: what fits, what is exhausted, what is taken and given back."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.placement import SHARED, Free, GpuShare, Placement, Resource, Shortage, fewest_nodes, gpus_that_fit
from adlro.records.jobs import JobSpec, JobType
from tests.ledgers import small_cluster

# Two nodes of two GPUs, one node of one; 8 cores and 65,536 MiB each.
GPU_IDS = [gpu.gpu_id for _, gpu in small_cluster().gpus()]


def spec(cores: int = 1, memory_mib: int = 1024, gpu_memory_mib: int = 0) -> JobSpec:
    return JobSpec(
        "job", "ann", JobType.SIMULATION, cpu_cores=cores, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib
    )


@pytest.fixture
def free() -> Free:
    return small_cluster().free()


def test_what_is_exhausted_is_named_with_its_place_and_figures(free: Free) -> None:
    one = Placement.on("volta-0/0")
    assert one.fits(free, spec()) is None
    assert one.fits(free, spec(gpu_memory_mib=20_000)) == Shortage(Resource.GPU_MEMORY, "volta-0/0", 20_000, 16_160)
    assert one.fits(free, spec(cores=9)) == Shortage(Resource.CPU_CORES, "volta-0", 9, 8)
    assert one.fits(free, spec(memory_mib=70_000)) == Shortage(Resource.MEMORY, "volta-0", 70_000, 65_536)
    one.take(free, spec())
    assert one.fits(free, spec()) == Shortage(Resource.GPU_SHARE, "volta-0/0", 1.0, 0.0)
    with pytest.raises(KeyError):
        Placement.on("nowhere").fits(free, spec())


def test_each_gpu_takes_cores_and_memory_of_its_own_node(free: Free) -> None:
    packed, spread = Placement.on("volta-0/0", "volta-0/1"), Placement.on("volta-0/0", "turing-0/0")
    assert packed.fits(free, spec(cores=4)) is None
    assert packed.fits(free, spec(cores=5)) == Shortage(Resource.CPU_CORES, "volta-0", 5, 3)
    assert spread.fits(free, spec(cores=8)) is None
    spread.take(free, spec(cores=8, memory_mib=2000))
    assert (free.nodes["volta-0"].cpu_cores, free.nodes["turing-0"].cpu_cores) == (0, 0)
    assert free.nodes["turing-0"].memory_mib == 65_536 - 2000


def test_what_does_not_fit_changes_nothing(free: Free) -> None:
    before = copy.deepcopy(free)
    with pytest.raises(ValueError, match=r"turing-0: 9 CPU cores needed, 8 left"):
        Placement.on("turing-0/0", "volta-0/0").take(free, spec(cores=9))
    assert free == before


def test_what_is_held_already_may_be_more_than_a_shrunken_node_has(free: Free) -> None:
    before = copy.deepcopy(free)
    placement, job = Placement.on("turing-0/0"), spec(cores=9)
    placement.take(free, job, overdrawn=True)
    assert free.nodes["turing-0"].cpu_cores == -1
    assert placement.fits(free, spec(cores=0)) == Shortage(Resource.GPU_SHARE, "turing-0/0", 1.0, 0.0)
    placement.give_back(free, job)
    assert free == before


def test_shares_of_a_gpu_add_up_to_one(free: Free) -> None:
    third = Placement((GpuShare("volta-0/0", 1 / 3),))
    for _ in range(3):
        third.take(free, spec())
    assert third.fits(free, spec()) is not None
    third.give_back(free, spec())
    assert third.fits(free, spec()) is None


def test_two_jobs_have_the_memory_of_a_gpu_together(free: Free) -> None:
    half = Placement((GpuShare("volta-0/0", SHARED),))
    half.take(free, spec(gpu_memory_mib=10_000))
    assert half.fits(free, spec(gpu_memory_mib=6_160)) is None
    assert half.fits(free, spec(gpu_memory_mib=6_161)) == Shortage(Resource.GPU_MEMORY, "volta-0/0", 6_161, 6_160)
    assert Placement.on("volta-0/0").fits(free, spec()) == Shortage(Resource.GPU_SHARE, "volta-0/0", 1.0, 0.5)
    half.take(free, spec(gpu_memory_mib=6_160))
    assert half.fits(free, spec()) == Shortage(Resource.GPU_SHARE, "volta-0/0", SHARED, 0.0)
    assert (half.whole, Placement.on("volta-0/0").whole, Placement().whole) == (False, True, True)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Placement((GpuShare("volta-0/0", share),))


def test_a_gpu_is_named_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Placement.on("volta-0/0", "volta-0/0")


def test_the_first_gpu_and_no_gpu() -> None:
    assert Placement.on("b", "a").gpu_id == "b"
    assert Placement.on("b", "a").gpu_ids == ("b", "a")
    assert Placement().gpu_id == ""
    assert Placement().gpu_ids == ()


TAKEN = st.tuples(
    st.sets(st.sampled_from(GPU_IDS), min_size=1),
    st.sampled_from((SHARED, 1.0)),
    st.integers(0, 5),
    st.integers(0, 40_000),
    st.integers(0, 12_000),
)


@given(st.lists(TAKEN))
def test_what_is_taken_and_given_back_leaves_all_as_it_was(drawn: list[tuple[set[str], float, int, int, int]]) -> None:
    free = small_cluster().free()
    before = copy.deepcopy(free)
    held = []
    for gpu_ids, share, cores, memory_mib, gpu_memory_mib in drawn:
        placement = Placement(tuple(GpuShare(gpu_id, share) for gpu_id in sorted(gpu_ids)))
        job = spec(cores, memory_mib, gpu_memory_mib)
        if placement.fits(free, job) is None:
            placement.take(free, job)
            held.append((placement, job))
        assert all(node.cpu_cores >= 0 and node.memory_mib >= 0 for node in free.nodes.values())
        assert all(gpu.share >= 0 and gpu.memory_mib >= 0 for gpu in free.gpus.values())
    for placement, job in held:
        placement.give_back(free, job)
    assert free == before


def test_how_many_gpus_of_a_node_a_job_can_have() -> None:
    memories = [16_160, 16_160, 11_264, 16_160]
    for asked, count in (
        (spec(memory_mib=1), 4),
        (spec(memory_mib=1, gpu_memory_mib=12_000), 3),
        (spec(cores=3, memory_mib=1), 2),
        (spec(memory_mib=40_000), 1),
        (spec(cores=9), 0),
        (spec(cores=0, memory_mib=0), 4),
    ):
        assert gpus_that_fit(asked, memories, 8, 65_536) == count, asked


def test_the_fewest_nodes_take_the_largest_first() -> None:
    assert [fewest_nodes([2, 4, 1, 4], count) for count in (1, 4, 5, 8, 9, 11)] == [1, 1, 2, 2, 3, 4]
    assert fewest_nodes([2, 4], 7) is None
    assert fewest_nodes([], 1) is None


def test_a_placement_is_told_by_its_gpus() -> None:
    assert str(Placement.on("n/1", "m/0")) == "n/1, m/0"
    assert str(Placement((GpuShare("n/1", 0.25), GpuShare("m/0")))) == "0.25 of n/1, m/0"


def test_an_exclusive_job_is_on_nodes_without_others_and_keeps_them_off(free: Free) -> None:
    alone, before = replace(spec(), exclusive=True), copy.deepcopy(free)
    both, one, other = Placement.on("volta-0/0", "turing-0/0"), Placement.on("volta-0/1"), Placement.on("turing-0/1")
    both.take(free, alone)
    for claim in (spec(), alone):
        assert one.fits(free, claim) == Shortage(Resource.WHOLE_NODE, "volta-0", 0, 1)
    both.give_back(free, alone)
    assert free == before
    other.take(free, spec())
    assert both.fits(free, alone) == Shortage(Resource.WHOLE_NODE, "turing-0", 0, 1)
    assert Placement.on("volta-0/0").fits(free, alone) is None
