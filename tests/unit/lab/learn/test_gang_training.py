"""Training where jobs of several GPUs wait: rollouts are the simulator's own course, worlds and networks repeat."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

import onnx

from adlro.decide.gang_actions import ACTIONS_AT_MOST, GangActionFinder
from adlro.decide.gang_network import KEY, blank_network
from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies.dqn import SHIPPED, Dqn
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.rollouts.gang_base import gang_base
from adlro.decide.rollouts.gang_futures import room_for_gangs
from adlro.errors import InvalidInput
from adlro.lab.learn.gang_sampling import AskedActions, room_for_gains, sample_gangs
from adlro.lab.learn.gang_states import GangSampling, GangStates, collect_gang_world, load_gang_states, wanted_decisions
from adlro.lab.learn.gang_training import GangTraining, act_of, main, mean_gain, price_of_figure, train, with_gangs
from adlro.lab.learn.gang_worlds import draw_gang_world
from adlro.lab.learn.sampling import FutureDraws
from adlro.lab.learn.worlds import world_of
from adlro.lab.learn.wrong_guesses import WRONG_GUESSES, with_stated_spread, with_wrong_guesses
from adlro.sim.batch import BatchSimulator
from adlro.sim.course import JOBS_S
from adlro.state.cluster_arrays import Hardware
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

pytestmark = pytest.mark.slow

SMALL = GangSampling(lists=2, jobs=40, share=0.5, other_share=0.2, futures=2, ahead=4)


def burst(seed: int) -> JobArrays:
    """One list whose jobs have all arrived soon, so that a decision's future has no more arrivals."""
    drawn = draw_jobs(load_scenario("gangs"), load=50.0, rng=np.random.default_rng(seed), count=30)
    return pack_jobs([drawn], load_scenario("gangs").cluster)


@pytest.mark.parametrize("seed", range(3))
def test_a_rollout_without_arrivals_goes_as_the_simulator_does(seed: int) -> None:
    cluster, jobs = load_scenario("gangs").cluster, burst(seed)
    policy, finder = HoldGang(), GangActionFinder(ONE_SETTING.rule())
    policy.wait_ratio = np.inf

    def play(skip: int, chosen: int) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """Plays the list, with another action at the decision `skip`: costs from there on, gains of it, its number."""
        simulator, decision, gain, before = BatchSimulator(cluster, jobs), 0, np.zeros(2), 0.0
        while len(simulator.active):
            seen = simulator.observe()
            judgement = policy.weigh(seen)
            acts, reserve = policy.choose(seen, judgement), judgement.reserve
            waits, _ = wanted_decisions(seen)
            if waits[0] and simulator.course.arrived_count[0] == jobs.job_count[0] and reserve is not None:
                if decision == skip:
                    found = finder.find(seen)
                    chosen = chosen % len(found.kind)
                    width = seen.table.gpus.shape[1]
                    asked = AskedActions(
                        size=np.array([len(found.kind)]),
                        place=np.full((1, ACTIONS_AT_MOST), HOLD),
                        gpus=np.full((1, ACTIONS_AT_MOST, width), HOLD),
                        reserve=np.full((1, ACTIONS_AT_MOST), -1),
                    )
                    for a, row in enumerate(found.row):
                        if row != HOLD:
                            asked.place[0, a], asked.gpus[0, a] = seen.table.job[row], seen.table.gpus[row]
                        asked.reserve[0, a] = found.reserve[a]
                    gains = room_for_gains(1, ACTIONS_AT_MOST)
                    hardware = Hardware(*(column[:1] for column in simulator.hardware))
                    room = room_for_gangs(hardware, jobs.submit_s.shape[1], 3, jobs.widest, 0)
                    nothing = np.zeros((1, 1, 0), dtype=np.float32)
                    sample_gangs(
                        simulator.machines,
                        jobs,
                        simulator.course,
                        simulator.active,
                        asked,
                        1.0,
                        gang_base(ONE_SETTING, room.hardware, room.jobs),
                        FutureDraws(nothing, nothing, np.zeros((1, 1), dtype=np.float32)),
                        room,
                        np.zeros((2, ACTIONS_AT_MOST, 1)),
                        gains,
                    )
                    gain = np.array([gains.gain_s[0, chosen], gains.waits_s2[0, chosen]])
                    before = float(simulator.totals[0, JOBS_S])
                    acts = np.concatenate([asked.place[:, chosen : chosen + 1], asked.gpus[:, chosen]], axis=1)
                    reserve[0] = asked.reserve[0, chosen]
                decision += 1
            simulator.act(acts, reserve)
        waits_s = simulator.outcome().start_s - jobs.submit_s
        costs = np.array([float(simulator.totals[0, JOBS_S]) - before, 0.5 * float(np.square(waits_s).sum())])
        return costs, gain, chosen

    told = 0
    for skip in (0, 3, 7, 12):
        base, _, _ = play(skip, 0)
        for number in range(1, 6):
            costs, gain, chosen = play(skip, number)
            assert gain == pytest.approx(base - costs, rel=1e-9, abs=1e-6)
            told += chosen > 0 and abs(float(gain[0])) > 0.0
    assert told > 5


def test_worlds_are_of_many_kinds_and_repeat() -> None:
    worlds = [draw_gang_world(np.random.default_rng(seed), lists=2, jobs=20) for seed in range(30)]
    assert len({sum(1 for _ in world.cluster.gpus()) for world in worlds}) > 3
    assert {size for world in worlds for size in np.unique(world.jobs.gpu_count).tolist()} >= {1, 2, 4, 8}
    again = draw_gang_world(np.random.default_rng(3), lists=2, jobs=20)
    for ours, theirs in zip(again.jobs, worlds[3].jobs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_states_repeat_and_come_back_from_their_file(tmp_path: Path) -> None:
    first, second = (collect_gang_world(tmp_path / f"{name}.npz", 1, 0, SMALL)[1] for name in "ab")
    for states in (second, load_gang_states(tmp_path / "a.npz")):
        for name in GangStates.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(first, name), getattr(states, name))
    begins = np.concatenate([[0], np.cumsum(first.count)[:-1]])
    assert (first.gain[begins] == 0.0).all()
    assert (first.gain != 0.0).any()
    assert np.isfinite(first.gain).all()


def test_two_processes_make_the_same_files_as_one(tmp_path: Path) -> None:
    said: list[str] = []
    for processes in (1, 2):
        network = act_of(blank_network())
        training = GangTraining(tmp_path / str(processes), 1, 1, said.append, sampling=SMALL, processes=processes)
        paths = training.collect(2, 2, network)
        assert [path.name for path in paths] == ["00002.npz", "00003.npz"]
    assert said[:2] == said[2:]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


def test_a_network_learns_what_gains() -> None:
    rng = np.random.default_rng(0)
    states = collect_like(rng)
    network = train([states], seed=1, epochs=150, threads=1)
    again = train([states], seed=1, epochs=150, threads=1)
    assert network.to_text() == again.to_text()
    gain, others = mean_gain(network, [collect_like(rng)])
    assert gain > 0.6  # of the 1.0 that the best action gains in half of the decisions
    assert 0.3 < others < 0.7


def collect_like(rng: np.random.Generator) -> GangStates:
    """Made-up decisions of two actions; the second gains 2 if its 21st figure is above 0, and loses 2 if not."""
    from adlro.decide.gang_actions import ACTION_FIGURES, CLUSTER_FIGURES

    count = 3000
    figures = rng.normal(size=(2 * count, ACTION_FIGURES)).astype(np.float32)
    kind = np.tile([0, 4], count)
    gain = np.where(kind == 0, 0.0, np.where(figures[:, 20] > 0.0, 2.0, -2.0)).astype(np.float32)
    of_waits = np.zeros(2 * count, dtype=np.float32)
    return GangStates(
        count=np.full(count, 2),
        kind=kind,
        cluster=rng.normal(size=(count, CLUSTER_FIGURES)).astype(np.float32),
        figures=figures,
        gain=gain,
        of_waits=of_waits,
        variance=np.full(2 * count, 0.01, dtype=np.float32),
        covariance=np.zeros(2 * count, dtype=np.float32),
        waits_variance=np.zeros(2 * count, dtype=np.float32),
    )


def test_the_network_weighs_long_waits_by_the_price_that_it_is_told() -> None:
    # The second action costs one typical duration, and saves waits worth 10 times the price.
    states = collect_like(np.random.default_rng(0))
    others = states.kind != 0
    states = dataclasses.replace(
        states,
        gain=np.where(others, -1.0, 0.0).astype(np.float32),
        of_waits=np.where(others, 10.0, 0.0).astype(np.float32),
    )
    network = train([states], seed=1, epochs=400, threads=1)
    shares = [
        mean_gain(dataclasses.replace(network, wait_prices=(price, price)), [states])[1] for price in (0.0, 0.03, 0.5)
    ]
    assert shares[0] < 0.05
    assert shares[1] < 0.05
    assert shares[2] > 0.95


def test_the_price_depends_on_what_is_known() -> None:
    network = train([collect_like(np.random.default_rng(0))], seed=1, epochs=1, threads=1)
    network = dataclasses.replace(network, wait_prices=(0.1, 0.5))
    prices = [price_of_figure(network.figure_at(doubt)) for doubt in (0.0, 0.5, 1.0)]
    assert prices == pytest.approx([0.1, ((3.0 * 11.0) ** 0.5 - 1.0) / 20.0, 0.5])


def test_gains_and_their_variances_at_a_price() -> None:
    states = collect_like(np.random.default_rng(0))
    size = len(states.gain)
    states = dataclasses.replace(
        states,
        of_waits=np.full(size, 3.0, dtype=np.float32),
        covariance=np.full(size, 0.02, dtype=np.float32),
        waits_variance=np.full(size, 0.5, dtype=np.float32),
    )
    assert states.gains.gain_at(np.full(size, 0.2)) == pytest.approx(states.gain + 0.6, abs=1e-6)
    assert states.gains.variance_at(np.full(size, 0.2)) == pytest.approx(0.01 + 0.4 * 0.02 + 0.04 * 0.5)


@pytest.mark.parametrize("kind", WRONG_GUESSES)
def test_wrong_guesses_change_what_is_expected_and_nothing_else(kind: str) -> None:
    jobs = world_of(load_scenario("gangs"), 0.9, "true", np.random.default_rng(1), lists=2, jobs=60).jobs
    wrong = with_wrong_guesses(kind, jobs, np.random.default_rng(2))
    for name, ours, theirs in zip(jobs._fields, wrong, jobs, strict=True):
        assert np.array_equal(ours, theirs) == (name != "expected_s"), name
    assert (np.isfinite(wrong.expected_s) == np.isfinite(jobs.expected_s)).all()
    there = np.isfinite(jobs.expected_s)
    off = wrong.expected_s[there] / jobs.expected_s[there]
    assert off.min() > 0.0
    if kind == "asked":
        best_s = wrong.expected_s.min(axis=2)
        assert (np.log2(best_s) - np.round(np.log2(best_s))) == pytest.approx(0.0, abs=1e-9)
        assert off.min() >= 1.0 - 1e-9
    if kind == "two_modes":
        assert 1 < len(np.unique(np.round(off, 6))) <= 2


def test_the_stated_uncertainty_is_the_true_one_times_a_factor() -> None:
    jobs = world_of(load_scenario("gangs"), 0.9, "noise:0.5", np.random.default_rng(1), lists=2, jobs=400).jobs
    right = with_stated_spread(jobs, 1.0)
    assert right.expected_spread.mean() == pytest.approx(0.5, abs=0.05)
    assert with_stated_spread(jobs, 2.0).expected_spread == pytest.approx(2.0 * right.expected_spread)


def test_worlds_differ_in_size_and_speeds_and_in_what_is_known() -> None:
    worlds = [draw_gang_world(np.random.default_rng(seed), lists=2, jobs=20) for seed in range(60)]
    gpus = [sum(1 for _ in world.cluster.gpus()) for world in worlds]
    # One in 25 is that small: among 60 there may be none.
    more = (draw_gang_world(np.random.default_rng(seed), lists=1, jobs=2).cluster for seed in range(100, 300))
    assert any(sum(1 for _ in cluster.gpus()) <= 8 for cluster in more)
    assert max(gpus) >= 128
    assert sum("sped up" in world.text for world in worlds) > 15
    assert {kind for kind in WRONG_GUESSES for world in worlds if f" {kind}" in world.text} == set(WRONG_GUESSES)
    assert 0.3 < np.mean([world.jobs.expected_spread.max() > 0.0 for world in worlds]) < 0.8


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--worlds", "0"], "--worlds must be at least 1"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--onto", "nowhere.onnx"], "no such file"),
        (["--wait-prices", "0.05"], "--wait-prices must be two numbers"),
        (["--wait-prices", "0.05,20"], "--wait-prices must be from 0 to 10"),
        (["--keep", "1"], "--keep must be from 0 to below 1, not 1"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--doubt", "-1"], "--doubt must be a number from 0, not -1"),
    ],
)
def test_bad_input_is_told_before_anything_is_collected(tmp_path: Path, arguments: list[str], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        main([str(tmp_path), *arguments])
    assert not list(tmp_path.iterdir())


def test_the_command_makes_a_model_that_keeps_the_network_for_jobs_of_one_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.lab.learn.gang_training.GangSampling", lambda **_: SMALL)
    arguments = [str(tmp_path), "--worlds", "10", "--further", "1", "--epochs", "2", "--processes", "1"]
    main(arguments)
    said = capsys.readouterr().out
    assert said.count("decisions: gain") == 2
    path = tmp_path / "gangs.onnx"
    model, shipped = OnnxModel(path), OnnxModel(SHIPPED)
    assert model.gangs is not None
    assert model.metadata == shipped.metadata
    assert Dqn(path).load().version != Dqn().load().version
    before = path.read_bytes()
    main(arguments)  # goes on after the last file: nothing is left but the training
    assert "GPUs backlog" not in capsys.readouterr().out
    assert path.read_bytes() == before
    assert with_gangs(before, model.gangs) == before


def test_it_keeps_a_share_of_the_weights_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.lab.learn.gang_training.GangSampling", lambda **_: SMALL)
    monkeypatch.setattr("adlro.lab.learn.gang_training._say", lambda _: None)
    networks = []
    for keep in ("0", "0.75"):
        main([str(tmp_path), "--worlds", "1", "--epochs", "1", "--keep", keep])
        networks.append(OnnxModel(tmp_path / "gangs.onnx").gangs)
    before, after, mean = OnnxModel(SHIPPED).gangs, *networks
    assert before is not None
    assert after is not None
    assert mean is not None
    for name in ("first", "first_bias", "second", "second_bias", "last"):
        weights = getattr(before, name)
        assert (getattr(after, name) != weights).any()
        np.testing.assert_allclose(getattr(mean, name), 0.75 * weights + 0.25 * getattr(after, name), rtol=0, atol=1e-6)
    for name in ("mean", "scale", "lowest", "highest"):
        np.testing.assert_array_equal(getattr(mean, name), getattr(before, name))
    assert mean.training["kept"] == 0.75


def test_what_has_no_network_for_jobs_of_several_gpus_has_none_to_keep(tmp_path: Path) -> None:
    model = onnx.load(SHIPPED)
    kept = {each.key: each.value for each in model.metadata_props if each.key != KEY}
    onnx.helper.set_model_props(model, kept)
    onnx.save(model, tmp_path / "one.onnx")
    with pytest.raises(InvalidInput, match="has no network for jobs of several GPUs; leave --keep out"):
        main([str(tmp_path / "folder"), "--onto", str(tmp_path / "one.onnx"), "--keep", "0.5"])
    assert not (tmp_path / "folder").exists()
