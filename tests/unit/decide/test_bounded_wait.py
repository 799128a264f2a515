"""No job waits for ever: the bound that policies/bounded_wait.py states, tried with streams made to starve."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.bounded_wait import DEFAULT_RATIO, _overdue, bound, overdue
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobType
from adlro.sim.batch import BatchSimulator, simulate
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD_LIMIT_S, Floats, Observation
from adlro.workload.job_lists import WorkloadJob
from tests.dense import dense
from tests.unit.decide.decision_points import Waiting, decision, drawn

CLUSTER = Cluster(
    "two nodes",
    (
        Node("big", 8, 64_000, tuple(Gpu(f"big/{i}", "v100_sxm2", 32_000) for i in range(2))),
        Node("small", 8, 64_000, tuple(Gpu(f"small/{i}", "v100_sxm2", 8_000) for i in range(2))),
    ),
)


class Spiteful(Policy):
    """Starts anything but what has waited longest, and rather nothing than that."""

    name = "spiteful"

    def preferences(self, observation: Observation) -> Floats:
        table = observation.table
        scores = table.of_job(observation.job_submit_s)
        oldest = np.argmax(observation.job_waiting, axis=1)
        scores[table.job == oldest[table.cluster]] = -np.inf
        return np.where(observation.hold_allowed[table.cluster], scores, -np.inf)


class Holding(Policy):
    """Starts nothing as long as it may hold."""

    name = "holding"

    def preferences(self, observation: Observation) -> Floats:
        return np.full(len(observation.table.job), -np.inf)


def job(submit_s: float, duration_s: float, cores: int = 1, gpu_memory_mib: int = 1000) -> WorkloadJob:
    return WorkloadJob(submit_s, "ann", "neutral", JobType.SIMULATION, duration_s, gpu_memory_mib, cores, 1000, 0.5)


def bounded(policy: Policy, ratio: float) -> Policy:
    policy.wait_ratio = ratio
    return policy


# ---- by hand


def test_a_job_is_overdue_after_its_limit_and_not_before() -> None:
    # Best durations 10 and 2, the mean is 6: the limits at ratio 3 are 48 and 24.
    jobs = [Waiting((10.0, 20.0), submit_s=0.0), Waiting((8.0, 2.0), submit_s=20.0)]
    at = lambda time_s: overdue(decision(jobs, [5.0, 5.0], time_s=time_s), 3.0)[0].tolist()  # noqa: E731
    assert at(44.0) == [False, False]
    assert at(44.1) == [False, True]
    assert at(48.0) == [False, True]
    assert at(48.1) == [True, True]


@pytest.mark.parametrize("others", [1, 2, 9])
@pytest.mark.parametrize("declared_s", [1e9, np.inf])
def test_one_job_that_is_said_to_take_for_ever_takes_the_limit_from_nobody(others: int, declared_s: float) -> None:
    jobs = [*[Waiting((60.0, 60.0))] * others, Waiting((declared_s, declared_s), submit_s=2000.0)]
    at = lambda time_s: overdue(decision(jobs, [5.0, 5.0], time_s=time_s), 20.0)[0].tolist()  # noqa: E731
    counts_as_s = 600.0 if np.isfinite(declared_s) else 60.0  # ten times the median, or not at all
    limit_s = 20.0 * (
        60.0 + (60.0 * others + counts_as_s * np.isfinite(declared_s)) / (others + np.isfinite(declared_s))
    )
    assert at(limit_s) == [False] * (others + 1)
    assert at(limit_s + 0.1) == [True] * others + [False]


def test_what_no_present_gpu_can_hold_is_never_overdue() -> None:
    jobs = [Waiting((np.inf, 5.0)), Waiting((5.0, 5.0))]
    assert overdue(decision(jobs, [0.0, np.inf], time_s=1e6), 1.0)[0].tolist() == [False, True]


def test_the_first_overdue_job_starts_where_the_policy_likes_it_best() -> None:
    jobs = [Waiting((5.0, 5.0)), Waiting((5.0, 5.0), submit_s=1.0), Waiting((1.0, 1.0), submit_s=999.0)]
    point = decision(jobs, [0.0, 0.0], time_s=1000.0)
    scores = np.array([-5.0, -4.0, -1.0, -1.0, 7.0, 9.0])
    assert bound(point, scores, 2.0).tolist() == [True]
    assert dense(point, scores)[0].tolist() == [[-5.0, -4.0], [-np.inf] * 2, [-np.inf] * 2]


def test_an_overdue_job_that_the_policy_would_hold_starts_where_it_is_fastest() -> None:
    point = decision([Waiting((9.0, 5.0))], [0.0, 0.0], time_s=1000.0)
    assert bounded(Holding(), 2.0).act(point)[0].tolist() == [0, 1]
    assert bounded(Holding(), np.inf).act(point)[0].tolist() == [-1, -1]
    judgement = bounded(Holding(), 2.0).judge(point)
    assert judgement.basis_of(0) is DecisionBasis.OVERDUE


def test_one_that_does_not_fit_keeps_its_nodes_free_and_no_others() -> None:
    # GPUs 0, 1 on node 0, 2 on node 1, which is too small for job 0; node 0 has too few free cores for it.
    jobs = [Waiting((5.0, 5.0, np.inf), cores=8), Waiting((1.0, 1.0, 1.0), submit_s=999.0)]
    point = decision(jobs, [0.0, 30.0, 0.0], node=[0, 0, 1], cores_free=[4, 4], cores_held=[0, 4, 0], time_s=1000.0)
    assert bounded(POLICIES["sjf"](), np.inf).act(point)[0].tolist() == [1, 0]
    assert bounded(POLICIES["sjf"](), 2.0).act(point)[0].tolist() == [1, 2]


def test_what_runs_for_long_makes_a_long_wait_nothing_unusual() -> None:
    """Each of two GPUs has been held for 300 s: the limit at ratio 3 is 3 (10 + 10 + 300)."""
    jobs = [Waiting((10.0, 10.0))]
    at = lambda time_s: overdue(decision(jobs, [5.0, 5.0], time_s=time_s, elapsed_s=[200.0, 400.0]), 3.0).any()  # noqa: E731
    assert not at(960.0)
    assert at(960.1)


def test_overdue_jobs_have_no_more_than_their_share_of_the_gpus() -> None:
    """Of 16 GPUs two may run what was submitted no later; the policy has the others."""
    jobs = [Waiting((5.0,) * 16, submit_s=2.0), Waiting((1.0,) * 16, submit_s=999.0)]
    remaining_s = [0.0, *[1.0] * 15]
    for before, expected in ((1, [0, 0]), (2, [1, 0])):
        submitted_s = [0.0, *[1.0] * before, *[900.0] * (15 - before)]
        point = decision(jobs, remaining_s, time_s=1000.0, running_submit_s=submitted_s)
        assert bounded(POLICIES["sjf"](), 2.0).act(point)[0].tolist() == expected


def test_the_node_on_which_longest_nothing_has_started_is_kept_and_no_other() -> None:
    # The first job asks for a whole node of 8 cores; each of three nodes has an idle GPU and one that runs a job.
    jobs = [Waiting((5.0,) * 6, cores=8), Waiting((1.0,) * 6, cores=1, submit_s=999.0)]
    elapsed_s = [0.0, 20.0, 0.0, 40.0, 0.0, 30.0]
    point = decision(
        jobs,
        [0.0, 9.0] * 3,
        node=[0, 0, 1, 1, 2, 2],
        cores_free=[4, 4, 4],
        cores_held=[0, 4] * 3,
        elapsed_s=elapsed_s,
        time_s=1000.0,
    )
    scores = np.zeros(len(point.table.job))
    bound(point, scores, 2.0)
    assert (dense(point, scores)[0, 1] > -np.inf).tolist() == [True, False, False, False, True, False]


def test_an_overdue_job_does_not_take_what_an_earlier_one_waits_for() -> None:
    jobs = [Waiting((5.0, 5.0), cores=8), Waiting((5.0, 5.0), submit_s=1.0)]
    point = decision(jobs, [0.0, 30.0], node=[0, 0], cores_free=[4], cores_held=[0, 4], time_s=1000.0)
    assert bounded(POLICIES["sjf"](), 2.0).act(point)[0].tolist() == [-1, -1]


def test_a_decision_that_the_bound_does_not_change_rests_on_the_policy() -> None:
    point = decision([Waiting((9.0, 5.0))], [0.0, 0.0], time_s=1000.0)
    assert bounded(POLICIES["sjf"](), 2.0).judge(point).basis_of(0) is DecisionBasis.POLICY


# ---- the bound, tried


@dataclass(frozen=True)
class Stream:
    """A job, at second 10, behind what runs, before a stream of others that every rule here prefers."""

    jobs: list[WorkloadJob]
    victim: int


def starving(cores: int, gpu_memory_mib: int, others_s: float, each_s: float, until_s: float) -> Stream:
    early = [job(0.0, 7.0 + i, cores=2) for i in range(4)]
    others = [job(float(time_s), others_s, cores=2) for time_s in np.arange(1.0, until_s, each_s)]
    victim = job(10.0, 12.0, cores, gpu_memory_mib)
    jobs = sorted([*early, *others, victim], key=lambda each: each.submit_s)
    return Stream(jobs, jobs.index(victim))


def waits(stream: Stream, policy: Policy) -> tuple[JobArrays, Floats]:
    arrays = pack_jobs([stream.jobs], CLUSTER)
    outcome = simulate(CLUSTER, arrays, policy.act)
    assert not outcome.stuck.any()
    return arrays, (outcome.start_s - arrays.submit_s)[0]


@pytest.mark.parametrize("make", [POLICIES["sjf"], POLICIES["hold_greedy_fixed"], Spiteful])
@pytest.mark.parametrize(("cores", "gpu_memory_mib"), [(8, 1000), (1, 20_000), (8, 20_000)])
def test_what_starves_without_a_bound_starts_with_one(
    make: Callable[[], Policy], cores: int, gpu_memory_mib: int
) -> None:
    """Always more of the shorter jobs than there is room for: the victim waits until the stream ends, or the bound."""
    stream = starving(cores, gpu_memory_mib, 4.0, 0.8, 300.0)
    _, free = waits(stream, bounded(make(), np.inf))
    _, kept = waits(stream, bounded(make(), 3.0))
    assert free[stream.victim] > 250.0
    longest_s = 13.0
    ahead = 25  # submitted before it
    assert kept[stream.victim] <= 3 * 3.0 * longest_s + 2 * (ahead + 1) * longest_s
    assert kept[stream.victim] < 150.0


job_lists = st.lists(
    st.tuples(
        st.floats(0.0, 200.0).map(lambda value: round(value, 3)),
        st.sampled_from([0.5, 1.0, 3.0, 10.0, 30.0]),
        st.integers(1, 8),
        st.sampled_from([1000, 20_000]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    drawn=job_lists,
    ratio=st.sampled_from([0.0, 0.5, 2.0, 10.0]),
    policy=st.sampled_from(["sjf", "spiteful", "holding"]),
)
def test_no_job_of_any_list_waits_beyond_the_bound(
    drawn: list[tuple[float, float, int, int]], ratio: float, policy: str
) -> None:
    made = {"sjf": POLICIES["sjf"], "spiteful": Spiteful, "holding": Holding}[policy]()
    jobs = sorted((job(*each) for each in drawn), key=lambda each: each.submit_s)
    arrays = pack_jobs([jobs], CLUSTER)
    outcome = simulate(CLUSTER, arrays, bounded(made, ratio).act)
    assert not outcome.stuck.any()
    submit_s, start_s = arrays.submit_s[0], outcome.start_s[0]
    longest_s = float(arrays.duration_s.max())
    for number in range(len(jobs)):
        precedence_s = submit_s[number] + 3 * ratio * longest_s
        # A hold that began before may last: no longer than nothing has happened, or HOLD_LIMIT_S.
        precedence_s += max(HOLD_LIMIT_S, 3 * ratio * longest_s)
        ahead = int(((submit_s <= submit_s[number]) & (start_s > precedence_s)).sum()) - 1  # without itself
        assert start_s[number] <= precedence_s + 2 * (max(ahead, 0) + 1) * longest_s + 1e-6


def test_a_batch_is_bounded_as_its_members_are() -> None:
    lists = [starving(8, 1000, 4.0, 0.8, 200.0).jobs, starving(1, 20_000, 4.0, 0.9, 220.0).jobs]
    arrays = pack_jobs(lists, CLUSTER)
    together = simulate(CLUSTER, arrays, bounded(POLICIES["sjf"](), 2.0).act)
    for number, jobs in enumerate(lists):
        alone = simulate(CLUSTER, pack_jobs([jobs], CLUSTER), bounded(POLICIES["sjf"](), 2.0).act)
        np.testing.assert_array_equal(together.start_s[number, : len(jobs)], alone.start_s[0])


def test_every_policy_has_the_same_limit() -> None:
    assert {policy().wait_ratio for policy in POLICIES.values()} == {DEFAULT_RATIO}


def test_a_decision_under_the_bound_changes_no_observation() -> None:
    simulator = BatchSimulator(CLUSTER, pack_jobs([starving(8, 1000, 4.0, 0.8, 50.0).jobs], CLUSTER))
    policy = bounded(POLICIES["sjf"](), 0.0)
    for _ in range(40):
        seen = simulator.observe()
        before = copy.deepcopy(seen)
        action = policy.act(seen)
        for name in Observation.__slots__:
            np.testing.assert_equal(getattr(seen, name), getattr(before, name))
        simulator.act(action)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_filter_leaves_out_no_cluster_with_an_overdue_job(seed: int) -> None:
    rng, found = np.random.default_rng(seed), 0
    points = [drawn(rng, int(rng.integers(0, 9))) for _ in range(150)]
    for ratio in (0.0, 0.3, 1.0, 3.0):
        for seen in points:
            every = _overdue(seen, ratio, np.arange(1))
            np.testing.assert_array_equal(overdue(seen, ratio), every)
            found += bool(every.any())
    assert found > 20
