"""The oracle on instances worked by hand: what makes it trustworthy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.unit.sim.oracle import Oracle, OracleChange, OracleGpu, OracleJob, OracleNode, OracleOutcome, Rule, View
from tests.unit.sim.oracle_rules import at_random, fcfs, fcfs_fastest, lets_nothing_wait_for_ever, sjf

ROOMY = OracleNode(cores=64, memory_mib=64)


def gpus(*models: int) -> list[OracleGpu]:
    return [OracleGpu(node=0, model=model, memory_mib=16) for model in models]


def job(submit_s: float, *duration_s: float, **wants: int) -> OracleJob:
    return OracleJob(submit_s, duration_s, **wants)  # type: ignore[arg-type]


def run(
    cards: Sequence[OracleGpu],
    jobs: Sequence[OracleJob],
    rule: Rule = fcfs,
    *,
    nodes: Sequence[OracleNode] = (ROOMY,),
    changes: Sequence[tuple[float, int, float]] = (),
    start_cost_s: float = 0.0,
) -> OracleOutcome:
    return Oracle(nodes, cards, jobs, [OracleChange(*change) for change in changes], start_cost_s).run(rule)


def course(outcome: OracleOutcome) -> list[tuple[float, float, int]]:
    return list(zip(outcome.start_s, outcome.end_s, outcome.gpu, strict=True))


def events(outcome: OracleOutcome) -> list[tuple[float, str, int, int]]:
    return [(event.time_s, event.kind, event.job, event.gpu) for event in outcome.log]


def never(_view: View) -> None:
    return None


# ---- queueing on GPUs


def test_three_jobs_on_two_gpus():
    outcome = run(gpus(0, 0), [job(0, 10), job(1, 4), job(2, 3)])
    assert course(outcome) == [(0, 10, 0), (1, 5, 1), (5, 8, 1)]
    assert outcome.attempts == [1, 1, 1]
    assert outcome.stuck == []
    assert events(outcome) == [
        (0, "submitted", 0, -1),
        (0, "started", 0, 0),
        (1, "submitted", 1, -1),
        (1, "started", 1, 1),
        (2, "submitted", 2, -1),
        (5, "completed", 1, 1),
        (5, "started", 2, 1),
        (8, "completed", 2, 1),
        (10, "completed", 0, 0),
    ]


def test_at_one_instant_completions_come_before_submissions():
    outcome = run(gpus(0), [job(0, 5), job(5, 2)])
    assert events(outcome)[2:] == [
        (5, "completed", 0, 0),
        (5, "submitted", 1, -1),
        (5, "started", 1, 0),
        (7, "completed", 1, 0),
    ]


def test_all_that_is_submitted_at_one_instant_is_there_before_anything_starts():
    assert course(run(gpus(0), [job(0, 9), job(0, 3), job(0, 5)], sjf)) == [(8, 17, 0), (0, 3, 0), (3, 8, 0)]


def test_equal_submissions_stand_in_the_order_of_the_list():
    assert course(run(gpus(0), [job(1, 2), job(1, 2), job(1, 2)])) == [(1, 3, 0), (3, 5, 0), (5, 7, 0)]


def test_fcfs_takes_the_lowest_number_and_fcfs_fastest_the_shortest_duration():
    assert run(gpus(0, 1), [job(0, 8, 4)], fcfs).gpu == [0]
    assert run(gpus(0, 1, 1), [job(0, 8, 4)], fcfs_fastest).gpu == [1]
    assert run(gpus(0, 1), [job(0, 8, 8)], fcfs_fastest).gpu == [0]


def test_the_head_of_the_queue_blocks_the_others_under_fcfs_but_not_under_sjf():
    cards = [OracleGpu(0, 0, 16), OracleGpu(0, 0, 8)]
    jobs = [job(0, 10, gpu_memory_mib=12), job(1, 5, gpu_memory_mib=12), job(2, 1, gpu_memory_mib=4)]
    assert course(run(cards, jobs, fcfs)) == [(0, 10, 0), (10, 15, 0), (10, 11, 1)]
    assert course(run(cards, jobs, sjf)) == [(0, 10, 0), (10, 15, 0), (2, 3, 1)]


def test_sjf_on_a_tie_takes_the_earlier_job_and_the_lower_gpu():
    assert course(run(gpus(1, 0), [job(0, 4, 4), job(0, 4, 3)], sjf)) == [(0, 4, 1), (0, 3, 0)]
    assert course(run(gpus(0, 0), [job(0, 4), job(0, 4)], sjf)) == [(0, 4, 0), (0, 4, 1)]


def test_cores_of_the_node_bind_where_gpus_are_free():
    nodes = [OracleNode(4, 64), OracleNode(2, 64)]
    cards = [OracleGpu(0, 0, 16), OracleGpu(0, 0, 16), OracleGpu(1, 0, 16)]
    jobs = [job(0, 10, cores=3), job(1, 10, cores=2), job(2, 10, cores=2), job(3, 1, cores=1)]
    # Job 2 finds node 0 with one core left and node 1 with none; the head of the queue, it keeps job 3 waiting too.
    assert course(run(cards, jobs, nodes=nodes)) == [(0, 10, 0), (1, 11, 2), (10, 20, 0), (10, 11, 1)]


def test_memory_of_the_node_binds_where_gpus_and_cores_are_free():
    jobs = [job(0, 10, memory_mib=40), job(1, 10, memory_mib=25), job(2, 10, memory_mib=24)]
    assert course(run(gpus(0, 0, 0), jobs, sjf)) == [(0, 10, 0), (10, 20, 0), (2, 12, 1)]


def test_a_job_that_no_gpu_can_hold_blocks_nobody_and_is_left():
    jobs = [
        job(0, 5, gpu_memory_mib=17),
        job(0, 5, cores=65),
        job(0, 5, memory_mib=65),
        job(0, math.inf),
        job(0, 5, gpu_memory_mib=16, cores=64, memory_mib=64),
    ]
    outcome = run(gpus(0), jobs)
    assert outcome.stuck == [0, 1, 2, 3]
    assert outcome.attempts == [0, 0, 0, 0, 1]
    assert (outcome.start_s[4], outcome.end_s[4], outcome.gpu[4]) == (0, 5, 0)
    assert outcome.gpu[:4] == [-1] * 4
    assert math.isnan(outcome.start_s[0])


def test_a_job_cannot_run_on_a_model_without_a_duration():
    assert course(run(gpus(0, 1), [job(0, math.inf, 7)])) == [(0, 7, 1)]


def test_the_rule_goes_by_what_is_expected_and_the_job_by_what_is_true():
    jobs = [OracleJob(0, (5.0,), expected_s=(1.0,)), OracleJob(0, (2.0,), expected_s=(3.0,))]
    outcome = run(gpus(0), jobs, sjf)
    assert course(outcome) == [(0, 5, 0), (5, 7, 0)]
    assert outcome.views[0].expected_s == {(0, 0): 1.0, (1, 0): 3.0}


# ---- start cost


def test_each_start_costs():
    assert course(run(gpus(0), [job(0, 10), job(1, 4)], start_cost_s=1.5)) == [(0, 11.5, 0), (11.5, 17, 0)]


def test_a_slow_gpu_does_not_stretch_the_start_cost_of_a_start():
    assert course(run(gpus(0), [job(1, 10)], changes=[(0, 0, 0.5)], start_cost_s=2)) == [(1, 23, 0)]


# ---- GPUs that change


def test_a_lost_gpu_sends_its_job_back_to_its_place_and_it_starts_from_scratch():
    jobs = [job(0, 10), job(0, 20), job(1, 5), job(2, 5)]
    outcome = run(gpus(0, 0), jobs, changes=[(4, 0, 0), (30, 0, 1)])
    # Job 0 waits before jobs 2 and 3 again, and has GPU 1 after job 1.
    assert course(outcome) == [(20, 30, 1), (0, 20, 1), (30, 35, 0), (30, 35, 1)]
    assert outcome.attempts == [2, 1, 1, 1]
    lost, *rest = outcome.runs
    assert (lost.job, lost.gpu, lost.start_s, lost.end_s, lost.completed) == (0, 0, 0, 4, False)
    assert all(later.completed for later in rest)
    assert [event for event in events(outcome) if event[0] == 4] == [(4, "gpu_changed", -1, 0), (4, "lost", 0, 0)]


def test_a_lost_job_gives_its_cores_back():
    outcome = run(gpus(0, 0), [job(0, 10, cores=60), job(1, 3, cores=60)], changes=[(2, 0, 0)])
    # The lost job, again at the head, takes the cores on the other GPU at once.
    assert course(outcome) == [(2, 12, 1), (12, 15, 1)]


def test_a_job_that_ends_at_the_instant_of_the_loss_has_ended():
    outcome = run(gpus(0), [job(0, 5), job(6, 1)], changes=[(5, 0, 0), (8, 0, 1)])
    assert course(outcome) == [(0, 5, 0), (8, 9, 0)]
    assert outcome.attempts == [1, 1]


def test_at_one_instant_gpu_changes_come_before_submissions():
    assert run(gpus(0, 0), [job(3, 5)], changes=[(3, 0, 0)]).gpu == [1]
    assert course(run(gpus(0), [job(3, 5)], changes=[(1, 0, 0), (3, 0, 1)])) == [(3, 8, 0)]


def test_lost_and_back_at_one_instant():
    outcome = run(gpus(0), [job(0, 5)], changes=[(2, 0, 0), (2, 0, 1)])
    assert course(outcome) == [(2, 7, 0)]
    assert outcome.attempts == [2]


def test_jobs_left_when_their_gpu_never_comes_back():
    outcome = run(gpus(0), [job(0, 5), job(1, 5)], changes=[(2, 0, 0)])
    assert outcome.stuck == [0, 1]
    assert outcome.attempts == [1, 0]
    assert (outcome.start_s[0], outcome.gpu) == (0, [0, -1])


def test_a_lost_gpu_is_still_one_that_could_hold_the_head_of_the_queue():
    cards = [OracleGpu(0, 0, 16), OracleGpu(0, 0, 8)]
    outcome = run(cards, [job(1, 5, gpu_memory_mib=10), job(2, 5)], changes=[(0, 0, 0), (20, 0, 1)])
    assert course(outcome) == [(20, 25, 0), (20, 25, 1)]


def test_what_remains_scales_when_the_speed_changes():
    # 6 of 10 s left at 4 s: 12 at half speed. 6 of those left at 10 s: 3 at full speed. 1 left at 12 s: 0.25 at 4.
    assert run(gpus(0), [job(0, 10)], changes=[(4, 0, 0.5)]).end_s == [16]
    assert run(gpus(0), [job(0, 10)], changes=[(4, 0, 0.5), (10, 0, 1)]).end_s == [13]
    assert run(gpus(0), [job(0, 10)], changes=[(4, 0, 0.5), (10, 0, 1), (12, 0, 4)]).end_s == [12.25]


def test_a_start_on_a_slow_gpu_takes_longer_and_the_other_gpus_do_not():
    outcome = run(gpus(0, 0), [job(1, 3), job(1, 3)], changes=[(0, 0, 0.25)])
    assert course(outcome) == [(1, 13, 0), (1, 4, 1)]


def test_a_gpu_comes_back_at_another_speed():
    assert course(run(gpus(0), [job(0, 8)], changes=[(1, 0, 0), (2, 0, 2)])) == [(2, 6, 0)]


def test_an_end_that_was_put_off_does_not_happen_at_its_old_time():
    outcome = run(gpus(0), [job(0, 10), job(0, 1)], changes=[(5, 0, 0.5)])
    assert course(outcome) == [(0, 15, 0), (15, 17, 0)]


# ---- holds


def hold_at(*decisions: int) -> Rule:
    """Holds at these decisions, places first come, first served at the others."""

    def rule(view: View) -> tuple[int, int] | None:
        return None if view.decision in decisions else fcfs(view)

    return rule


def test_a_hold_lasts_until_the_next_event():
    # Job 1 comes at 7 s and ends the hold.
    outcome = run(gpus(0, 0), [job(0, 5), job(7, 5)], hold_at(0))
    assert course(outcome) == [(7, 12, 0), (7, 12, 1)]
    # GPU 1 is lost at 3 s and ends it; that it becomes slower is told to nobody.
    assert run(gpus(0, 0), [job(0, 2), job(7, 2)], hold_at(0), changes=[(3, 1, 0.0)]).start_s == [3, 7]
    assert run(gpus(0, 0), [job(0, 5), job(7, 5)], hold_at(0), changes=[(3, 1, 0.5)]).start_s == [7, 7]
    # Job 0 ends at 5 s and ends it.
    assert run(gpus(0, 0), [job(0, 5), job(1, 5), job(90, 1)], hold_at(1)).start_s == [0, 5, 90]


def test_a_hold_expires_after_30_s_and_again_after_as_long_as_nothing_has_happened():
    outcome = run(gpus(0), [job(1, 5), job(1000, 1)], hold_at(0, 1, 2))
    assert [view.time_s for view in outcome.views[:4]] == [1, 31, 61, 121]
    assert outcome.start_s == [121, 1000]


def test_a_hold_ends_at_a_whole_millisecond():
    outcome = run(gpus(0), [job(0.0004, 5), job(1000, 1)], hold_at(0))
    assert outcome.start_s[0] == 30.001


def test_an_event_at_the_instant_at_which_a_hold_expires_is_seen():
    outcome = run(gpus(0), [job(0, 5), job(30, 1)], lambda view: None if view.time_s < 30 else sjf(view))
    assert course(outcome) == [(31, 36, 0), (30, 31, 0)]
    assert outcome.views[1].waiting == (0, 1)


def test_a_hold_that_an_event_has_ended_does_not_expire_any_more():
    # Held at 0 until 30; job 1 comes at 20, and the next hold lasts until 50, whatever the first one said.
    outcome = run(gpus(0), [job(0, 5), job(20, 5), job(900, 5)], hold_at(0, 1))
    assert [view.time_s for view in outcome.views[:3]] == [0, 20, 50]


def test_where_nothing_runs_or_will_come_a_hold_is_for_ever():
    outcome = run(gpus(0), [job(0, 5)], never)
    assert [view.hold_allowed for view in outcome.views] == [False]
    assert outcome.stuck == [0]


def test_a_job_that_can_never_start_ends_a_hold_when_it_comes():
    assert run(gpus(0), [job(0, 5), job(3, 1, cores=65), job(900, 1)], hold_at(0)).start_s[0] == 3


# ---- what a rule sees


def test_a_view_by_hand():
    nodes = [OracleNode(8, 100), OracleNode(4, 50)]
    cards = [OracleGpu(0, 0, 16), OracleGpu(0, 1, 16), OracleGpu(1, 1, 8)]
    jobs = [
        OracleJob(0, (10.0, 20.0), cores=3, memory_mib=30, user=7, expected_s=(12.0, 24.0)),
        OracleJob(4, (5.0, 6.0), cores=5, memory_mib=80, user=7),
        OracleJob(4, (5.0, 6.0), cores=4, memory_mib=50, gpu_memory_mib=8, user=3),
        OracleJob(9, (5.0, 6.0)),
    ]
    view = run(cards, jobs, nodes=nodes, changes=[(2, 1, 0)], start_cost_s=1.0).views[1]
    assert view == View(
        time_s=4,
        waiting=(1, 2),
        fitting=((2, 2),),  # job 1 finds 70 MiB on node 0 and can never be held by node 1
        expected_s={(1, 0): 5, (1, 1): 6, (2, 0): 5, (2, 1): 6, (2, 2): 6},
        idle=(False, False, True),
        remaining_s=(8, math.inf, 0),  # 12 s expected since 0 s; what a start costs nobody knows
        cores_held=(3, 0, 0),
        memory_held_mib=(30, 0, 0),
        cores_free=(5, 4),
        memory_free_mib=(70, 50),
        service_s={7: 4, 3: 0},
        hold_allowed=True,
        decision=1,
    )


def test_a_job_that_has_run_longer_than_expected_is_expected_to_go_on_for_half_as_long():
    jobs = [OracleJob(0, (10.0,), expected_s=(2.0,)), job(2, 1), job(5, 1)]
    views = run(gpus(0, 0), jobs).views
    assert [view.remaining_s for view in views] == [(0, 0), (0, 0), (2.5, 0)]


def test_the_same_seed_draws_the_same_course_and_another_one_another():
    jobs = [job(k % 3, 2 + k, 1 + k, cores=1 + k % 5) for k in range(3) for _ in range(4)]
    jobs.sort(key=lambda each: each.submit_s)
    logs = [events(run(gpus(0, 1, 1), jobs, at_random(seed, 0.3))) for seed in (1, 1, 2)]
    assert logs[0] == logs[1] != logs[2]


def test_a_list_out_of_order_is_refused():
    with pytest.raises(AssertionError):
        run(gpus(0), [job(1, 1), job(0, 1)])


def test_where_nothing_else_could_start_the_head_of_the_queue_lets_another_pass():
    cards = [OracleGpu(0, 0, 16), OracleGpu(0, 1, 8), OracleGpu(0, 0, 8)]
    jobs = [job(1, 5, 5, gpu_memory_mib=10), job(1, 4, 3)]
    changes = [(0.0, 0, 0.0)]
    assert run(cards, jobs, fcfs, changes=changes).stuck == [0, 1]
    outcome = run(cards, jobs, lets_nothing_wait_for_ever(fcfs), changes=changes)
    assert outcome.stuck == [0]
    assert (outcome.start_s[1], outcome.gpu[1]) == (1, 1)


def test_a_job_without_work_ends_at_the_instant_at_which_it_starts():
    outcome = run(gpus(0), [job(2, 0), job(2, 5)])
    assert course(outcome) == [(2, 2, 0), (2, 7, 0)]
