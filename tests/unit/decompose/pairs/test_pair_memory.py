"""Kept shares of pairs: seen ones come back, others come from similar ones, and how sure that is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adlro.hardware.shared_speeds import KEPT_SHARES
from adlro.services.decompose.pairs.pair_memory import PRIOR_MEAN, PairFit, PairKey, PairMemory
from adlro.services.decompose.pairs.shared_runs import SharedRun, SharingKind


def kind(name: str) -> SharingKind:
    return SharingKind.named(name)


def key(one: str, other: str, model: str = "v100") -> PairKey:
    return PairKey(model, kind(one), kind(other))


def run(one: str, other: str, kept: float, model: str = "v100", std: float = 0.005) -> SharedRun:
    return SharedRun(model, kind(one), kind(other), kept, std)


def test_without_pairs_the_prior_stands_and_is_unsure():
    found = PairFit().predict([key("a", "b")])
    assert found.mean.tolist() == [PRIOR_MEAN]
    assert found.std[0] > 0.15
    assert PairMemory().fit().predict([key("a", "b")]).mean.tolist() == [PRIOR_MEAN]


def test_a_seen_pair_comes_back_in_its_own_order():
    memory = PairMemory()
    for one, other, kept in (("a", "b", 0.9), ("b", "a", 0.3), ("a", "c", 0.7), ("c", "a", 0.7)):
        memory.learn(run(one, other, kept))
    found = memory.fit().predict([key("a", "b"), key("b", "a"), key("a", "z"), key("y", "z")])
    assert found.mean[:2] == pytest.approx([0.9, 0.3], abs=0.02)
    assert found.std[0] < 0.02 < found.std[2] < found.std[3]


def test_another_size_of_a_family_says_more_than_another_family():
    memory = PairMemory()
    for size in (16, 64):
        memory.learn(run(f"net (batch size {size})", "b", 0.9))
    for name in ("x", "y", "z"):
        memory.learn(run(name, "b", 0.4))
    found = memory.fit().predict([key("net (batch size 32)", "b"), key("new", "b")])
    assert found.mean[0] == pytest.approx(0.9, abs=0.1)
    assert found.mean[1] < 0.65
    assert found.std[0] < found.std[1]


def test_a_pair_on_another_model_says_something():
    memory = PairMemory()
    for model, kept in (("v100", 0.9), ("p100", 0.8)):
        memory.learn(run("a", "b", kept, model))
        memory.learn(run("c", "d", 0.4, model))
    fit = memory.fit()
    found = fit.predict([key("a", "b", "k80"), key("c", "d", "k80")]).mean
    assert found[0] > found[1] + 0.1


def test_runs_of_a_pair_are_averaged_by_precision_and_a_change_is_followed():
    memory = PairMemory()
    memory.learn(run("a", "b", 0.5, std=0.1))
    memory.learn(run("a", "b", 0.8, std=0.05))
    assert len(memory) == 1
    assert memory.revision == 2
    assert memory.fit().predict([key("a", "b")]).mean[0] == pytest.approx(0.74, abs=0.04)
    for _ in range(8):
        memory.learn(run("a", "b", 0.2))
    assert memory.fit().predict([key("a", "b")]).mean[0] == pytest.approx(0.2, abs=0.02)


def test_a_full_memory_drops_the_pair_learned_from_longest_ago():
    memory = PairMemory(limit=2)
    memory.learn(run("a", "b", 0.9))
    memory.learn(run("c", "d", 0.5))
    memory.learn(run("a", "b", 0.9))
    memory.learn(run("e", "f", 0.5))
    fit = memory.fit()
    assert len(memory) == 2
    assert fit.predict([key("a", "b")]).std[0] < 0.05 < fit.predict([key("c", "d")]).std[0]
    memory.clear()
    assert (len(memory), memory.revision) == (0, 5)


def test_its_runs_and_its_copy_give_the_same_memory():
    memory = PairMemory()
    memory.learn(run("a", "b", 0.9, std=0.3))
    memory.learn(run("c", "d", 1.2, std=0.3))
    memory.learn(run("a", "b", 0.5, std=0.1))
    again = PairMemory()
    for each in memory.runs():
        again.learn(each)
    copy = memory.copy()
    memory.learn(run("a", "b", 0.1))
    pairs = [key("a", "b"), key("c", "d"), key("x", "y")]
    for found in (again.fit().predict(pairs), copy.fit().predict(pairs)):
        assert found.mean == pytest.approx([0.57, 0.85, 0.69], abs=0.01)
    assert again.runs() == copy.runs() != memory.runs()
    assert key("a", "b") in copy
    assert key("b", "a") not in copy


def test_a_fit_does_not_change_with_its_memory():
    memory = PairMemory()
    memory.learn(run("a", "b", 0.9))
    fit = memory.fit()
    before = fit.predict([key("a", "b"), key("c", "d")]).mean.tolist()
    memory.learn(run("c", "d", 0.1))
    assert fit.predict([key("a", "b"), key("c", "d")]).mean.tolist() == before


@pytest.mark.parametrize(("kept", "std"), [(math.inf, 0.1), (math.nan, 0.1), (0.5, 0.0), (0.5, -1), (0.5, math.inf)])
def test_a_figure_out_of_range_is_refused_before_anything_changes(kept, std):
    memory = PairMemory()
    with pytest.raises(ValueError, match="a kept share is finite"):
        memory.learn(run("a", "b", kept, std=std))
    assert (len(memory), memory.revision) == (0, 0)


def test_half_of_gavels_pairs_on_p100_tell_the_other_half():
    pairs = [(PairKey(model, kind(one), kind(other)), kept[0]) for (model, one, other), kept in KEPT_SHARES.items()]
    pairs = [each for each in pairs if each[0].gpu_model == "p100"]
    order = np.random.default_rng(1).permutation(len(pairs)).tolist()
    memory = PairMemory()
    for number in order[::2]:
        (model, one, other), kept = pairs[number]
        memory.learn(SharedRun(model, one, other, kept))
    rest = [pairs[number] for number in order[1::2]]
    found = memory.fit().predict([each for each, _ in rest])
    off = np.abs(found.mean - [kept for _, kept in rest])
    assert np.median(off) < 0.02
    assert np.quantile(off, 0.9) < 0.06
    # Above 0.8: the errors have a heavy tail, so most are small.
    assert 0.75 < (off < 1.2816 * found.std).mean() < 0.95


def test_left_out_pairs_are_predicted_as_if_never_seen():
    keys = [key(one, other) for one in "abc" for other in "abcd"]
    # Both means are the prior's: what is left out changes nothing but the regression.
    kept = [PRIOR_MEAN + step for step in (0.2, -0.2, 0.1, -0.1, 0.3, -0.1, -0.15, -0.05, 0.25, -0.3, 0.2, -0.15)]
    precisions = [1e4] * len(keys)
    left_out = PairFit.of(keys, list(zip(kept, precisions, strict=True))).left_out(np.array([-1] * 4 + [*range(8)]))
    others = PairFit.of(keys[4:], list(zip(kept[4:], precisions[4:], strict=True)))
    assert left_out[:4] == pytest.approx(others.predict(keys[:4]).mean, abs=1e-9)
