"""The limit on waits with jobs of several GPUs, tried with streams made to starve them."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.bounded_wait import bound, overdue
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchOutcome, BatchSimulator, GpuChange
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD_LIMIT_S
from adlro.workload.job_lists import WorkloadJob
from tests.policies import made
from tests.unit.decide.gang_points import HELD, Several, action, point
from tests.unit.decide.test_bounded_wait import Holding, Spiteful, bounded
from tests.unit.sim.test_gang_physics import TURING, V100, cluster, job

INF = np.inf
TRIED = [*POLICIES, "spiteful", "holding"]


def policy_of(name: str) -> Policy:
    return {"spiteful": Spiteful, "holding": Holding}[name]() if name in ("spiteful", "holding") else made(name)


# ---- by hand. Time 1000; each running job holds its GPU since `elapsed_s`.


def open_gpus(jobs: list[Several], nodes: list[list[float]], **more: object) -> list[int]:
    """The idle GPUs that the bound leaves to the last job, of one GPU, where the others are overdue."""
    seen = point(jobs, nodes, **more)  # type: ignore[arg-type]
    scores = np.zeros(len(seen.table.job))
    bound(seen, scores, 2.0)
    of_last = seen.table.job == len(jobs) - 1
    rows = np.flatnonzero(of_last & (scores > -INF))
    return sorted(int(gpu) for row in rows for gpu in seen.group(0, int(row)))


LAST = Several(1, 1.0, submit_s=999.0)


def test_an_overdue_gang_closes_the_nodes_whose_last_start_is_furthest_back() -> None:
    nodes = [[0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]
    elapsed_s = [0.0, 20.0, 0.0, 40.0, 0.0, 30.0]
    assert open_gpus([Several(2, 5.0, spread_speed=0.0), LAST], nodes, elapsed_s=elapsed_s) == [0, 4]
    assert open_gpus([Several(4, 5.0, spread_speed=0.0), LAST], nodes, elapsed_s=elapsed_s) == [0]
    assert open_gpus([Several(6, 5.0, spread_speed=0.0), LAST], nodes, elapsed_s=elapsed_s) == []


def test_the_nodes_are_of_the_model_that_can_hold_it_soonest() -> None:
    nodes = [[0.0, 9.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]
    elapsed_s = [0.0, 50.0, 0.0, 10.0, 0.0, 40.0, 0.0, 30.0]
    # Model 0: node 1 began last, 10 s ago; model 1: node 3, 30 s ago.
    jobs = [Several(4, (5.0, 7.0), spread_speed=0.0), Several(1, (1.0, 1.0), submit_s=999.0)]
    assert open_gpus(jobs, nodes, model=[0, 0, 1, 1], elapsed_s=elapsed_s) == [0, 2]
    only_first = [Several(4, (5.0, INF), spread_speed=0.0), jobs[1]]
    assert open_gpus(only_first, nodes, model=[0, 0, 1, 1], elapsed_s=elapsed_s) == [4, 6]


def test_nodes_of_different_sizes_are_as_few_as_a_packed_set_has() -> None:
    # Four GPUs are on one node when empty: node 1, however lately something began there.
    nodes = [[0.0, 9.0], [0.0, 9.0, 9.0, 9.0], [0.0, 9.0]]
    elapsed_s = [0.0, 90.0, 0.0, 1.0, 1.0, 1.0, 0.0, 90.0]
    assert open_gpus([Several(4, 5.0, spread_speed=0.5), LAST], nodes, elapsed_s=elapsed_s) == [0, 6]


def test_after_losses_the_nodes_are_those_of_a_spread_set_as_many_as_it_accepts() -> None:
    # A GPU of node 0 is lost: no node has two.
    nodes = [[0.0, INF], [9.0], [0.0], [0.0]]
    elapsed_s = [0.0, 0.0, 5.0, 0.0, 0.0]
    jobs = [Several(2, 5.0, spread_speed=0.0), LAST]
    assert not overdue(point(jobs, nodes, elapsed_s=elapsed_s), 2.0).any()
    # Spread it starts at once.
    jobs = [Several(2, 5.0, spread_speed=0.5), LAST]
    seen = point(jobs, nodes, elapsed_s=elapsed_s)
    assert action(bounded(made("sjf"), 2.0).act(seen)[0].tolist()) == (0, (0, 3))
    jobs = [Several(4, 5.0, spread_speed=0.5), LAST]
    assert open_gpus(jobs, nodes, elapsed_s=elapsed_s) == []
    assert not overdue(point([Several(4, 5.0, max_nodes=3), LAST], nodes, elapsed_s=elapsed_s), 2.0).any()


def test_an_overdue_gang_starts_where_it_is_fastest_and_not_on_what_an_earlier_one_waits_for() -> None:
    nodes = [[0.0, 0.0], [0.0, 9.0], [0.0, 9.0]]
    seen = point([Several(2, 5.0)], nodes)
    assert action(bounded(Holding(), 2.0).act(seen)[0].tolist()) == (0, (0, 1))
    # Job 0 waits for nodes 1 and 2, on which nothing has begun for longest; job 1 may have node 0.
    elapsed_s = [0.0, 0.0, 0.0, 50.0, 0.0, 50.0]
    nodes = [[0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]
    jobs = [Several(4, 5.0, spread_speed=0.0), Several(2, 5.0, spread_speed=0.5, submit_s=1.0)]
    assert action(bounded(made("sjf"), 2.0).act(point(jobs, nodes, elapsed_s=elapsed_s))[0].tolist()) == HELD


# ---- the bound, tried


def simulated(there: Cluster, jobs: list[WorkloadJob], policy: Policy, changes: list[GpuChange]) -> BatchOutcome:
    simulator = BatchSimulator(there, pack_jobs([jobs], there), gpu_changes=[changes])
    while len(simulator.active):
        judgement = policy.judge(seen := simulator.observe())
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    return simulator.outcome()


def longest_s(arrays: JobArrays) -> float:
    """The longest duration on a packed or a spread set."""
    speed = np.where(arrays.spread_speed > 0.0, arrays.spread_speed, 1.0)
    several = (arrays.gpu_count > 1)[:, :, None]
    durations_s = np.where(several, arrays.duration_s / speed, arrays.duration_s)
    return float(durations_s[np.isfinite(durations_s)].max())


def check_bound(there: Cluster, jobs: list[WorkloadJob], outcome: BatchOutcome, ratio: float) -> None:
    arrays = pack_jobs([jobs], there)
    submit_s, start_s, most_s = arrays.submit_s[0], outcome.start_s[0], longest_s(arrays)
    for number in range(len(jobs)):
        late_s = submit_s[number] + 3 * ratio * most_s + max(HOLD_LIMIT_S, 3 * ratio * most_s)
        ahead = int(((submit_s <= submit_s[number]) & (start_s > late_s)).sum()) - 1
        assert start_s[number] <= late_s + 2 * (max(ahead, 0) + 1) * most_s + 1e-6, jobs[number]


def small_for_ever(until_s: float = 250.0) -> list[WorkloadJob]:
    """More one-GPU jobs than eight GPUs can take."""
    return [job(1, float(at), 4.0) for at in np.arange(0.0, until_s, 0.45)]


@pytest.mark.parametrize("name", TRIED)
def test_a_gang_of_eight_on_two_nodes_starts_behind_small_jobs_for_ever(name: str) -> None:
    there = cluster((V100, 4), (V100, 4))
    jobs = sorted([*small_for_ever(), job(8, 10.0, 12.0)], key=lambda each: each.submit_s)
    at = next(number for number, each in enumerate(jobs) if each.gpu_count == 8)
    outcome = simulated(there, jobs, bounded(policy_of(name), 2.0), [])
    check_bound(there, jobs, outcome, 2.0)
    if name == "sjf":
        free = simulated(there, jobs, bounded(policy_of(name), INF), [])
        assert free.start_s[0, at] > 240.0
        assert outcome.start_s[0, at] < 120.0


@pytest.mark.parametrize("name", TRIED)
def test_several_overdue_gangs_of_different_models_all_start(name: str) -> None:
    there = cluster((V100, 4), (V100, 4), (TURING, 4), (TURING, 4))
    both = [job(1, float(at), 4.0) for at in np.arange(0.0, 200.0, 0.25)]
    gangs = [
        job(8, 5.0, 9.0, gpu_models=(V100,)),
        job(8, 5.0, 9.0, gpu_models=(TURING,)),
        job(4, 6.0, 9.0, max_node_count=1),
        job(8, 6.0, 5.0),
        job(4, 7.0, 9.0, gpu_models=(TURING,), max_node_count=1),
    ]
    jobs = sorted([*both, *gangs], key=lambda each: each.submit_s)
    check_bound(there, jobs, simulated(there, jobs, bounded(policy_of(name), 1.0), []), 1.0)


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("seed", range(4))
def test_no_gang_of_any_list_waits_beyond_the_bound(name: str, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    models = [V100, TURING]
    there = cluster(
        *[(models[int(rng.integers(2))], int(rng.integers(1, 5))) for _ in range(int(rng.integers(2, 6)))],
        cores=int(rng.choice([4, 8, 64])),
    )
    fits = [len(node.gpus) for node in there.nodes]
    jobs = [
        job(
            int(rng.choice([1, 1, 1, 2, 3, 4])),
            round(float(rng.uniform(0.0, 60.0)), 3),
            float(rng.choice([0.5, 1.0, 3.0, 10.0, 30.0])),
            cpu_cores=int(rng.choice([0, 1, 2, 4])),
            max_node_count=int(rng.choice([0, 0, 1, 2])),
        )
        for _ in range(50)
    ]
    # Only what the cluster can hold.
    jobs = sorted(jobs, key=lambda each: each.submit_s)
    jobs = [each for each in jobs if each.gpu_count <= max(fits) and each.gpu_count * each.cpu_cores <= 4]
    ratio = float(rng.choice([0.0, 0.5, 2.0]))
    outcome = simulated(there, jobs, bounded(policy_of(name), ratio), [])
    assert not outcome.stuck.any()
    check_bound(there, jobs, outcome, ratio)


@pytest.mark.parametrize("name", ["sjf", "spiteful", "hold_gang"])
def test_where_a_loss_leaves_only_spread_sets_a_gang_starts_on_one(name: str) -> None:
    there = cluster((V100, 2), (V100, 2), (V100, 2))
    changes = [(0.5, gpu, 0.0) for gpu in (0, 2, 4)]  # one GPU is left of each node
    small = [job(1, float(at), 4.0) for at in np.arange(0.0, 250.0, 1.2)]
    jobs = sorted([*small, job(2, 10.0, 6.0), job(3, 11.0, 6.0)], key=lambda each: each.submit_s)
    outcome = simulated(there, jobs, bounded(policy_of(name), 2.0), changes)
    check_bound(there, jobs, outcome, 2.0)
    limited = sorted([*small, job(3, 11.0, 6.0, max_node_count=2)], key=lambda each: each.submit_s)
    outcome = simulated(there, limited, bounded(policy_of(name), 2.0), [*changes, (400.0, 0, 1.0)])
    gang = next(number for number, each in enumerate(limited) if each.gpu_count == 3)
    assert outcome.start_s[0, gang] >= 400.0  # until then no present GPUs can hold it: it stops nobody
    others = [number for number in range(len(limited)) if number != gang]
    assert outcome.start_s[0, others].max() < 400.0
