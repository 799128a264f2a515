"""The rule of precedence: its text, its levels by hand, what it makes of every policy, and what it does to users."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.base import BusyStart, Judgement
from adlro.decide.precedence import factors, levels
from adlro.errors import InvalidInput
from adlro.records.decisions import DecisionBasis
from adlro.records.precedence import Precedence, parse_precedence
from adlro.sim.batch import BatchSimulator
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Floats, Observation
from adlro.state.reordering import COLUMNS_OF_JOBS, new_places, reordered
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.policies import made
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged, padded
from tests.unit.decide.gang_points import Several
from tests.unit.decide.gang_points import point as gang_point
from tests.unit.decide.stop_points import stop_point

TRIALS = 25
DAY_S = 86_400.0
SHARE = Precedence(fair_share=1.0)
EVERYTHING = Precedence(fair_share=1.0, age=1.0, priority=1.0, full_age_s=100.0)


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return made(request.param)


def with_rule(policy: Policy, rule: Precedence | None) -> Policy:
    policy.precedence = rule
    return policy


# ---- the text


def test_a_rule_is_written_as_it_is_read() -> None:
    rule = parse_precedence(" fair_share=2, age=1 ,half_life=1d12h,full_age=30m")
    assert rule == Precedence(2.0, 1.0, 0.0, 1.5 * DAY_S, 1800.0)
    assert rule is not None
    assert rule.text == "fair_share=2,age=1,half_life=129600,full_age=1800"
    assert parse_precedence(rule.text) == rule
    assert parse_precedence("priority=1,half_life=never") == Precedence(priority=1.0, half_life_s=math.inf)
    assert parse_precedence("") is parse_precedence("off") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fairshare=1", "'fairshare' is none of fair_share, age"),
        ("age", "age has no value"),
        ("age=much", "age must be a number, not 'much'"),
        ("age=nan", "age must be a number"),
        ("age=-1", "age is a weight from 0"),
        ("age=inf", "age is a weight from 0"),
        ("age=1,age=2", "age is given twice"),
        ("age=0", "one of the weights"),
        ("half_life=7d", "one of the weights"),
        ("age=1,half_life=7x", "half_life: "),
        ("age=1,half_life=0", "half_life must be above 0"),
        ("age=1,full_age=9999d", "full_age must be above 0"),
        ("age=1,full_age=never", "full_age: "),
    ],
)
def test_what_is_no_rule_is_refused_with_the_reason_and_an_example(text: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_precedence(text)
    assert refused.value.field == "precedence"
    assert why in refused.value.message
    assert "such as fair_share=2" in refused.value.message


# ---- the levels


def test_fair_share_is_relative_to_who_has_had_most_of_those_that_wait() -> None:
    jobs = [Waiting((1.0,), service_s=had_s) for had_s in (0.0, 30.0, 30.0, 60.0)]
    share, _, _ = factors(SHARE, decision(jobs, [0]))
    np.testing.assert_allclose(share[0], [1.0, 0.5, 0.5, 0.25], rtol=1e-15)
    assert levels(SHARE, decision(jobs, [0])).tolist() == [[9, 5, 5, 2]]
    none = [Waiting((1.0,)) for _ in range(2)]
    assert factors(SHARE, decision(none, [0]))[0].tolist() == [[1.0, 1.0]]
    gone = [Waiting((1.0,), service_s=100.0), Waiting((1.0,), service_s=1e9, waiting=False)]
    assert factors(SHARE, decision(gone, [0]))[0][0, 0] == pytest.approx(0.25)
    # Neither equal accounts nor the number of jobs move the others' levels.
    crowd = [Waiting((1.0,)) for _ in range(9)] + [Waiting((1.0,), service_s=1000.0)]
    almost = [Waiting((1.0,), service_s=0.001 * n) for n in range(9)] + [Waiting((1.0,), service_s=1000.0)]
    assert levels(SHARE, decision(crowd, [0])).tolist() == levels(SHARE, decision(almost, [0])).tolist()


def test_age_and_priority_raise_a_job() -> None:
    jobs = [Waiting((1.0,), submit_s=submit_s, priority=p) for submit_s, p in ((0.0, 0.2), (75.0, 0.2), (100.0, 0.9))]
    seen = decision(jobs, [0], time_s=100.0)
    _, age, priority = factors(Precedence(age=1.0, full_age_s=50.0), seen)
    assert age.tolist() == [[1.0, 0.5, 0.0]]
    assert priority.tolist() == [[0.2, 0.2, 0.9]]
    assert levels(Precedence(age=1.0, full_age_s=50.0), seen).tolist() == [[9, 5, 0]]
    assert levels(Precedence(priority=1.0), seen).tolist() == [[2, 2, 9]]
    assert levels(Precedence(age=1.0, priority=1.0, full_age_s=50.0), seen).tolist() == [[6, 3, 4]]


# ---- another order of the jobs


def test_jobs_in_another_order_have_the_same_figures_and_rows() -> None:
    rng = np.random.default_rng(1)
    for _ in range(TRIALS):
        seen = merged([drawn(rng, 7) for _ in range(3)])
        order = np.array([rng.permutation(7) for _ in range(3)])
        other, rows = reordered(seen, order)
        assert sorted(rows.tolist()) == list(range(len(seen.table.job)))
        for name in ("gpu", "size", "duration_s", "gpus", "spread"):
            np.testing.assert_array_equal(getattr(other.table, name), getattr(seen.table, name)[rows])
        cluster = other.table.cluster
        np.testing.assert_array_equal(order[cluster, other.table.job], seen.table.job[rows])
        np.testing.assert_array_equal(other.table.rows_of_job, np.take_along_axis(seen.table.rows_of_job, order, 1))
        np.testing.assert_array_equal(other.job_submit_s, np.take_along_axis(seen.job_submit_s, order, 1))
        again, back = reordered(other, np.argsort(order, axis=1))
        np.testing.assert_array_equal(rows[back], np.arange(len(rows)))
        for field in Observation.__slots__:
            np.testing.assert_equal(getattr(again, field), getattr(seen, field))


@pytest.mark.parametrize("part", COLUMNS_OF_JOBS, ids=lambda part: part.__name__)
def test_each_column_with_a_place_for_each_job_is_moved(part: type) -> None:
    """The docstrings of an observation and of its parts say which these are."""
    # Python 3.13 takes a docstring's indentation away, older ones keep it.
    told = re.findall(r"^    ([\w, ]+): \(N, J[,)]", inspect.getdoc(part) or "", re.MULTILINE)
    assert {name for names in told for name in names.split(", ")} == set(COLUMNS_OF_JOBS[part])


def test_each_part_of_an_observation_is_known() -> None:
    kinds = {kind for name, kind in get_type_hints(Observation).items() if name not in ("table", "gpu_models")}
    parts = {each for kind in kinds for each in get_args(kind) if hasattr(each, "_fields")}
    assert parts == COLUMNS_OF_JOBS.keys() - {Observation}


def test_the_reservation_follows_its_job() -> None:
    jobs = [Several(2, (5.0,)), Several(1, (5.0,)), Several(4, (5.0,))]
    seen = gang_point(jobs, [[0.0, 0.0], [3.0, 3.0]], reserved=2)
    other, _ = reordered(seen, np.array([[2, 0, 1]]))
    assert other.gangs is not None
    assert other.gangs.reserved.tolist() == [0]
    assert other.gangs.gpu_count.tolist() == [[4, 2, 1]]
    assert new_places(np.array([-1, 1]), np.array([[0, 1], [1, 0]])).tolist() == [-1, 0]


# ---- under every policy


def test_where_all_are_on_one_level_the_policy_decides_as_without_a_rule(policy: Policy) -> None:
    rng = np.random.default_rng(2)
    for _ in range(TRIALS):
        seen = drawn(rng, 9)
        seen = replace(seen, job_user_service_s=np.full_like(seen.job_user_service_s, 5.0))
        without = with_rule(policy, None).judge(seen)
        np.testing.assert_array_equal(with_rule(policy, SHARE).judge(seen).scores, without.scores)


def test_a_batch_is_its_members_and_padding_changes_nothing(policy: Policy) -> None:
    with_rule(policy, EVERYTHING)
    rng = np.random.default_rng(3)
    members = [drawn(rng, 9, hold_allowed=bool(rng.integers(2))) for _ in range(TRIALS)]
    alone = np.concatenate([policy.act(each) for each in members])
    if not policy.one_cluster:
        np.testing.assert_array_equal(policy.act(merged(members)), alone)
    for point, (job, gpu) in zip(members, alone, strict=True):
        places = np.sort(rng.integers(0, 10, 4))
        expected = (job + int((places <= job).sum()), gpu) if job >= 0 else (-1, -1)
        assert tuple(policy.act(padded(point, list(places)))[0]) == expected


def test_what_starts_is_of_the_highest_level_that_the_policy_would_start_something_of(policy: Policy) -> None:
    rng, raised = np.random.default_rng(4), 0
    policy.wait_ratio = math.inf
    for _ in range(4 * TRIALS):
        seen = drawn(rng, 9)
        before = int(with_rule(policy, None).act(seen)[0, 0])
        judgement = with_rule(policy, EVERYTHING).judge(seen)
        job = int(policy.choose(seen, judgement)[0, 0])
        level = levels(EVERYTHING, seen)[0]
        started = seen.table.job[judgement.scores > -np.inf]
        assert (job == HOLD) == (not len(started))
        if job != HOLD:
            assert level[job] == level[started].max()
            raised += before != HOLD and level[before] < level[job]
    assert raised > TRIALS


def test_first_come_first_served_goes_by_level_then_by_order() -> None:
    jobs = [Waiting((1.0, np.inf), service_s=9.0), Waiting((np.inf, 1.0)), Waiting((1.0, 1.0)), Waiting((1.0, 1.0))]
    policy = with_rule(made("fcfs"), SHARE)
    assert policy.act(decision(jobs, [0, 5], time_s=1.0))[0].tolist() == [-1, -1], "job 1, which does not fit, is first"
    assert policy.act(decision(jobs[2:] + jobs[:1], [0, 5], time_s=1.0))[0].tolist() == [0, 0]


def test_a_backfill_reserves_for_the_highest_and_takes_the_others_by_level() -> None:
    # Of the GPUs of one model 0 is idle and 1 is busy for 10 s. job 2 of a user without GPU time needs both.
    jobs = [Several(1, (9.0,)), Several(1, (30.0,)), Several(2, (5.0,)), Several(1, (8.0,))]
    seen = gang_point(jobs, [[0.0, 10.0]], time_s=1.0)
    had_s = np.array([[60.0, 60.0, 0.0, 30.0]])
    seen = replace(seen, job_user_service_s=had_s)
    policy = with_rule(made("easy_backfill"), SHARE)
    assert made("easy_backfill").act(seen)[0, 0] == 0
    assert policy.act(seen)[0, 0] == 3, "job 2 waits for both GPUs; before their time job 3 of 8 s and job 0 of 9 s end"
    assert policy.act(replace(seen, job_user_service_s=np.array([[20.0, 0.0, 20.0, 30.0]])))[0, 0] == 1


def test_an_overdue_job_goes_first_at_any_level(policy: Policy) -> None:
    jobs = [Waiting((1.0,), service_s=1e6, submit_s=0.0), *[Waiting((1.0,), submit_s=9_990.0) for _ in range(3)]]
    seen = decision(jobs, [0], time_s=10_000.0)
    assert with_rule(policy, SHARE).act(seen)[0, 0] == 0
    policy.wait_ratio = math.inf
    assert policy.act(seen)[0, 0] != 0, "without a limit on waits"


class Busy(Policy):
    """Refuses all rows but those of some jobs, and stops what runs for a job."""

    name = "busy"
    description = "for tests"

    def __init__(self, starts: int, rows_of: tuple[int, ...] = ()) -> None:
        self.starts, self.rows_of = starts, rows_of

    def weigh(self, observation: Observation) -> Judgement:
        service_s = observation.job_user_service_s[0]  # a job is known by this, in any order
        place = int(np.flatnonzero(service_s == self.starts)[0])
        its = np.isin(service_s[observation.table.job], self.rows_of)
        scores: Floats = np.where(its, 0.0, -np.inf)
        reserve = np.array([place])
        return Judgement(scores, busy={0: BusyStart(place, (0,), True)}, reserve=reserve, base=int(np.argmax(its)))


def test_a_start_on_busy_gpus_gives_way_to_a_higher_level() -> None:
    jobs = [Waiting((1.0, 1.0), service_s=had_s) for had_s in (90.0, 10.0, 50.0)]
    seen = decision(jobs, [5, 0], time_s=1.0)
    judgement = with_rule(Busy(50, rows_of=(90,)), SHARE).judge(seen)
    assert judgement.busy[0].job == 2, "a lower one keeps nothing from it"
    assert judgement.reserve is not None
    assert judgement.reserve.tolist() == [2]
    assert judgement.base is not None
    assert seen.table.job[judgement.base] == 0
    judgement = with_rule(Busy(50, rows_of=(10, 90)), SHARE).judge(seen)
    assert not judgement.busy
    assert (judgement.scores > -np.inf).tolist() == (seen.table.job == 1).tolist()


@pytest.mark.parametrize("values", [False, True])
def test_what_an_answer_about_higher_levels_does_not_say_is_not_said_of_the_former_choice(values: bool) -> None:
    """Such as a stop, which has neither values nor a base, after a choice of a network."""
    seen = decision([Waiting((1.0, 1.0)), Waiting((1.0, 1.0))], [5, 0], time_s=1.0)
    rows = len(seen.table.job)
    judgement = Judgement(np.zeros(rows), base=0, margin=0.1, hold_value=np.zeros(1), values=np.zeros(rows))
    among = np.flatnonzero(seen.table.job == 1)
    answer = Judgement(np.zeros(len(among)))
    if values:
        answer.values, answer.hold_value, answer.base, answer.margin = np.ones(len(among)), np.full(1, 0.7), HOLD, 0.2
    judgement.take(0, seen.table, among, answer)
    assert (judgement.base, judgement.margin) == (answer.base, answer.margin)
    assert judgement.hold_value is answer.hold_value
    if values:
        assert judgement.values is not None
        np.testing.assert_array_equal(judgement.values, np.where(seen.table.job == 1, 1.0, np.nan))
    else:
        assert judgement.values is None


def test_what_the_policy_says_of_its_own_choice_is_not_said_of_another() -> None:
    policy, rng, changed = with_rule(made("dqn"), Precedence(priority=1.0)), np.random.default_rng(7), 0
    policy.wait_ratio = math.inf
    for _ in range(4 * TRIALS):
        seen = drawn(rng, 9)
        judgement = policy.judge(seen)
        job, gpu = policy.choose(seen, judgement)[0].tolist()
        if judgement.basis_of(0) is DecisionBasis.MARGIN:
            assert judgement.base is not None
            assert (job, gpu) == (seen.table.job[judgement.base], seen.table.gpu[judgement.base])
        changed += judgement.notes.get(0) == "jobs of a higher level go first"
    assert changed > TRIALS / 5


@pytest.mark.parametrize("name", ["hold_gang", "drain_gang"])
def test_what_is_kept_free_is_kept_free_from_lower_jobs_alone(name: str) -> None:
    policy = with_rule(made(name), SHARE)
    seen = gang_point([Several(2, (20.0,)), Several(1, (50.0,))], [[0.0, 10.0]], reserved=0, time_s=1.0)
    low = replace(seen, job_user_service_s=np.array([[90.0, 0.0]]))
    judgement = policy.judge(low)
    assert policy.choose(low, judgement)[0, 0] == 1
    assert judgement.reserve is not None
    assert judgement.reserve.tolist() == [0], "and goes on being kept for it"
    high = replace(seen, job_user_service_s=np.array([[0.0, 90.0]]))
    assert policy.act(high)[0, 0] == HOLD


@pytest.mark.parametrize("name", ["srtf", "las_preemptive"])
def test_jobs_are_stopped_for_the_highest_first(name: str) -> None:
    policy = with_rule(made(name), Precedence(priority=1.0))
    policy.wait_ratio = math.inf
    seen = stop_point([Several(1, (8.0,)), Several(1, (2.0,))], [[100.0]])
    lowest_first = replace(seen, job_priority=np.array([[0.1, 0.9]]))
    judgement = policy.judge(lowest_first)
    assert judgement.busy[0].job == 1


def test_where_no_hold_is_allowed_the_highest_starts() -> None:
    class RefusesAll(Policy):
        name, description = "refuses_all", "for tests"

        def preferences(self, observation: Observation) -> Floats:
            return np.full(len(observation.table.job), -np.inf)

    jobs = [Waiting((5.0,), priority=0.1), Waiting((5.0,), priority=0.9)]
    policy = with_rule(RefusesAll(), Precedence(priority=1.0))
    assert policy.act(decision(jobs, [0], hold_allowed=False, time_s=1.0))[0, 0] == 1


# ---- what it does


def two_users(load: float) -> JobArrays:
    """A list of a user who submits all at once, and of one whose jobs come now and then."""
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=load, count=240, rng=np.random.default_rng(5))
    drawn_jobs = sorted(jobs, key=lambda job: job.submit_s)
    one = [replace(job, user="often", submit_s=0.0) for job in drawn_jobs[:160]]
    one += [replace(job, user="seldom", submit_s=job.submit_s / 2) for job in drawn_jobs[160:]]
    return pack_jobs([sorted(one, key=lambda job: job.submit_s)], scenario.cluster)


def waits_s(jobs: JobArrays, policy: Policy) -> tuple[Floats, Floats]:
    """The waits of both users' jobs."""
    half_life_s = math.inf if policy.precedence is None else policy.precedence.half_life_s
    simulator = BatchSimulator(load_scenario("paper").cluster, jobs, half_life_s=half_life_s)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
    wait_s = simulator.outcome().start_s[0] - jobs.submit_s[0]
    first = jobs.user[0] == jobs.user[0, 0]
    return wait_s[first], wait_s[~first]


@pytest.mark.parametrize(
    ("name", "most"),
    [("fcfs", 0.3), ("easy_backfill", 0.3), ("heft", 0.5), ("sjf", 0.9), ("hold_greedy_fixed", 0.9), ("dqn", 0.9)],
)
def test_fair_share_lets_a_user_of_few_jobs_by(name: str, most: float) -> None:
    """Policies that start short jobs first do so for most of his already."""
    jobs = two_users(1.0)
    often_s, seldom_s = waits_s(jobs, made(name))
    often_fair_s, seldom_fair_s = waits_s(jobs, with_rule(made(name), Precedence(fair_share=1.0, half_life_s=DAY_S)))
    assert seldom_fair_s.mean() < most * seldom_s.mean()
    assert often_fair_s.mean() < 1.6 * often_s.mean()


def test_gpu_time_is_forgotten_after_half_lives() -> None:
    """The observation has the integral of what counts, of ended and of running attempts."""
    scenario = load_scenario("paper")
    jobs = pack_jobs([draw_jobs(scenario, load=0.9, count=60, rng=np.random.default_rng(6))], scenario.cluster)
    half_life_s, policy = 900.0, made("fcfs")
    simulator = BatchSimulator(scenario.cluster, jobs, half_life_s=half_life_s)
    looked = 0
    while len(simulator.active):
        seen, outcome, now_s = simulator.observe(), simulator.outcome(), float(simulator.time_s[0])
        users = jobs.user[0]
        had_s = np.zeros(int(users.max()) + 1)
        runs = [(run.job, run.gpus, run.start_s, run.end_s) for run in outcome.runs(0)]
        going = np.isnan(outcome.end_s[0]) & ~np.isnan(outcome.start_s[0])
        for job in np.flatnonzero(going).tolist():
            runs.append((job, gpus_of(outcome.gpus[0, job]), float(outcome.start_s[0, job]), now_s))
        for job, gpus, start_s, end_s in runs:
            counts = 2 ** ((end_s - now_s) / half_life_s) - 2 ** ((start_s - now_s) / half_life_s)
            had_s[users[job]] += len(gpus) * half_life_s / math.log(2) * counts
        waiting = np.flatnonzero((jobs.submit_s[0] <= now_s) & np.isnan(outcome.start_s[0]))
        np.testing.assert_allclose(seen.job_user_service_s[0], had_s[users[waiting]], rtol=1e-9, atol=1e-9)
        looked += len(waiting) > 0 and bool(had_s.any())
        simulator.act(policy.act(seen))
    assert looked > 20
