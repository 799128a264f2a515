"""The policy hold_gang: equal actions on observations and on the simulator's arrays, and cases by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adlro.decide.gang_actions import STARTS, GangActionFinder
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang, HoldGangSettings
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.decide.rollouts.gang_base import GangBase, gang_base
from adlro.decide.rollouts.gang_rule import hold_gang
from adlro.numeric.compiled import compiled
from adlro.sim.batch import BatchSimulator, GpuChange
from adlro.sim.course import Course
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Ints, Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.unit.sim.test_gang_physics import TURING, V100, begin, cluster, draw, job, simulator


@compiled
def decide(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: GangBase) -> int:
    """The rule on the simulator's arrays, for callers in Python."""
    return hold_gang(hardware, machines, jobs, course, n, base)


def policy(settings: HoldGangSettings = ONE_SETTING) -> HoldGang:
    made = HoldGang(settings)
    made.wait_ratio = np.inf
    return made


def run_both(made: BatchSimulator, rule: HoldGang, known_speed: Ints | None = None) -> tuple[int, int]:
    """Runs a list to its end; returns the numbers of decisions and of reservations; both ways choose the same."""
    if known_speed is not None:
        made._course.known_speed[0] = known_speed
    base = gang_base(rule.settings, made._hardware, made._jobs)
    decisions = reservations = 0
    while len(made.active):
        seen = made.observe()
        judgement = rule.judge(seen)
        action = rule.choose(seen, judgement)
        before = made._course.reserved_job[0]
        chosen = decide(made._hardware, made._machines, made._jobs, made._course, 0, base)
        reserved = made._course.reserved_job[0]
        made._course.reserved_job[0] = before
        wanted = HOLD if action[0, 0] == HOLD else made._course.waiting[0, action[0, 0]]
        assert chosen == wanted
        gpus = base.gpus[base.gpus >= 0].tolist()
        assert gpus == action[0, 1:][action[0, 1:] >= 0].tolist()
        if judgement.reserve is not None:
            place = int(judgement.reserve[0])
            assert reserved == (-1 if place < 0 else made._course.waiting[0, place])
            reservations += place >= 0 and before != reserved
        made.act(action, judgement.reserve)
        decisions += 1
    return decisions, reservations


@pytest.mark.parametrize("seed", range(80))
def test_the_rule_on_the_simulators_arrays_chooses_what_the_policy_chooses(seed: int):
    rng = np.random.default_rng(seed)
    there, jobs, changes = draw(rng)
    settings = dataclasses.replace(
        ONE_SETTING,
        rho=float(rng.choice([0.0, 0.3, 3.0])),
        theta=float(rng.choice([1.0, 1.5])),
        beta=float(rng.choice([0, 1])),
        drain=float(rng.choice([0.0, 2.0, 8.0])),
        haste=float(rng.choice([1.0, 4.0])),
        s_max=float(rng.choice([1.2, 5.0])),
        backlog=float(rng.choice([0.0, 0.25, 1.0])),
        depth=float(rng.choice([0.0, 0.5, 4.0])),
        defer=float(rng.choice([0.0, 1.0, 4.0])),
        alpha_deep=float(rng.choice([0.0, 0.5, 9.0])),
        doubt=float(rng.choice([0.0, 0.5, 2.0])),
        affinity=float(rng.choice([0.0, 1.0, 3.0])),
    )
    jobs = jobs._replace(expected_spread=rng.choice([0.0, 0.5, 2.0], size=jobs.expected_spread.shape))
    made = BatchSimulator(there, jobs, gpu_changes=[changes])
    speeds = rng.choice([1.0, 0.7], size=made._course.known_speed.shape[1]) if seed % 3 == 0 else None
    run_both(made, policy(settings), speeds)


@pytest.mark.parametrize("scenario_name", ["gangs", "gangs_philly", "gangs_64"])
@pytest.mark.parametrize(("load", "drain"), [(0.9, 0.0), (0.9, 2.0), (1.1, 0.0), (1.1, 2.0)])
def test_both_choose_the_same_on_the_scenarios(scenario_name: str, load: float, drain: float):
    scenario = load_scenario(scenario_name)
    jobs = pack_jobs([draw_jobs(scenario, load=load, rng=np.random.default_rng(3), count=256)], scenario.cluster)
    changes: list[GpuChange] = [(40.0, 1, 0.0), (90.0, 1, 1.0), (100.0, 9, 0.0)]
    made = BatchSimulator(scenario.cluster, jobs, gpu_changes=[changes])
    settings = dataclasses.replace(ONE_SETTING, rho=1.0, drain=drain, haste=4.0)
    decisions, reservations = run_both(made, policy(settings))
    assert decisions > 256
    assert reservations > 0


def chosen(made: BatchSimulator, rule: HoldGang) -> tuple[int, list[int], int]:
    """The job's place, its GPUs, and the place of the reserved job."""
    seen = made.observe()
    judgement = rule.judge(seen)
    action = rule.choose(seen, judgement)[0]
    reserve = -1 if judgement.reserve is None else int(judgement.reserve[0])
    return int(action[0]), action[1:][action[1:] >= 0].tolist(), reserve


def test_without_gangs_it_is_hold_greedy_fixed_bit_for_bit():
    scenario = load_scenario("paper")
    jobs = pack_jobs([draw_jobs(scenario, load=1.1, rng=np.random.default_rng(5), count=64)], scenario.cluster)
    made, rule, single = BatchSimulator(scenario.cluster, jobs), HoldGang(), HoldGreedyFixed()
    while len(made.active):
        seen: Observation = made.observe()
        assert np.array_equal(rule.scores(seen), single.scores(seen))
        made.act(rule.act(seen))


def test_a_cluster_of_a_batch_without_gangs_is_judged_as_if_alone():
    there = cluster((V100, 4), (V100, 4))
    jobs = pack_jobs([[job(1), job(1)], [job(1), job(2)]], there)
    made = BatchSimulator(there, jobs)
    seen = made.observe()
    scores, alone = policy().scores(seen), HoldGreedyFixed()
    alone.wait_ratio = np.inf
    assert np.array_equal(scores[seen.table.rows(0)], alone.scores(seen.of_cluster(0)))


def test_a_job_of_one_gpu_takes_the_fullest_node():
    made = simulator(cluster((V100, 4), (V100, 4)), [job(2), job(1), job(2, 1.0)])
    begin(made, 0, 4, 5)
    assert chosen(made, policy()) == (0, [6], -1)


def test_gpus_are_kept_for_a_gang_that_waits_long_but_not_from_what_ends_in_time():
    jobs = [job(1, work_s=40.0), job(4, 1.0, work_s=1.0), job(1, 12.0, work_s=27.0), job(1, 13.0, work_s=40.0)]
    made = simulator(cluster((V100, 4)), jobs)
    begin(made, 0, 0)
    # At 12 s the gang has waited 11 times its second; the job of 27 s ends before the 40th second.
    assert made.time_s[0] == 12.0
    assert chosen(made, policy()) == (1, [1], 0)
    made.act(np.array([[1, 1, HOLD, HOLD, HOLD]]), np.array([0]))
    assert made.time_s[0] == 13.0
    assert chosen(made, policy()) == (HOLD, [], 0)
    made.act(np.array([[HOLD] * 5]), np.array([0]))
    while made.time_s[0] < 40.0:
        assert chosen(made, policy())[0] == HOLD
        made.act(np.array([[HOLD] * 5]))
    # The gang starts before the other job, and its reservation ends with that.
    assert chosen(made, policy()) == (0, [0, 1, 2, 3], 0)
    begin(made, 0, 0, 1, 2, 3)
    assert made.observe().gangs is None


@pytest.mark.parametrize(("spread", "reserved"), [(0.0, 0), (0.4, 0), (0.5, -1), (1.0, -1)])
def test_gpus_are_kept_later_for_a_gang_whose_duration_is_uncertain(spread: float, reserved: int):
    # At 12 s it has waited 11 times its second. With an uncertainty of 0.4 the mean is 1.083 s, with 0.5 it is 1.133 s.
    jobs = [job(1, work_s=40.0), job(4, 1.0, work_s=1.0), job(1, 12.0, work_s=50.0)]
    there = cluster((V100, 4))
    packed = pack_jobs([jobs], there)
    made = BatchSimulator(there, packed._replace(expected_spread=np.full_like(packed.expected_spread, spread)))
    begin(made, 0, 0)
    assert made.time_s[0] == 12.0
    assert chosen(made, policy(dataclasses.replace(ONE_SETTING, doubt=0.5)))[2] == reserved
    assert chosen(made, policy())[2] == 0


@pytest.mark.parametrize(
    ("waiting", "spread", "starts"), [(3, 0.0, False), (30, 0.0, False), (50, 0.0, True), (30, 1.0, True)]
)
def test_a_slow_gpu_stays_idle_beside_a_short_queue_and_works_beside_a_long_one(
    waiting: int, spread: float, starts: bool
):
    # The slow node takes ten times as long. Its idle GPUs are refused, unless the two fast ones need more than
    # twice as long for the queue; less where its runtimes are uncertain.
    there = cluster((V100, 2), (TURING, 2))
    jobs = pack_jobs([[job(2, work_s=5.0), *(job(1, work_s=1.0) for _ in range(waiting))]], there)
    slower = np.where(np.array(there.gpu_models) == TURING, 10.0, 1.0)
    length_s = jobs.expected_s[:, :, [there.gpu_models.index(V100)]] * slower
    uncertain = np.full_like(jobs.expected_spread, spread)
    jobs = jobs._replace(duration_s=length_s, expected_s=length_s, expected_spread=uncertain)
    made = BatchSimulator(there, jobs)
    begin(made, 0, 0, 1)
    assert (chosen(made, policy())[0] != HOLD) is starts
    assert chosen(made, policy(dataclasses.replace(ONE_SETTING, backlog=0.0)))[0] == HOLD
    run_both(made, policy())


@pytest.mark.parametrize(("suits", "starts"), [(V100, True), (TURING, False)])
def test_the_queue_of_jobs_that_other_gpus_suit_is_no_reason_for_a_slow_start(suits: str, starts: bool):
    # A short job waits for a V100, beside many of two GPUs. Where those are for V100s too, its turn comes so late that
    # it starts on the Turing, which takes ten times as long; where Turings suit them, a V100 is soon free for it.
    there = cluster((V100, 2), (TURING, 2))
    wide = [job(2, work_s=3.0) for _ in range(40)]
    jobs = pack_jobs([[job(1, work_s=9.0), job(1, work_s=9.0), job(1, work_s=9.0), job(1, work_s=1.0), *wide]], there)
    work_s = jobs.expected_s[:, :, [there.gpu_models.index(V100)]]
    turing = np.array(there.gpu_models) == TURING
    for_turing = np.zeros((1, work_s.shape[1], 1), dtype=bool)
    for_turing[0, 2] = True
    for_turing[0, 4:] = suits == TURING
    length_s = work_s * np.where(turing == for_turing, 1.0, 10.0)
    made = BatchSimulator(there, jobs._replace(duration_s=length_s, expected_s=length_s))
    for gpu in (0, 1, 2):
        begin(made, 0, gpu)
    assert chosen(made, policy())[:2] == ((0, [3]) if starts else (HOLD, []))
    run_both(made, policy())


def beside_jobs_for_the_slow_gpu(count: int) -> BatchSimulator:
    """A short job and many of two GPUs wait for V100s, and so many for Turings, of which one is idle."""
    there = cluster((V100, 2), (TURING, 2))
    wide = [job(2, work_s=3.0) for _ in range(40 + count)]
    jobs = pack_jobs([[job(1, work_s=9.0), job(1, work_s=9.0), job(1, work_s=9.0), job(1, work_s=1.0), *wide]], there)
    work_s = jobs.expected_s[:, :, [there.gpu_models.index(V100)]]
    turing = np.array(there.gpu_models) == TURING
    for_turing = np.zeros((1, work_s.shape[1], 1), dtype=bool)
    for_turing[0, 2] = True
    for_turing[0, 44:] = True
    length_s = work_s * np.where(turing == for_turing, 1.0, 10.0)
    made = BatchSimulator(there, jobs._replace(duration_s=length_s, expected_s=length_s))
    for gpu in (0, 1, 2):
        begin(made, 0, gpu)
    return made


@pytest.mark.parametrize(("for_turings", "starts"), [(0, True), (1, False)])
def test_a_gpu_that_is_slow_only_for_a_job_is_left_to_those_that_it_suits(for_turings: int, starts: bool):
    # The short job takes 10 s on the Turing, and the V100s are expected to take 120 s for their queue, of which half
    # counts. Where a job waits that Turings suit, the 10 s count ten times.
    made = beside_jobs_for_the_slow_gpu(for_turings)
    assert chosen(made, policy())[:2] == ((0, [3]) if starts else (HOLD, []))
    assert chosen(made, policy(dataclasses.replace(ONE_SETTING, affinity=0.0)))[:2] == (0, [3])
    run_both(made, policy())


@pytest.mark.parametrize(("for_turings", "offered"), [(0, True), (1, False)])
def test_the_network_is_not_offered_a_start_there(for_turings: int, offered: bool):
    rule = dataclasses.replace(ONE_SETTING, backlog=0.0).rule()  # whatever the queue
    seen = beside_jobs_for_the_slow_gpu(for_turings).observe()
    found = GangActionFinder(rule).find(seen)
    assert found.row[0] == HOLD
    starts = found.row[found.kind == STARTS]
    assert [seen.table.job[row] for row in starts] == ([0] if offered else [])


def test_without_an_event_to_wait_for_nothing_is_refused():
    settings = dataclasses.replace(ONE_SETTING, s_max=1.0, theta=1.0)
    there = cluster((V100, 1), (V100, 1))
    alone = simulator(there, [job(2, work_s=10.0)])
    assert chosen(alone, policy(settings)) == (0, [0, 1], -1)


@pytest.mark.parametrize(("waiting", "first"), [(1, "wide"), (80, "narrow")])
def test_a_wide_job_goes_before_longer_ones_in_a_short_queue_and_behind_shorter_areas_in_a_deep_one(
    waiting: int, first: str
):
    # A wide job takes 4 GPUs for 10 s, each narrow one a GPU for 20 s: less GPU time, but longer.
    there = cluster((V100, 4))
    jobs = pack_jobs([[job(4, work_s=10.0), *(job(1, work_s=20.0) for _ in range(waiting))]], there)
    started = chosen(BatchSimulator(there, jobs), policy())[0]
    assert (started == 0) is (first == "wide")


@pytest.mark.parametrize(("waiting", "alpha_deep", "first"), [(3, 2.5, 0), (150, 2.5, 1), (150, 0.0, 0)])
def test_in_a_deep_queue_short_jobs_take_slower_gpus_before_a_long_wide_one(
    waiting: int, alpha_deep: float, first: int
):
    # The fast node has too few GPUs for the wide job: its best model is three times slower for the others than theirs.
    there = cluster((V100, 2), (TURING, 4))
    jobs = pack_jobs([[job(4, work_s=34.0), *(job(1, work_s=2.7) for _ in range(waiting))]], there)
    length_s = jobs.expected_s[:, :, [there.gpu_models.index(V100)]] * np.where(
        np.array(there.gpu_models) == TURING, 3, 1
    )
    jobs = jobs._replace(duration_s=length_s, expected_s=length_s)
    made = BatchSimulator(there, jobs)
    begin(made, 1, 0)
    begin(made, 1, 1)
    settings = dataclasses.replace(ONE_SETTING, alpha_deep=alpha_deep, backlog=10.0)
    place, gpus, _ = chosen(made, policy(settings))
    assert (0 if place == 0 else 1) == first
    assert min(gpus) >= 2
    run_both(made, policy(settings))


def test_the_weights_of_slowdown_and_width_at_half_the_depth():
    # 31 jobs of one GPU and one of two take 10 s on a V100, and twice that on a Turing.
    there = cluster((V100, 2), (TURING, 2))
    jobs = pack_jobs([[job(2, work_s=10.0), *(job(1, work_s=10.0) for _ in range(31))]], there)
    length_s = np.broadcast_to(np.where(np.array(there.gpu_models) == TURING, 20.0, 10.0), jobs.expected_s.shape).copy()
    seen = BatchSimulator(there, jobs._replace(duration_s=length_s, expected_s=length_s)).observe()
    share = 33.0 / 4.0 / 16.0  # r = 8.25 jobs before each GPU
    alpha, beta = 6.0 - 3.5 * share**2, share
    expected = {
        (1, 10.0): np.log(10.0) + 0.25,  # half of an empty node stays unused
        (1, 20.0): np.log(10.0) + 0.25 + alpha * np.log(2.0),
        (2, 10.0): np.log(10.0) + beta * np.log(2.0),
        (2, 20.0): np.log(10.0) + beta * np.log(2.0) + alpha * np.log(2.0),
    }
    scores, table, found = policy().judge(seen).scores, seen.table, {}
    for row in np.flatnonzero(np.isfinite(scores)):
        found[int((table.gpus[row] >= 0).sum()), float(table.duration_s[row])] = -scores[row]
    assert found == pytest.approx(expected)


def test_in_a_deep_queue_a_reservation_comes_later():
    # The wide job has waited more than ten times its duration: so have all others, where the queue is deep.
    for waiting, reserved in ((1, 0), (60, -1)):
        narrow = (job(1, work_s=105.0) for _ in range(waiting))
        made = simulator(cluster((V100, 2)), [job(2, work_s=10.0), job(1, work_s=105.0), job(1, work_s=1e4), *narrow])
        begin(made, 1, 0)
        begin(made, 1, 1)
        waited = made.time_s[0] / made._jobs.expected_s[0, 0, 0]
        assert 10.0 < waited < 11.0
        assert chosen(made, policy())[2] == reserved
