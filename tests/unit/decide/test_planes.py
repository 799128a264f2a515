"""Planes: by hand, against brute force, and what must not change them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adlro.decide.planes import table
from adlro.decide.planes.choice import Margins, actions_of, best_of, choose
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.sim.batch import BatchSimulator
from adlro.state.candidate_table import with_new_table
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.dense import dense, fits_now
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged, padded

GROUPS = {"gpus": GPU_PLANES, "jobs": JOB_PLANES, "pairs": PAIR_PLANES, "cluster": CLUSTER_PLANES}
MATRICES = ("gpus", "jobs", "cluster", "pairs", "pair_job", "pair_place", "first_pair", "base")


def filler(window=32):
    return PlaneFiller(FIXED.rule(), window)


def raw(values, planes, name):
    """A normalised figure taken back to its unit."""
    number = next(i for i, plane in enumerate(planes) if plane.name == name)
    plane = planes[number]
    value = values[..., number].astype(np.float64) / plane.factor
    match plane.transform:
        case table.Transform.LN:
            return np.exp(value)
        case table.Transform.LN1P:
            return np.expm1(value)
    return value


def of_base(planes):
    return actions_of(planes, planes.base)


def test_a_decision_by_hand():
    # Node 0: GPU 0 busy for 6 s, GPUs 1 and 2 idle and alike; node 1: GPU 3 idle. Two jobs, ten seconds in the queue.
    observation = decision(
        [
            Waiting((10.0, 10.0, 10.0, 20.0), cores=2, submit_s=90.0, priority=0.5),
            Waiting((30.0, 30.0, 30.0, 15.0), cores=4, submit_s=95.0),
        ],
        [6.0, 0.0, 0.0, 0.0],
        node=[0, 0, 0, 1],
        model=[0, 0, 0, 1],
        cores_free=[6, 8],
        cores_held=[2, 0, 0, 0],
    )
    planes = filler(4).fill(observation)
    assert planes.gpus.shape == (1, len(GPU_PLANES), 2, 3)
    assert planes.rows.tolist() == [[0, 1, -1, -1]]
    scale_s = (6.0 * 10.0 * 15.0) ** (1 / 3)
    assert planes.scale_s[0] == pytest.approx(scale_s)
    # GPU 2 is GPU 1's twin, for both jobs.
    assert list(zip(planes.pair_queue, planes.pair_gpu, strict=True)) == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert planes.pair_of(0, 0, 2) == 0
    assert planes.pair_place.tolist() == [1, 3, 1, 3]
    pairs = planes.pairs
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "twins"), [1, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "slowdown"), [1, 2, 2, 1], rtol=1e-5)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "excess"), [1, 2, 2, 1], rtol=1e-5)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "duration") * scale_s, [10, 20, 30, 15], rtol=1e-5)
    # Node 0 has 6 free cores for two idle GPUs, node 1 has 8 for one.
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "misfit"), [-1 / 3, -6 / 8, 1 / 3, -4 / 8], rtol=1e-5)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "cores_left"), [4, 6, 2, 4], rtol=1e-5)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "last_idle"), [0, 1, 0, 1], atol=0)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "rivals"), [0, 1, 1, 0], atol=1e-6)
    # theta x the earliest completion is 12.5 and 18.75 s: the slow pairs are refused.
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "refused"), [0, 1, 1, 0], atol=0)
    np.testing.assert_allclose(raw(pairs, PAIR_PLANES, "base_choice"), [1, 0, 0, 0], atol=0)
    score = dense(observation, HoldGreedyFixed().scores(observation))[0]
    gap = raw(pairs, PAIR_PLANES, "cost_gap")
    np.testing.assert_allclose([gap[0], gap[3]], [0.0, score[0, 1] - score[1, 3]], atol=1e-5)
    jobs = planes.jobs[0]
    np.testing.assert_allclose(raw(jobs, JOB_PLANES, "present"), [1, 1, 0, 0], atol=0)
    np.testing.assert_allclose(raw(jobs, JOB_PLANES, "waited")[:2], [1.0, 5 / 15], rtol=1e-5)
    np.testing.assert_allclose(raw(jobs, JOB_PLANES, "shorter")[:2], [0.0, 1.0], atol=0)
    np.testing.assert_allclose(raw(jobs, JOB_PLANES, "priority")[:2], [0.5, observation.job_priority[0, 1]])
    gpus = planes.gpus[0].transpose(1, 2, 0)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "present"), [[1, 1, 1], [1, 0, 0]], atol=0)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "utilization"), [[1, 0, 0], [0, 0, 0]], atol=0)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "remaining")[0, 0] * scale_s, 6.0, rtol=1e-5)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "cores_held")[0, 0], 2.0, rtol=1e-5)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "cores_free_share")[:, 0], [6 / 8, 1.0], rtol=1e-5)
    np.testing.assert_allclose(raw(gpus, GPU_PLANES, "speed")[:, 0], [(1 + 0.5) / 2, (0.5 + 1) / 2], rtol=1e-5)
    np.testing.assert_allclose(raw(planes.cluster[0], CLUSTER_PLANES, "queue_length"), 2.0, rtol=1e-5)
    np.testing.assert_allclose(raw(planes.cluster[0], CLUSTER_PLANES, "utilization"), 0.25, rtol=1e-6)


@pytest.mark.parametrize("jobs", [1, 5, 12])
def test_pairs_are_all_that_fit_in_the_window_twins_once(jobs):
    rng = np.random.default_rng(jobs)
    for _ in range(30):
        observation = drawn(rng, jobs)
        planes = filler(8).fill(observation)
        rows = [int(row) for row in planes.rows[0] if row >= 0]
        assert len(rows) == min(8, int(observation.queue_length[0]))
        stands_for: dict[int, list[int]] = {}
        for row in rows:
            duration_s = observation.durations_s(0, row)
            for gpu in np.flatnonzero(fits_now(observation)[0, row]):
                pair = planes.pair_of(0, row, int(gpu))
                assert planes.pair_queue[pair] == row
                other = int(planes.pair_gpu[pair])
                assert observation.gpu_node[0, other] == observation.gpu_node[0, gpu]
                assert duration_s[other] == duration_s[gpu]
                stands_for.setdefault(pair, []).append(int(gpu))
        assert sorted(stands_for) == list(range(len(planes.pairs)))  # none is missing, none stands for nothing
        for pair, gpus in stands_for.items():
            assert planes.pair_gpu[pair] == min(gpus)
            np.testing.assert_allclose(raw(planes.pairs, PAIR_PLANES, "twins")[pair], len(gpus) - 1, atol=1e-5)


def test_the_base_policys_choice_is_always_there():
    rng = np.random.default_rng(3)
    policy = HoldGreedyFixed()
    for jobs in (1, 6, 20):
        for hold_allowed in (True, False):
            for _ in range(20):
                observation = drawn(rng, jobs, hold_allowed=hold_allowed)
                np.testing.assert_array_equal(of_base(filler(5).fill(observation)), policy.act(observation))


def test_long_queues_show_the_oldest_and_what_the_base_would_do():
    simulator = BatchSimulator(load_scenario("batch").cluster, lists("batch", 8, 96))
    policy, small = HoldGreedyFixed(), filler(8)
    for _ in range(40):
        observation = simulator.observe()
        planes = small.fill(observation)
        chosen = policy.act(observation)
        np.testing.assert_array_equal(of_base(planes), chosen)
        for n in range(len(planes.base)):
            rows = planes.rows[n][planes.rows[n] >= 0].tolist()
            assert rows == sorted(rows)
            assert set(np.flatnonzero(observation.job_waiting[n])[:4]) <= set(rows)
            assert len(rows) == min(8, observation.queue_length[n])
        simulator.act(chosen)


def lists(scenario, count, jobs, seed=1, load=1.1):
    drawn_for = load_scenario(scenario)
    rng = np.random.default_rng(seed)
    return pack_jobs([draw_jobs(drawn_for, load=load, rng=rng, count=jobs) for _ in range(count)], drawn_for.cluster)


def test_rows_of_jobs_that_have_left_change_nothing():
    rng = np.random.default_rng(8)
    for _ in range(20):
        observation = drawn(rng, 7)
        plain, with_rows = filler().fill(observation), filler().fill(padded(observation, [0, 3, 3, 7]))
        for name in MATRICES:
            np.testing.assert_array_equal(getattr(plain, name), getattr(with_rows, name), err_msg=name)


def test_a_batch_gives_what_each_gives_alone():
    rng = np.random.default_rng(9)
    observations = [drawn(rng, 6) for _ in range(5)]
    together, one = filler().fill(merged(observations)), filler()
    for n, observation in enumerate(observations):
        alone = one.fill(observation)
        pairs = slice(together.first_pair[n], together.first_pair[n + 1])
        np.testing.assert_array_equal(together.pairs[pairs], alone.pairs)
        for name in ("gpus", "jobs", "cluster", "rows", "scale_s"):
            np.testing.assert_array_equal(getattr(together, name)[n], getattr(alone, name)[0], err_msg=name)


@pytest.mark.parametrize("times", [1000.0, 0.01])
def test_in_a_cluster_where_all_takes_longer_a_network_sees_the_same(times):
    rng = np.random.default_rng(10)
    for _ in range(10):
        observation = drawn(rng, 6)
        slower = dataclasses.replace(
            observation,
            time_s=observation.time_s * times,
            job_submit_s=observation.job_submit_s * times,
            kind_duration_s=observation.kind_duration_s * times,
            gpu_remaining_s=observation.gpu_remaining_s * times,
        )
        slower = with_new_table(slower)
        here, there = filler().fill(observation), filler().fill(slower)
        assert there.scale_s[0] == pytest.approx(times * here.scale_s[0])
        for name in ("gpus", "jobs", "cluster", "pairs"):
            np.testing.assert_allclose(getattr(there, name), getattr(here, name), atol=1e-5, err_msg=name)


def test_no_plane_tells_what_is_still_to_come():
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=1.1, rng=np.random.default_rng(2), count=40)
    few, many = (BatchSimulator(scenario.cluster, pack_jobs([part], scenario.cluster)) for part in (jobs[:25], jobs))
    compared = 0
    while few.time_s[0] < jobs[24].submit_s and many.time_s[0] < jobs[24].submit_s:
        here, there = few.observe(), many.observe()
        planes, others = filler().fill(here), filler().fill(there)
        for name in (*MATRICES, "hold_allowed", "scale_s"):
            np.testing.assert_array_equal(getattr(planes, name), getattr(others, name), err_msg=name)
        few.act(of_base(planes))
        many.act(of_base(others))
        compared += 1
    assert compared > 20


def test_every_figure_is_in_the_range_of_its_plane():
    rng = np.random.default_rng(12)
    for seed in range(10):
        observation = drawn(rng, 9, hold_allowed=bool(seed % 2))
        planes = filler().fill(observation)
        for name, rows in GROUPS.items():
            values = getattr(planes, name)
            last = np.moveaxis(values, 1, -1) if name == "gpus" else values
            for number, plane in enumerate(rows):
                column = last[..., number]
                assert np.isfinite(column).all(), plane.name
                # What is padding is 0, whatever the range.
                assert (column >= min(plane.low, 0.0)).all(), plane.name
                assert (column <= max(plane.high, 0.0)).all(), plane.name


def test_what_is_out_of_range_is_counted():
    ordinary = filler().fill(decision([Waiting((10.0,))], [0.0]))
    assert ordinary.clipped[0] == 0
    strange = filler().fill(decision([Waiting((10.0,), submit_s=-1e9, priority=5.0)], [0.0]))
    assert strange.clipped[0] >= 2


def test_names_of_planes_are_their_own_and_the_table_has_a_digest(monkeypatch):
    before = table.table_digest()
    for planes in GROUPS.values():
        names = [plane.name for plane in planes]
        assert len(set(names)) == len(names)
        assert all(plane.low < plane.high and plane.what and plane.unit for plane in planes)
    worded = (*CLUSTER_PLANES[:-1], dataclasses.replace(CLUSTER_PLANES[-1], what="in other words"))
    for planes, same in (
        (worded, True),
        (CLUSTER_PLANES[:-1], False),
        ((*CLUSTER_PLANES[:-1], dataclasses.replace(CLUSTER_PLANES[-1], factor=2.0)), False),
        (CLUSTER_PLANES[::-1], False),
    ):
        monkeypatch.setattr(table, "CLUSTER_PLANES", planes)
        table.table_digest.cache_clear()
        assert (table.table_digest() == before) == same
    monkeypatch.undo()
    table.table_digest.cache_clear()


def test_the_base_is_left_only_for_what_clears_the_margin():
    planes = filler().fill(
        decision([Waiting((10.0, 20.0)), Waiting((30.0, 12.0))], [0.0, 0.0], node=[0, 1], model=[0, 1])
    )
    assert len(planes.pairs) == 4
    base = int(planes.base[0])
    other = next(pair for pair in range(4) if pair != base)
    q = np.zeros(4, dtype=np.float32)
    none = np.full(1, -1.0, dtype=np.float32)
    q[other] = 0.4
    assert best_of(planes, q, none, Margins(start=0.5)).tolist() == [base]
    assert best_of(planes, q, none, Margins(start=0.3)).tolist() == [other]
    assert best_of(planes, q, none + 1.9, Margins(start=0.5, hold=1.0)).tolist() == [base]
    assert best_of(planes, q, none + 2.1, Margins(start=0.5, hold=1.0)).tolist() == [-1]
    assert choose(planes, q, none + 2.1, Margins(start=0.5, hold=1.0)).tolist() == [[HOLD, HOLD]]
    # Of equals the base's own; what is no number is worth nothing.
    assert best_of(planes, np.zeros(4, np.float32), none + 1.0, Margins()).tolist() == [base]
    q[base] = np.nan
    assert best_of(planes, q, none - 100.0, Margins(start=9.0)).tolist() == [other]


def test_who_has_waited_long_is_passed_over_for_a_greater_gain_only():
    """The base starts the job of 10 s: by how long it has waited, other jobs need more to go before it; it does not."""
    for submit_s in (100.0, 60.0, 0.0):
        planes = filler().fill(
            decision([Waiting((10.0, 10.1), submit_s=submit_s), Waiting((30.0, 32.0))], [0.0, 0.0], node=[0, 1])
        )
        waited = float(planes.jobs[0, 0, [plane.name for plane in JOB_PLANES].index("waited_scale")])
        base = int(planes.base[0])
        assert planes.pair_queue[base] == 0
        q = np.zeros(4, dtype=np.float32)
        none = np.full(1, -9.0, dtype=np.float32)
        same = next(pair for pair in range(4) if pair != base and planes.pair_queue[pair] == 0)
        other = next(pair for pair in range(4) if planes.pair_queue[pair] == 1)
        for more, expected in ((0.01, other), (-0.01, base)):
            q[other] = 0.05 + 0.6 * waited + more
            assert best_of(planes, q, none, Margins(start=0.05, age=0.6)).tolist() == [expected]
        q[other], q[same] = 0.0, 0.06
        assert best_of(planes, q, none, Margins(start=0.05, age=9.0)).tolist() == [same]


@pytest.mark.parametrize(
    ("remaining_s", "beyond"), [([0.0] * 4, 0.5), ([0.0, 0.0, 0.0, 5.0], 0.25), ([0.0, 5.0, 0.0, 5.0], 0.0)]
)
def test_where_few_gpus_are_busy_a_slower_one_must_gain_more(remaining_s, beyond):
    """Of four GPUs two are fast. No other pair has that margin: not another job's, not one on a GPU that is as fast."""
    waiting = [Waiting((10.0, 10.0, 11.0, 11.0)), Waiting((30.0, 30.0, 33.0, 33.0))]
    planes = filler().fill(decision(waiting, remaining_s, node=[0, 1, 2, 3]))
    base, none = int(planes.base[0]), np.full(1, -9.0, dtype=np.float32)
    seen = set()
    for pair in range(len(planes.pairs)):
        if pair == base:
            continue
        own = planes.pair_queue[pair] == planes.pair_queue[base]
        slower = own and planes.pair_gpu[base] < 2 <= planes.pair_gpu[pair]
        seen.add((bool(own), bool(slower)))
        for more, expected in ((0.01, pair), (-0.01, base)):
            q = np.zeros(len(planes.pairs), dtype=np.float32)
            q[pair] = 0.05 + 0.8 * beyond * slower + more
            assert best_of(planes, q, none, Margins(start=0.05, idle=0.8)).tolist() == [expected]
    assert seen >= {(False, False), (True, True)}


def test_margins_are_the_same_for_one_decision_and_for_many():
    rng = np.random.default_rng(31)
    points = [drawn(rng, 6) for _ in range(40)]
    margins = Margins(start=0.1, hold=0.2, age=0.7, idle=0.9)
    together = filler().fill(merged(points))
    q = rng.standard_normal(len(together.pairs)).astype(np.float32)
    hold = rng.standard_normal(len(points)).astype(np.float32)
    expected = choose(together, q, hold, margins)
    for n, point in enumerate(points):
        pairs = slice(*together.first_pair[n : n + 2])
        alone = choose(filler().fill(point), q[pairs], hold[n : n + 1], margins)
        assert alone.tolist() == expected[n : n + 1].tolist()


def test_nobody_holds_beside_a_backlog():
    """Five jobs of 4 s are planned on GPU 0 in 3 to 15 s; GPU 1 would be done with one before the last starts."""
    hold = np.full(1, 1e6, dtype=np.float32)
    for count, expected in ((1, [HOLD, HOLD]), (5, [0, 1])):
        planes = filler().fill(decision([Waiting((4.0, 11.0))] * count, [3.0, 0.0]))
        action = choose(planes, np.zeros(len(planes.pairs), dtype=np.float32), hold, Margins())
        assert action.tolist() == [expected]


def test_how_long_the_queue_takes_is_among_the_planes():
    planes = filler().fill(decision([Waiting((4.0, 11.0))] * 5, [3.0, 0.0]))
    np.testing.assert_allclose(raw(planes.cluster[0], CLUSTER_PLANES, "drain") * planes.scale_s[0], 15.0, rtol=1e-5)
    np.testing.assert_allclose(raw(planes.pairs, PAIR_PLANES, "drains"), 15.0 / 11.0, rtol=1e-5)


def test_where_no_hold_is_allowed_something_is_started():
    rng = np.random.default_rng(13)
    eager = np.full(1, 1e6, dtype=np.float32)
    seen = 0
    for _ in range(40):
        observation = drawn(rng, 4, hold_allowed=False)
        planes = filler().fill(observation)
        q = rng.standard_normal(len(planes.pairs)).astype(np.float32)
        action = choose(planes, q, eager, Margins(start=1e9, hold=0.0))
        fits = fits_now(observation)
        if fits.any():
            assert fits[0, action[0, 0], action[0, 1]]
            seen += 1
        else:
            assert action.tolist() == [[HOLD, HOLD]]
    assert seen > 10
