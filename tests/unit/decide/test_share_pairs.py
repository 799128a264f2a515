"""The policy share_pairs: cases by hand, and its pairs as worked out one by one in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.base import BusyStart
from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.decide.policies.share_pairs import SharePairs, SharePairsSettings
from adlro.errors import InvalidInput
from adlro.records.decisions import DecisionBasis
from adlro.state.candidate_table import with_new_table
from adlro.state.observation import Floats, Observation
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged
from tests.unit.decide.gang_points import Several, point
from tests.unit.decide.sharing_points import ALONE, merged_sharing, shared

HELD = (-1, ())
EVEN = {(0, 0): 0.8, (0, 1): 0.8, (1, 0): 0.8, (1, 1): 0.8}


def policy(*, wait_ratio: float = np.inf, **changed: float) -> SharePairs:
    made = SharePairs(SharePairsSettings(**{"s_min": 1.4, "pen": 1.0, **changed}))
    made.wait_ratio = wait_ratio
    return made


def chosen(seen: Observation, rule: SharePairs | None = None) -> tuple[int, tuple[int, ...]]:
    """The job and its GPUs; whether the GPU is shared must be as it says."""
    rule = rule or policy()
    judgement = rule.judge(seen)
    row = rule.choose(seen, judgement)[0]
    gpus = tuple(int(gpu) for gpu in row[1:] if gpu >= 0)
    stops = rule.stopping(seen, judgement)
    assert stops is None or not stops.any()
    assert (0 in judgement.busy) == (row[0] >= 0 and not seen.gpu_idle[0, list(gpus)].all())
    return int(row[0]), gpus


def one(seen: Observation, rule: SharePairs | None = None) -> tuple[float, float]:
    """Cost and score of the first job's best pair."""
    found = (rule or policy()).pairs_of(seen, None)
    return float(found.cost_s[0, 0]), float(found.score[0, 0])


# ---- by hand. Of GPUs of one model, on one node, GPU 0 has a resident.


def test_the_cost_is_the_own_stretched_time_and_the_harm_to_the_resident() -> None:
    # Together for min(8 / 0.8, 10 / 0.8) = 10 s: the job loses 2 s, the resident 2 s.
    seen = shared(decision([Waiting((8.0,))], [10.0]), [1], {0: 0}, EVEN)
    cost_s, score = one(seen)
    assert cost_s == pytest.approx(12.0)
    slow = FIXED.alpha * math.log(1.5) + FIXED.packing - FIXED.ageing * math.log1p(12.5)
    assert score == pytest.approx(-(math.log(8.0) + slow))
    # Together for 2 / 0.8 = 2.5 s, then alone.
    seen = shared(decision([Waiting((8.0,))], [2.0]), [1], {0: 0}, EVEN)
    assert one(seen)[0] == pytest.approx(9.0)
    assert one(seen, policy(pen=3.0))[0] == pytest.approx(10.0)
    assert one(seen, policy(pen=0.0))[0] == pytest.approx(8.5)


def test_each_of_the_two_has_its_own_share_on_the_gpus_model() -> None:
    kept = np.zeros((2, 2, 3))
    kept[1, 0], kept[0, 1] = [0.5, 1.0, 0.0], [1.0, 0.6, 0.0]  # of family 1 beside 0, and the other way round
    jobs = [Waiting((8.0, 8.0, 8.0))]
    # Model 0: the job has half its speed for 16 s. Model 1: it loses nothing, the resident 0.4 of 8 s.
    first = shared(decision(jobs, [90.0, 90.0, 90.0]), [1], {0: 0}, kept)
    second = shared(decision(jobs, [90.0, 90.0, 90.0]), [1], {1: 0}, kept)
    third = shared(decision(jobs, [90.0, 90.0, 90.0]), [1], {2: 0}, kept)
    assert one(first)[0] == pytest.approx(16.0)
    assert one(second)[0] == pytest.approx(11.2)
    assert one(third) == (np.inf, -np.inf)
    assert chosen(shared(decision(jobs, [90.0, 90.0, 90.0]), [1], {0: 0, 1: 0, 2: 0}, kept)) == (0, (1,))


def test_a_pair_starts_where_it_is_not_much_worse_than_the_wait() -> None:
    # The pair costs 12 s. GPU 1, which is not shared, is expected to be idle after w s: refused from 1.25 (w + 8) on.
    def at(wait_s: float) -> Observation:
        return shared(decision([Waiting((8.0, 8.0))], [10.0, wait_s], model=[0, 0], node=[0, 0]), [1], {0: 0}, EVEN)

    assert chosen(at(1.5)) == HELD
    assert chosen(at(1.7)) == (0, (0,))


def test_shares_that_add_up_to_too_little_are_refused() -> None:
    seen = decision([Waiting((8.0,))], [30.0])
    low = {(1, 0): 0.9, (0, 1): 0.49}
    assert chosen(shared(seen, [1], {0: 0}, low)) == HELD
    assert chosen(shared(seen, [1], {0: 0}, low), policy(s_min=1.3)) == (0, (0,))
    assert chosen(shared(seen, [1], {0: 0}, {(1, 0): 0.9, (0, 1): 0.51})) == (0, (0,))
    # Without a figure for either of them they do not run together, whatever s_min says.
    assert chosen(shared(seen, [1], {0: 0}, {(1, 0): 0.9}), policy(s_min=0.0)) == HELD


def test_only_what_may_share_and_fits_shares() -> None:
    seen = decision([Waiting((8.0,), cores=4, memory_mib=500)], [30.0], cores_free=[4], memory_free_mib=[500])
    assert chosen(shared(seen, [1], {0: 0}, EVEN)) == (0, (0,))
    assert chosen(shared(seen, [ALONE], {0: 0}, EVEN)) == HELD
    assert chosen(shared(seen, [1], {}, EVEN)) == HELD
    assert chosen(shared(seen, [1], {0: 0}, EVEN, memory_left_mib={0: 999})) == HELD
    assert chosen(shared(seen, [1], {0: 0}, EVEN, memory_left_mib={0: 1000})) == (0, (0,))
    for lacking in (
        decision([Waiting((8.0,), cores=5, memory_mib=500)], [30.0], cores_free=[4], memory_free_mib=[500]),
        decision([Waiting((8.0,), cores=4, memory_mib=501)], [30.0], cores_free=[4], memory_free_mib=[500]),
    ):
        assert chosen(shared(lacking, [1], {0: 0}, EVEN)) == HELD


def test_of_two_equal_residents_the_one_whose_node_has_room_is_taken() -> None:
    # GPU 0's resident ends first, but its node has too few cores.
    seen = decision([Waiting((8.0, 8.0), cores=4)], [5.0, 9.0], model=[0, 0], node=[0, 1], cores_free=[3, 4])
    assert chosen(shared(seen, [1], {0: 0, 1: 0}, EVEN)) == (0, (1,))
    seen = decision([Waiting((8.0, 8.0), cores=4)], [5.0, 9.0], model=[0, 0], node=[0, 1], cores_free=[4, 4])
    assert chosen(shared(seen, [1], {0: 0, 1: 0}, EVEN)) == (0, (0,))


def test_on_a_tie_the_resident_that_ends_first_then_the_lower_gpu_then_the_earlier_job() -> None:
    # Both residents outlast the job: the costs are equal.
    seen = decision([Waiting((8.0,) * 3)] * 2, [90.0, 80.0, 80.0], model=[0] * 3, node=[0] * 3)
    assert chosen(shared(seen, [1, 1], {0: 0, 1: 0, 2: 0}, EVEN)) == (0, (1,))
    assert chosen(shared(seen, [1, 1], {0: 0, 1: 1, 2: 0}, EVEN)) == (0, (1,))


def test_an_idle_gpu_goes_before_an_equally_good_pair() -> None:
    free = {(0, 1): 1.0, (1, 0): 1.0}
    seen = shared(decision([Waiting((8.0, 8.0))], [9.0, 0.0], model=[0, 0], node=[0, 0]), [1], {0: 0}, free)
    judgement = policy().judge(seen)
    assert one(seen)[0] == 8.0
    assert judgement.busy == {}
    assert chosen(seen) == (0, (1,))


def test_a_pair_on_a_fast_gpu_goes_before_an_idle_slow_one() -> None:
    # 9 s beside the resident, 20 s alone on the slow one.
    seen = decision([Waiting((8.0, 20.0))], [2.0, 0.0], node=[0, 0], cores_free=[8])
    assert chosen(shared(seen, [1], {0: 0}, EVEN)) == (0, (0,))
    assert policy().judge(shared(seen, [1], {0: 0}, EVEN)).busy == {0: BusyStart(0, (0,), stops=False)}


def test_without_anything_to_share_it_is_hold_greedy_fixed_bit_for_bit() -> None:
    rng, rule, single = np.random.default_rng(5), policy(), HoldGreedyFixed()
    single.wait_ratio = np.inf
    for _ in range(30):
        seen = drawn(rng, int(rng.integers(0, 12)))
        assert np.array_equal(rule.scores(seen), single.scores(seen))
        nobody = shared(seen, [ALONE] * seen.job_waiting.shape[1], {}, EVEN)
        assert np.array_equal(rule.scores(nobody), single.scores(nobody))
        assert rule.judge(nobody).busy == {}


def test_without_anything_to_share_it_is_hold_gang_bit_for_bit() -> None:
    jobs = [Several(4, 5.0, spread_speed=0.5), Several(1, 6.0, submit_s=900.0), Several(2, 2.0, submit_s=950.0)]
    for nodes in ([[0.0, 0.0], [0.0, 9.0]], [[3.0, 0.0], [0.0, 0.0]], [[3.0, 4.0], [5.0, 0.0]]):
        seen, gang = point(jobs, nodes), HoldGang()
        gang.wait_ratio = np.inf
        ours, theirs = policy().judge(seen), gang.judge(seen)
        assert np.array_equal(ours.scores, theirs.scores)
        assert ours.reserve is not None
        assert theirs.reserve is not None
        assert np.array_equal(ours.reserve, theirs.reserve)


# ---- pairs one by one


def plain_pairs(seen: Observation, rule: SharePairs) -> tuple[float, tuple[int, int] | None]:
    """The best score of a pair, and the job and the GPU, by the rule's text: every pair, one after the other."""
    sharing = seen.sharing
    assert sharing is not None
    duration_s = np.take_along_axis(seen.kind_duration_s[0], seen.gpu_kind[0][None], axis=1)
    best, found = -math.inf, None
    for job in np.flatnonzero(seen.job_waiting[0] & sharing.job_shareable[0]).tolist():
        its = range(seen.table.first[0, job], seen.table.first[0, job + 1])
        now = {seen.gpu_kind[0, seen.table.gpu[row]] for row in its}
        best_s = completion_s = math.inf
        for gpu in range(seen.gpu_idle.shape[1]):
            fits, node = seen.gpu_kind[0, gpu] in now, seen.gpu_node[0, gpu]
            wait_s = float(seen.gpu_remaining_s[0, gpu])
            if seen.gpu_idle[0, gpu]:
                others = (seen.gpu_node[0] == node) & ~seen.gpu_idle[0]
                wait_s = float(seen.gpu_remaining_s[0, others].min(initial=math.inf))
            wait_s = 0.0 if fits else wait_s
            if wait_s < math.inf:
                best_s = min(best_s, float(duration_s[job, gpu]))
            completion_s = min(completion_s, FIXED.kappa * wait_s + float(duration_s[job, gpu]))
        pairs = []
        for gpu in np.flatnonzero(sharing.gpu_open[0]).tolist():
            node, model = seen.gpu_node[0, gpu], seen.gpu_model[0, gpu]
            mine = float(sharing.kept[sharing.job_family[0, job], sharing.gpu_family[0, gpu], model])
            its_share = float(sharing.kept[sharing.gpu_family[0, gpu], sharing.job_family[0, job], model])
            fits = (
                seen.job_gpu_memory_mib[0, job] <= sharing.gpu_memory_left_mib[0, gpu]
                and seen.job_cores[0, job] <= seen.node_cores_free[0, node]
                and seen.job_memory_mib[0, job] <= seen.node_memory_free_mib[0, node]
            )
            alone_s, left_s = float(duration_s[job, gpu]), float(seen.gpu_remaining_s[0, gpu])
            if (
                not (fits and mine > 0 and its_share > 0 and mine + its_share >= rule.pairs.s_min)
                or alone_s == math.inf
            ):
                continue
            together_s = min(alone_s / mine, left_s / its_share)
            cost_s = alone_s + together_s * ((1.0 - mine) + rule.pairs.pen * (1.0 - its_share))
            pairs.append((cost_s, left_s, gpu))
        if not pairs:
            continue
        cost_s, _, gpu = min(pairs)
        if seen.hold_allowed[0] and cost_s > FIXED.theta * completion_s:
            continue
        waited_s = max(float(seen.time_s[0] - seen.job_submit_s[0, job]), 0.0)
        score = FIXED.ageing * math.log1p(waited_s / best_s) - math.log(best_s)
        score -= FIXED.alpha * math.log(cost_s / best_s) + FIXED.packing
        if score > best + 1e-12:
            best, found = score, (job, gpu)
    return best, found


def drawn_shared(rng: np.random.Generator, jobs: int, kept: Floats) -> Observation:
    """A drawn decision point with few idle GPUs; some of the busy ones have a resident."""
    seen = drawn(rng, jobs)
    idle = seen.gpu_idle & (rng.random(seen.gpu_idle.shape) < 0.2)
    remaining_s = np.where(seen.gpu_idle & ~idle, rng.exponential(20.0, idle.shape), seen.gpu_remaining_s)
    seen = with_new_table(replace(seen, gpu_idle=idle, gpu_remaining_s=remaining_s))
    busy = np.flatnonzero(~seen.gpu_idle[0])
    residents = {int(gpu): int(rng.integers(len(kept))) for gpu in busy if rng.random() < 0.8}
    families = [int(rng.integers(-1, len(kept))) for _ in range(jobs)]
    left_mib = {gpu: int(rng.choice([999, 1000, 8000])) for gpu in residents}
    return shared(seen, families, residents, kept, memory_left_mib=left_mib)


def draw_kept(rng: np.random.Generator) -> Floats:
    kept = np.round(rng.uniform(0.4, 1.0, (4, 4, 3)), 1)
    return np.where(rng.random((4, 4, 3)) < 0.1, 0.0, kept)


def test_the_pairs_are_those_of_the_text() -> None:
    rng, starts = np.random.default_rng(7), 0
    for _ in range(400):
        seen = drawn_shared(rng, int(rng.integers(0, 12)), draw_kept(rng))
        rule = policy(s_min=float(rng.choice([1.0, 1.4])), pen=float(rng.choice([0.5, 1.0, 2.0])))
        judgement, single = rule.judge(seen), HoldGreedyFixed()
        single.wait_ratio = np.inf
        best, found = plain_pairs(seen, rule)
        assert np.array_equal(judgement.scores, single.scores(seen))
        wins = found is not None and best > judgement.scores.max(initial=-np.inf)
        assert judgement.busy == ({0: BusyStart(found[0], (found[1],), stops=False)} if found and wins else {})
        starts += wins
    assert starts > 100


def test_a_batch_is_its_members() -> None:
    rng, rule = np.random.default_rng(8), policy()
    kept = draw_kept(rng)
    members = [drawn_shared(rng, 9, kept) for _ in range(25)]
    batch = replace(merged(members), sharing=merged_sharing(members))
    alone = np.concatenate([rule.act(each) for each in members])
    np.testing.assert_array_equal(rule.act(batch), alone)
    assert rule.judge(batch).busy.keys() == {n for n, each in enumerate(members) if rule.judge(each).busy}


# ---- beside jobs of several GPUs


def gangs_and_pairs(
    jobs: Sequence[Several], nodes: list[list[float]], residents: dict[int, int], **more: object
) -> Observation:
    seen = point(jobs, nodes, **more)  # type: ignore[arg-type]
    return shared(seen, [1 if job.gpu_count == 1 else ALONE for job in jobs], residents, EVEN)


def test_where_a_gang_runs_a_pair_is_scored_as_hold_gang_scores() -> None:
    # The pair costs 12 s; hold_gang has theta 1.5 and kappa 0.75: refused from 1.5 (0.75 w + 8) on, with w s of wait.
    def at(wait_s: float) -> Observation:
        nodes = [[10.0, wait_s, 50.0, 50.0]]
        return gangs_and_pairs([Several(1, 8.0)], nodes, {0: 0}, runs=[[2, 3]])

    assert chosen(at(0.1)) == (0, (0,))
    # A resident that stays longer does not cost more; one that ends sooner less.
    found = policy().pairs_of(at(0.1), np.array([-1]))
    assert found.cost_s[0, 0] == pytest.approx(12.0)
    rule = SharePairs(SharePairsSettings(1.0, 6.0))  # the pair costs 8 + 10 (0.2 + 1.2) = 22 s
    rule.wait_ratio = np.inf
    assert chosen(at(8.8), rule) == HELD
    assert chosen(at(8.9), rule) == (0, (0,))


def test_in_a_deep_queue_a_pair_is_weighed_by_the_alpha_of_starts() -> None:
    # 40 jobs of 8 s before 4 GPUs: 10 each, of the 16 from which on alpha is 2.5.
    seen = gangs_and_pairs([Several(1, 8.0) for _ in range(40)], [[10.0, 5.0, 50.0, 50.0]], {0: 0}, runs=[[2, 3]])
    found = policy().pairs_of(seen, np.array([-1]))
    alpha = 6.0 - 3.5 * (10.0 / 16.0) ** 2
    waited_s = seen.time_s[0] - seen.job_submit_s[0, 0]
    cost = np.log(8.0) + alpha * np.log(12.0 / 8.0) - 0.4 * np.log1p(waited_s / 8.0)
    assert found.score[0, 0] == pytest.approx(-cost)


def test_no_pair_delays_the_job_that_gpus_are_kept_free_for() -> None:
    # The gang of 4 has the reservation; its node is expected to be empty in 20 s. On another node there is no idle GPU.
    jobs = [Several(4, 5.0, spread_speed=0.0, submit_s=0.0), Several(1, 8.0, submit_s=990.0)]

    def at(left_s: float, **more: object) -> Observation:
        nodes = [[left_s, 20.0, 20.0, 20.0], [90.0, 90.0]]
        return gangs_and_pairs(jobs, nodes, {0: 0}, reserved=0, **more)

    # Together for 10 s: the job ends after 10 s, the resident of 12 s after 14 s.
    assert chosen(at(12.0)) == (1, (0,))
    # Of 19 s after 21 s: too late.
    assert chosen(at(19.0)) == HELD
    # Where nobody has a reservation it may.
    assert chosen(gangs_and_pairs(jobs[1:], [[19.0, 20.0, 20.0, 20.0]], {0: 0}, runs=[[1, 2]])) == (0, (0,))
    # On a node that is not kept it may.
    nodes = [[19.0, 20.0, 20.0, 20.0], [90.0, 90.0]]
    assert chosen(gangs_and_pairs(jobs, nodes, {0: 0, 4: 0}, reserved=0)) == (1, (4,))


def test_the_reserved_job_starts_before_any_pair() -> None:
    jobs = [Several(2, 50.0, spread_speed=0.0), Several(1, 0.01, submit_s=999.0)]
    seen = gangs_and_pairs(jobs, [[0.0, 0.0], [90.0, 90.0]], {2: 0}, reserved=0)
    assert chosen(seen) == (0, (0, 1))


# ---- no job waits for ever


def test_an_overdue_job_that_fits_nowhere_goes_beside_another_even_where_the_policy_would_wait() -> None:
    # As above the pair costs 12 s, and GPU 1 is idle in half a second: the policy holds.
    seen = decision([Waiting((8.0, 8.0))], [10.0, 0.5], model=[0, 0], node=[0, 0], time_s=1000.0)
    seen = shared(seen, [1], {0: 0}, EVEN)
    assert chosen(seen) == HELD
    rule = policy(wait_ratio=2.0)
    assert chosen(seen, rule) == (0, (0,))
    assert rule.judge(seen).basis_of(0) is DecisionBasis.OVERDUE


def test_an_overdue_job_starts_on_an_idle_gpu_before_others_share() -> None:
    jobs = [Waiting((50.0, 50.0)), Waiting((1.0, 1.0), submit_s=999.0)]
    seen = decision(jobs, [10.0, 0.0], model=[0, 0], node=[0, 0], time_s=1000.0)
    seen = shared(seen, [ALONE, 1], {0: 0}, {(1, 0): 1.0, (0, 1): 1.0})
    assert chosen(seen) == (1, (1,))
    assert chosen(seen, policy(wait_ratio=2.0)) == (0, (1,))
    assert policy(wait_ratio=2.0).judge(seen).basis_of(0) is DecisionBasis.OVERDUE


def waits_for_a_node(residents: dict[int, int], submit_s: float = 999.0) -> Observation:
    """Job 0 is overdue and shares no GPU: it waits for node 1, whose last start is furthest back. Nothing is idle."""
    jobs = [Waiting((50.0,) * 4), Waiting((1.0,) * 4, submit_s=submit_s)]
    elapsed_s = [5.0, 5.0, 30.0, 40.0]
    seen = decision(
        jobs, [90.0, 90.0, 90.0, 60.0], model=[0] * 4, node=[0, 0, 1, 1], elapsed_s=elapsed_s, time_s=1000.0
    )
    return shared(seen, [ALONE, 1], residents, {(1, 0): 0.8, (0, 1): 0.8, (1, 1): 1.0})


def test_nobody_goes_beside_a_job_on_the_node_that_an_overdue_one_waits_for() -> None:
    rule = policy(wait_ratio=2.0)
    # Without the limit GPU 3, whose resident ends first.
    assert chosen(waits_for_a_node({2: 0, 3: 0})) == (1, (3,))
    assert chosen(waits_for_a_node({2: 0, 3: 0}), rule) == HELD
    assert rule.judge(waits_for_a_node({2: 0, 3: 0})).basis_of(0) is DecisionBasis.OVERDUE
    # The next best pair elsewhere.
    assert chosen(waits_for_a_node({0: 0, 3: 0})) == (1, (3,))
    assert chosen(waits_for_a_node({0: 0, 3: 0}), rule) == (1, (0,))


def test_a_job_that_is_as_old_may_go_anywhere() -> None:
    first = waits_for_a_node({3: 0}, submit_s=0.0)
    older = shared(first, [1, ALONE], {3: 0}, {(1, 0): 0.8, (0, 1): 0.8})
    assert chosen(older, policy(wait_ratio=2.0)) == (0, (3,))


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidInput, match="s_min"):
        SharePairsSettings(s_min=-1.0, pen=1.0)
    with pytest.raises(InvalidInput, match="pen"):
        SharePairsSettings(s_min=1.4, pen=math.inf)
