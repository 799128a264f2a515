"""States with measured gains: what they are of, that nothing is known of the future, and what a network is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.lab.learn.advantages import Sampling, States, collect
from adlro.lab.learn.dataset import Dataset, batch_of, chunks_of
from adlro.lab.learn.improve import NetworkFit, fit, gains_by_margin, predicted_gain
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.worlds import draw_world, world_of
from adlro.workload.scenario import load_scenario
from tests.dense import durations_s, fits_now

pytestmark = pytest.mark.slow

SMALL = Sampling(lists=4, jobs=40, share=1.0, futures=3, ahead=8)


@pytest.fixture(scope="module")
def states() -> States:
    world = world_of(load_scenario("paper"), 1.0, "noise:0.5", np.random.default_rng(5), lists=4, jobs=40)
    return collect(world, np.random.default_rng(6), SMALL)


def filler() -> PlaneFiller:
    return PlaneFiller(FIXED.rule())


def test_the_first_candidate_is_what_the_base_does_there_and_gains_nothing(states: States) -> None:
    observation = states.observation_of(states.numbers)
    sampled = states.sampled
    actions = HoldGreedyFixed().act(observation)
    np.testing.assert_array_equal(sampled.place[:, 0], actions[:, 0])
    np.testing.assert_array_equal(sampled.gpu[:, 0], actions[:, 1])
    assert (sampled.gain_s[:, 0] == 0).all()
    assert (sampled.error_s[:, 0] == 0).all()
    assert (sampled.played >= 2).all()
    assert len(states) > 50


def test_every_candidate_can_be_carried_out(states: States) -> None:
    fits = fits_now(states.observation_of(states.numbers))
    for n in range(len(states)):
        seen = set()
        for c in range(int(states.sampled.played[n])):
            place, gpu = int(states.sampled.place[n, c]), int(states.sampled.gpu[n, c])
            assert (place, gpu) == (-1, -1) or fits[n, place, gpu]
            seen.add((place, gpu))
        assert len(seen) == states.sampled.played[n]


def test_gains_do_not_depend_on_how_many_jobs_the_list_still_has() -> None:
    # The first jobs of a longer list are the same; what is drawn for futures comes from other lists of the world.
    scenario, few = load_scenario("paper"), Sampling(lists=1, jobs=1, share=1.0, futures=2, ahead=0)
    long = world_of(scenario, 1.0, "true", np.random.default_rng(1), lists=1, jobs=60)
    found = []
    for jobs in (60, 40):
        cut = long.jobs._replace(
            job_count=np.array([jobs]), **{name: getattr(long.jobs, name)[:, :jobs] for name in long.jobs._fields[1:]}
        )
        world = type(long)(long.text, long.cluster, cut, long.mean_gap_s, long.load, long.runtime)
        found.append(collect(world, np.random.default_rng(2), few))
    shorter = len(found[1])
    early = found[1].time_s < cut.submit_s[0, -2]
    assert early.sum() > 10
    np.testing.assert_array_equal(found[0].time_s[:shorter][early], found[1].time_s[early])
    np.testing.assert_array_equal(found[0].sampled.gain_s[:shorter][early], found[1].sampled.gain_s[early])


def test_jobs_count_by_their_priority_where_that_is_asked_for() -> None:
    world = world_of(load_scenario("paper"), 1.0, "true", np.random.default_rng(5), lists=2, jobs=40)
    alike = dataclasses.replace(world, jobs=world.jobs._replace(priority=np.full_like(world.jobs.priority, 0.25)))
    still = dataclasses.replace(SMALL, random_share=0.0, improved_share=0.0)  # all go the same way
    by_priority = dataclasses.replace(still, by_priority=True)
    gains = [
        collect(each, np.random.default_rng(6), sampling).sampled.gain_s
        for each, sampling in ((alike, still), (alike, by_priority), (world, still), (world, by_priority))
    ]
    # The base does not look at priorities, and where all are alike the unit is the same.
    np.testing.assert_allclose(gains[0], gains[1], rtol=1e-4, atol=1e-2)
    np.testing.assert_array_equal(gains[0], gains[2])
    assert (np.sign(gains[3]) != np.sign(gains[2])).mean() > 0.02
    assert np.corrcoef(gains[3].ravel(), gains[2].ravel())[0, 1] > 0.5


def test_a_file_holds_all(states: States, tmp_path: Path) -> None:
    states.save(tmp_path / "world.npz")
    again = States.load(tmp_path / "world.npz")
    before, after = states.observation_of(np.arange(5)), again.observation_of(np.arange(5))
    np.testing.assert_array_equal(durations_s(before), durations_s(after))
    np.testing.assert_array_equal(states.sampled.gain_s, again.sampled.gain_s)
    assert [file.name for file in tmp_path.iterdir()] == ["world.npz"]


def test_a_batch_says_what_its_chunks_say_alone(states: States) -> None:
    other = collect(draw_world(np.random.default_rng(8), lists=2, jobs=30), np.random.default_rng(9), SMALL)
    chunks = chunks_of(states, filler(), np.random.default_rng(0)) + chunks_of(
        other, filler(), np.random.default_rng(0)
    )
    torch.manual_seed(0)
    network = PairNetwork()
    for last in (network.advantage, network.hold):
        torch.nn.init.normal_(last.weight)
    with torch.no_grad():
        together = predicted_gain(network, batch_of(chunks))
        alone = torch.cat([predicted_gain(network, batch_of([chunk])) for chunk in chunks])
    assert together.abs().max() > 0.1
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


def test_regression_finds_gains(states: States) -> None:
    chunks = chunks_of(states, filler(), np.random.default_rng(0))
    untrained = gains_by_margin(PairNetwork(), chunks)
    assert (untrained == 0.0).all()  # an untrained network is the base
    _network, log = fit(Dataset(chunks, chunks), NetworkFit(epochs=30, batch=64))
    assert log[-1]["loss"] < 0.7 * log[0]["loss"]
    # On the very states that it has learned it must beat the base, and by no more than knowing all gains would.
    best = states.sampled.gain_s.max(axis=1) / filler().fill(states.observation_of(states.numbers)).scale_s
    assert 0.0 < log[-1]["gain"] <= best.mean()
