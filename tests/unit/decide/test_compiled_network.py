"""Single decisions in compiled code: what ONNX Runtime and torch say, or not used at all."""

from __future__ import annotations

import base64
import contextlib
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.compiled_network import WEIGHTS_KEY, CompiledNetwork, weights_to_text
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import KEY, ModelMetadata, OnnxModel
from adlro.decide.planes.probe import probe_planes
from adlro.decide.planes.session import INPUTS
from adlro.decide.policies.dqn import SHIPPED
from adlro.decide.policies.hold_greedy import FIXED, HoldGreedyFixed
from adlro.errors import InvalidInput
from adlro.lab.learn.env import draw_lists
from adlro.lab.learn.export import to_onnx
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings
from adlro.sim.batch import BatchSimulator
from adlro.workload.scenario import load_scenario
from tests.unit.decide.decision_points import Waiting, decision

torch.set_num_threads(1)
METADATA = ModelMetadata(FIXED.rule(), 32)


def shaken(settings: NetworkSettings | None = None) -> PairNetwork:
    torch.manual_seed(2)
    network = PairNetwork(settings)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def weights(network: PairNetwork) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in network.state_dict().items()}


def in_torch(network: PairNetwork, planes):
    with torch.no_grad():
        found = network(*(torch.from_numpy(getattr(planes, name)) for name in INPUTS))
    return tuple(each.numpy() for each in found)


@pytest.fixture(scope="module")
def decisions():
    """Planes of one cluster, from empty to crowded."""
    filler, policy, found = PlaneFiller(FIXED.rule()), HoldGreedyFixed(), [probe_planes()]
    simulator = BatchSimulator(load_scenario("paper").cluster, draw_lists(5, 1, load=1.2, jobs=80))
    while len(simulator.active):
        observation = simulator.observe()
        planes = filler.fill(observation)
        if len(planes.pairs):
            found.append(planes)
        simulator.act(policy.act(observation))
    return found


@pytest.mark.parametrize(
    "settings", [None, NetworkSettings(channels=5, hidden=11, hidden2=7), NetworkSettings(9, 4, 20)]
)
def test_it_says_what_torch_says(decisions, settings):
    network = shaken(settings)
    compiled = CompiledNetwork(weights_to_text(weights(network)))
    assert len({len(planes.pairs) for planes in decisions}) > 5
    for planes in decisions:
        for ours, theirs in zip(compiled.q(planes), in_torch(network, planes), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_ships_decides_alone_as_onnx_runtime_says(decisions):
    model = OnnxModel(SHIPPED)
    assert model.compiled
    for planes in decisions[1:]:
        for ours, theirs in zip(model.q(planes), model.q_of_runtime(planes), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_lost_gpus_uneven_nodes_and_clusters_of_other_sizes():
    network, filler, rng = shaken(), PlaneFiller(FIXED.rule()), np.random.default_rng(3)
    compiled = CompiledNetwork(weights_to_text(weights(network)))
    lost = looked = 0
    for _ in range(60):
        gpus = int(rng.integers(1, 40))
        remaining_s = rng.choice([0.0, 5.0, 80.0, np.inf], gpus)
        node = np.sort(rng.integers(0, 1 + gpus // 3, gpus))
        jobs = [
            Waiting(tuple(rng.uniform(1.0, 90.0, gpus)), cores=int(rng.integers(1, 9)))
            for _ in range(int(rng.integers(1, 45)))
        ]
        planes = filler.fill(decision(jobs, list(remaining_s), node=list(node)))
        if len(planes.pairs):
            looked, lost = looked + 1, lost + bool(np.isinf(remaining_s).any())
            for ours, theirs in zip(compiled.q(planes), in_torch(network, planes), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert looked > 40
    assert lost > 30


def test_what_is_no_number_stays_no_number():
    """It is noticed by whoever looks at Q, and never taken for a 0."""
    compiled, planes = CompiledNetwork(weights_to_text(weights(shaken()))), probe_planes()
    for name, place in (("gpus", (0, 2, 1, 1)), ("jobs", (0, 1, 3)), ("cluster", (0, 2)), ("pairs", (4, 0))):
        changed = getattr(planes, name).copy()
        changed[place] = np.nan
        assert np.isnan(compiled.q(planes._replace(**{name: changed}))[0]).any(), name


@pytest.mark.parametrize(("nodes", "pairs", "is_for"), [(8, 224, True), (8, 225, False), (64, 1, False)])
def test_what_counts_as_large(nodes, pairs, is_for):
    planes = probe_planes()
    planes = planes._replace(
        gpus=np.zeros((1, 14, nodes, 2), dtype=np.float32), pairs=np.repeat(planes.pairs[:1], pairs, axis=0)
    )
    assert CompiledNetwork.is_for(planes) is is_for
    assert not CompiledNetwork.is_for(planes._replace(base=np.zeros(2, dtype=np.int64)))


def test_large_decisions_are_left_to_onnx_runtime(monkeypatch):
    few, many = probe_planes(), probe_planes()
    many = many._replace(
        **{name: np.repeat(getattr(many, name), 9, axis=0) for name in ("pairs", "pair_cluster", "pair_job")},
        pair_place=np.repeat(many.pair_place, 9),
    )
    model = OnnxModel(SHIPPED)
    assert len(model.q(many)[0]) == 9 * len(model.q(few)[0])
    monkeypatch.setattr(CompiledNetwork, "q", lambda *_: pytest.fail("asked"))
    assert len(model.q(many)[0])
    with pytest.raises(pytest.fail.Exception, match="asked"):
        model.q(few)


def test_threads_do_not_disturb_each_other(decisions):
    compiled = CompiledNetwork(weights_to_text(weights(shaken())))
    alone = [compiled.q(planes)[0] for planes in decisions]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, (q_pairs, _) in zip(alone, pool.map(compiled.q, decisions), strict=True):
                np.testing.assert_array_equal(q_pairs, found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("second.bias"), r"second\.bias: missing"),
        (lambda found: found.pop("of_base.weight"), r"of_base\.weight is missing"),
        (lambda found: found.update({"second.weight": np.float32(1.0)}), r"second\.weight is missing, or no matrix"),
        (lambda found: found.update({"value.weight": np.float32(1.0)}), r"value has the shape \(\)"),
        (lambda found: found.update(third=np.zeros(3)), "third"),
        (
            lambda found: found.update({"of_job.weight": found["of_job.weight"][:, 1:]}),
            r"of_job has the shape \(64, 23\)",
        ),
    ],
)
def test_weights_of_another_form_are_refused(change, said):
    found = weights(shaken())
    change(found)
    with pytest.raises(ValueError, match=said):
        CompiledNetwork(weights_to_text(found))


def damaged() -> list[str]:
    """No base64, no file of numpy's, one array alone, and a file with single bits turned over."""
    alone = io.BytesIO()
    np.save(alone, np.zeros(3))
    found = ["", "no base64!", "bm8gYXJyYXlz", base64.b64encode(alone.getvalue()).decode()]
    whole = base64.b64decode(weights_to_text(weights(shaken(NetworkSettings(1, 1, 1)))))
    for bit in range(0, 8 * len(whole), 1009):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(base64.b64encode(changed).decode())
    return found


def test_weights_that_cannot_be_read_are_refused():
    texts = damaged()
    for text in texts[:4]:
        with pytest.raises(ValueError, match="weights cannot be read"):
            CompiledNetwork(text)
    read = 0
    for text in texts[4:]:
        with contextlib.suppress(ValueError):
            CompiledNetwork(text)
            read += 1  # a bit that means nothing, as of a date
    assert read < len(texts) / 2


def test_more_than_one_decision_is_refused():
    two = probe_planes()._replace(base=np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="one decision at a time, not 2"):
        CompiledNetwork(weights_to_text(weights(shaken()))).q(two)


def with_weights(content: bytes, text: str) -> bytes:
    model = onnx.load_from_string(content)
    onnx.helper.set_model_props(model, {KEY: METADATA.to_json(), WEIGHTS_KEY: text})
    changed: bytes = model.SerializeToString()
    return changed


@pytest.mark.slow
def test_a_model_whose_weights_are_not_those_of_its_network_is_refused():
    network = shaken()
    content, other = to_onnx(network, METADATA), weights(network)
    assert OnnxModel(content).compiled
    other["second.weight"] = other["second.weight"] + np.float32(0.01)
    with pytest.raises(InvalidInput, match=r"adlro\.weights.*network says something else"):
        OnnxModel(with_weights(content, weights_to_text(other)))
    with pytest.raises(InvalidInput, match=r"adlro\.weights.*cannot be read"):
        OnnxModel(with_weights(content, "no base64!"))


@pytest.mark.slow
def test_a_network_that_says_no_numbers_is_left_to_onnx_runtime():
    """Whose answer is looked at, and refused, where it is asked."""
    network = shaken()
    with torch.no_grad():
        network.value.bias.fill_(float("nan"))
    model = OnnxModel(to_onnx(network, METADATA))
    assert not model.compiled
    assert np.isnan(model.q(probe_planes())[0]).all()


@pytest.mark.slow
def test_a_network_without_convolutions_is_left_to_onnx_runtime():
    network = shaken(NetworkSettings(convolutions=False))
    assert not OnnxModel(to_onnx(network, METADATA)).compiled
