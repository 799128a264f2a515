"""What a scheduler knows of two jobs that share a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.hardware.shared_speeds import KEPT_SHARES, family_and_size
from adlro.hardware.speeds import GAVEL_APPLICATIONS
from adlro.workload.pairs import PAIR_KINDS, PairTable, pair_table
from adlro.workload.scenario import load_scenario

MODELS = load_scenario("shared").cluster.gpu_models


@pytest.fixture(scope="module")
def tables() -> dict[str, PairTable]:
    return {known: pair_table(MODELS, known) for known in PAIR_KINDS}


def share(table: PairTable, model: str, one: str, other: str) -> float:
    first, second = table.families([one, other]).tolist()
    return float(table.kept[first, second, MODELS.index(model)])


def others(model: str, one: str, other: str) -> dict[tuple[str, str], float]:
    """All figures of a model but those of the pair."""
    return {(a, b): kept for (on, a, b), (kept, _) in KEPT_SHARES.items() if on == model and {a, b} != {one, other}}


def family(application: str) -> str:
    return family_and_size(application)[0]


def test_every_pair_has_its_figures_and_others_have_none(tables: dict[str, PairTable]) -> None:
    assert sorted(tables["true"].applications) == sorted(GAVEL_APPLICATIONS)
    for (model, one, other), (kept, _) in KEPT_SHARES.items():
        assert share(tables["true"], model, one, other) == kept
    for table in tables.values():
        assert np.count_nonzero(table.kept) == len(KEPT_SHARES)
        assert (table.kept[-1] == 0.0).all()
        assert (table.kept[:, -1] == 0.0).all()
        assert table.kept.max() <= 1.0


def test_what_has_no_figures_is_the_last_family() -> None:
    table = pair_table(("radeon_vii", "v100"))
    assert table.families(["CycleGAN", "no such thing"]).tolist() == [table.applications.index("CycleGAN"), 26]
    assert (table.kept[:, :, 0] == 0.0).all()
    assert table.kept[:, :, 1].any()


@pytest.mark.parametrize("known", PAIR_KINDS)
def test_variants_of_a_chip_have_its_figures(known: str) -> None:
    table = pair_table(("v100", "v100_pcie", "k80", "v100_sxm2"), known)
    assert (table.kept[:, :, 1] == table.kept[:, :, 0]).all()
    assert (table.kept[:, :, 3] == table.kept[:, :, 0]).all()
    assert (table.kept[:, :, 2] == pair_table(("k80",), known).kept[:, :, 0]).all()


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [
        ("v100", "LM (batch size 10)", "ResNet-50 (batch size 32)"),
        ("p100", "LM (batch size 10)", "LM (batch size 20)"),
        ("k80", "Transformer (batch size 64)", "Transformer (batch size 64)"),
    ],
)
def test_the_means_are_those_of_the_other_pairs(tables: dict[str, PairTable], model: str, one: str, other: str) -> None:
    rest = others(model, one, other)
    mean = np.mean(list(rest.values()))
    families = [kept for (a, b), kept in rest.items() if family(a) == family(one) and family(b) == family(other)]
    row = np.mean([kept - mean for (a, _), kept in rest.items() if a == one])
    column = np.mean([kept - mean for (_, b), kept in rest.items() if b == other])
    assert share(tables["family"], model, one, other) == pytest.approx(np.mean(families))
    assert share(tables["application"], model, one, other) == pytest.approx(np.clip(mean + row + column, 0.02, 1.0))


def test_a_model_has_one_mean(tables: dict[str, PairTable]) -> None:
    for number, model in enumerate(MODELS):
        all_of_it = [kept for (on, _, _), (kept, _) in KEPT_SHARES.items() if on == model]
        found = tables["mean"].kept[:, :, number]
        assert found[found > 0.0] == pytest.approx(np.mean(all_of_it))


def test_a_size_is_no_part_of_a_family() -> None:
    assert family_and_size("LM (batch size 10)") == ("LM", "10")
    assert family_and_size("A3C") == ("A3C", "")
    assert family_and_size("LM (large)") == ("LM (large)", "")


def test_an_unknown_kind_of_knowledge_is_refused() -> None:
    with pytest.raises(InvalidInput, match="true, family, application, mean, not 'all'") as caught:
        pair_table(MODELS, "all")
    assert caught.value.field == "pairs"
