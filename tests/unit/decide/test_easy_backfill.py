"""EASY's guarantee: with exact durations the head starts by its reservation, whatever is backfilled behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide.policies import POLICIES
from adlro.decide.policies.easy_backfill import EasyBackfill
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.sim.batch import simulate
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.observation import Floats, Ints, Observation
from tests.unit.decide.decision_points import Waiting, decision

INF = math.inf
HELD = (-1, -1)
MODELS = ("v100_sxm2", "radeon_vii")
ROWS = 1024


def pick(observation: Observation) -> tuple[int, int]:
    job, gpu = EasyBackfill().act(observation)[0]
    return int(job), int(gpu)


# ---- decision points by hand. GPUs 0-3 on node 0, GPU 4 on node 1; the head asks 8 cores of node 0, 1 is free there.
# GPU 0 frees 2 cores in 5 s, GPU 1 3 cores in 10 s, GPU 2 4 cores in 20 s: 8 or more are free from 20 s on, 10 in all.

HEAD = Waiting((9, 9, 9, 8, INF), cores=8)


def beside(job: Waiting) -> tuple[int, int]:
    point = decision(
        [HEAD, job], [5, 10, 20, 0, 0], node=[0, 0, 0, 0, 1], cores_free=[1, 4], cores_held=[2, 3, 4, 0, 0]
    )
    return pick(point)


def test_the_shadow_time_is_when_enough_cores_are_free_not_when_the_next_job_ends() -> None:
    assert beside(Waiting((INF, INF, INF, 19, INF))) == (1, 3)
    assert beside(Waiting((INF, INF, INF, 20, INF))) == (1, 3)  # to the moment
    assert beside(Waiting((INF, INF, INF, 21, INF))) == HELD  # GPU 3 is the head's: it is the fastest


def test_what_is_free_beside_the_head_at_its_shadow_time_may_be_taken_for_longer() -> None:
    def point(cores: int, on: int, head_s: tuple[float, ...] = (9, 9, 9, 9, 9)) -> Observation:
        long_s = tuple(99.0 if gpu == on else INF for gpu in range(5))
        return decision(
            [Waiting(head_s, cores=8), Waiting(long_s, cores=cores)],
            [5, 10, 20, 0, 0],
            node=[0, 0, 0, 0, 0],
            cores_free=[2],
            cores_held=[2, 3, 4, 0, 0],
        )

    # 2 + 2 + 3 + 4 = 11 by 20 s, 8 for the head on GPU 3: the lowest of the idle. At 10 s they are 7: too few.
    assert pick(point(2, on=4)) == (1, 4)
    assert pick(point(2, on=3)) == (1, 3)  # GPU 0, lower yet, is idle by then as well: it is the head's
    assert pick(point(2, on=3, head_s=(9, 9, 9, 8, 9))) == HELD
    assert pick(point(1, on=4)) == (1, 4)


def test_no_more_is_taken_beside_the_head_than_is_free_by_then() -> None:
    def point(cores: int) -> Observation:
        jobs = [Waiting((9, INF, 9), cores=8), Waiting((INF, 99, INF), cores=cores)]
        return decision(jobs, [5, 0, 6], node=[0, 0, 0], cores_free=[6], cores_held=[4, 0, 5])

    assert pick(point(2)) == (1, 1)  # 6 + 4 - 8; GPU 2 and its 5 cores come later
    assert pick(point(3)) == HELD


def test_memory_is_reserved_as_cores_are() -> None:
    def point(job: Waiting) -> Observation:
        jobs = [Waiting((9, INF, INF), memory_mib=7000), job]
        held = [1000, 5000, 0]
        return decision(jobs, [5, 8, 0], node=[0, 0, 0], memory_free_mib=[1500], memory_held_mib=held)

    # 2500 MiB at 5 s, 7500 at 8 s.
    assert pick(point(Waiting((INF, INF, 8), memory_mib=1500))) == (1, 2)
    assert pick(point(Waiting((INF, INF, 9), memory_mib=501))) == HELD
    assert pick(point(Waiting((INF, INF, 9), memory_mib=500))) == (1, 2)


def test_the_reservation_is_on_the_node_that_frees_enough_first() -> None:
    # Node 0 frees a core in 1 s and the other 7 in 30 s, node 1 all its cores in 12 s.
    jobs = [Waiting((9, 9, 9, 9), cores=8), Waiting((INF, INF, 25, INF)), Waiting((INF, INF, INF, 13))]
    point = decision(jobs, [1, 30, 0, 12], node=[0, 0, 0, 1], cores_free=[1, 0], cores_held=[1, 7, 0, 8])
    assert pick(point) == (1, 2)  # on node 0 for as long as it likes
    jobs = [Waiting((9,) * 5, cores=8), Waiting((INF, INF, INF, INF, 13)), Waiting((INF, INF, INF, INF, 12))]
    point = decision(jobs, [1, 30, 0, 12, 0], node=[0, 0, 0, 1, 1], cores_free=[0, 1], cores_held=[1, 7, 0, 7, 0])
    assert pick(point) == (2, 4)  # the head takes GPU 3 there, and 1 + 7 - 8 cores are left beside it


def test_a_job_whose_gpus_are_away_holds_no_reservation_and_the_next_has_one() -> None:
    jobs = [Waiting((5, INF, INF)), Waiting((INF, 9, 9), cores=4), Waiting((INF, INF, 11)), Waiting((INF, INF, 10))]
    point = decision(jobs, [INF, 10, 0], node=[0, 1, 1], cores_free=[4, 1], cores_held=[0, 3, 0])
    assert pick(point) == (3, 2)


# ---- whole runs


def cluster_of(nodes: list[tuple[int, int, list[int]]]) -> Cluster:
    """Nodes as (cores, memory, models of its GPUs)."""
    return Cluster(
        "c",
        tuple(
            Node(
                f"n{n}", cores, memory, tuple(Gpu(f"n{n}/{g}", MODELS[model], 16000) for g, model in enumerate(models))
            )
            for n, (cores, memory, models) in enumerate(nodes)
        ),
    )


def arrays_of(submit_s: Floats, duration_s: Floats, cores: Ints, memory_mib: Ints | int = 0) -> JobArrays:
    """One list; `duration_s` (J, K); a job's priority is its number / ROWS."""
    jobs, models = duration_s.shape
    arrays = empty_job_arrays(1, jobs, models)
    arrays.job_count[0] = jobs
    arrays.submit_s[0], arrays.duration_s[0], arrays.expected_s[0] = submit_s, duration_s, duration_s
    arrays.cores[0], arrays.memory_mib[0], arrays.job_type[0] = cores, memory_mib, 1
    arrays.priority[0] = np.arange(jobs) / ROWS
    return arrays


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_of_small_jobs_does_not_keep_a_wide_head_waiting(seed: int) -> None:
    """Two nodes of 16 GPUs and 32 cores are full; a job asks 32 cores; behind it 2-core jobs come every 0.3 s."""
    rng = np.random.default_rng(seed)
    wide, stream = 32, 200
    cluster = cluster_of([(32, 65536, [0] * 16)] * 2)
    submit_s = np.concatenate([np.zeros(wide), [1.0], 1.5 + 0.3 * np.arange(stream)])
    duration_s = np.concatenate([rng.exponential(8.0, wide) + 0.1, [10.0], rng.exponential(8.0, stream) + 0.1])
    cores = np.full(len(submit_s), 2)
    cores[wide] = 32
    jobs = arrays_of(submit_s, duration_s[:, None], cores)
    outcome = {name: simulate(cluster, jobs, POLICIES[name]().act) for name in ("fcfs", "easy_backfill")}
    start_s = {name: float(each.start_s[0, wide]) for name, each in outcome.items()}
    assert start_s["easy_backfill"] <= start_s["fcfs"] + 1e-6
    assert start_s["fcfs"] < submit_s[-1]
    # And the small ones do not wait for it: that is what backfilling is for.
    waited_s = {name: float(np.mean(each.start_s[0] - submit_s)) for name, each in outcome.items()}
    assert waited_s["easy_backfill"] < 0.75 * waited_s["fcfs"]


@dataclass
class Run:
    job: int
    gpu: int
    end_s: float


@dataclass
class Promises:
    """Lets EASY act, and reckons, by its own book, when each job could start as it first is the head."""

    cluster: Cluster
    jobs: JobArrays
    promised_s: dict[int, float] = field(default_factory=dict)
    backfilled: int = 0
    _running: list[Run] = field(default_factory=list)

    def act(self, observation: Observation) -> Ints:
        now_s = float(observation.time_s[0])
        self._running = [run for run in self._running if run.end_s > now_s]
        numbers = [round(priority * ROWS) for priority in observation.job_priority[0]]
        head = next(number for number, waits in zip(numbers, observation.job_waiting[0], strict=True) if waits)
        if head not in self.promised_s:
            self.promised_s[head] = self.earliest_s(head, now_s)
        actions = EasyBackfill().act(observation)
        row, gpu = actions[0].tolist()
        if row >= 0:
            self.backfilled += numbers[row] != head
            self._running.append(Run(numbers[row], gpu, now_s + self.takes_s(numbers[row], gpu)))
        return actions

    def takes_s(self, job: int, gpu: int) -> float:
        model = list(self.cluster.gpus())[gpu][1].gpu_model
        return float(self.jobs.duration_s[0, job, self.cluster.gpu_models.index(model)])

    def earliest_s(self, job: int, now_s: float) -> float:
        gpus = [node for node, _ in self.cluster.gpus()]
        for time_s in sorted({now_s, *(run.end_s for run in self._running)}):
            left = [run for run in self._running if run.end_s > time_s]
            for gpu, node in enumerate(gpus):
                beside = [run.job for run in left if gpus[run.gpu] is node]
                if (
                    self.takes_s(job, gpu) < INF
                    and all(run.gpu != gpu for run in left)
                    and self.jobs.cores[0, [*beside, job]].sum() <= node.cpu_cores
                    and self.jobs.memory_mib[0, [*beside, job]].sum() <= node.memory_mib
                ):
                    return time_s
        return INF


quarters = st.integers(1, 40).map(lambda number: number / 4)  # sums of these are exact


@st.composite
def instances(draw: st.DrawFn) -> tuple[Cluster, JobArrays]:
    models = st.lists(st.integers(0, 1), min_size=1, max_size=4)
    nodes = draw(st.lists(st.tuples(st.integers(2, 8), st.integers(2, 8), models), min_size=1, max_size=3))
    cluster = cluster_of(nodes)
    job = st.tuples(
        st.sampled_from((0.0, 0.0, 0.25, 0.5, 2.0)),
        st.tuples(quarters, quarters, st.sampled_from((-1, -1, -1, 0, 1))),
        st.sampled_from((1, 1, 1, 2, 4, 8)),
        st.sampled_from((0, 1, 1, 2, 6)),
    )
    drawn = draw(st.lists(job, min_size=2, max_size=20))
    kinds = [MODELS.index(model) for model in cluster.gpu_models]
    duration_s = np.array([[INF if kind == never else on[kind] for kind in kinds] for _, (*on, never), _, _ in drawn])
    submit_s = np.cumsum([gap_s for gap_s, *_ in drawn])
    return cluster, arrays_of(
        submit_s, duration_s, np.array([each[2] for each in drawn]), np.array([each[3] for each in drawn])
    )


@settings(max_examples=100, deadline=None)
@given(instances())
def test_a_head_that_waits_starts_by_its_first_shadow_time(instance: tuple[Cluster, JobArrays]) -> None:
    cluster, jobs = instance
    promises = Promises(cluster, jobs)
    outcome = simulate(cluster, jobs, promises.act)
    for job, promised_s in promises.promised_s.items():
        assert outcome.start_s[0, job] <= promised_s
    # Only what no empty node could hold never starts.
    holds = Promises(cluster, jobs)
    for job, start_s in enumerate(outcome.start_s[0].tolist()):
        assert math.isnan(start_s) == (holds.earliest_s(job, 0.0) == INF)
