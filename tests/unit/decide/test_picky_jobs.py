"""Jobs that must be alone on their nodes, or choose their nodes, under every policy: drawn lists, and floods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.reservation import may_enter, reservation_of
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.records.jobs import Preemptible
from adlro.sim.batch import BatchOutcome, BatchSimulator, GpuChange
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob
from tests.policies import made
from tests.unit.decide.test_bounded_wait import Holding, Spiteful, bounded
from tests.unit.decide.test_bounded_wait_gangs import longest_s
from tests.unit.sim.test_gang_physics import TURING, V100, cluster, job

TRIED = [*POLICIES, "spiteful", "holding"]


def policy_of(name: str) -> Policy:
    return {"spiteful": Spiteful, "holding": Holding}[name]() if name in ("spiteful", "holding") else made(name)


def played(
    there: Cluster, jobs: list[WorkloadJob], policy: Policy, changes: list[GpuChange] | None = None
) -> BatchOutcome:
    packed, kept = pack_jobs([jobs], there), None
    if policy.shares:
        kept = np.full((1, 1, len(there.gpu_models)), 0.8)
    simulator = BatchSimulator(
        there, packed, gpu_changes=[changes or []], preempts=policy.preempts, shares=policy.shares, kept=kept
    )
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return simulator.outcome()


def check_nodes(there: Cluster, jobs: list[WorkloadJob], outcome: BatchOutcome) -> None:
    """Nobody beside an exclusive job, and nobody where it must not run."""
    node_of = [node.node_id for node, _ in there.gpus()]
    runs = list(outcome.runs(0))
    for run in runs:
        assert all(jobs[run.job].accepts_node(node_of[gpu]) for gpu in run.gpus), (run, jobs[run.job])
    for run in runs:
        if not jobs[run.job].exclusive:
            continue
        mine = {node_of[gpu] for gpu in run.gpus}
        for other in runs:
            if other is run or not mine & {node_of[gpu] for gpu in other.gpus}:
                continue
            assert other.end_s <= run.start_s or other.start_s >= run.end_s, (run, other)


def drawn(rng: np.random.Generator, there: Cluster, count: int = 40) -> list[WorkloadJob]:
    """A mix of all kinds of jobs that the cluster can hold, each on its nodes."""
    names = [node.node_id for node in there.nodes]
    jobs: list[WorkloadJob] = []
    while len(jobs) < count:
        kind = int(rng.integers(5))
        some = tuple(str(each) for each in rng.choice(names, size=int(rng.integers(1, len(names))), replace=False))
        exclusive = bool(rng.random() < 0.3)
        one = job(
            int(rng.choice([1, 1, 1, 2, 3])),
            round(float(rng.uniform(0.0, 60.0)), 3),
            float(rng.choice([0.5, 1.0, 3.0, 10.0, 30.0])),
            cpu_cores=int(rng.choice([1, 2])),
            max_node_count=int(rng.choice([0, 0, 2])),
            exclusive=exclusive,
            node_ids=some if kind == 1 else (),
            excluded_node_ids=some if kind == 2 else (),
            preemptible=Preemptible(1.0) if rng.random() < 0.4 else None,
        )
        if one.gpu_count == 1 and not exclusive and rng.random() < 0.3:
            one = replace(one, shareable=True)
        jobs.append(one)
    jobs.sort(key=lambda each: each.submit_s)
    holds = played(there, jobs, made("fcfs_fastest"))  # leaves out what this cluster can never hold
    return [one for number, one in enumerate(jobs) if np.isfinite(holds.end_s[0, number])]


def any_cluster(rng: np.random.Generator) -> Cluster:
    models = [V100, TURING]
    there = cluster(
        *[(models[int(rng.integers(2))], int(rng.integers(1, 5))) for _ in range(int(rng.integers(2, 6)))], cores=8
    )
    # Nodes of different sizes: what an exclusive job takes depends on its node.
    sizes = rng.choice([8, 12, 16], size=len(there.nodes))
    nodes = tuple(replace(node, cpu_cores=int(size)) for node, size in zip(there.nodes, sizes, strict=True))
    return replace(there, nodes=nodes)


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("seed", range(4))
def test_of_drawn_lists_every_job_starts_on_its_nodes_and_exclusive_ones_alone(name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 77])
    there = any_cluster(rng)
    jobs = drawn(rng, there)
    assert any(each.exclusive for each in jobs)
    changes: list[GpuChange] = []
    if seed % 2:
        gpus = sum(len(node.gpus) for node in there.nodes)
        lost = sorted((float(rng.integers(5, 60)), int(rng.integers(gpus))) for _ in range(3))
        changes = [(at_s, gpu, 0.0) for at_s, gpu in lost] + [(100.0, gpu, 1.0) for gpu in {gpu for _, gpu in lost}]
    outcome = played(there, jobs, bounded(policy_of(name), float(rng.choice([0.5, 2.0, 20.0]))), changes)
    assert not outcome.stuck.any()
    check_nodes(there, jobs, outcome)


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("gpu_count", [1, 6])
def test_an_overdue_exclusive_job_starts_under_a_flood_of_small_jobs(name: str, gpu_count: int) -> None:
    there = cluster((V100, 4), (V100, 4), (V100, 4))
    flood = [job(1, float(at), 4.0, cpu_cores=2) for at in np.arange(0.0, 250.0, 0.3)]
    one = job(gpu_count, 10.0, 12.0, exclusive=True, excluded_node_ids=("n1",))
    jobs = sorted([*flood, one], key=lambda each: each.submit_s)
    at = jobs.index(one)
    outcome = played(there, jobs, bounded(policy_of(name), 2.0))
    check_nodes(there, jobs, outcome)
    most_s = longest_s(pack_jobs([jobs], there))
    late_s = 10.0 + 2 * 3 * 2.0 * most_s
    submit_s, start_s = outcome.jobs.submit_s[0], outcome.start_s[0]
    ahead = int(((submit_s <= 10.0) & (start_s > late_s)).sum())
    assert start_s[at] <= late_s + 2 * (ahead + 1) * most_s + 1e-6
    if name == "sjf":
        never = played(there, jobs, bounded(policy_of(name), np.inf))
        assert never.start_s[0, at] > 240.0 > start_s[at]


def test_without_such_jobs_nothing_differs_beside_their_columns() -> None:
    """A list that has a job of each kind at its very end goes the same way before."""
    rng = np.random.default_rng(5)
    there = cluster((V100, 4), (TURING, 4))
    plain = [job(int(rng.choice([1, 2])), float(at), float(rng.integers(1, 9))) for at in range(60)]
    late = [job(1, 1e6, 1.0, exclusive=True), job(1, 1e6, 1.0, node_ids=("n1",))]
    for name in ("hold_gang", "easy_backfill", "srtf", "conservative_backfill"):
        alone, beside = (played(there, jobs, made(name)) for jobs in (plain, [*plain, *late]))
        np.testing.assert_array_equal(alone.end_s[0], beside.end_s[0, : len(plain)])
        np.testing.assert_array_equal(alone.gpu[0], beside.gpu[0, : len(plain)])


def test_what_is_kept_for_an_exclusive_gang_is_whole_nodes_from_when_they_are_empty() -> None:
    there = cluster((V100, 4), (V100, 4))
    jobs = [job(1, 0.0, 10.0), job(1, 0.0, 20.0), job(2, 1.0, 5.0, exclusive=True), job(1, 1.0, 100.0)]
    simulator = BatchSimulator(there, pack_jobs([jobs], there))
    simulator.act(np.array([[0, 0, -1]]))
    simulator.act(np.array([[0, 4, -1]]))
    seen = simulator.observe()
    assert seen.table.rows_of_job.tolist() == [[0, 2]], "the gang finds no empty node"
    kept = reservation_of(seen, 0, 0)
    assert kept is not None
    assert kept.start_s == seen.time_s[0] + seen.gpu_remaining_s[0, 0]
    assert kept.nodes.tolist() == [True, False]
    assert kept.slack == 0
    assert may_enter(seen, 0, kept).tolist() == [False, True], "a long job may start on the other node alone"
    plain = [replace(each, exclusive=False) for each in jobs]
    simulator = BatchSimulator(there, pack_jobs([plain], there))
    simulator.act(np.array([[0, 0, -1]]))
    simulator.act(np.array([[0, 4, -1]]))
    free = reservation_of(simulator.observe(), 0, 0)
    assert free is not None
    assert free.start_s == simulator.observe().time_s[0]


def test_kinds_are_split_by_what_waiting_jobs_choose_and_other_jobs_keep_their_rows() -> None:
    there = cluster((V100, 2), (V100, 2), (V100, 2))
    plain = [job(1, 0.0, 3.0), job(1, 0.0, 4.0)]
    before = BatchSimulator(there, pack_jobs([plain], there)).observe()
    picky = [*plain, job(1, 0.0, 5.0, node_ids=("n1",)), job(2, 0.0, 5.0, excluded_node_ids=("n0", "n1"))]
    seen = BatchSimulator(there, pack_jobs([picky], there)).observe()
    assert before.gpu_kind.tolist() == [[0] * 6]
    assert seen.gpu_kind.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert before.nodes is None
    assert seen.nodes is not None
    assert seen.nodes.job_choosing.tolist() == [[False, False, True, True]]
    rows = slice(0, int(seen.table.first[0, 2]))
    for name in ("job", "gpu", "size", "duration_s", "spread"):
        np.testing.assert_array_equal(getattr(seen.table, name)[rows], getattr(before.table, name))
    assert np.isfinite(seen.durations_s(0, 2)).tolist() == [False, False, True, True, False, False]
    assert [tuple(map(int, row[row >= 0])) for row in seen.table.gpus[rows.stop :]] == [(2,), (4, 5)]


def test_lists_that_name_nodes_are_packed_for_a_cluster_and_run_on_it_alone() -> None:
    there = cluster((V100, 2), (V100, 2))
    jobs = [job(1, 0.0, 3.0, node_ids=("n1", "elsewhere"))]
    with pytest.raises(InvalidInput, match="names nodes, and the jobs are packed for no cluster"):
        pack_jobs([jobs], there.gpu_models)
    packed = pack_jobs([jobs], there)
    assert packed.node_allowed[0, 0].tolist() == [False, True]
    with pytest.raises(InvalidInput, match="choose among 2 nodes, and the cluster has 1"):
        BatchSimulator(cluster((V100, 2)), packed)
    none = pack_jobs([[job(1, 0.0, 3.0, node_ids=("elsewhere",))]], there)
    outcome = played(there, [job(1, 0.0, 3.0, node_ids=("elsewhere",)), job(1, 0.0, 3.0)], made("fcfs"))
    assert not none.node_allowed[0, 0].any()
    assert np.isnan(outcome.end_s[0, 0])
    assert np.isfinite(outcome.end_s[0, 1])
    with pytest.raises(InvalidInput, match="each job needs a core at least"):
        BatchSimulator(there, pack_jobs([[job(1, cpu_cores=0), job(1, exclusive=True)]], there))
