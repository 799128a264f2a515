"""The Q network: the same in torch and in ONNX Runtime, for any cluster; the files that hold it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.choice import Margins, best_of
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import fullest_window
from adlro.decide.planes.model import KEY, MOST_BYTES, ModelMetadata, OnnxModel
from adlro.decide.planes.session import INPUTS
from adlro.decide.policies.dqn import SHIPPED
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn.env import draw_lists
from adlro.lab.learn.episodes import network_q
from adlro.lab.learn.export import load_network, save_network, to_onnx
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings
from adlro.sim.batch import BatchSimulator
from adlro.workload.scenario import load_scenario

torch.set_num_threads(1)
METADATA = ModelMetadata(FIXED.rule(), 32, Margins(0.25, 0.5), recipe="test", seed=3, commit="abc")


def shaken(seed: int = 0, settings: NetworkSettings | None = None) -> PairNetwork:
    """With weights everywhere: a new network's last layers are 0."""
    torch.manual_seed(seed)
    network = PairNetwork(settings)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


@pytest.fixture(scope="module")
def network():
    return shaken()


@pytest.fixture(scope="module")
def content(network):
    """An export, which takes seconds: for tests marked slow."""
    return to_onnx(network, METADATA)


@pytest.fixture(scope="module")
def decisions():
    """Observations of four clusters and of one."""
    cluster, found = load_scenario("paper").cluster, []
    for clusters in (4, 1):
        simulator = BatchSimulator(cluster, draw_lists(7, clusters, load=1.1, jobs=40))
        filler = PlaneFiller(FIXED.rule())
        while len(simulator.active):
            observation = simulator.observe()
            planes = filler.fill(observation)
            found.append((observation, planes))
            rows = planes.base
            chosen = np.stack([planes.pair_queue[rows], planes.pair_gpu[rows]], axis=1)
            simulator.act(np.where(rows[:, None] < 0, -1, chosen))
    return found[::5]


def in_torch(network, planes):
    with torch.no_grad():
        q_pairs, q_hold = network(*(torch.from_numpy(getattr(planes, name)) for name in INPUTS))
    return q_pairs.numpy(), q_hold.numpy()


@pytest.mark.slow
def test_onnx_runtime_gives_what_torch_gives(network, content, decisions):
    model = OnnxModel(content)
    assert len(decisions) > 10
    for observation, planes in decisions:
        q_pairs, q_hold = in_torch(network, planes)
        given = model.q(planes)
        np.testing.assert_allclose(given[0], q_pairs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(given[1], q_hold, rtol=1e-5, atol=1e-5)
        again = model.planes(observation)
        np.testing.assert_array_equal(again.pairs, planes.pairs)


def test_a_batch_gives_what_each_of_it_gives_alone(network, decisions):
    observation, planes = decisions[0]
    assert len(planes.base) == 4
    q_pairs, q_hold = in_torch(network, planes)
    for n in range(4):
        alone = in_torch(network, PlaneFiller(FIXED.rule()).fill(observation.of_cluster(n)))
        first, last = planes.first_pair[n], planes.first_pair[n + 1]
        np.testing.assert_allclose(alone[0], q_pairs[first:last], atol=1e-5)
        np.testing.assert_allclose(alone[1], q_hold[n : n + 1], atol=1e-5)


def test_the_order_of_nodes_slots_and_jobs_does_not_matter(network, decisions):
    rng = np.random.default_rng(4)
    planes = next(planes for _, planes in decisions if len(planes.pairs) > 3 and len(planes.base) == 1)
    q_pairs, q_hold = in_torch(network, planes)
    _, _, nodes, slots = planes.gpus.shape
    node, slot, job = rng.permutation(nodes), rng.permutation(slots), rng.permutation(planes.jobs.shape[1])
    turned = planes._replace(
        gpus=np.ascontiguousarray(planes.gpus[:, :, node][:, :, :, slot]),
        jobs=np.ascontiguousarray(planes.jobs[:, job]),
        pair_job=np.argsort(job)[planes.pair_job],
        pair_place=np.argsort(node)[planes.pair_place // slots] * slots + np.argsort(slot)[planes.pair_place % slots],
    )
    again = in_torch(network, turned)
    np.testing.assert_allclose(again[0], q_pairs, atol=1e-5)
    np.testing.assert_allclose(again[1], q_hold, atol=1e-5)


def test_padding_changes_nothing(network, decisions):
    planes = next(planes for _, planes in decisions if len(planes.pairs) > 3 and len(planes.base) == 1)
    q_pairs, q_hold = in_torch(network, planes)
    slots = planes.gpus.shape[3]
    wider = planes._replace(
        gpus=np.pad(planes.gpus, ((0, 0), (0, 0), (0, 2), (0, 3))),
        jobs=np.pad(planes.jobs, ((0, 0), (0, 9), (0, 0))),
        pair_place=planes.pair_place // slots * (slots + 3) + planes.pair_place % slots,
    )
    again = in_torch(network, wider)
    np.testing.assert_allclose(again[0], q_pairs, atol=1e-5)
    np.testing.assert_allclose(again[1], q_hold, atol=1e-5)


def test_what_acts_in_training_leaves_padding_out_and_says_the_same(network, decisions):
    cpu = torch.device("cpu")
    assert min(fullest_window(planes.jobs) for _, planes in decisions) < max(
        fullest_window(planes.jobs) for _, planes in decisions
    )
    for _, planes in decisions:
        for given, whole in zip(network_q(network, planes, cpu), in_torch(network, planes), strict=True):
            np.testing.assert_allclose(given, whole, atol=1e-5)


def test_the_longest_window_counts_and_an_empty_one_has_a_row():
    jobs = np.zeros((3, 5, 2))
    assert fullest_window(jobs) == 1
    jobs[1, :4, 0] = 1.0
    jobs[2, :2, 0] = 1.0
    assert fullest_window(jobs) == 4


def test_a_new_network_prefers_nothing_and_so_does_what_the_base_does(decisions):
    for _, planes in decisions:
        q_pairs, q_hold = in_torch(PairNetwork(), planes)
        np.testing.assert_array_equal(q_pairs, q_hold[planes.pair_cluster])
        np.testing.assert_array_equal(best_of(planes, q_pairs, q_hold, Margins()), planes.base)


@pytest.mark.slow
def test_parameters_depend_on_neither_gpus_nor_jobs_and_are_few(network, content):
    assert sum(parameter.numel() for parameter in network.parameters()) < 30_000
    assert len(content) < MOST_BYTES


def test_without_convolutions_the_gpu_matrix_plays_no_part(decisions):
    network = shaken(settings=NetworkSettings(convolutions=False))
    planes = decisions[0][1]
    blind = planes._replace(gpus=np.zeros_like(planes.gpus))
    np.testing.assert_array_equal(in_torch(network, planes)[0], in_torch(network, blind)[0])


@pytest.mark.slow
def test_a_file_says_what_goes_with_it(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    assert OnnxModel(tmp_path / "model.onnx").metadata == METADATA


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("planes", "0-feed", "planes is '0-feed'"),
        ("format", "adlro-q-network/0", "format is 'adlro-q-network/0'"),
        ("units", "Q in s", "units is 'Q in s'"),
        ("margins", {"start": "wide", "hold": 0.0}, "metadata"),
        ("margins", {"start": 0.0, "hold": 0.0, "age": float("nan")}, "metadata"),
        ("rule", {"alpha": 1.0}, "metadata"),
        ("later", 1, "metadata"),
    ],
)
def test_a_model_of_other_planes_or_units_is_refused_by_name(name, value, said):
    model = onnx.load(SHIPPED)
    stated = json.loads(METADATA.to_json()) | {name: value}
    onnx.helper.set_model_props(model, {KEY: json.dumps(stated)})
    with pytest.raises(InvalidInput, match=said):
        OnnxModel(model.SerializeToString())


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="No such file"):
        OnnxModel(tmp_path / "none.onnx")
    with pytest.raises(InvalidInput, match="not an ONNX model"):
        OnnxModel(SHIPPED.read_bytes()[: SHIPPED.stat().st_size // 2])
    bare = onnx.load(SHIPPED)
    del bare.metadata_props[:]
    with pytest.raises(InvalidInput, match="not a model of ADLRO"):
        OnnxModel(bare.SerializeToString())


def test_a_network_is_kept_for_training_to_go_on_from(network, decisions, tmp_path):
    save_network(network, METADATA, tmp_path / "network.pt")
    loaded, metadata = load_network(tmp_path / "network.pt")
    assert metadata == METADATA
    planes = decisions[0][1]
    np.testing.assert_array_equal(in_torch(loaded, planes)[0], in_torch(network, planes)[0])
    (tmp_path / "network.pt").write_bytes(b"no network")
    with pytest.raises(InvalidInput, match="not a network"):
        load_network(tmp_path / "network.pt")


def test_training_can_begin_with_the_model_that_ships(decisions, tmp_path):
    loaded, metadata = load_network(SHIPPED)
    served = OnnxModel(SHIPPED)
    assert metadata == served.metadata
    for _, planes in decisions:
        for ours, theirs in zip(in_torch(loaded, planes), served.q_of_runtime(planes), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    (tmp_path / "cut.onnx").write_bytes(SHIPPED.read_bytes()[:-40])
    with pytest.raises(InvalidInput, match=r"cut\.onnx"):
        load_network(tmp_path / "cut.onnx")
