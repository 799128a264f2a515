"""The oracle on cases worked by hand: what makes it trustworthy. The times are worked out in the comments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.oracle.cluster import Oracle, Rule
from tests.oracle.records import HOLD, Change, Choice, Gpu, Instance, Job, Node, Outcome
from tests.oracle.rules import HoldGang, easy_backfill, fcfs, hold_gang, shortest_area, sjf


def nodes_of(*sizes: int, models: Sequence[int] = ()) -> tuple[tuple[Node, ...], tuple[Gpu, ...]]:
    """Roomy nodes with so many GPUs each, and a model each."""
    kinds = models or (0,) * len(sizes)
    gpus = tuple(Gpu(node, kinds[node], 16) for node, size in enumerate(sizes) for _ in range(size))
    return tuple(Node(64, 64) for _ in sizes), gpus


def gang(count: int, submit_s: float, *duration_s: float, **more) -> Job:
    return Job(submit_s, duration_s, gpu_count=count, **more)


def run(
    machines: tuple[tuple[Node, ...], tuple[Gpu, ...]],
    jobs: Sequence[Job],
    rule: Rule = fcfs,
    *,
    changes: Sequence[tuple[float, int, float]] = (),
    asks_always: bool = False,
    **more,
) -> Outcome:
    instance = Instance(*machines, tuple(jobs), tuple(Change(*change) for change in changes), **more)
    return Oracle(instance, asks_always=asks_always).run(rule)


def course(outcome: Outcome) -> list[tuple[float, float, tuple[int, ...]]]:
    return list(zip(outcome.start_s, outcome.end_s, outcome.gpus, strict=True))


def script(*choices: tuple[float, Choice]) -> Rule:
    """The choices, each as soon as its time has come; holds between."""
    left = list(choices)

    def rule(oracle: Oracle) -> Choice:
        if left and left[0][0] <= oracle.now_s:
            return left.pop(0)[1]
        return HOLD

    return rule


# ---- gangs under rules


def test_fcfs_blocks():
    # Two GPUs are free beside A, B needs four and is the head: C waits behind it, though it would fit.
    jobs = [gang(2, 0, 10), gang(4, 1, 5), gang(1, 2, 3)]
    assert course(run(nodes_of(4), jobs)) == [(0, 10, (0, 1)), (10, 15, (0, 1, 2, 3)), (15, 18, (0,))]


def test_easy_backfills_what_ends_in_time():
    # B has the reservation of all four GPUs from 10 on. C ends at 5 and may go before; D would end at 23.
    jobs = [gang(2, 0, 10), gang(4, 1, 5), gang(1, 2, 3), gang(1, 3, 20)]
    outcome = run(nodes_of(4), jobs, easy_backfill)
    assert course(outcome) == [(0, 10, (0, 1)), (10, 15, (0, 1, 2, 3)), (2, 5, (2,)), (15, 35, (0,))]


def test_easy_backfills_within_the_slack():
    # At 10 four GPUs are free and B needs three: D may have one for long. E may not: at 4 no slack is left (GPUs 0, 1
    # and 3 by 10), so that it waits for B's end, at 15.
    jobs = [gang(2, 0, 10), gang(3, 1, 5), gang(1, 3, 20), gang(1, 4, 20)]
    outcome = run(nodes_of(4), jobs, easy_backfill)
    assert course(outcome) == [(0, 10, (0, 1)), (10, 15, (0, 1, 3)), (3, 23, (2,)), (15, 35, (0,))]


def test_what_ends_when_the_reservation_begins_is_in_time():
    jobs = [gang(2, 0, 10), gang(4, 1, 5), gang(2, 2, 8)]
    assert course(run(nodes_of(4), jobs, easy_backfill))[1:] == [(10, 15, (0, 1, 2, 3)), (2, 10, (2, 3))]


def test_easy_reserves_where_the_job_ends_first():
    # B could have node 0 (model 0) at 4 and end at 24, or node 1 (model 1) at 10 and end at 15: node 1 is kept. But at
    # 4 node 0 is free, and EASY starts what fits. If B can't run there, C gets node 0 at 4, and not node 1.
    jobs = [
        gang(2, 0, 4, math.inf),
        gang(2, 0, math.inf, 10),
        gang(2, 1, 20, 5),
        gang(2, 2, 30, 30),
    ]
    outcome = run(nodes_of(2, 2, models=(0, 1)), jobs, easy_backfill)
    assert course(outcome)[2] == (4, 24, (0, 1))
    jobs[2] = gang(2, 1, math.inf, 5)
    outcome = run(nodes_of(2, 2, models=(0, 1)), jobs, easy_backfill)
    assert course(outcome)[2:] == [(10, 15, (2, 3)), (4, 34, (0, 1))]


def test_sjf_delays_the_gang():
    # A to 10, C to 11, D to 13. At 12 three GPUs are free, B needs four, and E takes GPU 0 until 16.
    jobs = [gang(2, 0, 10), gang(4, 1, 5), gang(1, 2, 9), gang(1, 3, 10), gang(1, 12, 4)]
    assert course(run(nodes_of(4), jobs, sjf)) == [
        (0, 10, (0, 1)),
        (16, 21, (0, 1, 2, 3)),
        (2, 11, (2,)),
        (3, 13, (3,)),
        (12, 16, (0,)),
    ]


def test_the_shortest_area_goes_first():
    # Two GPUs; at 5 B would take 2 x 4 = 8 GPU seconds, C 1 x 7 = 7 and so goes first; SJF has it the other way.
    jobs = [gang(2, 0, 5), gang(2, 1, 4), gang(1, 2, 7)]
    assert course(run(nodes_of(2), jobs, shortest_area))[1:] == [(12, 16, (0, 1)), (5, 12, (0,))]
    assert course(run(nodes_of(2), jobs, sjf))[1:] == [(5, 9, (0, 1)), (9, 16, (0,))]


def test_best_fit_leaves_the_whole_node():
    # B goes beside A, where two GPUs are free, so that C finds node 1 whole.
    jobs = [gang(2, 0, 10), gang(2, 1, 10), gang(4, 2, 5)]
    assert course(run(nodes_of(4, 4), jobs)) == [(0, 10, (0, 1)), (1, 11, (2, 3)), (2, 7, (4, 5, 6, 7))]


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (0.8, (1, 6, (3, 7))),  # 4 / 0.8 = 5 s, and 5 <= 1.5 min(0.75 x 9 + 4, 5)
        (0.2, (10, 14, (0, 1))),  # 20 s are 5 times the shortest, not more; but 20 > 1.5 min(0.75 x 9 + 4, 20) = 16.125
        (0.125, (10, 14, (0, 1))),  # 8 times the shortest
        (0.0, (10, 14, (0, 1))),  # never spread
    ],
)
def test_spread_or_refuse(speed, expected):
    # One GPU is free on each node until 10: two GPUs apart now, or packed at 10.
    jobs = [gang(3, 0, 10), gang(3, 0, 10), gang(2, 1, 4, spread_speed=(speed,))]
    assert course(run(nodes_of(4, 4), jobs, hold_gang))[2] == expected


def test_fcfs_spreads_where_it_can():
    jobs = [gang(3, 0, 10), gang(3, 0, 10), gang(2, 1, 4, spread_speed=(0.125,))]
    assert course(run(nodes_of(4, 4), jobs))[2] == (1, 33, (3, 7))
    jobs[2] = gang(2, 1, 4, spread_speed=(0.125,), max_nodes=1)
    assert course(run(nodes_of(4, 4), jobs))[2] == (10, 14, (0, 1))


def test_eight_wait_for_two_nodes():
    jobs = [gang(1, 0, 6), gang(8, 1, 5)]
    assert course(run(nodes_of(4, 4), jobs, easy_backfill))[1] == (6, 11, tuple(range(8)))
    # A third node: packed is two nodes, the greatest and the best fit.
    assert course(run(nodes_of(4, 4, 4), jobs, easy_backfill))[1] == (1, 6, tuple(range(4, 12)))
    # Three nodes are spread: 7 of 8 GPUs on nodes 1 and 2 do not help, 3 + 4 + 1 does.
    jobs = [gang(1, 0, 6), gang(4, 0, 6), gang(8, 1, 9, spread_speed=(0.9,))]
    assert course(run(nodes_of(4, 4, 4, 1), jobs))[2] == (1, 11, (1, 2, 3, 8, 9, 10, 11, 12))


def test_nine_on_nodes_of_different_sizes():
    # Empty, 4 + 4 + 2 is three nodes at least for 9; the best fit for the last one is node 1, with 1.
    assert course(run(nodes_of(2, 1, 4, 4), [gang(9, 0, 1)]))[0] == (0, 1, (2, 3, 4, 5, 6, 7, 8, 9, 10))


def test_what_waits_long_is_reserved_by_hold_gang():
    # b = 2 s. At 4 B has waited 3 s, 1.5 times that and more than rho = 1: it gets a reservation for 10, when A ends,
    # and D, which would end at 11, waits; C, which ends at 7, does not.
    jobs = [gang(2, 0, 10), gang(4, 1, 2), gang(1, 4, 3), gang(1, 5, 6)]
    outcome = run(nodes_of(4), jobs, HoldGang(rho=1.0))
    assert course(outcome)[1:] == [(10, 12, (0, 1, 2, 3)), (4, 7, (2,)), (12, 18, (0,))]
    assert course(run(nodes_of(4), jobs, HoldGang(rho=100.0)))[1] == (11, 13, (0, 1, 2, 3))


# ---- life of gangs


def test_a_lost_member_ends_the_attempt_on_all():
    # GPU 1 is lost at 4 and back at 6: A begins anew on GPUs 2 and 3, at once.
    changes = [(4, 1, 0.0), (6, 1, 1.0)]
    outcome = run(nodes_of(4), [gang(2, 0, 10), gang(3, 1, 3)], changes=changes)
    assert course(outcome) == [(4, 14, (0, 2)), (14, 17, (0, 1, 2))]
    lost = outcome.runs[0]
    assert (lost.job, lost.gpus, lost.end_s, lost.end) == (0, (0, 1), 4, "lost")


def test_a_gang_is_as_slow_as_its_slowest():
    # 10 s; at 2 GPU 0 runs at 0.5: 2 + 8 x 2 = 18. At 4 GPU 1 at 0.7: nothing. At 6 GPU 0 at 1: 0.7 is the least:
    # 6 + 12 x (0.5 / 0.7).
    changes = [(2, 0, 0.5), (4, 1, 0.7), (6, 0, 1.0)]
    assert run(nodes_of(2), [gang(2, 0, 10)], changes=changes).end_s == [6 + (18 - 6) * (0.5 / 0.7)]
    # It starts on slow GPUs: 3 s of start, then 10 / 0.5.
    assert run(nodes_of(2), [gang(2, 1, 10)], changes=[(0, 1, 0.5)], start_cost_s=3.0).end_s == [24]


def test_cores_and_memory_are_with_each_gpu():
    nodes, gpus = (Node(7, 64), Node(6, 64)), nodes_of(4, 4)[1]
    # Node 0 has cores for three of two each, node 1 too: four are two nodes even where all is empty, best fit 3 + 1.
    outcome = run((nodes, gpus), [gang(4, 0, 5, cores=2), gang(2, 1, 1, cores=2)])
    assert course(outcome) == [(0, 5, (0, 1, 2, 4)), (1, 2, (5, 6))]


def test_what_no_set_of_nodes_can_hold_blocks_nobody():
    jobs = [gang(3, 0, 1, max_nodes=1), gang(5, 0, 1), gang(3, 1, 2)]
    outcome = run(nodes_of(2, 2), jobs)
    assert outcome.unfinished == [0, 1]
    assert course(outcome)[2] == (1, 3, (0, 1, 2))


# ---- stops


def test_stop_restore_finish():
    # A works from 0.5 to 10.5. Stopped at 4 it has 6.5 s to do, and 1 s again: 0.75 of its 10 s. B has 4 + 0.5 + 3.
    # From 7.5 on A starts (0.5), restores (2), and works 7.5 s.
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=1.0), gang(1, 4, 3)]
    rule = script((0, Choice(0, (0,))), (4, Choice(1, (0,), stop=True)), (7.5, Choice(0, (0,))))
    outcome = run(nodes_of(1), jobs, rule, start_cost_s=0.5, asks_always=True)
    assert course(outcome) == [(7.5, 17.5, (0,)), (4, 7.5, (0,))]
    assert [(run.job, run.start_s, run.end_s, run.end) for run in outcome.runs] == [
        (0, 0, 4, "stopped"),
        (1, 4, 7.5, "completed"),
        (0, 7.5, 17.5, "completed"),
    ]


def test_progress_counts_at_the_speed_that_it_had():
    # At 2 the GPU falls to 0.5: the end goes from 10.5 to 19. At 4 there are 15 s at 0.5 to do: 7.5, and 1 again.
    # GPU 1 runs at 1: 4 + 0.5 + 2 + 8.5. (B is there for the event at 4 only.)
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=1.0), gang(1, 4, 1)]
    rule = script((0, Choice(0, (0,))), (4, Choice(0, (1,))))
    outcome = run(nodes_of(2), jobs, rule, start_cost_s=0.5, asks_always=True, changes=[(2, 0, 0.5)])
    assert outcome.end_s[0] == 15
    # If the GPU is lost at 4 instead, nothing was kept, and there is nothing to restore: 4 + 0.5 + 10.
    rule = script((0, Choice(0, (0,))), (4, Choice(0, (1,))))
    changes = [(2, 0, 0.5), (4, 0, 0.0)]
    outcome = run(nodes_of(2), jobs, rule, start_cost_s=0.5, asks_always=True, changes=changes)
    assert outcome.end_s[0] == 14.5


def test_a_stop_never_loses_more_than_the_attempt_has_done():
    # Stopped at 2 after 2 s: 10 s are left, not 8 + 5. Again at 7, after 7 - 3 - 2 = 2 s: still 10. From 8: 2 + 10.
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0, lost_s=5.0), gang(1, 2, 1), gang(1, 7, 1)]
    rule = script(
        (0, Choice(0, (0,))),
        (2, Choice(1, (0,), stop=True)),
        (3, Choice(0, (0,))),
        (7, Choice(2, (0,), stop=True)),
        (8, Choice(0, (0,))),
    )
    assert course(run(nodes_of(1), jobs, rule, asks_always=True))[0] == (8, 20, (0,))


def test_whoever_restores_is_not_stopped():
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=2.0), gang(1, 1, 1), gang(1, 3, 1), gang(1, 5, 1)]
    begin = (0, Choice(0, (0,))), (1, Choice(1, (0,), stop=True)), (2, Choice(0, (0,)))
    with pytest.raises(AssertionError, match="can't be stopped"):  # it restores until 4
        run(nodes_of(1), jobs, script(*begin, (3, Choice(2, (0,), stop=True))), asks_always=True)
    # At 1 it had done 1 s, at 5 one more. It goes on at 6 with 2 + 8 s.
    rule = script(*begin, (5, Choice(3, (0,), stop=True)), (6, Choice(0, (0,))))
    assert run(nodes_of(1), jobs, rule, asks_always=True).end_s[0] == 16


def test_a_gang_is_stopped_whole():
    # B wants one GPU of A's two, and gets it; A is stopped on both, and goes on when both are free.
    jobs = [gang(2, 0, 10, preemptible=True), gang(1, 5, 3)]
    rule = script((0, Choice(0, (0, 1))), (5, Choice(1, (1,), stop=True)), (8, Choice(0, (0, 1))))
    outcome = run(nodes_of(2), jobs, rule, asks_always=True)
    assert course(outcome) == [(8, 13, (0, 1)), (5, 8, (1,))]
    assert outcome.runs[0].gpus == (0, 1)


def test_a_loss_after_a_stop_goes_back_to_the_stop():
    # Stopped at 4 with 6 of 10 s to do, on again at 5; lost at 7; on again at 7 on GPU 1: 1 s restores, 6 s.
    jobs = [gang(1, 0, 10, preemptible=True, restart_s=1.0), gang(1, 4, 1)]
    rule = script(
        (0, Choice(0, (0,))),
        (4, Choice(1, (0,), stop=True)),
        (5, Choice(0, (0,))),
        (7, Choice(0, (1,))),
    )
    outcome = run(nodes_of(1, 1), jobs, rule, changes=[(7, 0, 0.0)], asks_always=True)
    assert outcome.end_s == [14, 5]


def test_migration():
    # 20 s on model 0, 10 s on model 1, which B has until 4. Then A, with 16 of 20 s to do, moves: 1 + 0.8 x 10.
    jobs = [gang(1, 0, 20, 10, preemptible=True, restart_s=1.0), gang(1, 0, math.inf, 4)]
    rule = script((0, Choice(0, (0,))), (0, Choice(1, (1,))), (4, Choice(0, (1,))))
    outcome = run(nodes_of(1, 1, models=(0, 1)), jobs, rule, asks_always=True)
    assert course(outcome) == [(4, 13, (1,)), (0, 4, (1,))]


# ---- shares


def test_two_jobs_on_a_gpu():
    # A keeps 0.5 beside B, B 0.8. B from 2: 4 / 0.8 = 5 s, to 7. A's end: 2 + 8 / 0.5 = 18, and from 7: 7 + 11 x 0.5.
    jobs = [
        gang(1, 0, 10, shareable=True, family=0),
        gang(1, 2, 4, shareable=True, family=1),
    ]
    kept = {(0, 1, 0): 0.5, (1, 0, 0): 0.8}
    rule = script((0, Choice(0, (0,))), (2, Choice(1, (0,))))
    assert course(run(nodes_of(1), jobs, rule, asks_always=True, kept=kept)) == [(0, 12.5, (0,)), (2, 7, (0,))]
    rule = script((0, Choice(0, (0,))), (2, Choice(1, (0,))))
    with pytest.raises(AssertionError, match="can't have"):
        run(nodes_of(1), jobs, rule, asks_always=True, kept={(0, 1, 0): 0.5})  # no figure: never


def test_a_lost_gpu_ends_both():
    jobs = [gang(1, 0, 10, shareable=True), gang(1, 0, 4, shareable=True)]
    rule = script((0, Choice(0, (0,))), (0, Choice(1, (0,))))
    outcome = run(nodes_of(1), jobs, rule, asks_always=True, kept={(0, 0, 0): 0.5}, changes=[(3, 0, 0.0)])
    assert [(run.job, run.end_s, run.end) for run in outcome.runs] == [(0, 3, "lost"), (1, 3, "lost")]
