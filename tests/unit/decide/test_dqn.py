"""The learned policy decides as its network and margin say, alike for one and for many; what is not its is refused."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.planes.choice import Margins, choose
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import OnnxModel
from adlro.decide.planes.ranges import ranges_of
from adlro.decide.policies.dqn import CHECKPOINT_MISSING, Dqn
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.errors import InvalidInput, Unsupported
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobType
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Observation
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.networks import RULE, SHORTEST, network, put
from tests.unit.decide.decision_points import Waiting, decision, drawn, merged

ODD = {"duration": -1.3, "slowdown": 0.7, "misfit": -0.2, "base_choice": 0.4, "twins": 0.3, "cores_left": -0.5}
"""Weights that agree with no rule."""
POINTS = 120


def dqn(folder: Path, *arguments: object, **named: object) -> Dqn:
    return Dqn(put(folder / "net.onnx", network(*arguments, **named))).load()  # type: ignore[arg-type]


def test_it_decides_as_the_network_and_its_margins_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    held = left = kept = 0
    for margins in (Margins(), Margins(0.3, 0.5), Margins(0.0, 1e9), Margins(0.0, 0.1, 0.5)):
        content = network(ODD, {"queue_length": 1.0}, hold=0.2, margins=margins)
        model, policy = OnnxModel(content), Dqn(put(tmp_path / "net.onnx", content)).load()
        for _ in range(POINTS):
            point = drawn(rng, int(rng.integers(0, 12)), hold_allowed=bool(rng.integers(4)))
            planes = model.planes(point)
            if planes.clipped[0]:
                continue  # its base's, see below
            expected = choose(planes, *model.q(planes), margins)[0]
            judgement = policy.judge(point)
            action = policy.choose(point, judgement)[0]
            if point.hold_allowed[0] or expected[0] >= 0:
                assert action.tolist() == expected.tolist()
            base = HoldGreedyFixed().act(point)[0]
            held += bool(action[0] < 0 <= base[0])
            left += action.tolist() != base.tolist()
            kept += judgement.basis_of(0) is DecisionBasis.MARGIN
            if judgement.basis_of(0) is DecisionBasis.MARGIN:
                assert action.tolist() == base.tolist()
    assert min(held, left, kept) > 5


def test_a_network_that_echoes_the_base_is_the_base(tmp_path: Path) -> None:
    policy, base = dqn(tmp_path, hold=50.0), HoldGreedyFixed()
    rng = np.random.default_rng(6)
    for _ in range(POINTS):
        point = drawn(rng, int(rng.integers(0, 12)))
        np.testing.assert_array_equal(policy.act(point), base.act(point))


def test_one_decision_shows_q_of_each_pair_that_was_looked_at(tmp_path: Path) -> None:
    policy = dqn(tmp_path, SHORTEST, hold=-7.0, margins=Margins(100.0, 100.0))
    jobs = [Waiting((5.0, 5.0, 20.0)), Waiting((2.0, 2.0, 2.0))]
    point = decision(jobs, [0.0, 0.0, 0.0], node=[0, 0, 1], model=[0, 0, 1])
    judgement = policy.judge(point)
    assert judgement.values is not None
    assert judgement.hold_value is not None
    values = np.stack([judgement.values_of_gpus(point, job) for job in (0, 1)])
    assert np.isfinite(values).tolist() == [[True, False, True], [True, False, True]]  # of twins the first
    assert values[1, 0] > values[0, 0] > values[0, 2]
    assert judgement.hold_value[0] == pytest.approx(-7.0)
    assert judgement.basis_of(0) in (DecisionBasis.POLICY, DecisionBasis.MARGIN)


def test_of_equal_values_the_bases_choice_then_the_earlier_job_and_the_lower_gpu(tmp_path: Path) -> None:
    policy = dqn(tmp_path, SHORTEST, hold=-1e6)
    jobs = [Waiting((5.0, 5.0, 5.0))] * 3
    point = decision(jobs, [4.0, 0, 0], model=[0, 0, 0], node=[0, 0, 0])
    assert policy.act(point)[0].tolist() == HoldGreedyFixed().act(point)[0].tolist() == [0, 1]


def test_an_overdue_job_goes_first_though_the_margin_would_have_kept_the_bases_choice(tmp_path: Path) -> None:
    policy = dqn(tmp_path, {"duration": 1.0}, hold=-1e6, margins=Margins(1e6, 1e6))
    jobs = [Waiting((60.0, 60.0)), Waiting((2.0, 2.0), submit_s=99.0)]
    for ratio, first, basis in ((np.inf, 1, DecisionBasis.MARGIN), (1.0, 0, DecisionBasis.OVERDUE)):
        policy.wait_ratio = ratio
        point = decision(jobs, [0.0, 3.0], time_s=100.0)
        assert policy.act(point)[0].tolist() == [first, 0]
        assert policy.judge(point).basis_of(0) is basis


def test_a_batch_is_its_members_to_the_bit(tmp_path: Path) -> None:
    policy = dqn(tmp_path, ODD, hold=-3.0)
    rng = np.random.default_rng(7)
    members = [drawn(rng, 9, hold_allowed=bool(rng.integers(2))) for _ in range(POINTS)]
    alone = np.concatenate([policy.scores(each) for each in members])
    np.testing.assert_array_equal(policy.scores(merged(members)), alone)


def test_what_is_out_of_range_is_the_bases_and_says_so(tmp_path: Path) -> None:
    policy = dqn(tmp_path, SHORTEST, hold=-1e6)
    usual = [Waiting((5.0, 9.0, 7.0)), Waiting((40.0, 13.0, 20.0), cores=3)]
    strange = [*usual, Waiting((5.0, 9.0, 7.0), memory_mib=1 << 40)]  # a petabyte of memory
    for jobs, fallen in ((usual, False), (strange, True)):
        point = decision(jobs, [0.0, 0.0, 3.0], memory_free_mib=[1 << 41] * 3)
        judgement = policy.judge(point)
        assert (judgement.basis_of(0) is DecisionBasis.OUT_OF_RANGE) == fallen
        if fallen:
            np.testing.assert_array_equal(judgement.scores, HoldGreedyFixed().scores(point))
            assert "outside the range of its training" in judgement.notes[0]


def test_the_range_is_that_of_its_training_where_the_checkpoint_says_it(tmp_path: Path) -> None:
    small = [decision([Waiting((5.0, 9.0, 7.0), cores=cores)], [0.0, 0.0, 3.0]) for cores in (1, 4)]
    large = decision([Waiting((5.0, 9.0, 7.0), cores=60)], [0.0, 0.0, 3.0])
    filler = PlaneFiller(RULE)
    known = ranges_of(filler.fill(each) for each in small)
    policy = dqn(tmp_path, SHORTEST, hold=-1e6, training={"ranges": known.to_json()})
    bases = [policy.judge(each).basis_of(0) for each in (*small, large)]
    assert bases == [DecisionBasis.POLICY, DecisionBasis.POLICY, DecisionBasis.OUT_OF_RANGE]
    known.see(filler.fill(large))
    policy = dqn(tmp_path, SHORTEST, hold=-1e6, training={"ranges": known.to_json()})
    assert policy.judge(large).basis_of(0) is DecisionBasis.POLICY
    # At the edge of a plane in training: what lies beyond looks the same, and is known.
    slow = decision([Waiting((5.0, 5e9, 7.0))], [3.0, 0.0, 3.0])
    assert policy.judge(slow).basis_of(0) is DecisionBasis.OUT_OF_RANGE
    known.see(filler.fill(slow))
    policy = dqn(tmp_path, SHORTEST, hold=-1e6, training={"ranges": known.to_json()})
    assert policy.judge(slow).basis_of(0) is DecisionBasis.POLICY


def test_a_longer_queue_than_ever_and_longer_waits_are_no_news(tmp_path: Path) -> None:
    def point(jobs: int, time_s: float) -> Observation:
        return decision([Waiting((5.0, 9.0, 7.0))] * jobs, [0.0, 0.0, 3.0], time_s=time_s)

    known = ranges_of([PlaneFiller(RULE).fill(point(jobs, 1.0)) for jobs in (3, 40)])
    policy = dqn(tmp_path, SHORTEST, hold=-1e6, training={"ranges": known.to_json()})
    policy.wait_ratio = np.inf
    assert policy.judge(point(3000, 1e6)).basis_of(0) is DecisionBasis.POLICY


@pytest.mark.parametrize(
    "unusual", [{"memory_mib": 1}, {"memory_mib": 1 << 39}, {"priority": 0.0}, {"priority": 1.0}, {"cores": 40}]
)
def test_sizes_and_weights_that_nobody_asked_for_before_are_no_news(tmp_path: Path, unusual: dict[str, float]) -> None:
    def point(**fields: float) -> Observation:
        free = {"cores_free": [4096] * 3, "memory_free_mib": [1 << 41] * 3}
        return decision([Waiting((5.0, 9.0, 7.0), **fields)], [0.0, 0.0, 3.0], **free)  # type: ignore[arg-type]

    known = ranges_of([PlaneFiller(RULE).fill(point())])
    policy = dqn(tmp_path, SHORTEST, hold=-1e6, training={"ranges": known.to_json()})
    assert policy.judge(point(**unusual)).basis_of(0) is DecisionBasis.POLICY


def test_an_odd_job_takes_the_network_from_itself_alone(tmp_path: Path) -> None:
    usual = [Waiting((50.0, 40.0, 60.0)), Waiting((50.0, 55.0, 45.0)), Waiting((30.0, 30.0, 30.0))]
    nowhere = Waiting((np.inf, np.inf, np.inf), submit_s=-1e6)  # its GPUs are lost, for days
    unknown = Waiting((300.0, 300.0, 300.0), job_type=JobType.DATA_PROCESSING)  # no such job was in training
    rng, filler = np.random.default_rng(8), PlaneFiller(RULE)
    points = [decision(usual, [0.0, 0.0, 3.0])] + [drawn(rng, int(rng.integers(1, 12))) for _ in range(300)]
    known = ranges_of(filler.fill(replace(point, job_type=np.ones_like(point.job_type))) for point in points)
    # Decisions of this network are those for the longest job.
    policy = dqn(tmp_path, {"duration": 1.0}, hold=-1e6, training={"ranges": known.to_json()})
    policy.wait_ratio = np.inf  # who waits for ages goes first else
    expected = policy.act(decision(usual, [0.0, 0.0, 3.0]))
    assert expected.tolist() != HoldGreedyFixed().act(decision(usual, [0.0, 0.0, 3.0])).tolist()
    for odd in (nowhere, unknown):
        point = decision([*usual, odd], [0.0, 0.0, 3.0])
        judgement = policy.judge(point)
        assert policy.choose(point, judgement).tolist() == expected.tolist()
        assert judgement.basis_of(0) is DecisionBasis.POLICY
        assert judgement.values is not None
        assert np.isnan(judgement.values[point.table.job == 3]).all()
    point = decision([usual[0], replace(unknown, duration_s=(3.0, 3.0, 3.0))], [0.0, 0.0, 3.0])
    assert HoldGreedyFixed().act(point)[0, 0] == 1
    assert policy.judge(point).basis_of(0) is DecisionBasis.OUT_OF_RANGE, (
        "the base would start the odd one: its choice stands"
    )


@pytest.mark.parametrize("ranges", [{}, "all", {"gpus": {"present": [0, 1]}}, {"jobs": {"spread": ["a", "b"]}}])
def test_ranges_that_are_not_of_these_planes_are_refused(tmp_path: Path, ranges: object) -> None:
    with pytest.raises(InvalidInput, match=r"net\.onnx: the ranges in the model's metadata"):
        dqn(tmp_path, SHORTEST, training={"ranges": ranges})


def test_an_answer_that_is_no_number_is_not_used(tmp_path: Path) -> None:
    policy = dqn(tmp_path, {"duration": np.nan})
    point = decision([Waiting((5.0, 9.0, 7.0)), Waiting((8.0, 13.0, 20.0))], [0.0, 0.0, 3.0])
    judgement = policy.judge(merged([point, point]))
    assert [judgement.basis_of(row) for row in (0, 1)] == [DecisionBasis.FAILED] * 2
    np.testing.assert_array_equal(np.split(judgement.scores, 2)[1], HoldGreedyFixed().scores(point))


def test_lists_go_the_same_way_alone_and_together(tmp_path: Path) -> None:
    policy = dqn(tmp_path, ODD, hold=-2.0, margins=Margins(0.1, 0.4))
    scenario = load_scenario("paper")
    lists = [draw_jobs(scenario, load=1.1, count=40, rng=np.random.default_rng(seed)) for seed in range(3)]
    together = simulate(scenario.cluster, pack_jobs(lists, scenario.cluster), policy.act)
    assert not together.stuck.any()
    for number, jobs in enumerate(lists):
        alone = simulate(scenario.cluster, pack_jobs([jobs], scenario.cluster), policy.act)
        np.testing.assert_array_equal(together.start_s[number], alone.start_s[0])
        np.testing.assert_array_equal(together.gpu[number], alone.gpu[0])


def test_it_travels_to_worker_processes(tmp_path: Path) -> None:
    policy = dqn(tmp_path, ODD)
    policy.wait_ratio = 7.0
    again = pickle.loads(pickle.dumps(policy))
    assert again.wait_ratio == 7.0
    point = drawn(np.random.default_rng(9), 6)
    np.testing.assert_array_equal(again.scores(point), policy.scores(point))
    other = dqn(tmp_path, SHORTEST)
    assert pickle.dumps(other) != pickle.dumps(policy)  # evaluations keep results by that


# ---- checkpoints


def test_without_a_checkpoint_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"no checkpoint: .*none\.onnx: .*adlro train") as caught:
        Dqn(tmp_path / "none.onnx").act(drawn(np.random.default_rng(1), 3))
    assert caught.value.reason == CHECKPOINT_MISSING


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"planes": "1-0123456789abcdef"}, "planes is '1-0123456789abcdef', and this version of ADLRO works with"),
        ({"units": "seconds"}, "units is 'seconds'"),
        ({"format": "adlro-q-network/99"}, "format is 'adlro-q-network/99'"),
    ],
)
def test_a_checkpoint_of_other_planes_units_or_version_is_refused(
    tmp_path: Path, metadata: dict[str, object], says: str
) -> None:
    path = put(tmp_path / "other.onnx", network(SHORTEST, **metadata))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as caught:
        Dqn(path).load()
    assert says in str(caught.value)
    assert "other.onnx" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"onnx", network(SHORTEST)[:-40]])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"broken\.onnx"):
        Dqn(put(tmp_path / "broken.onnx", content)).load()


def test_the_version_is_of_the_weights(tmp_path: Path) -> None:
    first, again, other = dqn(tmp_path, ODD), dqn(tmp_path, ODD), dqn(tmp_path, SHORTEST)
    assert first.version == again.version != other.version
    assert len(first.version) == 12


def test_the_other_policies_need_no_onnx_runtime() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from adlro.decide.policies import POLICIES\n"
        "print(len([policy() for policy in POLICIES.values()]))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_onnx_runtime_it_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "net.onnx", network(replace_me := {"slowdown": 0.123}))
    assert replace_me
    for module in ("model", "session"):
        monkeypatch.delitem(sys.modules, f"adlro.decide.planes.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unsupported, match="onnxruntime") as caught:
        Dqn(path).load()
    assert caught.value.reason == CHECKPOINT_MISSING


def test_observations_are_left_as_they_were(tmp_path: Path) -> None:
    policy = dqn(tmp_path, ODD)
    point = drawn(np.random.default_rng(10), 8)
    before = copy.deepcopy(point)
    policy.act(point)
    np.testing.assert_equal(point.table, before.table)
    np.testing.assert_array_equal(point.kind_duration_s, before.kind_duration_s)


@pytest.mark.slow
def test_onnx_runtime_reports_to_nobody_and_leaves_no_file(tmp_path: Path) -> None:
    asked = "from adlro.decide.policies.dqn import Dqn; Dqn().load()"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", asked], env={**environment, "TMPDIR": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_checkpoint_waits_for_the_compiler() -> None:
    """The one that ships: of its single decisions all is compiled before it is loaded."""
    code = (
        "from adlro.services.orchestrator.deciding import checkpoint\n"
        "from adlro.decide import gang_network\n"
        "from adlro.decide.planes import compiled_network, fill\n"
        "from adlro.decide.policies import dqn\n"
        "checkpoint.warm()\n"
        "names = '_forward', '_choose', '_is_in_range', '_fill_left_out'\n"
        "of_gangs = [getattr(gang_network, name) for name in names]\n"
        "parts = (compiled_network._forward, fill.fill_planes, *of_gangs)\n"
        "before = [list(part.signatures) for part in parts]\n"
        "dqn.Dqn().load().try_out(checkpoint._decision())\n"
        "assert [list(part.signatures) for part in parts] == before\n"
        "assert min(map(len, before)) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
