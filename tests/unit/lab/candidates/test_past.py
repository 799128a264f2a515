"""Pasts, worlds of them, and how far two differ."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.lab.candidates.drift import ANOTHER, drift
from adlro.lab.candidates.past import past_of_list
from adlro.lab.candidates.worlds import LONGER, PastWorlds
from adlro.state.job_arrays import JobArrays
from adlro.workload.scenario import load_scenario
from tests.unit.lab.candidates.pasts import past


def test_what_is_known_of_a_job_comes_from_those_that_had_ended_before_it() -> None:
    found = past(60)
    sources = dict(found.sources)
    assert sources["prior"] >= 1  # the first job: nothing had ended
    assert sum(sources.values()) == len(found) == 60
    assert (found.jobs.expected_s != found.jobs.duration_s).any()
    known = past(60, runtime="true")
    np.testing.assert_allclose(known.jobs.expected_s, known.jobs.duration_s)


def test_a_part_holds_its_jobs_and_begins_near_0() -> None:
    whole = past(40)
    part = whole.part(10, 30)
    assert len(part) == 20
    assert 0.0 <= part.jobs.submit_s[0, 0] < 1.0
    np.testing.assert_allclose(np.diff(part.jobs.submit_s[0]), np.diff(whole.jobs.submit_s[0, 10:30]))
    np.testing.assert_array_equal(part.jobs.duration_s[0], whole.jobs.duration_s[0, 10:30])
    np.testing.assert_allclose(part.submit_s, whole.submit_s[10:30])
    assert len(whole.after(float(whole.submit_s[10]))) == 29
    assert len(part.after(float(whole.submit_s[29]))) == 0


def test_no_jobs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="none of them fits"):
        past_of_list(load_scenario("gangs").cluster, [])


def test_worlds_hold_the_pasts_jobs_at_other_rates_and_repeat() -> None:
    of = past(120)
    draw = PastWorlds(of)
    worlds = [draw(np.random.default_rng(seed), lists=4, jobs=50) for seed in range(20)]
    durations = set(of.jobs.duration_s[0, :, 0].tolist())
    for world in worlds:
        assert set(world.jobs.duration_s[:, :, 0].ravel().tolist()) <= durations
        assert (np.diff(world.jobs.submit_s, axis=1) >= 0.0).all()
        assert not world.jobs.preemptible.any()
    longer = [world for world in worlds if world.jobs.submit_s.shape[1] == 50 * LONGER]
    assert 0 < len(longer) < len(worlds)
    assert any((world.jobs.submit_s[:, 5] == 0.0).all() for world in longer)
    gaps_s = [world.mean_gap_s for world in worlds]
    assert max(gaps_s) > 1.5 * min(gaps_s)
    for ours, theirs in zip(draw(np.random.default_rng(3), lists=4, jobs=50).jobs, worlds[3].jobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_worlds_of_one_gpu_leave_the_other_jobs_out() -> None:
    world = PastWorlds(past(80), one_gpu=True)(np.random.default_rng(0), lists=3, jobs=40)
    assert (world.jobs.gpu_count == 1).all()


def test_large_clusters_get_fewer_and_longer_lists() -> None:
    shapes = {
        PastWorlds(past(40, "gangs_64"))(np.random.default_rng(seed), lists=24, jobs=64).jobs.submit_s.shape
        for seed in range(6)
    }
    assert (3, 128) in shapes


def test_a_past_without_two_jobs_makes_no_world() -> None:
    with pytest.raises(InvalidInput, match="worlds need two"):
        PastWorlds(past(40).part(0, 1))


def test_drift_tells_the_same_mix_from_another_one() -> None:
    before, same = past(500, seed=1), past(500, seed=2)
    others = past(500, "paper_roomy", seed=3)
    alike, another = drift(before, same), drift(before, others)
    assert alike is not None
    assert another is not None
    assert alike < ANOTHER < another
    assert drift(before, same.part(0, 150)) is None
    longer = JobArrays(**{**same.jobs._asdict(), "duration_s": same.jobs.duration_s * 5.0})
    slow = drift(before, type(same)(same.cluster, longer, same.measured))
    assert slow is not None
    assert slow > ANOTHER
