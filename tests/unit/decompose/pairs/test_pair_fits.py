"""The present prediction of pairs: renewed beside the calls, with the shipped figures for Gavel's configurations."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.hardware.shared_speeds import chip_of
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.pairs.pair_fits import PairFits
from adlro.services.decompose.pairs.pair_memory import PRIOR_MEAN, PairFit, PairKey, PairMemory
from adlro.services.decompose.pairs.shared_runs import SharedRun, SharingKind
from adlro.services.decompose.pairs.shipped_pairs import SHIPPED_STD, shipped_kept

A, B = SharingKind.named("a"), SharingKind.named("b")
LM, RESNET = SharingKind.named("LM (batch size 20)"), SharingKind.named("ResNet-18 (batch size 16)")
LARGE = SharingKind.named("ResNet-18 (batch size 256)")
AB = PairKey("v100", A, B)


@pytest.fixture
def fits() -> PairFits:
    made = PairFits(PairMemory())
    made.report_to(DecomposeMetrics(CollectorRegistry()), structlog.get_logger())
    return made


def kept(fits: PairFits, pair: PairKey = AB) -> float:
    return float(fits.predict([pair]).mean[0])


async def test_a_fit_is_renewed_beside_the_calls(fits: PairFits) -> None:
    await fits.for_question(60.0)
    assert (fits.revision, kept(fits)) == (0, PRIOR_MEAN)
    fits.memory.learn(SharedRun("v100", A, B, 0.9))
    assert kept(fits) == PRIOR_MEAN
    await fits.for_question(60.0)
    assert kept(fits) == pytest.approx(0.9, abs=0.01)
    assert (fits.revision, fits.due) == (1, False)
    before = fits.present()
    fits.memory.learn(SharedRun("v100", A, B, 0.2))
    await fits.for_question(0.0)  # no patience: the previous fit answers
    assert fits.present() is before
    await fits.stop()
    assert fits.present() is not before


async def test_what_was_forgotten_meanwhile_does_not_come_back(fits: PairFits) -> None:
    fits.memory.learn(SharedRun("v100", A, B, 0.9))
    await fits.for_question(0.0)
    fits.start_over()
    await fits.stop()
    assert (kept(fits), len(fits.memory), fits.due) == (PRIOR_MEAN, 0, False)


async def test_a_fit_that_fails_leaves_the_previous_one(fits: PairFits, monkeypatch: pytest.MonkeyPatch) -> None:
    fits.memory.learn(SharedRun("v100", A, B, 0.9))
    await fits.for_question(60.0)

    def failing(*_: object) -> PairFit:
        raise ArithmeticError("no inverse")

    monkeypatch.setattr(PairFit, "of", failing)
    fits.memory.learn(SharedRun("v100", A, B, 0.2))
    await fits.for_question(60.0)
    await asyncio.sleep(0)
    assert kept(fits) == pytest.approx(0.9, abs=0.01)
    assert not fits.due  # not again for each call


def test_gavels_own_configurations_begin_with_their_figures(fits: PairFits) -> None:
    pair = PairKey("v100", RESNET, LARGE)
    found = fits.predict([pair, PairKey("v100", RESNET, A), PairKey("a100_sxm4_80gb", RESNET, LARGE)])
    assert found.mean[0] == pytest.approx(0.7559, abs=0.04)
    assert found.std[0] < SHIPPED_STD
    assert found.mean[1:].tolist() == [PRIOR_MEAN] * 2
    # What is learned counts for more.
    for _ in range(3):
        fits.memory.learn(SharedRun("v100", RESNET, LARGE, 0.4, 0.02))
    fits.refit()
    assert kept(fits, pair) == pytest.approx(0.4, abs=0.03)


def test_pairs_of_gavel_without_figures_cannot_run_together_until_they_have(fits: PairFits) -> None:
    names = ("ResNet-50 (batch size 128)", "CycleGAN", "LM (batch size 80)", "Recommendation (batch size 8192)")
    kinds = [SharingKind.named(name) for name in names]
    pairs = [PairKey("k80", one, other) for one in kinds for other in kinds]
    missing = [pair for pair in pairs if shipped_kept(pair) == 0.0]
    assert missing
    assert fits.predict(missing).mean.tolist() == [0.0] * len(missing)
    fits.memory.learn(SharedRun(*missing[0], 0.8))
    fits.refit()
    assert kept(fits, missing[0]) == pytest.approx(0.8, abs=0.05)


def test_variants_of_a_chip_are_known_by_gavels_name() -> None:
    models = ["v100_sxm2", "v100_pcie", "v100", "k80", "p100_pcie", "rtx_2080_ti", "a100_pcie_40gb", ""]
    assert [chip_of(each) for each in models] == ["v100", "v100", "v100", "k80", "p100", *models[5:]]
