"""The actions that the learned policy weighs where jobs of several GPUs wait, and the network that weighs them."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest

from adlro.decide.gang_actions import (
    ACTION_FIGURES,
    ACTIONS_AT_MOST,
    BASE,
    CLUSTER_FIGURES,
    DOUBT,
    DROPS,
    HOLDS,
    QUEUE_COUNTS,
    QUEUE_SIZES,
    REFUSED,
    RESERVES,
    SLOWNESS,
    STARTS,
    GangActionFinder,
    GangActions,
    doubt_of,
    no_actions,
)
from adlro.decide.gang_network import INPUTS, MOST_DEVIATIONS, GangNetwork, network_from_text
from adlro.decide.looked import Looked, looked_at
from adlro.decide.policies import POLICIES
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.reservation import fill_outlook, outlook_of
from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled
from adlro.records.decisions import DecisionBasis
from adlro.sim.batch import BatchSimulator
from adlro.state.gangs import Outlook, room_for_outlook
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD, Ints, Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.unit.decide.gang_points import Several, point

# Node 0 has two idle GPUs, node 1 four; a job of eight fits nowhere.
WAITING = [
    Several(8, 10.0, submit_s=990.0),
    *(Several(count, s, submit_s=995.0) for count, s in ((4, 6.0), (1, 9.0), (2, 5.0))),
]
NODES = [[0, 0, 20, 20], [0, 0, 0, 0]]


def drawn_network(seed: int = 1, **changes: object) -> GangNetwork:
    rng = np.random.default_rng(seed)
    network = GangNetwork(
        mean=rng.normal(size=INPUTS),
        scale=rng.uniform(0.5, 2.0, size=INPUTS),
        first=rng.normal(size=(INPUTS, 12)) / 8.0,
        first_bias=rng.normal(size=12),
        second=rng.normal(size=(12, 7)) / 3.0,
        second_bias=rng.normal(size=7),
        last=rng.normal(size=8),
        lowest=np.full(CLUSTER_FIGURES, -100.0),
        highest=np.full(CLUSTER_FIGURES, 100.0),
        margins=(0.0, 0.0, 0.0, 0.0, 0.0),
        wait_prices=(0.05, 0.3),
        training={"seed": seed},
    )
    return dataclasses.replace(network, **changes)  # type: ignore[arg-type]


def policy_with(network: GangNetwork | None) -> Dqn:
    """The learned policy with the included network for jobs of one GPU, and this one for jobs of several."""
    policy = Dqn().load()
    policy.wait_ratio = np.inf
    assert policy._loaded is not None
    model = copy.copy(policy._loaded.model)
    model.gangs = network
    policy._loaded = policy._loaded._replace(model=model)
    return policy


def preferring(kind: int) -> GangNetwork:
    """One that gains most by actions of a kind: by the one-hot figure of an action's kind."""
    first = np.zeros((INPUTS, 2))
    first[CLUSTER_FIGURES + 1 + kind, 0] = 1.0
    return drawn_network(
        mean=np.zeros(INPUTS),
        scale=np.ones(INPUTS),
        first=first,
        first_bias=np.zeros(2),
        second=np.eye(2),
        second_bias=np.zeros(2),
        last=np.array([1.0, 0.0, 0.0]),
        margins=(0.0, 0.4, 0.4, 0.4, 0.4),
    )


def actions_of(seen: Observation) -> GangActions:
    return GangActionFinder(ONE_SETTING.rule()).find(seen)


def test_the_actions_of_a_decision_by_hand() -> None:
    seen = point(WAITING, NODES)
    found = actions_of(seen)
    base = HoldGang().weigh(seen)
    assert found.kind[0] == BASE
    assert found.row[0] == base.scores.argmax()
    assert found.reserve[0] == -1
    assert found.row[found.kind == HOLDS].tolist() == [HOLD]
    assert not (found.kind == DROPS).any()
    assert found.reserve[found.kind == RESERVES].tolist() == [0]
    starts = found.row[found.kind == STARTS].tolist()
    assert len(set(starts)) == len(starts) > 0
    assert found.row[0] not in starts


def test_what_is_kept_can_be_dropped() -> None:
    seen = point(WAITING, NODES, reserved=0)
    found = actions_of(seen)
    assert found.reserve[0] == 0
    assert found.reserve[found.kind == DROPS].tolist() == [-1]
    assert not (found.kind == RESERVES).any()


def test_a_decision_without_jobs_of_several_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="several GPUs"):
        actions_of(dataclasses.replace(point(WAITING, NODES), gangs=None))


@pytest.mark.parametrize("seed", range(3))
def test_every_action_can_be_carried_out_and_the_first_is_the_bases(seed: int) -> None:
    scenario = load_scenario("gangs")
    rng = np.random.default_rng(seed)
    jobs = pack_jobs([draw_jobs(scenario, load=1.0, rng=rng, count=60)], scenario.cluster)
    simulator, base = BatchSimulator(scenario.cluster, jobs), HoldGang()
    kinds = np.zeros(5, dtype=np.int64)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = base.weigh(seen)
        acts, reserve = base.choose(seen, judgement), judgement.reserve
        if seen.gangs is not None and reserve is not None:
            found = actions_of(seen)
            assert len(found.kind) <= ACTIONS_AT_MOST
            assert found.figures.shape == (len(found.kind), ACTION_FIGURES)
            assert np.isfinite(found.cluster).all()
            assert np.isfinite(found.figures).all()
            row = int(found.row[0])
            gpus = seen.table.gpus[row].tolist() if row != HOLD else [HOLD]
            assert acts[0, 0] == (seen.table.job[row] if row != HOLD else HOLD)
            assert [gpu for gpu in acts[0, 1:] if gpu >= 0] == [gpu for gpu in gpus if gpu >= 0]
            assert found.reserve[0] == reserve[0]
            chosen = int(rng.integers(len(found.kind)))
            kinds[found.kind[chosen]] += 1
            row = int(found.row[chosen])
            width = seen.table.gpus.shape[1] if len(seen.table.job) else 1
            acts = np.full((1, 1 + width), HOLD, dtype=np.int64)
            if row != HOLD:
                acts[0] = [seen.table.job[row], *seen.table.gpus[row]]
            reserve[0] = found.reserve[chosen]
        simulator.act(acts, reserve)
    assert not simulator.stuck.any()
    assert np.isfinite(simulator.outcome().end_s).all()
    assert (kinds > 0).all(), kinds


def test_a_finder_forgets_the_decision_before_whatever_its_cluster() -> None:
    finder = GangActionFinder(ONE_SETTING.rule())
    points: list[Observation] = []
    for scenario_name, seed in (("gangs", 1), ("gangs_64", 2), ("gangs", 3)):
        scenario, rng = load_scenario(scenario_name), np.random.default_rng(seed)
        jobs = pack_jobs([draw_jobs(scenario, load=1.2, rng=rng, count=40)], scenario.cluster)
        simulator, base = BatchSimulator(scenario.cluster, jobs), HoldGang()
        while len(simulator.active) and len(points) < 60 * seed:
            seen = simulator.observe()
            judgement = base.weigh(seen)
            if seen.gangs is not None:
                points.append(seen.copy())
                remaining_s = seen.gpu_remaining_s.copy()
                remaining_s[~seen.gpu_idle & (rng.random(remaining_s.shape) < 0.2)] = np.inf  # lost
                points.append(dataclasses.replace(seen.copy(), gpu_remaining_s=remaining_s))
            simulator.act(base.choose(seen, judgement), judgement.reserve)
    found = [finder.find(seen) for seen in points]
    assert len(points) > 100
    for seen, actions in zip(points, found, strict=True):
        alone = actions_of(seen)
        for mine, its in zip(actions[:5], alone[:5], strict=True):
            np.testing.assert_array_equal(mine, its)
        assert actions.scale_s == alone.scale_s
        np.testing.assert_array_equal(actions.scores, alone.scores)
        by_rule = HoldGang().weigh(seen)
        np.testing.assert_array_equal(actions.scores[0], by_rule.scores)
        assert by_rule.reserve is not None
        assert actions.reserve[0] == by_rule.reserve[0]


@pytest.mark.parametrize("nodes", [NODES, [[0, 7], [0, 0, 5], [9]]])
def test_the_outlook_of_the_search_is_that_of_the_observation(nodes: list[list[int]]) -> None:
    seen, expected = point(WAITING, nodes), outlook_of(point(WAITING, nodes), 0)
    found = room_for_outlook(seen.gpu_idle.shape[1], seen.node_cores_free.shape[1])
    _fill(found, looked_at(seen), seen.gpu_model[0])
    for name, column in expected._asdict().items():
        if name not in ("able", "cores", "memory_mib", "node", "gives", "taken"):  # room
            np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)


@compiled
def _fill(outlook: Outlook, looked: Looked, gpu_model: Ints) -> None:
    fill_outlook(outlook, looked, gpu_model)


def test_the_network_gives_what_numpy_gives() -> None:
    found, network = actions_of(point(WAITING, NODES)), drawn_network()
    count = len(found.kind)
    price = network.figure_at(float(found.cluster[DOUBT]))
    shared = np.repeat(np.append(found.cluster, price)[None], count, axis=0)
    x = np.concatenate([shared, found.figures, np.repeat(found.figures[:1], count, axis=0)], axis=1)
    x = np.clip((x - network.mean) / network.scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    x = np.maximum(x @ network.first + network.first_bias, 0.0)
    x = np.maximum(x @ network.second + network.second_bias, 0.0)
    expected = x @ network.last[:-1] + network.last[-1]
    gains = network.gains(found)
    assert gains[0] == 0.0
    np.testing.assert_allclose(gains[1:], expected[1:], rtol=1e-9, atol=1e-9)


def test_how_little_is_known_is_told_by_repeated_expectations_or_by_their_uncertainty() -> None:
    nothing = np.zeros(0)
    assert doubt_of(nothing, nothing) == 0.0
    assert doubt_of(np.array([3.0]), np.zeros(1)) == 0.0
    assert doubt_of(np.array([3.0, 4.0, 5.0]), np.zeros(3)) == 0.0
    assert doubt_of(np.array([3.0, 3.0, 3.0]), np.zeros(3)) == 1.0
    assert doubt_of(np.array([3.0, 3.0, 4.0]), np.zeros(3)) == 0.5
    assert doubt_of(np.array([3.0, 4.0]), np.array([0.3, 0.9])) == pytest.approx(0.4)
    assert doubt_of(np.array([3.0, 4.0]), np.array([9.0, 9.0])) == 1.0


def test_the_doubt_of_a_decision_is_that_of_its_waiting_jobs() -> None:
    twins = [Several(8, 10.0, submit_s=990.0), Several(2, 5.0, submit_s=995.0), Several(2, 5.0, submit_s=995.0)]
    assert actions_of(point(twins, [[0, 0, 20, 20], [0, 0, 0, 0]])).cluster[DOUBT] == 0.5
    assert actions_of(point(WAITING, NODES)).cluster[DOUBT] == 0.0


def test_text_and_back() -> None:
    network = drawn_network()
    there = network_from_text(network.to_text(), "a file")
    np.testing.assert_array_equal(there.first, network.first.astype(np.float32).astype(np.float64))
    assert there.margins == network.margins
    assert there.wait_prices == network.wait_prices
    assert there.training == network.training
    assert network_from_text(there.to_text(), "a file").to_text() == there.to_text()


@pytest.mark.parametrize("damage", ["", "{}", "cut", "format", "older", "margins", "prices", "dear"])
def test_a_damaged_network_is_refused_with_the_file_and_the_way_out(damage: str) -> None:
    said = json.loads(drawn_network().to_text())
    if damage == "cut":
        said["arrays"] = said["arrays"][:80]
    elif damage == "format":
        said["format"] = "adlro-gangs/0"
    elif damage == "margins":
        said["margins"] = [0.0, float("nan")]
    elif damage == "older":
        said["format"] = "adlro-gangs/1"
    elif damage == "prices":
        said["wait_prices"] = [0.05]
    elif damage == "dear":
        said["wait_prices"] = [0.05, float("inf")]
    wrong = damage if damage in ("", "{}") else json.dumps(said)
    with pytest.raises(InvalidInput, match=r"mine\.onnx.*adlro\.gangs.*train it again"):
        network_from_text(wrong, "mine.onnx")


def test_without_a_network_for_them_hold_gang_decides() -> None:
    seen = point(WAITING, NODES)
    judgement = policy_with(None).judge(seen)
    assert judgement.basis_of(0) is DecisionBasis.OUT_OF_RANGE
    assert judgement.notes[0] == "a job of several GPUs waits; the network has not learned them"
    expected = POLICIES["hold_gang"]().judge(seen)
    np.testing.assert_array_equal(judgement.scores, expected.scores)
    np.testing.assert_array_equal(judgement.reserve, expected.reserve)


def test_outside_the_range_of_its_training_hold_gang_decides() -> None:
    seen = point(WAITING, NODES)
    network = dataclasses.replace(preferring(HOLDS), highest=np.zeros(CLUSTER_FIGURES))
    judgement = policy_with(network).judge(seen)
    assert judgement.basis_of(0) is DecisionBasis.OUT_OF_RANGE
    assert "outside the range" in judgement.notes[0]
    np.testing.assert_array_equal(judgement.scores, POLICIES["hold_gang"]().judge(seen).scores)


def test_the_very_figures_of_its_training_are_in_its_range_as_they_come_back_from_a_file() -> None:
    found = actions_of(point(WAITING, NODES))
    network = drawn_network(lowest=found.cluster.copy(), highest=found.cluster.copy())
    assert network.is_in_range(found)
    assert network_from_text(network.to_text(), "a file").is_in_range(found)


def test_a_longer_queue_than_ever_counts_as_the_longest_where_something_is_known_of_runtimes() -> None:
    found = actions_of(point(WAITING, NODES))
    network = drawn_network(lowest=found.cluster.copy(), highest=found.cluster.copy())
    longer = found.cluster.copy()
    longer[list(QUEUE_SIZES)] += 3.0
    for doubt, known in ((0.49, True), (0.5, False)):
        network.lowest[DOUBT] = network.highest[DOUBT] = longer[DOUBT] = doubt
        seen = found._replace(cluster=longer)
        assert network.is_in_range(seen) is known
        as_longest = found.cluster.copy()
        as_longest[DOUBT] = doubt
        np.testing.assert_array_equal(network.gains(seen), network.gains(found._replace(cluster=as_longest)))
        as_many = longer.copy()
        as_many[list(QUEUE_COUNTS)] = found.cluster[list(QUEUE_COUNTS)]
        assert not network.is_in_range(found._replace(cluster=as_many)), "other figures alone are news"
        for place in QUEUE_COUNTS:
            as_many[place] += 3.0
            assert network.is_in_range(found._replace(cluster=as_many)) is known
            as_many[place] -= 3.0
        shorter = longer - 4.0 * np.isin(np.arange(CLUSTER_FIGURES), QUEUE_SIZES)
        assert not network.is_in_range(found._replace(cluster=shorter))


@pytest.mark.parametrize("place", sorted({*range(CLUSTER_FIGURES)} - {*QUEUE_SIZES, DOUBT}))
def test_more_of_anything_else_than_ever_is_out_of_range(place: int) -> None:
    found = actions_of(point(WAITING, NODES))
    network = drawn_network(lowest=found.cluster.copy(), highest=found.cluster.copy())
    more = found.cluster.copy()
    more[place] += 0.1
    assert not network.is_in_range(found._replace(cluster=more))


def test_where_nothing_would_end_a_hold_the_rules_start_is_taken_and_no_fallback_is_counted() -> None:
    seen = point(WAITING, NODES, hold_allowed=False)
    network = dataclasses.replace(preferring(STARTS), highest=np.zeros(CLUSTER_FIGURES))
    judgement = policy_with(network).judge(seen)
    assert judgement.basis_of(0) is DecisionBasis.POLICY
    np.testing.assert_array_equal(judgement.scores, POLICIES["hold_gang"]().judge(seen).scores)


def test_an_answer_that_is_no_number_is_left_to_the_rule() -> None:
    seen = point(WAITING, NODES)
    network = dataclasses.replace(preferring(STARTS), first=np.full((INPUTS, 2), 1e200), second=np.eye(2) * 1e200)
    judgement = policy_with(network).judge(seen)
    assert judgement.basis_of(0) is DecisionBasis.FAILED
    np.testing.assert_array_equal(judgement.scores, POLICIES["hold_gang"]().judge(seen).scores)


def test_a_margin_is_twice_as_wide_where_nothing_is_known() -> None:
    found, network = actions_of(point(WAITING, NODES)), drawn_network(margins=(0.0, 0.5, 0.5, 0.5, 0.5))
    gains = np.where(found.kind == BASE, 0.0, 0.75)
    assert network.choose(found, gains) > 0
    found.cluster[DOUBT] = 1.0
    assert network.choose(found, gains) == 0


def test_of_equal_scores_the_networks_row_starts() -> None:
    # Two equal jobs: by the rule the first goes; the network prefers another start.
    twins = [Several(8, 10.0, submit_s=990.0), Several(2, 5.0, submit_s=995.0), Several(2, 5.0, submit_s=995.0)]
    seen = point(twins, [[0, 0, 20, 20]])
    policy = policy_with(preferring(STARTS))
    assert policy.choose(seen, policy.judge(seen))[0].tolist()[:3] == [2, 0, 1]


def test_a_decision_has_no_values_of_rows_and_names_the_rules_row() -> None:
    seen = point(WAITING, NODES)
    judgement = policy_with(preferring(STARTS)).judge(seen)
    assert judgement.values is None
    assert judgement.hold_value is None
    assert judgement.base == HoldGang().weigh(seen).scores.argmax()


@pytest.mark.parametrize("kind", [HOLDS, RESERVES, STARTS])
def test_the_policy_does_what_the_network_prefers(kind: int) -> None:
    seen = point(WAITING, NODES)
    found = actions_of(seen)
    policy = policy_with(preferring(kind))
    judgement = policy.judge(seen)
    place = int(np.flatnonzero(found.kind == kind)[0])
    row = int(found.row[place])
    assert judgement.basis_of(0) is DecisionBasis.POLICY
    assert judgement.reserve is not None
    assert judgement.reserve[0] == found.reserve[place]
    act = policy.choose(seen, judgement)[0]
    assert act[0] == (HOLD if row == HOLD else seen.table.job[row])
    if row != HOLD:
        assert [gpu for gpu in act[1:] if gpu >= 0] == [gpu for gpu in seen.table.gpus[row] if gpu >= 0]


def test_what_is_within_the_margin_is_the_bases_and_says_so() -> None:
    seen = point(WAITING, NODES)
    network = dataclasses.replace(preferring(RESERVES), margins=(0.0, 2.0, 2.0, 2.0, 2.0))
    judgement = policy_with(network).judge(seen)
    assert judgement.basis_of(0) is DecisionBasis.MARGIN
    np.testing.assert_array_equal(judgement.scores, POLICIES["hold_gang"]().judge(seen).scores)


def test_one_decision_is_the_same_alone_and_in_a_batch() -> None:
    scenario = load_scenario("gangs")
    lists = [draw_jobs(scenario, load=1.0, rng=np.random.default_rng(seed), count=40) for seed in range(4)]
    simulator = BatchSimulator(scenario.cluster, pack_jobs(lists, scenario.cluster))
    policy = policy_with(drawn_network(3))
    decisions = 0
    while len(simulator.active) and decisions < 60:
        seen = simulator.observe()
        judgement = policy.weigh(seen)
        if judgement.reserve is not None:
            for n in range(len(seen.time_s)):
                alone = policy.weigh(seen.of_cluster(n))
                np.testing.assert_array_equal(judgement.scores[seen.table.rows(n)], alone.scores)
                if alone.reserve is not None:
                    assert judgement.reserve[n] == alone.reserve[0]
        simulator.act(policy.choose(seen, judgement), judgement.reserve)
        decisions += 1
    assert decisions > 30


@pytest.mark.parametrize(
    ("doubt", "refused", "slowness", "chosen"),
    [
        (0.0, 1.0, 8.0, 1),
        (0.5, 1.0, 8.0, 0),
        (1.0, 1.0, 8.0, 0),
        (1.0, 1.0, 4.0, 1),
        (1.0, 0.0, 8.0, 1),
    ],
)
def test_where_little_is_known_no_action_starts_on_very_slow_gpus_that_the_rule_refuses(
    doubt: float, refused: float, slowness: float, chosen: int
):
    cluster, figures = np.zeros(CLUSTER_FIGURES), np.zeros((2, ACTION_FIGURES))
    cluster[DOUBT] = doubt
    figures[1, REFUSED], figures[1, SLOWNESS] = refused, np.log(slowness)
    actions = no_actions()._replace(kind=np.array([BASE, STARTS]), cluster=cluster, figures=figures)
    assert preferring(STARTS).choose(actions, np.array([0.0, 2.0])) == chosen
