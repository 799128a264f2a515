"""Compiled rollouts: the base is the policy, continuations are what happens, gains are real, the future unknown."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from adlro.decide.policies.hold_greedy import FIXED, HoldGreedy, HoldGreedySettings
from adlro.decide.rollouts.candidates import find_candidates, room_for_candidates
from adlro.decide.rollouts.continuation import cost_of, play_clairvoyant
from adlro.decide.rollouts.futures import (
    Imagination,
    draw,
    history_of,
    imagine_arrivals,
    imagine_now,
    room_to_imagine,
)
from adlro.decide.rollouts.gated import Gate, GatedRollouts
from adlro.decide.rollouts.rule import base_policy
from adlro.records.jobs import Preemptible
from adlro.sim import fork
from adlro.sim.batch import BatchSimulator, GpuChange
from adlro.sim.course import DONE, JOBS_S, Course
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD, Floats, Ints
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from tests.dense import dense, fits_now

EAGER = HoldGreedySettings(alpha=1.0, theta=2.5, kappa=1.0, backlog=4.0, affinity=0.0, packing=0.0, ageing=0.0)
PATIENT = HoldGreedySettings(alpha=2.5, theta=1.05, kappa=2.0, backlog=1.0, affinity=3.0, packing=0.8, ageing=0.6)

compiles = pytest.mark.slow
"""Where nothing compiled is kept yet, each of these first compiles for 5 to 15 s."""


class Simulator(BatchSimulator):
    """With its arrays."""

    def arrays(self) -> tuple[Hardware, Machines, JobArrays, Course]:
        return self._hardware, self._machines, self._jobs, self._course

    def play(self, policy: HoldGreedy) -> Floats:
        while len(self.active):
            self.act(policy.act(self.observe()))
        return self._course.totals[:, JOBS_S]

    def actions(self, n: int, count: int, settings: HoldGreedySettings = FIXED) -> list[tuple[int, int]]:
        room = room_for_candidates(count)
        base = base_policy(settings, self._hardware)
        found = find_candidates(self._hardware, self._machines, self._jobs, self._course, n, base, room)
        return [(int(room.job[c]), int(room.gpu[c])) for c in range(found)]


def lists(count: int, jobs: int, load: float, seed: int = 0, name: str = "paper") -> list[list[WorkloadJob]]:
    scenario = load_scenario(name)
    return [draw_jobs(scenario, load=load, rng=np.random.default_rng([seed, i]), count=jobs) for i in range(count)]


def simulator(
    drawn: Sequence[Sequence[WorkloadJob]],
    *,
    name: str = "paper",
    expected_s: Sequence[Floats] | None = None,
    gpu_changes: Sequence[Sequence[GpuChange]] | None = None,
    start_cost_s: float = 0.0,
) -> Simulator:
    cluster = load_scenario(name).cluster
    jobs = pack_jobs(drawn, cluster, expected_s)
    return Simulator(cluster, jobs, gpu_changes=gpu_changes, start_cost_s=start_cost_s)


@pytest.mark.parametrize("settings", [FIXED, EAGER, PATIENT], ids=["fixed", "eager", "patient"])
@pytest.mark.parametrize("name", ["paper", "paper_roomy"])
def test_the_compiled_base_chooses_what_the_policy_chooses(settings: HoldGreedySettings, name: str) -> None:
    rng = np.random.default_rng(7)
    drawn = lists(24, 48, 1.1, seed=3, name=name)
    cluster = load_scenario(name).cluster
    truth = pack_jobs(drawn, cluster).duration_s
    # Wrong expectations, lost and slow GPUs, a cost of starting, and now and then another action than the policy's.
    believed = [duration_s * np.exp(0.5 * rng.standard_normal((48, 1))) for duration_s in truth]
    changes = [
        [(10.0, i % 16, 0.0), (12.0, (i + 5) % 16, 0.6), (30.0, i % 16, 1.0), (33.0, (i + 5) % 16, 1.0)]
        for i in range(24)
    ]
    sim = simulator(drawn, name=name, expected_s=believed, gpu_changes=changes, start_cost_s=0.3)
    policy, points, holds = HoldGreedy(settings=settings), 0, 0
    while len(sim.active):
        observation, active = sim.observe(), sim.active
        actions = policy.act(observation)
        for place, n in enumerate(active):
            row, gpu = actions[place]
            job = HOLD if row == HOLD else int(sim.arrays()[3].waiting[n, row])
            assert sim.actions(int(n), 1, settings) == [(job, int(gpu))]
            points, holds = points + 1, holds + (row == HOLD)
        sim.act(_now_and_then_another(actions, fits_now(observation), rng))
    assert points >= 24 * 48
    assert holds > 10 or settings is EAGER


def _now_and_then_another(actions: Ints, fits: np.ndarray, rng: np.random.Generator) -> Ints:
    other = actions.copy()
    for place in np.flatnonzero(rng.random(len(actions)) < 0.1):
        pairs = np.argwhere(fits[place])
        other[place] = pairs[rng.integers(len(pairs))]
    return other


@compiles
def test_a_continuation_costs_what_the_list_costs_in_the_end() -> None:
    drawn = lists(4, 40, 0.9)
    sim, after = simulator(drawn), simulator(drawn)
    total_s = after.play(HoldGreedy(settings=FIXED))
    jct_s = after.outcome().end_s.sum(axis=1) - after.outcome().jobs.submit_s.sum(axis=1)
    np.testing.assert_allclose(total_s, jct_s, rtol=1e-9)
    hardware, machines, jobs, course = sim.arrays()
    before = [column.copy() for column in (*machines, *course)]
    base = base_policy(FIXED, hardware)
    other = fork.scratch(hardware, jobs, sim._changes, 1)
    for n in range(4):
        (action,) = sim.actions(n, 1)
        cost = cost_of(
            hardware, machines, jobs, sim._changes, course, n, *action, base, other[0], other[1], other[2], 0
        )
        assert cost == total_s[n]
    for column, earlier in zip((*machines, *course), before, strict=True):
        np.testing.assert_array_equal(column, earlier)


@compiles
def test_clairvoyant_rollouts_cost_no_more_than_the_base_and_somewhere_less() -> None:
    drawn = lists(6, 40, 1.1)
    base_s = simulator(drawn).play(HoldGreedy(settings=FIXED))
    sim = simulator(drawn)
    hardware, machines, jobs, course = sim.arrays()
    scratch = fork.scratch(hardware, jobs, sim._changes, 1)
    for n in range(6):
        base, room = base_policy(FIXED, hardware), room_for_candidates(6)
        choices = play_clairvoyant(hardware, machines, jobs, sim._changes, course, n, base, *scratch, room)
        assert choices > 10
    assert (course.status == DONE).all()
    cost_s = course.totals[:, JOBS_S]
    assert (cost_s <= base_s * (1 + 1e-9)).all()
    assert cost_s.sum() < 0.99 * base_s.sum()


def test_candidates_are_the_base_then_hold_then_the_best_pairs_once_each() -> None:
    sim = simulator(lists(8, 48, 1.1, seed=5))
    seen = 0
    while len(sim.active):
        actions = HoldGreedy(settings=FIXED).act(sim.observe())
        observation = sim.observe()
        judged = HoldGreedy(settings=dataclasses.replace(FIXED, theta=1e9)).scores(observation)
        scores, fits = dense(observation, judged), fits_now(observation)
        for place, n in enumerate(sim.active):
            found = sim.actions(int(n), 6)
            course = sim.arrays()[3]
            waiting = course.waiting[n, : course.waiting_count[n]]
            assert len(set(found)) == len(found)
            pairs = found[1:]
            if found[0] != (HOLD, HOLD) and observation.hold_allowed[place]:
                assert pairs[0] == (HOLD, HOLD)
                pairs = pairs[1:]
            assert (HOLD, HOLD) not in pairs
            row_of = {int(job): row for row, job in enumerate(waiting)}
            given = [scores[place, row_of[job], gpu] for job, gpu in pairs]
            assert all(fits[place, row_of[job], gpu] for job, gpu in pairs)
            assert given == sorted(given, reverse=True)
            if pairs and found[0] == (HOLD, HOLD):
                # What the base refuses is tried too, the best of it first.
                assert given[0] == scores[place][fits[place]].max()
                seen += 1
        sim.act(actions)
    assert seen > 5


def futures_room(sim: Simulator, ahead: int) -> Imagination:
    hardware, _, jobs, _ = sim.arrays()
    return room_to_imagine(hardware, jobs.submit_s.shape[1], jobs.expected_s.shape[2], ahead)


def history(jobs: int = 64, load: float = 1.1) -> tuple[JobArrays, float]:
    (drawn,) = lists(1, jobs, load, seed=99)
    return pack_jobs([drawn], load_scenario("paper").cluster), drawn[-1].submit_s


@compiles
def test_an_imagined_cluster_is_what_the_scheduler_believes() -> None:
    drawn = lists(1, 60, 3.0, seed=2)
    truth = pack_jobs(drawn, load_scenario("paper").cluster).duration_s[0]
    sim = simulator(drawn, expected_s=[truth * 1.5])
    for _ in range(40):
        sim.act(HoldGreedy(settings=FIXED).act(sim.observe()))
    _, machines, jobs, course = sim.arrays()
    room = futures_room(sim, 200)
    imagine_now(machines, jobs, course, 0, room)
    running = np.flatnonzero(machines.gpu_job[0] >= 0)
    waiting = course.waiting[0, : course.waiting_count[0]]
    assert len(running) > 4
    assert len(waiting) > 4
    remaining_s = sim.observe().gpu_remaining_s[0]
    np.testing.assert_allclose(
        room.machines.gpu_end_s[0, running] - machines.time_s[0], remaining_s[running], atol=1e-9
    )
    first, last = len(running), len(running) + len(waiting)
    assert int(room.jobs.job_count[0]) == last
    np.testing.assert_array_equal(room.jobs.duration_s[0, first:last], jobs.expected_s[0, waiting])
    np.testing.assert_array_equal(room.jobs.submit_s[0, first:last], jobs.submit_s[0, waiting])
    np.testing.assert_array_equal(room.course.waiting[0, : len(waiting)], np.arange(first, last))

    seen = history_of(*history())
    imagine_arrivals(machines, jobs, course, 0, seen, draw(np.random.default_rng(0), 2, 200), 1, room)
    assert int(room.jobs.job_count[0]) == last + 200
    submits = room.jobs.submit_s[0, last : last + 200]
    assert submits[0] > machines.time_s[0]
    assert (np.diff(submits) > 0).all()
    gap_s = (seen.span_s[0] + machines.time_s[0]) / (64 + course.arrived_count[0])
    assert np.diff(submits).mean() == pytest.approx(gap_s, rel=0.3)  # 200 exponentials: 4 standard errors
    arrived = jobs.expected_s[0, : course.arrived_count[0]]
    known = {tuple(row) for row in np.concatenate([arrived, seen.jobs.expected_s[0]])}
    drawn_again = {tuple(row) for row in room.jobs.duration_s[0, last : last + 200]}
    assert drawn_again <= known
    assert drawn_again & {tuple(row) for row in arrived}


@compiles
def test_of_a_job_that_was_stopped_what_is_left_is_imagined() -> None:
    (drawn,) = lists(1, 60, 3.0, seed=2)
    cluster = load_scenario("paper").cluster
    stoppable = [dataclasses.replace(job, preemptible=Preemptible(restart_s=2.5, lost_s=0.5)) for job in drawn]
    sim = Simulator(cluster, pack_jobs([stoppable], cluster), preempts=True)
    while sim.time_s[0] < drawn[40].submit_s:
        sim.act(HoldGreedy(settings=FIXED).act(sim.observe()))
    stopped = 0
    for job, gpu in np.ndindex(int(sim.arrays()[3].waiting_count[0]), len(list(cluster.gpus()))):
        # What fits there, and may stop what runs there, is tried out.
        with contextlib.suppress(ValueError):
            sim.act(np.array([[job, gpu]]), stops=np.array([True]))
            stopped += 1
        if stopped == 3:
            break
    _, machines, jobs, course = sim.arrays()
    room = futures_room(sim, 10)
    imagine_now(machines, jobs, course, 0, room)
    waiting = course.waiting[0, : course.waiting_count[0]]
    share, again = course.job_share[0, waiting], course.job_stops[0, waiting] > 0
    assert np.count_nonzero(again) > 0
    assert (share[again] < 1.0).any()
    first = np.count_nonzero(machines.gpu_job[0] >= 0)
    left_s = np.where(again, 2.5, 0.0)[:, None] + share[:, None] * jobs.expected_s[0, waiting]
    np.testing.assert_array_equal(room.jobs.duration_s[0, first : first + len(waiting)], left_s)
    np.testing.assert_array_equal(room.jobs.expected_s[0, first : first + len(waiting)], left_s)


@compiles
def test_an_honest_choice_knows_nothing_of_what_is_to_come() -> None:
    whole = lists(1, 60, 1.1, seed=4)[0]
    other = lists(1, 60, 0.3, seed=5)[0]
    # The same beginning; then the one list ends, and the other goes on with other jobs.
    short = whole[:30]
    offset_s = short[-1].submit_s
    longer = short + [
        WorkloadJob(**{name: getattr(job, name) for name in job.__slots__ if name != "submit_s"}, submit_s=s)
        for job, s in ((job, job.submit_s + offset_s) for job in other)
    ]
    chosen = []
    for drawn in (short, longer):
        sim, choices = simulator([drawn]), []
        hardware, machines, jobs, course = sim.arrays()
        rollouts = GatedRollouts(hardware, jobs, FIXED, Gate(futures=16, ahead=12, standard_errors=1.0, first_look=4))
        seen, rng = history_of(*history()), np.random.default_rng(1)
        while len(sim.active) and course.arrived_count[0] < 30:
            job, gpu = rollouts.choose(hardware, machines, jobs, course, 0, seen, rng)
            choices.append((job, gpu))
            row = HOLD if job == HOLD else int(np.flatnonzero(course.waiting[0] == job)[0])
            sim.act(np.array([[row, gpu]]))
        chosen.append(choices)
    assert len(chosen[0]) > 30
    assert chosen[0] == chosen[1]


@compiles
def test_a_gate_that_nothing_clears_leaves_the_base_its_way() -> None:
    sim = simulator(lists(1, 40, 1.1))
    hardware, machines, jobs, course = sim.arrays()
    closed = GatedRollouts(hardware, jobs, FIXED, Gate(futures=4, ahead=4, standard_errors=np.inf))
    open_ = GatedRollouts(hardware, jobs, FIXED, Gate(futures=4, ahead=4, standard_errors=0.0))
    seen, rng, left = history_of(*history()), np.random.default_rng(1), 0
    while len(sim.active):
        (base,) = sim.actions(0, 1)
        assert closed.choose(hardware, machines, jobs, course, 0, seen, rng) == base
        left += open_.choose(hardware, machines, jobs, course, 0, seen, rng) != base
        sim.act(HoldGreedy(settings=FIXED).act(sim.observe()))
    assert left > 3


@compiles
def test_work_is_bounded_and_losers_are_dropped_early() -> None:
    sim = simulator(lists(1, 60, 1.1))
    hardware, machines, jobs, course = sim.arrays()
    gate = Gate(futures=16, ahead=12, first_look=8)
    most_work = 64_000
    gates = (
        gate,
        dataclasses.replace(gate, glance=4),
        dataclasses.replace(gate, most_work=most_work),
        dataclasses.replace(gate, most_work=1),
    )
    every = [GatedRollouts(hardware, jobs, FIXED, each) for each in gates]
    seen, work, alike, differ, at = history_of(*history()), np.zeros((4, 0)), 0, 0, 0
    while len(sim.active):
        (base,) = sim.actions(0, 1)
        before = np.array([each._base.work[0] for each in every])
        found = [each.choose(hardware, machines, jobs, course, 0, seen, np.random.default_rng(at)) for each in every]
        took = np.array([each._base.work[0] for each in every]) - before
        work = np.concatenate([work, took[:, None]], axis=1)
        alike += found[0] == found[1]
        differ += found[0] != base
        assert found[3] == base  # one future is nothing to go by
        at += 1
        sim.act(HoldGreedy(settings=FIXED).act(sim.observe()))
    whole, glanced, bounded, least = work
    assert differ > 3
    assert glanced.sum() < 0.9 * whole.sum()
    assert alike > 0.9 * at
    assert (whole > 3 * most_work).any()
    # The future that is being played when the work is done is played to its end, for all candidates.
    assert (bounded <= most_work + whole.max() / 8).all()
    free = whole < most_work
    assert free.any()
    assert (bounded[free] == whole[free]).all()
    assert least.sum() < 0.3 * whole.sum()


def test_a_history_is_one_list_over_some_time() -> None:
    jobs, span_s = history()
    with pytest.raises(Exception, match="a history is one list of jobs over a time above 0, not 1 lists over 0 s"):
        history_of(jobs, 0)
    assert history_of(jobs, span_s).span_s[0] == span_s
