"""The one score of networks: what it says of the base, of worse policies, and on which lists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn import margins, validation
from adlro.lab.learn.episodes import greedy
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.validation import Score, Validation, paired, unlimited_base, with_margins
from adlro.state.observation import Ints, Observation
from tests.dense import fits_now

pytestmark = pytest.mark.slow

CELLS = (("paper", 0.9, "true"), ("paper", 0.9, "type"))
SHIPPED = Path(__file__).resolve().parents[4] / "adlro" / "decide" / "policies" / "dqn.onnx"


def slowest(observation: Observation) -> Ints:
    """The first pair that fits, on the GPU where it takes longest."""
    actions = np.full((len(observation.time_s), 2), -1, dtype=np.int64)
    for n, fits in enumerate(fits_now(observation)):
        found = np.argwhere(fits)
        if len(found):
            job = found[0][0]
            durations = np.where(fits[job], observation.durations_s(n, job), -np.inf)
            actions[n] = job, int(durations.argmax())
    return actions


def never(observation: Observation) -> Ints:
    """Holds for ever."""
    return np.full((len(observation.time_s), 2), -1, dtype=np.int64)


@pytest.mark.filterwarnings("error")
def test_a_new_network_scores_as_the_base_and_worse_policies_are_found_out() -> None:
    judged = Validation(2, cells=CELLS, limits=True)
    act = greedy(PairNetwork(), PlaneFiller(FIXED.rule()), Margins(), torch.device("cpu"))
    score = judged.with_low_load(act, judged.score(act))
    assert (score.gain, score.error, score.worst, score.p95, score.throughput) == (0.0,) * 5
    assert not score.breaks_limits
    slow = judged.score(slowest)
    assert slow.worst <= slow.gain < -0.05
    assert slow.half_width == 1.96 * slow.error > 0.0
    assert slow.breaks_limits
    assert score.order < slow.order
    assert judged.with_low_load(slowest, score).breaks_limits
    stuck = judged.score(never)
    assert stuck.gain == -np.inf
    assert slow.order < stuck.order


def test_the_error_is_taken_over_the_lists_that_all_cells_share() -> None:
    score = Validation(4, cells=CELLS).score(slowest)
    base, own = (
        np.array([validation._play(cell, act, 4, by_priority=False).jct_s for cell in CELLS])
        for act in (unlimited_base().act, slowest)
    )
    ratios = own.mean(axis=1) / base.mean(axis=1)
    off = ((own - ratios[:, None] * base) / base.mean(axis=1)[:, None]).mean(axis=0)
    assert score.gain == pytest.approx(1.0 - ratios.mean())
    assert score.error == pytest.approx(np.sqrt(np.square(off).sum() / 3 / 4))


def test_limits_are_judged_where_there_are_lists_enough() -> None:
    assert not Validation(2, cells=CELLS).score(slowest).breaks_limits
    with pytest.raises(InvalidInput, match="at least 2"):
        Validation(1)


def test_what_keeps_the_limits_comes_before_what_gains_more() -> None:
    kept = Score(0.01, 0.0, 0.0, 0.0, 0.0, breaks_limits=False, cells={})
    scores = [dataclasses.replace(kept, gain=0.5, breaks_limits=True), kept, dataclasses.replace(kept, gain=0.02)]
    assert [score.gain for score in sorted(scores, key=lambda score: score.order)] == [0.02, 0.01, 0.5]


def test_what_ships_keeps_its_figures() -> None:
    """On few lists those that the score that chose it gave."""
    model = OnnxModel(SHIPPED)
    act = with_margins(model, model.metadata.margins)
    assert str(paired(("paper", 0.9, "true"), act, lists=8)) == "-0.47 (0.89), p95 -3.0"
    assert str(paired(("paper", 0.6, "true"), act, lists=8)) == "-0.45 (0.22), p95 -0.7"


def test_lists_to_be_judged_on_are_no_lists_of_training() -> None:
    def state(seed: int, *key: int) -> tuple[int, ...]:
        return tuple(int(word) for word in np.random.SeedSequence(seed, spawn_key=key).generate_state(4))

    lists = validation.THROUGHPUT_TIMES * validation.LISTS
    of_validation = {state(validation.VALIDATION_SEED, number, 0) for number in range(lists)}
    of_training = {
        state(seed, *key) for seed in range(1, 20) for number in range(50) for key in ((number,), (0, number))
    }
    assert not of_validation & of_training


def test_margins_are_chosen_for_a_network_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ships: of two, those that gain more; with few lists no limit takes part."""
    monkeypatch.setattr(margins, "MARGINS", (Margins(9.0, 9.0), Margins(0.0, 0.08, 0.3)))
    monkeypatch.setattr(margins, "IDLE", (0.0, 4.0))
    monkeypatch.setattr(margins, "Validation", lambda by_priority: Validation(8, cells=CELLS, by_priority=by_priority))
    margins.main([str(SHIPPED), str(tmp_path / "out.onnx")])
    before, after = OnnxModel(SHIPPED).metadata, OnnxModel(tmp_path / "out.onnx").metadata
    assert dataclasses.replace(after.margins, idle=4.0) == before.margins
    assert after.training["ranges"] == before.training["ranges"]
    told = after.training["validation"]
    assert Score(**told) == Validation(8, cells=CELLS).score(with_margins(OnnxModel(SHIPPED), after.margins))
