"""Jobs of several GPUs in the batched simulator: sets, spread speeds, losses, and never a GPU or core too many."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobType
from adlro.sim.batch import BatchSimulator, GpuChange
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Ints, Observation
from adlro.workload.job_lists import WorkloadJob

V100, TURING = "v100_sxm2", "rtx_2080_ti"


def cluster(*nodes: tuple[str, int], cores: int = 64) -> Cluster:
    """Nodes of so many GPUs of a model."""
    return Cluster(
        "gangs",
        tuple(
            Node(f"n{i}", cores, 1 << 18, tuple(Gpu(f"n{i}/{g}", model, 16384) for g in range(size)))
            for i, (model, size) in enumerate(nodes)
        ),
    )


def job(gpu_count: int, submit_s: float = 0.0, work_s: float = 10.0, **more: Any) -> WorkloadJob:
    fields: dict[str, Any] = {"cpu_cores": 1, "memory_mib": 1024, "gpu_memory_mib": 1000, "priority": 0.5} | more
    return WorkloadJob(submit_s, "u", "resnet50_fp32", JobType.MACHINE_LEARNING, work_s, gpu_count=gpu_count, **fields)


def simulator(there: Cluster, jobs: list[WorkloadJob], changes: list[GpuChange] | None = None) -> BatchSimulator:
    return BatchSimulator(there, pack_jobs([jobs], there), gpu_changes=[changes or []])


def sets(seen: Observation, place: int) -> list[tuple[tuple[int, ...], bool]]:
    first, table = seen.table.first[0], seen.table
    rows = range(int(first[place]), int(first[place + 1]))
    return [(tuple(int(gpu) for gpu in table.gpus[row] if gpu >= 0), bool(table.spread[row])) for row in rows]


def begin(made: BatchSimulator, place: int, *gpus: int) -> None:
    made.act(np.array([[place, *gpus]]))


def test_the_packed_set_is_on_the_fullest_node_that_is_enough():
    made = simulator(cluster((V100, 4), (V100, 4), (V100, 4)), [job(2), job(1), job(2)])
    begin(made, 0, 0, 1)  # n0 has 2 idle
    begin(made, 0, 4)  # n1 has 3 idle
    # Spread, the fullest node first, would be the packed set itself.
    assert sets(made.observe(), 0) == [((2, 3), False)]


def test_a_spread_set_takes_the_fullest_nodes_first():
    made = simulator(cluster((V100, 4), (V100, 4), (V100, 4)), [job(3), job(2), job(4)])
    begin(made, 0, 0, 1, 2)
    begin(made, 0, 4, 5)
    assert sets(made.observe(), 0) == [((8, 9, 10, 11), False), ((3, 6, 7, 8), True)]


def test_eight_gpus_are_packed_on_two_empty_nodes():
    made = simulator(cluster((V100, 4), (V100, 4), (V100, 4)), [job(1), job(8)])
    begin(made, 0, 11)
    assert sets(made.observe(), 0) == [(tuple(range(8)), False), ((0, 1, 2, 3, 4, 8, 9, 10), True)]


def test_a_spread_set_keeps_to_the_nodes_that_the_job_accepts():
    made = simulator(cluster((V100, 4), (V100, 4), (V100, 4)), [job(3), job(2), job(1), job(4, max_node_count=2)])
    begin(made, 0, 0, 1, 2)
    begin(made, 0, 4, 5)
    begin(made, 0, 8)
    assert sets(made.observe(), 0) == [((6, 9, 10, 11), True)]
    with pytest.raises(ValueError, match=r"cannot start on \(3, 6, 7, 9\)"):
        begin(made, 0, 3, 6, 7, 9)


def test_a_spread_gang_is_slower_and_a_gang_is_as_slow_as_its_slowest_gpu():
    there = cluster((V100, 2), (V100, 2))
    packed = simulator(there, [job(2)])
    begin(packed, 0, 0, 1)
    spread = simulator(there, [job(2)])
    begin(spread, 0, 0, 2)
    ratio = (packed.outcome().end_s / spread.outcome().end_s).item()
    assert ratio == pytest.approx(pack_jobs([[job(2)]], there).spread_speed[0, 0, 0])
    slowed = simulator(there, [job(2)], [(4.0, 1, 0.5), (5.0, 0, 0.25), (6.0, 0, 0.5)])
    begin(slowed, 0, 0, 1)
    # 4 s at full speed, 1 s at a half, 1 s at a quarter, the rest at a half.
    assert slowed.outcome().end_s[0, 0] == pytest.approx(6.0 + (10.0 - 4.0 - 0.5 - 0.25) / 0.5)


def test_a_lost_gpu_ends_the_whole_gang_which_waits_again():
    made = simulator(cluster((V100, 4)), [job(3), job(1, 1.0)], [(2.0, 1, 0.0), (3.0, 1, 1.0)])
    begin(made, 0, 0, 1, 2)
    begin(made, 0, 3)
    seen = made.observe()
    assert made.time_s[0] == 3.0
    assert seen.gpu_idle[0].tolist() == [True, True, True, False]
    begin(made, 0, 0, 1, 2)
    outcome = made.outcome()
    assert [(run.job, run.gpus, run.completed) for run in outcome.runs(0)] == [
        (0, (0, 1, 2), False),
        (1, (3,), True),
        (0, (0, 1, 2), True),
    ]
    assert outcome.end_s[0, 0] == 13.0
    assert outcome.busy_s()[0] == 3 * 2.0 + 10.0 + 3 * 10.0


def test_a_gang_needs_cores_for_each_gpu_on_every_node():
    made = simulator(cluster((V100, 4), (V100, 4), cores=8), [job(4, cpu_cores=4)])
    assert sets(made.observe(), 0) == [((0, 1, 4, 5), False)]


def test_what_no_set_of_nodes_can_hold_is_impossible():
    made = simulator(cluster((V100, 4), (TURING, 4)), [job(5), job(8, max_node_count=1)])
    assert made.stuck[0]
    assert not len(made.active)


def test_a_set_of_two_models_is_refused():
    made = simulator(cluster((V100, 2), (TURING, 2)), [job(2)])
    with pytest.raises(ValueError, match="cannot start"):
        begin(made, 0, 1, 2)


def draw(rng: np.random.Generator) -> tuple[Cluster, JobArrays, list[GpuChange]]:
    models = [V100, TURING]
    nodes = [(models[int(rng.integers(2))], int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 6)))]
    there = cluster(*nodes, cores=int(rng.choice([6, 16, 64])))
    jobs = [
        job(
            int(rng.choice([1, 1, 2, 3, 4, 8])),
            float(number // 3),
            float(rng.choice([2.0, 5.0, 9.0])),
            cpu_cores=int(rng.choice([0, 1, 2, 4])),
            max_node_count=int(rng.choice([0, 0, 1, 2])),
            gpu_models=() if rng.random() < 0.8 else (V100,),
        )
        for number in range(30)
    ]
    gpus = sum(size for _, size in nodes)
    changes = [
        (float(at), int(rng.integers(gpus)), float(rng.choice([0.0, 0.5, 1.0])))
        for at in sorted(rng.integers(0, 60, 8))
    ]
    return there, pack_jobs([jobs], there), changes


def check_rows(seen: Observation) -> None:
    """Each set has the GPUs that its job asks for, idle, of one model, with room on their nodes, on nodes accepted."""
    assert seen.gangs is not None
    for row, place in enumerate(seen.table.job.tolist()):
        gpus = seen.table.gpus[row][seen.table.gpus[row] >= 0]
        assert len(gpus) == seen.gangs.gpu_count[0, place]
        assert (np.diff(gpus) > 0).all()
        assert seen.gpu_idle[0, gpus].all()
        assert len(set(seen.gpu_model[0, gpus].tolist())) == 1
        nodes, counts = np.unique(seen.gpu_node[0, gpus], return_counts=True)
        assert (counts * seen.job_cores[0, place] <= seen.node_cores_free[0, nodes]).all()
        if len(gpus) > 1:
            packed = seen.gangs.nodes[0, place, seen.gpu_model[0, gpus[0]]]
            assert seen.table.spread[row] == (len(nodes) > packed)
            assert seen.gangs.max_nodes[0, place] in (0, *range(len(nodes), 99))


@pytest.mark.parametrize("seed", range(150))
def test_random_courses_are_never_overbooked_and_no_gang_runs_in_part(seed: int):
    rng = np.random.default_rng(seed)
    there, jobs, changes = draw(rng)
    made = BatchSimulator(there, jobs, gpu_changes=[changes])
    running: dict[int, tuple[int, ...]] = {}
    while len(made.active):
        seen = made.observe()
        if seen.gangs is not None:
            check_rows(seen)
        assert len(seen.table.job), "a decision without a possible start"
        row = int(rng.integers(-1 if seen.hold_allowed[0] else 0, len(seen.table.job)))
        action: Ints = np.full((1, 1 + seen.table.gpus.shape[1]), HOLD)
        if row >= 0:
            action[0] = [seen.table.job[row], *seen.table.gpus[row]]
        made.act(action)
    outcome = made.outcome()
    runs = list(outcome.runs(0))
    for run in runs:
        assert len(run.gpus) == jobs.gpu_count[0, run.job]
    for gpu in range(sum(len(node.gpus) for node in there.nodes)):
        held = sorted((run.start_s, run.end_s) for run in runs if gpu in run.gpus)
        assert all(end_s <= start_s for (_, end_s), (start_s, _) in itertools.pairwise(held))
    finished = [run.job for run in runs if run.completed]
    assert len(set(finished)) == len(finished)
    if not made.stuck[0]:
        assert sorted(finished) == list(range(30))
    assert not running
