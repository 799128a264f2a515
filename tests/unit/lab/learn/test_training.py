"""Training: what is paid and learned, by hand and against slow ways; resuming gives the same curve."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import ModelMetadata, OnnxModel
from adlro.decide.planes.ranges import TABLES, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.errors import InvalidInput
from adlro.lab.learn.dqn import Learner, best_allowed
from adlro.lab.learn.episodes import greedy, run_generation
from adlro.lab.learn.export import load_network, save_network
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import RECIPES, Recipe, recipe_named
from adlro.lab.learn.replay import Inputs, Replay, taken
from adlro.lab.learn.training import CHECKPOINT, CURVE, Training
from adlro.lab.learn.validation import SETTINGS, VALIDATION_ENTROPY, Validation
from adlro.lab.learn.worlds import world_of
from adlro.sim.batch import simulate
from adlro.workload.scenario import load_scenario

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = Recipe(
    "small",
    randomised=False,
    lists=6,
    jobs=16,
    replay=400,
    batch=32,
    target_every=3,
    epsilon_first=0.5,
    validate_every=2,
)


@pytest.fixture(scope="module")
def world():
    return world_of(load_scenario("paper"), 1.1, "true", np.random.default_rng(4), lists=6, jobs=24)


def generation(world, recipe, epsilon=0.3, seed=1):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    return run_generation(world, PairNetwork(), recipe, PlaneFiller(FIXED.rule()), rng, epsilon, CPU)


def test_decisions_of_a_list_follow_one_another(world):
    ran = generation(world, SMALL)
    following = ran.decisions.following
    assert (following[following >= 0] > np.flatnonzero(following >= 0)).all()
    assert len(set(following[following >= 0])) == (following >= 0).sum()  # each follows one
    starts = (ran.decisions.action >= 0).sum()
    assert starts == world.jobs.job_count.sum()
    assert ran.explored == pytest.approx(0.3, abs=0.1)


def test_the_reward_of_the_paper_is_the_time_that_jobs_spend(world):
    recipe = dataclasses.replace(SMALL, reward="jobs", idle=1e-9)
    ran = generation(world, recipe, epsilon=0.0)
    # Until the last decision that has a next one, by the completion times of the jobs themselves.
    outcome = simulate(world.cluster, world.jobs, HoldGreedyFixed().act)
    assert ran.mean_jct_s == pytest.approx(float(np.mean(outcome.end_s - world.jobs.submit_s)))
    paid_s, begun_s, ended_s = -ran.decisions.reward_s.sum(), [], []
    for number in range(len(world.jobs.job_count)):
        times = decision_times(world, number)
        begun_s.append(times[0])
        ended_s.append(max(time_s for time_s in times if time_s <= world.jobs.submit_s[number].max()))
    spent_s = 0.0
    for number, (first_s, last_s) in enumerate(zip(begun_s, ended_s, strict=True)):
        within = np.clip(outcome.end_s[number], first_s, last_s) - np.clip(world.jobs.submit_s[number], first_s, last_s)
        spent_s += float(within.sum())
    assert paid_s == pytest.approx(spent_s, rel=1e-6)


def decision_times(world, number):
    """When the base decides, in a list that is run alone."""
    times, policy = [], HoldGreedyFixed()

    def act(observation):
        times.append(float(observation.time_s[0]))
        return policy.act(observation)

    alone = world.jobs._replace(**{name: column[number : number + 1] for name, column in world.jobs._asdict().items()})
    simulate(world.cluster, alone, act)
    return times


def test_both_rewards_prefer_the_same(world):
    """Over a list they differ by what no policy changes, but for the mean that is taken off and what still runs."""
    sums = {}
    for reward in ("jobs", "waits"):
        for hold_often in (False, True):
            recipe = dataclasses.replace(SMALL, reward=reward, idle=1e-9, random_hold=0.9 if hold_often else 0.0)
            ran = generation(world, recipe, epsilon=0.5 if hold_often else 0.0)
            sums[reward, hold_often] = ran
    assert sums["jobs", True].mean_jct_s > sums["jobs", False].mean_jct_s
    # The mean over time is taken off: what is left sums to 0.
    for hold_often in (False, True):
        reward_s = sums["waits", hold_often].decisions.reward_s
        assert abs(reward_s.sum()) < 1e-6 * np.abs(reward_s).sum()
    assert np.abs(sums["waits", False].decisions.reward_s).sum() < np.abs(sums["jobs", False].decisions.reward_s).sum()


def test_time_is_discounted_and_not_decisions(world):
    ran = generation(world, SMALL)
    decisions = ran.decisions
    assert ((decisions.discount > 0.0) & (decisions.discount <= 1.0)).all()
    assert (decisions.discount[decisions.following >= 0] == 1.0).any()  # several starts at one moment
    fixed = generation(world, dataclasses.replace(SMALL, discount_per_decision=0.9))
    assert (fixed.decisions.discount == 0.9).all()


def test_targets_are_what_a_slow_way_gives(world):
    decisions = generation(world, SMALL).decisions
    torch.manual_seed(5)
    network = PairNetwork()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for double in (True, False):
        learner = Learner(network, dataclasses.replace(SMALL, double=double), CPU)
        torch.manual_seed(6)
        for parameter in learner.target.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        rows = decisions.usable[::7]
        targets = learner.targets(decisions, rows).numpy()
        for place, row in enumerate(rows):
            after = decisions.following[row]
            inputs = taken(decisions, np.array([after]))
            with torch.no_grad():
                online = [each.numpy() for each in learner.online(*map(torch.from_numpy, inputs[:-1]))]
                target = [each.numpy() for each in learner.target(*map(torch.from_numpy, inputs[:-1]))]
            judge = online if double else target
            allowed = [(judge[0][pair], target[0][pair]) for pair in range(len(inputs.pairs))]
            if decisions.hold_allowed[after] or not allowed:
                allowed.append((judge[1][0], target[1][0]))
            best = max(allowed)[1]
            worth = decisions.reward_s[row] + decisions.discount[row] * best * decisions.scale_s[after]
            assert targets[place] == pytest.approx(worth / decisions.scale_s[row], rel=1e-3, abs=1e-4)


def test_q_of_what_was_done_is_that_of_each_decision_alone(world):
    decisions = generation(world, SMALL).decisions
    torch.manual_seed(5)
    network = PairNetwork()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    learner = Learner(network, SMALL, CPU)
    rows = np.arange(len(decisions.action))[::5]
    action = decisions.action[rows]
    assert (action < 0).any()
    with torch.no_grad():
        q = learner.q_of(taken(decisions, rows), action).numpy()
        for place, row in enumerate(rows):
            q_pairs, q_hold = network(*map(torch.from_numpy, taken(decisions, rows[place : place + 1])[:-1]))
            expected = q_hold[0] if decisions.action[row] < 0 else q_pairs[decisions.action[row]]
            assert q[place] == pytest.approx(float(expected), abs=1e-4)


def test_a_hold_that_is_not_allowed_is_in_no_maximum():
    inputs = Inputs(
        *(np.zeros(0, np.float32),) * 4, np.array([0, 0, 1]), *(np.zeros(0, np.int64),) * 2, np.array([0, 2, 3, 3])
    )
    judged = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0]))
    q = (torch.tensor([5.0, 4.0, -1.0]), torch.tensor([9.0, 0.0, -2.0]))
    allowed = best_allowed(q, judged, inputs, np.array([True, True, True])).tolist()
    assert allowed == [10.0, 20.0, 30.0]
    forbidden = best_allowed(q, judged, inputs, np.array([False, False, False])).tolist()
    assert forbidden == [1.0, 3.0, 30.0]  # nothing fits in the third: it can but hold


def test_a_replay_keeps_the_newest_whole_generations(world):
    decisions = generation(world, SMALL).decisions
    replay = Replay(2 * len(decisions.action) + 1)
    for kept in (1, 2, 2):
        replay.add(decisions)
        assert replay.generations == kept
    tiny = Replay(1)
    tiny.add(decisions)
    assert tiny.generations == 1
    _, rows = tiny.draw(np.random.default_rng(0), 50)
    assert (decisions.following[rows] >= 0).all()


def test_learning_lowers_the_loss_on_what_is_learned_from(world):
    recipe = dataclasses.replace(SMALL, learning_rate=3e-3, target_every=10_000)
    replay = Replay(10_000)
    replay.add(generation(world, recipe).decisions)
    torch.manual_seed(1)
    learner = Learner(PairNetwork(), recipe, CPU)
    rng = np.random.default_rng(2)
    before = learner.learn(replay, rng, 5)
    learner.learn(replay, rng, 80)
    assert learner.learn(replay, rng, 10) < 0.8 * before


def trained(folder, decisions, recipe=SMALL, **more):
    training = Training(folder, recipe, seed=3, validation=Validation(2, 12), checkpoint_s=0.0, **more)
    for _ in training.run(decisions=decisions):
        pass
    return (folder / CURVE).read_text().splitlines()


@pytest.mark.slow
def test_resumed_or_not_in_one_thread_or_two_the_curve_is_the_same(tmp_path):
    whole = trained(tmp_path / "whole", 700)
    assert len(whole) > 4
    assert any(json.loads(line)["score"] for line in whole)
    parts = trained(tmp_path / "parts", 300)
    assert 1 < len(parts) < len(whole)
    again = Training(tmp_path / "parts", SMALL, seed=3, validation=Validation(2, 12))
    assert again.resumed
    assert again.decisions == json.loads(parts[-1])["decisions"]
    assert trained(tmp_path / "parts", 700) == whole
    assert trained(tmp_path / "alone", 700, threads=1) == whole
    _, metadata = load_network(tmp_path / "whole" / "best.pt")
    assert metadata.seed == 3
    assert metadata.training["validation"]["stuck"] == 0
    # The best is there to serve as soon as a checkpoint is, and knows what it has seen.
    for folder in ("whole", "parts"):
        served = OnnxModel(tmp_path / folder / "best.onnx").metadata
        assert served.training == metadata.training
    seen = ranges_from_json(metadata.training["ranges"]).to_json()
    assert seen["cluster"]["queue_length"][0] < seen["cluster"]["queue_length"][1]


@pytest.mark.slow
def test_a_training_begins_with_the_network_and_the_margins_that_it_is_given(tmp_path):
    seen = {name: {plane.name: [-3.5, -3.5] for plane in table} for name, table in TABLES.items()}
    metadata = ModelMetadata(FIXED.rule(), 32, Margins(0.125, 0.25), training={"ranges": seen})
    torch.manual_seed(9)
    given = PairNetwork()
    save_network(given, metadata, tmp_path / "given.pt")
    training = Training(tmp_path / "run", SMALL, seed=3, start=tmp_path / "given.pt")
    next(training.run(decisions=1))  # the first generation has nothing to learn from
    training.save()
    training.finish()
    network, said = load_network(tmp_path / "run" / "last.pt")
    assert said.margins == metadata.margins
    # What the network saw before counts on, as well as what it saw now.
    load_low, load_high = said.training["ranges"]["cluster"]["queue_length"]
    assert load_low == pytest.approx(-3.5)
    assert load_high > -3.5
    for name, value in given.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name


def test_another_training_in_the_same_folder_is_refused_by_name(tmp_path):
    trained(tmp_path, 100)
    with pytest.raises(InvalidInput, match="batch 32, and 64"):
        Training(tmp_path, dataclasses.replace(SMALL, batch=64), seed=3)
    with pytest.raises(InvalidInput, match="seed 3, and 4"):
        Training(tmp_path, SMALL, seed=4)
    (tmp_path / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(InvalidInput, match="not a checkpoint"):
        Training(tmp_path, SMALL, seed=3)


def test_a_new_network_scores_as_the_base_and_one_that_never_stops_holding_is_found_out():
    validation = Validation(2, 16)
    score = validation.score(greedy(PairNetwork(), PlaneFiller(FIXED.rule()), Margins(), CPU))
    assert (score.gain, score.error, score.worst, score.stuck) == (0.0, 0.0, 0.0, 0)
    slow = validation.score(slowest)
    assert slow.gain < -0.05
    assert slow.worst <= slow.gain


def slowest(observation):
    """The first pair that fits, on the GPU where it takes longest."""
    actions = np.full((len(observation.time_s), 2), -1, dtype=np.int64)
    for n, fits in enumerate(observation.fits_now):
        found = np.argwhere(fits)
        if len(found):
            job = found[0][0]
            durations = np.where(fits[job], observation.duration_s[n, job], -np.inf)
            actions[n] = job, int(durations.argmax())
    return actions


def test_lists_to_be_judged_on_are_no_lists_of_training():
    of_validation = {
        tuple(np.random.SeedSequence((VALIDATION_ENTROPY, n)).generate_state(4)) for n in range(len(SETTINGS))
    }
    of_training = {
        tuple(np.random.SeedSequence(seed, spawn_key=(0, number)).generate_state(4))
        for seed in range(20)
        for number in range(50)
    }
    assert not of_validation & of_training


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_whole_and_their_settings_checked(name):
    recipe = recipe_named(name)
    assert recipe.epsilon(0) == recipe.epsilon_first
    assert recipe.epsilon(10**12) == pytest.approx(recipe.epsilon_last)
    for wrong in (
        {"idle": 1.0},
        {"batch": 0},
        {"reward": "fame"},
        {"learning_rate": 0.0},
        {"loads": ()},
        {"epsilon_last": 2.0},
    ):
        with pytest.raises(InvalidInput):
            recipe_named(name, **wrong)
    with pytest.raises(InvalidInput, match="no recipe"):
        recipe_named("secret")


@pytest.mark.slow
@pytest.mark.timeout(900)  # three processes, of which each reads torch and compiled code
def test_a_killed_training_goes_on_to_the_same_curve(tmp_path):
    def command(folder):
        settings = ["lists=8", "jobs=24", "replay=1500", "validate_every=100", "batch=64"]
        asked = [part for each in settings for part in ("--set", each)]
        module = [sys.executable, "-m", "adlro.lab.learn"]
        return [*module, str(folder), "--decisions", "2400", "--checkpoint-s", "0", *asked]

    def run(folder):
        subprocess.run(command(folder), check=True, capture_output=True, timeout=800)

    run(tmp_path / "whole")
    whole = (tmp_path / "whole" / CURVE).read_text()
    assert whole.count("\n") > 6
    curve = tmp_path / "killed" / CURVE
    process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 600
    while time.monotonic() < end_s and process.poll() is None:
        if curve.exists() and curve.read_text().count("\n") >= 3:
            break
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 3 <= curve.read_text().count("\n") < whole.count("\n")
    run(tmp_path / "killed")
    assert curve.read_text() == whole
    torch_same(tmp_path / "whole" / "last.pt", tmp_path / "killed" / "last.pt")
    assert OnnxModel(tmp_path / "killed" / "last.onnx").metadata.recipe == "adlro"
    assert list((tmp_path / "killed" / "tensorboard").glob("events*"))


def torch_same(one, other):
    first, second = (torch.load(path, weights_only=True)["weights"] for path in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_a_training_ends_after_so_many_episodes_and_goes_on_from_there(tmp_path):
    """Episodes are job lists: a generation of this recipe runs six."""
    training = Training(tmp_path, SMALL, seed=1, threads=1, validation=Validation(2, 12))
    assert [step.generation for step in training.run(decisions=10**9, episodes=13)] == [0, 1, 2]
    assert training.episodes == 18
    again = Training(tmp_path, SMALL, seed=1, threads=1, validation=Validation(2, 12))
    assert again.episodes == 18
    assert list(again.run(decisions=10**9, episodes=18)) == []
