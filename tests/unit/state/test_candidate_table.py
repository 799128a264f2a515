"""The candidate table against every pair of a job and a GPU, looked at one by one."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.records.cluster import Cluster, Gpu, Node
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.candidate_table import gpu_kinds, gpus_of_job, group_members, split_kinds
from adlro.state.cluster_arrays import hardware_of
from adlro.state.observation import Observation
from tests.dense import durations_s, fits_now
from tests.ledgers import queue
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged

INF = np.inf


def rows(observation: Observation) -> list[tuple[int, int, int, float]]:
    """Job, lowest GPU, GPUs and duration of each."""
    table = observation.table
    columns = (table.job.tolist(), table.gpu.tolist(), table.size.tolist(), table.duration_s.tolist())
    return list(zip(*columns, strict=True))


def test_idle_gpus_of_a_node_that_are_alike_are_one_row_whatever_runs_between_them() -> None:
    jobs = [Waiting((5.0,) * 4 + (7.0,)), Waiting((2.0,) * 4 + (1.0,), cores=9)]
    point = decision(jobs, [0.0, 3.0, 0.0, 0.0, 0.0], node=[0, 0, 0, 1, 1], model=[0] * 4 + [1], cores_free=[8, 9])
    assert rows(point) == [(0, 0, 2, 5.0), (0, 3, 1, 5.0), (0, 4, 1, 7.0), (1, 3, 1, 2.0), (1, 4, 1, 1.0)]
    assert point.table.first.tolist() == [[0, 3, 5]]
    assert point.group(0, 0).tolist() == [0, 2]


def test_a_gpu_of_another_kind_parts_a_group_only_for_who_fits_there() -> None:
    jobs = [Waiting((5.0, 9.0, 5.0)), Waiting((5.0, INF, 5.0))]
    point = decision(jobs, [0.0] * 3, node=[0] * 3, model=[0, 1, 0])
    assert rows(point) == [(0, 0, 1, 5.0), (0, 1, 1, 9.0), (0, 2, 1, 5.0), (1, 0, 2, 5.0)]
    assert [point.group(0, row).tolist() for row in range(4)] == [[0], [1], [2], [0, 2]]


def test_neither_padding_nor_who_fits_nowhere_has_rows() -> None:
    jobs = [Waiting((5.0,), waiting=False), Waiting((INF,)), Waiting((5.0,), cores=99), Waiting((5.0,))]
    point = decision(jobs, [0.0])
    assert rows(point) == [(3, 0, 1, 5.0)]
    assert point.table.rows_of_job.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_every_pair_that_fits_is_in_one_row_and_no_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    point = merged([drawn(rng, 7, hold_allowed=bool(rng.integers(2))) for _ in range(3)])
    table, found = point.table, fits_now(point)
    for n in range(3):
        node = point.gpu_node[n]
        enough = point.job_cores[n][:, None] <= point.node_cores_free[n, node]
        enough &= point.job_memory_mib[n][:, None] <= point.node_memory_free_mib[n, node]
        fits = point.job_waiting[n][:, None] & np.isfinite(durations_s(point)[n]) & point.gpu_idle[n] & enough
        np.testing.assert_array_equal(found[n], fits)
        for job in range(7):
            assert sorted(gpus_of_job(point, n, job).tolist()) == np.flatnonzero(fits[job]).tolist()
        for row in range(table.rows(n).start, table.rows(n).stop):
            group = point.group(n, row)
            assert (len(group), group[0]) == (table.size[row], table.gpu[row])
            assert len(set(node[group])) == len(set(point.gpu_kind[n, group])) == 1
            assert (point.durations_s(n, int(table.job[row]))[group] == table.duration_s[row]).all()
            assert table.row_of(n, int(table.job[row]), int(group[-1])) == row
    assert table.size.sum() == found.sum()
    places = list(zip(table.cluster.tolist(), table.job.tolist(), table.gpu.tolist(), strict=True))
    assert places == sorted(places)
    assert [point.group(n, row).tolist() for row, (n, _, _) in enumerate(places)] == [
        group.tolist() for group in np.split(group_members(point), np.cumsum(table.size)[:-1])
    ]


def test_one_cluster_of_a_batch_is_as_alone() -> None:
    rng = np.random.default_rng(5)
    alone = [drawn(rng, 6) for _ in range(4)]
    batch = merged(alone)
    for n, point in enumerate(alone):
        one = batch.of_cluster(n)
        np.testing.assert_equal(one.table, point.table)
        np.testing.assert_array_equal(durations_s(one), durations_s(point))


def test_no_room_is_kept_behind_few_rows() -> None:
    waiting = [Waiting((5.0,) * 64, cores=9 if number else 1) for number in range(100)]
    point = decision(waiting, [0.0] * 64, node=[0] * 64, model=[0] * 64, cores_free=[8])
    assert len(point.table.job) == 1
    assert point.byte_count < 64 * 8 * 20 + 100 * 8 * 20
    # What is part of a larger array keeps all of it, and counts as that.
    batch = merged([point] * 3)
    assert batch.of_cluster(0).byte_count > 0.9 * batch.byte_count


def node(name: str, cores: int, *gpus: tuple[str, int]) -> Node:
    return Node(name, cores, 65536, tuple(Gpu(f"{name}/{i}", model, mib) for i, (model, mib) in enumerate(gpus)))


def test_kinds_are_told_apart_by_model_memory_node_and_speed() -> None:
    nodes = (node("a", 8, ("x", 10), ("x", 10), ("y", 10)), node("b", 8, ("x", 10)), node("c", 4, ("x", 10)))
    other = Cluster("other", (node("a", 8, ("x", 10), ("x", 20)),))
    hardware = hardware_of([Cluster("one", nodes), other], ("x", "y"))
    speed = np.ones((2, 5))
    kind, lowest = gpu_kinds(hardware, speed)
    assert kind.tolist() == [[0, 0, 1, 0, 2], [0, 1, 2, 2, 2]]  # the second has padding
    assert lowest.tolist() == [[0, 2, 4], [0, 1, 2]]
    speed[0, 1] = 0.8
    kind, lowest = gpu_kinds(hardware, speed)
    assert kind[0].tolist() == [0, 1, 2, 0, 3]
    assert lowest.tolist() == [[0, 1, 2, 4], [0, 1, 2, -1]]


def test_a_gpu_that_is_known_to_be_slow_has_a_row_of_its_own() -> None:
    ledger = Ledger(Cluster("one", (node("a", 8, ("x", 10), ("x", 10)), node("b", 8, ("y", 10), ("y", 10), ("z", 10)))))
    queue(ledger, 1, (10.0, 20.0, 30.0))
    assert rows(ledger.observe(0.0)) == [(0, 0, 2, 10.0), (0, 2, 2, 20.0), (0, 4, 1, 30.0)]
    ledger.set_speeds({"a/1": 0.8})
    assert rows(ledger.observe(0.0)) == [(0, 0, 1, 10.0), (0, 1, 1, 12.5), (0, 2, 2, 20.0), (0, 4, 1, 30.0)]


@pytest.mark.parametrize("choosing", [0, 1, 7, 8, 30])
def test_split_kinds_are_numbered_by_their_lowest_gpus_whatever_jobs_that_choose_nothing_there_are(
    choosing: int,
) -> None:
    rng = np.random.default_rng(choosing)
    nodes, jobs = 12, 30
    gpu_node = np.repeat(np.arange(nodes), 2)[None]
    gpu_kind = np.repeat(rng.integers(0, 2, nodes), 2)[None]
    allowed = np.ones((1, jobs, nodes), dtype=np.bool_)
    allowed[0, rng.permutation(jobs)[:choosing]] = rng.random((choosing, nodes)) < 0.8
    alike: dict[tuple[int, bytes], list[int]] = {}  # in the order of their lowest GPUs
    for gpu, (kind, node) in enumerate(zip(gpu_kind[0].tolist(), gpu_node[0].tolist(), strict=True)):
        alike.setdefault((kind, allowed[0, :, node].tobytes()), []).append(gpu)
    split, lowest = split_kinds(gpu_kind, gpu_node, list(allowed))
    assert lowest.tolist() == [[gpus[0] for gpus in alike.values()]]
    for number, gpus in enumerate(alike.values()):
        assert np.flatnonzero(split[0] == number).tolist() == gpus
