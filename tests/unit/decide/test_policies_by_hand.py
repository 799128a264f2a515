"""Each heuristic on decision points worked out by hand, where the right answer is not that of its neighbours."""

from __future__ import annotations

import itertools
import math

import pytest

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.hold_greedy import SETTINGS, HoldGreedy, HoldGreedyFixed, HoldGreedySettings
from adlro.decide.policies.static import Static
from adlro.errors import InvalidInput
from adlro.records.jobs import JobType
from adlro.state.observation import Observation
from tests.dense import dense
from tests.unit.decide.decision_points import Waiting, decision

INF = math.inf
HELD = (-1, -1)


def pick(policy: Policy | str, observation: Observation) -> tuple[int, int]:
    chosen = POLICIES[policy]() if isinstance(policy, str) else policy
    chosen.wait_ratio = math.inf  # what it wants itself, however long jobs have waited
    job, gpu = chosen.act(observation)[0]
    return int(job), int(gpu)


# Three idle GPUs. Each job is the one that some policy puts first:
#                          fastest  mean   second best less best
QUEUE = [
    Waiting((6, 5, 6), priority=0.25, service_s=30),  # 5      5.67   1
    Waiting((9, 10, 11), priority=1.0, service_s=9),  # 9     10      1
    Waiting((2, 3, 4), priority=0.25, service_s=30),  # 2      3      1
    Waiting((4, 8, 9), priority=1.0, service_s=20),  #  4      7      4
    Waiting((7, 7.5, 40), priority=0.5, service_s=0),  # 7    18.2    0.5
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", (0, 0)),  # the head, lowest number
        ("fcfs_fastest", (0, 1)),  # the head, where it takes 5 s
        ("mct", (0, 1)),  # the first in order of submission, earliest end 5
        ("easy_backfill", (0, 1)),  # the head fits: no need to backfill
        ("sjf", (2, 0)),  # 2 s
        ("min_min", (2, 0)),  # earliest end 2
        ("max_min", (1, 0)),  # its earliest end is 9, the latest
        ("sufferage", (3, 0)),  # loses 4 s on its second best
        ("heft", (4, 0)),  # the greatest mean
        ("wspt", (3, 0)),  # priority / duration 0.25 against 0.125 of job 2 and 0.111 of job 1
        ("las", (4, 0)),  # its user has had nothing
        ("hungarian", (2, 0)),  # job 2 on 0, job 0 on 1, job 3 on 2: 0.5 + 0.2 + 0.111; the fastest of these first
    ],
)
def test_with_all_gpus_idle(policy: str, expected: tuple[int, int]) -> None:
    assert pick(policy, decision(QUEUE, [0, 0, 0])) == expected


# GPU 0 is fast and busy for 3 s more, GPU 1 is idle.
BUSY = [Waiting((4, 10)), Waiting((2, 6))]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", (0, 1)),
        ("sjf", (1, 1)),
        # Job 0 ends at 3 + 4 = 7 on GPU 0, at 10 on GPU 1: it waits. Job 1 then ends at 7 + 2 = 9 or at 6.
        ("mct", (1, 1)),
        ("max_min", (1, 1)),
        ("heft", (1, 1)),
        # Sufferage of job 0 is 3, of job 1 (5 or 6) it is 1: job 0 first, as above.
        ("sufferage", (1, 1)),
        # Job 1 first: 3 + 2 = 5 on GPU 0. Then job 0 ends at 5 + 4 = 9 there, at 10 on GPU 1. Both wait.
        ("min_min", HELD),
    ],
)
def test_a_plan_counts_on_busy_gpus(policy: str, expected: tuple[int, int]) -> None:
    assert pick(policy, decision(BUSY, [3, 0])) == expected


def test_a_plan_knows_that_jobs_wait_behind_one_another() -> None:
    # Job 0 takes GPU 0 in the plan until 3 + 2 = 5. Job 1 would end at 5 + 3 = 8 there, and at 7.5 on GPU 1.
    assert pick("mct", decision([Waiting((2, 9)), Waiting((3, 7.5))], [3, 0])) == (1, 1)
    # Without job 0 it would end at 3 + 3 = 6: it waits.
    assert pick("mct", decision([Waiting((3, 7.5))], [3, 0])) == HELD


def test_a_plan_keeps_an_idle_gpu_without_cores_for_whom_it_is_best() -> None:
    # GPUs 0 (idle) and 1 (busy for 2 s) share a node with 2 cores free; GPU 2 is idle on another.
    def point(last: float) -> Observation:
        jobs = [Waiting((5, 9, last), cores=4)]
        return decision(jobs, [0, 2, 0], node=[0, 0, 1], cores_free=[2, 8])

    assert pick("mct", point(6.5)) == (0, 2)  # 2 + 5 = 7 on GPU 0, once the node's next job has ended
    assert pick("mct", point(7.5)) == HELD


def test_sufferage_of_a_job_that_one_gpu_can_hold_has_no_bound() -> None:
    assert pick("sufferage", decision([Waiting((1, 50)), Waiting((30, INF))], [0, 0])) == (1, 0)


def test_heft_takes_the_mean_over_the_gpus_that_can_hold_the_job() -> None:
    # Means 11 and 12, not 11 and 12 / 2.
    assert pick("heft", decision([Waiting((10, 12)), Waiting((12, INF))], [0, 0])) == (1, 0)


# ---- EASY: the head can only have GPU 0, which is busy for 10 s. GPU 1 is on its node, GPU 2 on another.


def easy(*behind: Waiting, cores_free: tuple[int, int] = (4, 8), head_cores: int = 4) -> tuple[int, int]:
    jobs = [Waiting((20, INF, INF), cores=head_cores), *behind]
    return pick("easy_backfill", decision(jobs, [10, 0, 0], node=[0, 0, 1], cores_free=cores_free))


def test_easy_backfills_what_ends_before_the_head_can_start() -> None:
    assert easy(Waiting((INF, 12, INF), cores=2), Waiting((INF, 9, INF), cores=2)) == (2, 1)


def test_easy_does_not_let_the_cores_of_the_head_be_taken() -> None:
    assert easy(Waiting((INF, 12, INF), cores=2)) == HELD
    assert easy(Waiting((INF, 12, INF), cores=2), head_cores=2) == (1, 1)  # 4 free: enough for both


def test_easy_backfills_on_other_nodes_whatever_it_takes() -> None:
    assert easy(Waiting((INF, INF, 500), cores=8)) == (1, 2)


def test_easy_takes_the_first_that_may_on_its_fastest_gpu() -> None:
    assert easy(Waiting((INF, 9, 8)), Waiting((INF, 1, 1))) == (1, 2)
    assert easy(Waiting((INF, 12, 300), cores=2), Waiting((INF, 1, 1))) == (1, 2)  # not GPU 1: 12 s are too long


def test_easy_reserves_where_the_head_could_start_first() -> None:
    # GPU 0 comes free in 10 s, GPU 1, on another node, in 6: it is reserved, though the head is slow there.
    jobs = [Waiting((5, 50, INF, INF), cores=4), Waiting((INF, INF, 7, INF)), Waiting((INF, INF, INF, 7))]
    point = decision(jobs, [10, 6, 0, 0], node=[0, 1, 1, 0], model=[0, 1, 1, 0], cores_free=[4, 4])
    assert pick("easy_backfill", point) == (2, 3)


# ---- the others


def test_wspt_serves_jobs_of_no_priority_last_and_shortest_first() -> None:
    jobs = [Waiting((9,), priority=0.0), Waiting((3,), priority=0.0), Waiting((600,), priority=0.25)]
    assert pick("wspt", decision(jobs, [0])) == (2, 0)
    assert pick("wspt", decision(jobs[:2], [0])) == (1, 0)


def test_las_goes_to_the_next_user_where_nothing_of_the_first_fits() -> None:
    jobs = [
        Waiting((5, 5), service_s=50),
        Waiting((5, INF), service_s=0),
        Waiting((9, 9), service_s=20),
        Waiting((1, 1), service_s=20),
    ]
    assert pick("las", decision(jobs, [7, 0])) == (2, 1)


def test_hungarian_gives_up_the_best_pair_for_a_better_whole() -> None:
    # 1/2.2 + 1/3 = 0.79 beats 1/2 + 1/30 = 0.53.
    pytest.importorskip("scipy")
    jobs = [Waiting((2, 2.2)), Waiting((3, 30))]
    assert pick("sjf", decision(jobs, [0, 0])) == (0, 0)
    assert pick("hungarian", decision(jobs, [0, 0])) == (0, 1)


def test_static_maps_types_by_place_where_the_models_are_others() -> None:
    models = ("v100", "p100", "k80")
    for job_type, gpu in ((JobType.MACHINE_LEARNING, 0), (JobType.SIMULATION, 1), (JobType.DATA_PROCESSING, 2)):
        assert pick("static", decision([Waiting((9, 9, 9), job_type=job_type)], [0, 0, 0], models=models)) == (0, gpu)
        assert pick("static", decision([Waiting((9,), job_type=job_type)], [0], models=("a100",))) == (0, 0)
    # In another order the models' names count.
    point = decision([Waiting((9, 9, 9))], [0, 0, 0], models=("radeon_vii", "rtx_2080_ti", "v100_sxm2"))
    assert pick("static", point) == (0, 1)


def test_static_overflows_to_volta_and_then_to_the_most_memory() -> None:
    on = {"job_type": JobType.SIMULATION}
    assert pick("static", decision([Waiting((9, INF, 1), **on)], [0, 0, 0])) == (0, 0)  # type: ignore[arg-type]
    four = ("v100_sxm2", "rtx_2080_ti", "radeon_vii", "a100")
    point = decision([Waiting((INF, INF, 1, 1))], [0] * 4, models=four, gpu_memory_mib=[16, 11, 16, 40])
    assert pick("static", point) == (0, 3)


def test_static_does_not_wait_for_gpus_that_are_lost_or_drained_while_others_could_hold_the_job() -> None:
    jobs = [Waiting((9, 9, 9), job_type=JobType.SIMULATION)]
    assert pick("static", decision(jobs, [0, INF, 0])) == (0, 0)  # its own are away: those of memory's overflow
    assert pick("static", decision(jobs, [4, INF, 0])) == HELD  # for which it queues
    assert pick("static", decision(jobs, [INF, INF, 0])) == (0, 2)  # and then whatever there is
    assert pick("static", decision(jobs, [0, 0, INF])) == (0, 1)
    # One of two of its model is left.
    assert pick("static", decision([Waiting((9, 9, 9))], [0, INF, 3], model=[0, 1, 1])) == HELD
    # Where all that could hold it are away it waits for its own.
    only = [Waiting((INF, 9, INF), job_type=JobType.SIMULATION), Waiting((9, 9, 9), job_type=JobType.DATA_PROCESSING)]
    assert pick("static", decision(only, [0, INF, 0])) == (1, 2)


def test_static_takes_another_map() -> None:
    policy = Static({JobType.SIMULATION: "radeon_vii", JobType.MACHINE_LEARNING: "v100_sxm2"})
    assert pick(policy, decision([Waiting((1, 1, 9))], [0, 0, 0])) == (0, 2)


# ---- hold_greedy


def greedy(**changed: float) -> HoldGreedy:
    figures = {
        "alpha": 2.0,
        "theta": 1.25,
        "kappa": 1.0,
        "backlog": 1.0,
        "affinity": 0.0,
        "packing": 0.0,
        "ageing": 0.0,
    }
    return HoldGreedy(settings=HoldGreedySettings(**{**figures, **changed}))


def test_hold_greedy_waits_for_what_is_much_better() -> None:
    # On GPU 0, busy for 3 s, it ends at 7: GPU 1 may take up to 1.25 * 7 = 8.75 s.
    assert pick(greedy(), decision([Waiting((4, 8.7))], [3, 0])) == (0, 1)
    assert pick(greedy(), decision([Waiting((4, 8.8))], [3, 0])) == HELD
    # With kappa 1.5 it ends at 8.5: up to 10.6 s.
    assert pick(greedy(kappa=1.5), decision([Waiting((4, 10.6))], [3, 0])) == (0, 1)
    assert pick(greedy(kappa=1.5), decision([Waiting((4, 10.7))], [3, 0])) == HELD


def test_hold_greedy_refuses_nothing_that_is_over_before_the_queue_has_drained() -> None:
    # GPU 0 is free in 3 s and takes each job in 4. The plan: there in 3 and 7 s, one on GPU 1 now, there in 11 s.
    assert pick(greedy(), decision([Waiting((4, 11))] * 4, [3, 0])) == (0, 1)
    assert pick(greedy(), decision([Waiting((4, 11))] * 3, [3, 0])) == HELD
    # The next starts in 15 s.
    assert pick(greedy(), decision([Waiting((4, 11.1))] * 4, [3, 0])) == HELD
    assert pick(greedy(), decision([Waiting((4, 11.1))] * 5, [3, 0])) == (0, 1)


def test_hold_greedy_plans_the_queue_on_all_gpus() -> None:
    # GPU 2 is free in 2 s: the jobs start in 2, 3, 6 and 7 s, one on GPU 1 now, then in 10 and 11 s.
    assert pick(greedy(), decision([Waiting((4, 11, 4))] * 6, [3, 0, 2])) == HELD
    assert pick(greedy(), decision([Waiting((4, 11, 4))] * 7, [3, 0, 2])) == (0, 1)
    # A job that no GPU can hold, or that has left, is not planned.
    gone = [*[Waiting((4, 11))] * 3, Waiting((4, 11), waiting=False), Waiting((INF, INF))]
    assert pick(greedy(), decision(gone, [3, 0])) == HELD


def test_hold_greedy_counts_several_drains_where_the_gpu_suits_the_others_no_better() -> None:
    jobs = [Waiting((4, 20))] * 4  # the drain is 15 s
    assert pick(greedy(), decision(jobs, [3, 0])) == HELD
    assert pick(greedy(backlog=2.0), decision(jobs, [3, 0])) == (0, 1)
    assert pick(greedy(backlog=1.3), decision(jobs, [3, 0])) == HELD
    # GPU 1 is five times slower for these four and as fast for another, which is small enough to be done first; but it
    # has too few cores left for that one.
    mixed = [*jobs, Waiting((4, 4), cores=4)]
    point = decision(mixed, [3, 0], cores_free=[2, 2], cores_held=[2, 0])
    assert pick(greedy(backlog=2.0, affinity=0.0), point) == (0, 1)
    assert pick(greedy(backlog=2.0, affinity=1.0), point) == HELD
    # However ill it suits, what is over before the queue has drained may run.
    short = [*[Waiting((4, 14))] * 4, Waiting((4, 4), cores=4)]
    assert pick(greedy(backlog=2.0, affinity=9.0), decision(short, [3, 0], cores_free=[2, 2], cores_held=[2, 0])) == (
        0,
        1,
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_hold_greedy_judges_each_gpu_for_itself_in_whatever_order_they_are_numbered(order: tuple[int, ...]) -> None:
    # 10 s in 5, or 100 on one of two idle GPUs that are alike to it, of which only one can hold the other jobs.
    of_gpus = [(10.0, 40.0, 5.0), (100.0, 40.0, 0.0), (100.0, INF, 0.0)]
    jobs = [Waiting(tuple(of_gpus[gpu][kind] for gpu in order)) for kind in (0, 1, 1, 1)]
    point = decision(jobs, [of_gpus[gpu][2] for gpu in order])
    scores = dense(point, HoldGreedyFixed().scores(point))[0, 0]
    by_gpu = [float(scores[order.index(gpu)]) for gpu in range(3)]
    # The drain is 45 s. GPU 2 suits nobody else: three drains count. On GPU 1 the other jobs are four times as slow.
    assert by_gpu[0] == by_gpu[1] == -INF
    assert by_gpu[2] > -INF


def test_hold_greedy_counts_missing_cores_as_a_wait() -> None:
    # GPU 0 is idle, but its node has no cores until GPU 1 is done in 30 s: GPU 2 is soon enough.
    jobs = [Waiting((4, 4, 8), cores=4)]
    assert pick(greedy(), decision(jobs, [0, 30, 0], node=[0, 0, 1], cores_free=[2, 8])) == (0, 2)
    assert pick(greedy(), decision(jobs, [0, 1, 0], node=[0, 0, 1], cores_free=[2, 8])) == HELD


def test_hold_greedy_refuses_nothing_where_a_hold_would_never_end() -> None:
    jobs = [Waiting((1, 9)), Waiting((1, 8))]
    assert pick(greedy(), decision(jobs, [1, 0])) == HELD
    assert pick(greedy(), decision(jobs, [1, 0], hold_allowed=False)) == (1, 1)


def test_hold_greedy_does_not_compare_with_a_gpu_that_is_lost() -> None:
    jobs = [Waiting((1, 9)), Waiting((1, 8))]
    assert pick(greedy(), decision(jobs, [INF, 0])) == (1, 1)


def test_hold_greedy_weighs_slowdown_against_length() -> None:
    # ln 6 = 1.79 against ln 4 + 2 ln (5.9 / 4) = 2.16; with alpha 0.5 the second is 1.58.
    jobs = [Waiting((6, 6)), Waiting((4, 5.9))]
    assert pick("sjf", decision(jobs, [100, 0])) == (1, 1)
    assert pick(greedy(), decision(jobs, [100, 0])) == (0, 1)
    assert pick(greedy(alpha=0.5), decision(jobs, [100, 0])) == (1, 1)


def test_hold_greedy_fills_nodes_evenly() -> None:
    # 8 cores for 2 idle GPUs: a share of 4. Costs ln 5 + |8 / 4 - 1| = 2.61 against ln 5.5 = 1.70.
    jobs = [Waiting((5, 5), cores=8), Waiting((5.5, 5.5), cores=4)]
    point = decision(jobs, [0, 0], node=[0, 0], cores_free=[8])
    assert pick(greedy(packing=1.0), point) == (1, 0)
    assert pick(greedy(), point) == (0, 0)


def test_hold_greedy_lets_waiting_jobs_age() -> None:
    # Waited 100 s: ln 10 - ln (1 + 100 / 10) = -0.10 against ln 6 = 1.79.
    jobs = [Waiting((10,), submit_s=0.0), Waiting((6,), submit_s=100.0)]
    assert pick(greedy(ageing=1.0), decision(jobs, [0])) == (0, 0)
    assert pick(greedy(), decision(jobs, [0])) == (1, 0)


def test_hold_greedy_takes_the_nearest_tuned_load() -> None:
    assert HoldGreedy(0.1).settings == SETTINGS[0.6]
    assert HoldGreedy.for_load(1.05).settings == SETTINGS[1.1]  # type: ignore[attr-defined]
    assert HoldGreedy().settings == SETTINGS[0.9]
    assert HoldGreedyFixed.for_load(0.6).settings == HoldGreedyFixed().settings  # type: ignore[attr-defined]


def test_hold_greedy_says_what_is_wrong_with_a_setting() -> None:
    with pytest.raises(InvalidInput, match="load must be above 0, not nan"):
        HoldGreedy(math.nan)
    with pytest.raises(InvalidInput, match="theta must be a number from 0, not -1"):
        greedy(theta=-1)
    with pytest.raises(InvalidInput, match="kappa must be above 0"):
        greedy(kappa=0)
