"""Binding, bundling, packing, and the capacity formula."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.services.decompose.hypervectors.algebra import (
    bind,
    bundle,
    pack,
    packed_similarity,
    permute,
    recovery_probability,
    signs,
    similarity,
    unbind,
    unpack,
)
from adlro.services.decompose.hypervectors.codebook import Codebook

BOOK = Codebook(1024)


def test_binding_is_undone_by_binding_and_unlike_its_factors():
    first, second, third = BOOK.atoms(["a", "b", "c"])
    bound = bind(first, second, third)
    assert (unbind(bound, second, third) == first).all()
    assert abs(float(similarity(bound, first))) < 0.2


def test_a_bundle_is_like_its_members_by_weight():
    atoms = BOOK.atoms(["a", "b", "c"])
    assert similarity(bundle(atoms), atoms) == pytest.approx([1 / np.sqrt(3)] * 3, abs=0.1)
    weighted = similarity(bundle(atoms, np.array([3.0, 1.0, 0.0])), atoms)
    assert weighted == pytest.approx(np.array([3, 1, 0]) / np.sqrt(10), abs=0.12)
    assert similarity(np.zeros(1024), atoms).tolist() == [0.0, 0.0, 0.0]


def test_unbinding_reaches_into_a_bundle():
    keys, values = BOOK.atoms(["k1", "k2"]), BOOK.atoms(["v1", "v2"])
    held = bundle(bind(keys, values))
    assert float(similarity(unbind(held, keys[0]), values[0])) > 0.5
    assert abs(float(similarity(unbind(held, keys[0]), values[1]))) < 0.2


def test_permuting_marks_order_and_is_undone():
    atom = BOOK.atom("a")
    assert abs(float(similarity(permute(atom), atom))) < 0.2
    assert (permute(permute(atom, 5), -5) == atom).all()


def test_packing_keeps_signs_and_similarity():
    vectors = BOOK.atoms([f"x{i}" for i in range(9)])
    words = pack(vectors)
    assert words.shape == (9, 16)
    assert words.dtype == np.uint64
    assert (unpack(words) == vectors).all()
    assert packed_similarity(words[0], words) == pytest.approx(similarity(vectors[0], vectors))
    with pytest.raises(ValueError, match="multiple of 64"):
        pack(vectors[:, :100])


def test_ties_are_settled_the_same_everywhere():
    ties = BOOK.atom("ties")
    settled = signs(np.where(np.arange(1024) % 2, 0, 7), ties)
    assert (settled[::2] == 1).all()
    assert (settled[1::2] == ties[1::2]).all()


@pytest.mark.parametrize(("dimension", "bundled", "flipped"), [(512, 16, 0.0), (1024, 64, 0.0), (1024, 32, 0.2)])
def test_the_capacity_formula_is_what_happens(dimension, bundled, flipped):
    # By the dot products themselves: one right candidate and 251 others, in 400 random bundles.
    rng = np.random.default_rng(dimension + bundled)
    hits = 0
    for _ in range(400):
        members = 2 * rng.integers(2, size=(bundled, dimension), dtype=np.int8) - 1
        held = members.sum(axis=0) * np.where(rng.random(dimension) < flipped, -1, 1)
        others = 2.0 * rng.integers(2, size=(251, dimension), dtype=np.int8) - 1
        hits += held @ members[0] > (others @ held.astype(np.float64)).max()
    assert hits / 400 == pytest.approx(recovery_probability(dimension, bundled, 252, flipped), abs=0.07)
