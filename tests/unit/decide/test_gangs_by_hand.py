"""Each heuristic on decision points with jobs of several GPUs that are worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adlro.decide.policies import POLICIES
from adlro.decide.policies.conservative_backfill import ConservativeBackfill
from adlro.state.observation import Observation
from tests.policies import made
from tests.unit.decide.gang_points import HELD, Set, Several, action, point

INF = math.inf


def pick(name: str, seen: Observation) -> Set:
    policy = made(name)
    policy.wait_ratio = INF
    return action(policy.act(seen)[0].tolist())


# ---- who is first: two idle GPUs of node 0, all four of node 1; a job of eight that fits nowhere is the head.

BLOCKED = [
    Several(8, 10.0),
    Several(4, 6.0, service_s=5.0),
    Several(1, 9.0, service_s=9.0),
    Several(2, 5.0, service_s=5.0),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fcfs", HELD),  # the head blocks, as any head that doesn't fit
        ("fcfs_fastest", HELD),
        ("static", HELD),  # all of one type: the head of the model's queue
        ("sjf", (3, (0, 1))),  # 5 s
        ("shortest_area", (2, (0,))),  # 9 GPU seconds; the others 24 and 10
        ("las", (1, (4, 5, 6, 7))),  # of the least served that fit, the first
        ("wspt", (3, (0, 1))),
        ("hungarian", (3, (0, 1))),  # 1/5 instead of the 1/9 that the GPU has in the matching; then the fastest
    ],
)
def test_who_goes_first(name: str, expected: Set) -> None:
    assert pick(name, point(BLOCKED, [[0, 0, 20, 20], [0, 0, 0, 0]])) == expected


def test_the_head_takes_the_packed_set_even_where_the_spread_one_has_a_lower_gpu() -> None:
    jobs = [Several(4, 10.0)]
    seen = point(jobs, [[0, 9, 9, 9], [0, 0, 9, 9], [0, 0, 0, 0]])
    for name in ("fcfs", "fcfs_fastest", "static", "sjf", "shortest_area", "hungarian"):
        assert pick(name, seen) == (0, (8, 9, 10, 11))
    # Without a packed one it starts spread, on the fullest nodes.
    seen = point(jobs, [[0, 9, 9, 9], [0, 0, 9, 9], [0, 0, 0, 9]])
    assert pick("fcfs", seen) == (0, (0, 4, 5, 8))
    assert pick("fcfs", point([Several(4, 10.0, max_nodes=1)], [[0, 9, 9, 9], [0, 0, 9, 9], [0, 0, 0, 9]])) == HELD


def test_random_draws_the_packed_and_the_spread_set_apart() -> None:
    jobs = [Several(2, 10.0)]
    # Node 1 is the fuller one: the spread set has GPU 4 and GPU 0, with which the packed one begins too.
    seen = point(jobs, [[0, 0, 9, 9], [0, 9, 9, 9]])
    assert seen.table.gpus.tolist() == [[0, 1], [0, 4]]
    times = np.random.default_rng(1).uniform(0, 1e4, 400)
    drawn = [pick("random", point(jobs, [[0, 0, 9, 9], [0, 9, 9, 9]], time_s=float(time_s))) for time_s in times]
    assert 140 < drawn.count((0, (0, 1))) < 260
    assert set(drawn) == {(0, (0, 1)), (0, (0, 4))}


def test_a_gang_takes_from_the_matching_what_gains() -> None:
    # The matching has rates 1/8 on each of two GPUs: 0.25 in all.
    singles = [Several(1, 8.0), Several(1, 8.0)]
    assert pick("hungarian", point([*singles, Several(2, 3.9)], [[0, 0]])) == (2, (0, 1))
    assert pick("hungarian", point([*singles, Several(2, 4.1)], [[0, 0]])) == (0, (0,))


# ---- EASY: the head asks for four GPUs; node 0 is free at 10 s (one GPU now), node 1 at 30 s (two now).

EASY = [[10, 10, 10, 0], [0, 0, 30, 30]]
HEAD = Several(4, 20.0, spread_speed=0.25)


@pytest.mark.parametrize("name", ["easy_backfill", "conservative_backfill"])
@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ([Several(1, 10.0)], (1, (3,))),  # ends in time
        ([Several(1, 11.0)], (1, (4,))),  # not on the reserved node, but beside it
        ([Several(2, 50.0)], (1, (4, 5))),  # the packed set, not that with GPU 3
        ([Several(3, 5.0)], (1, (3, 4, 5))),  # spread it takes 10 s: in time
        ([Several(3, 5.1)], HELD),  # 10.2 s
        ([Several(3, 5.1), Several(1, 9.0)], (2, (3,))),
    ],
)
def test_what_may_start_behind_a_head_of_four(name: str, behind: list[Several], expected: Set) -> None:
    assert pick(name, point([HEAD, *behind], EASY)) == expected


def test_easy_uses_the_slack_of_the_reserved_node() -> None:
    # The head asks for three of node 0, where four are free at 10 s: one may be taken for longer, not two.
    head = Several(3, 20.0, spread_speed=0.0)
    nodes = [[10, 10, 0, 0]]
    assert pick("easy_backfill", point([head, Several(1, 99.0)], nodes)) == (1, (2,))
    assert pick("easy_backfill", point([head, Several(2, 99.0)], nodes)) == HELD
    # By cores too: 3 for the head with each of its GPUs, 12 in all, 11 are free then.
    head = Several(3, 20.0, cores=3, spread_speed=0.0)
    free, held = [5], [3, 3, 0, 0]
    assert pick("easy_backfill", point([head, Several(1, 99.0, cores=2)], nodes, cores_free=free, cores_held=held)) == (
        1,
        (2,),
    )
    assert (
        pick("easy_backfill", point([head, Several(1, 99.0, cores=3)], nodes, cores_free=free, cores_held=held)) == HELD
    )


def test_a_head_of_several_waits_for_the_set_with_which_it_ends_first() -> None:
    # Spread it could start now, and end at 20 / 0.25; packed on node 0 at 10 + 20.
    assert pick("easy_backfill", point([HEAD], [[10, 10, 0, 0], [0, 0, 30, 30]])) == HELD
    assert pick("conservative_backfill", point([HEAD], [[10, 10, 0, 0], [0, 0, 30, 30]])) == HELD
    # At 0.7 it ends at 28.6.
    quick = Several(4, 20.0, spread_speed=0.7)
    assert pick("easy_backfill", point([quick], [[10, 10, 0, 0], [0, 0, 30, 30]])) == (0, (2, 3, 4, 5))
    assert pick("conservative_backfill", point([quick], [[10, 10, 0, 0], [0, 0, 30, 30]])) == (0, (2, 3, 4, 5))


def test_a_head_of_one_gpu_is_not_delayed_by_a_set() -> None:
    # The head asks for 8 cores of node 0, free at 10 s (3 now); three jobs behind it.
    def seen(*behind: Several) -> Observation:
        head = Several(1, (20.0, INF), cores=8)
        return point(
            [head, *behind],
            [[10, 0, 0, 0], [40, 40, 0, 40]],
            model=[0, 1],
            cores_free=[3, 8],
            cores_held=[7, 0, 0, 0, 1, 1, 0, 1],
        )

    # The head gets GPU 0; 3 + 7 - 8 = 2 cores are left beside it.
    assert pick("easy_backfill", seen(Several(3, (10.0, INF)))) == (1, (1, 2, 3))
    assert pick("easy_backfill", seen(Several(3, (11.0, INF)))) == HELD
    assert pick("easy_backfill", seen(Several(2, (11.0, INF)))) == (1, (1, 2))


def test_conservative_promises_the_second_too() -> None:
    # Job 0 asks for all of node 0 at 10 s; job 1 for both nodes' eight at 30; job 2 would delay only job 1.
    jobs = [Several(4, 20.0, spread_speed=0.0), Several(8, 5.0), Several(2, 40.0)]
    seen = point(jobs, [[10, 10, 10, 10], [0, 0, 29, 29]])
    assert pick("easy_backfill", seen) == (2, (4, 5))
    assert pick("conservative_backfill", seen) == HELD
    jobs[2] = Several(2, 30.0)
    assert pick("conservative_backfill", point(jobs, [[10, 10, 10, 10], [0, 0, 29, 29]])) == (2, (4, 5))


def test_conservative_keeps_cores_as_well() -> None:
    # Job 0 asks for 6 of 8 cores at 10 s, for 20 s; what runs longer than 10 s may take 2 of them.
    jobs = [Several(1, 20.0, cores=6), Several(1, 50.0, cores=3)]
    free, held = [3], [5, 0, 0, 0]
    seen = point([*jobs, Several(2, 1000.0, spread_speed=0.0)], [[10, 0, 0, 0]], cores_free=free, cores_held=held)
    assert pick("conservative_backfill", seen) == (2, (1, 2))
    jobs[1] = Several(1, 10.0, cores=3)
    assert pick("conservative_backfill", point(jobs, [[10, 0, 0, 0]], cores_free=free, cores_held=held)) == (1, (1,))


def test_beyond_its_depth_conservative_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Several(4, 20.0, spread_speed=0.0), Several(8, 5.0), Several(2, 40.0)]
    seen = point(jobs, [[10, 10, 10, 10], [0, 0, 29, 29]])
    monkeypatch.setattr("adlro.decide.policies.conservative_backfill.DEPTH", 1)
    assert pick("conservative_backfill", seen) == (2, (4, 5))
    assert isinstance(made("conservative_backfill"), ConservativeBackfill)


# ---- plans


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # In order: job 0 on node 0 at 10 s, which keeps GPUs 2 and 3; job 1 at once on node 1.
        ("mct", (1, (4,))),
        # Job 1 ends at 4, first of all: on the lowest of the GPUs.
        ("min_min", (1, (2,))),
        # Job 0 ends at 15: latest, it is planned first.
        ("max_min", (1, (4,))),
        ("heft", (1, (4,))),
    ],
)
def test_a_plan_keeps_the_gpus_of_a_gang_that_waits_for_others(name: str, expected: Set) -> None:
    jobs = [Several(4, 5.0, spread_speed=0.0), Several(1, 4.0)]
    both = point(jobs, [[10, 10, 0, 0], [0, 30, 30, 30]])
    assert pick(name, both) == expected
    # With node 0 alone: min_min starts job 1 there first, the others keep the node for job 0.
    alone = pick(name, point(jobs, [[10, 10, 0, 0]]))
    assert alone == ((1, (2,)) if name == "min_min" else HELD)


def test_a_gang_is_planned_for_when_the_last_of_its_gpus_is_free() -> None:
    # Node 0 at 10 + 5 = 15, spread over both at once at 5 / 0.3 = 16.7, at 0.5 at 10.
    def seen(spread_speed: float) -> Observation:
        return point([Several(4, 5.0, spread_speed=spread_speed)], [[10, 0, 0, 0], [0, 30, 30, 30]])

    assert pick("mct", seen(0.3)) == HELD
    assert pick("mct", seen(0.5)) == (0, (1, 2, 3, 4))


def test_a_plan_chooses_the_model_where_a_gang_ends_first() -> None:
    jobs = [Several(2, (4.0, 12.0))]
    assert pick("mct", point(jobs, [[7, 7, 7, 7], [0, 0, 0, 0]], model=[0, 1])) == HELD
    assert pick("mct", point(jobs, [[9, 9, 9, 9], [0, 0, 0, 0]], model=[0, 1])) == (0, (4, 5))


def test_sufferage_of_a_gang_is_what_it_loses_without_the_gpus_of_its_best_set() -> None:
    # Job 0: 4 s on node 0, 6 on node 1 (another model): 2 lost. Job 1: nothing lost; below all, as it has no other.
    jobs = [Several(2, (4.0, 6.0)), Several(1, (5.0, 5.0))]
    nodes = [[0, 0], [0, 0]]
    assert pick("sufferage", point(jobs, nodes, model=[0, 1])) == (0, (0, 1))
    jobs = [Several(2, (4.0, 6.0)), Several(2, (5.0, INF))]
    assert pick("sufferage", point(jobs, nodes, model=[0, 1])) == (1, (0, 1))


def test_a_gang_whose_sets_are_kept_for_others_is_left_out() -> None:
    # Job 0 keeps GPUs 2 and 3; job 1 fits best there, and isn't named elsewhere: job 2 goes on.
    jobs = [Several(4, 5.0, spread_speed=0.0), Several(2, 50.0, spread_speed=0.0), Several(1, 9.0)]
    assert pick("mct", point(jobs, [[10, 10, 0, 0], [0, 0, 0, 70]])) == (2, (4,))


# ---- what a network has not learned


def test_the_network_decides_nothing_while_gpus_are_kept_free_for_a_job_of_one() -> None:
    seen = point([Several(1, 10.0), Several(1, 5.0)], [[0, 0, 20, 20]], reserved=0)
    judgement = made("dqn").judge(seen)
    assert judgement.notes[0] == "GPUs are kept free for a job; the network has not learned that"
    np.testing.assert_array_equal(judgement.scores, POLICIES["hold_gang"]().judge(seen).scores)


def test_a_gang_that_runs_is_as_many_busy_gpus_for_the_network() -> None:
    jobs = [Several(1, 10.0), Several(1, 5.0)]
    seen = point(jobs, [[0, 0, 20, 20], [0, 7, 7, 7]], runs=[(2, 3)])
    judgement = made("dqn").judge(seen)
    assert judgement.notes.get(0, "") != "a job of several GPUs waits; the network has not learned them"
