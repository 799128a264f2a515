"""Codebooks: the same everywhere; the kinds of codes and what each is good for."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.hypervectors.algebra import similarity
from adlro.services.decompose.hypervectors.codebook import Codebook


def digest(values) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()


def test_atoms_are_those_of_every_release():
    # Written down once: a change here is another code version, and makes what was kept unreadable.
    book = Codebook()
    assert digest(book.atom("slot/volta-0/0")) == "6af290e706699cd2"
    assert digest(book.levels("utilization", 20)) == "12b93495075f7f09"
    assert digest(book.fractional("batch_size").code(3.25)) == "9c4543f9933f237a"


def test_atoms_are_the_same_in_another_process_and_in_any_order():
    book = Codebook(512)
    book.atom("something before")
    code = (
        "import hashlib; from adlro.services.decompose.hypervectors.codebook import Codebook;"
        "print(hashlib.blake2b(Codebook(512).atom('x').tobytes(), digest_size=8).hexdigest())"
    )
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert found.stdout.strip() == digest(book.atom("x"))


def test_random_codes_are_nearly_orthogonal_signs():
    atoms = Codebook().atoms([str(number) for number in range(40)])
    assert set(np.unique(atoms).tolist()) == {-1, 1}
    between = similarity(atoms, atoms)[~np.eye(40, dtype=bool)]
    assert np.abs(between).max() < 5 / 64  # five standard deviations of 1/sqrt(4096)
    assert between.std() == pytest.approx(1 / 64, rel=0.1)


def test_other_seeds_and_dimensions_are_other_atoms():
    assert abs(float(similarity(Codebook(seed="a").atom("x"), Codebook(seed="b").atom("x")))) < 5 / 64
    assert Codebook(128).version != Codebook(64).version
    with pytest.raises(ValueError, match="multiple of 64"):
        Codebook(100)


def test_level_codes_are_as_alike_as_their_levels_are_near():
    codes = Codebook(8192).levels("utilization", 11)
    assert similarity(codes[:1], codes)[0] == pytest.approx(np.linspace(1, 0, 11), abs=0.06)


def test_fractional_codes_are_as_alike_as_their_values_are_near_wherever_they_lie():
    code = Codebook(8192).fractional("x", length_scale=2.0)
    steps = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 40.0])
    near, far = (similarity(code.code(start), code.code(start + steps)) for start in (0.0, 1000.3))
    assert near == pytest.approx(far, abs=0.06)
    assert near[0] == pytest.approx(1.0)
    assert (np.diff(near[:5]) < -0.05).all()
    assert abs(near[-1]) < 0.06
    with pytest.raises(ValueError, match="finite"):
        code.code(float("nan"))


def test_level_codes_would_ruin_exact_recovery():
    class LevelCode(GpuRecordCode):
        """As one would do it with one codebook for both purposes."""

        def __init__(self, book: Codebook) -> None:
            super().__init__(book, {"gpu_model": 3, "utilization": 20, "priority": 3})
            self.factors[1] = book.levels("utilization", 20)

    rng = np.random.default_rng(1)
    right = {}
    for kind in (GpuRecordCode, LevelCode):
        book = Codebook(2048)
        code = (
            kind(book) if kind is LevelCode else GpuRecordCode(book, {"gpu_model": 3, "utilization": 20, "priority": 3})
        )
        memory = ClusterMemory(code, [f"gpu-{number}" for number in range(16)])
        hits = []
        for _ in range(20):
            values = np.stack([rng.integers(size, size=16) for size in code.sizes.values()], axis=1)
            memory.update(memory.slots, values)
            hits.append((memory.decode().values == values).all(axis=1).mean())
        right[kind] = np.mean(hits)
    assert right[GpuRecordCode] > 0.999
    assert right[LevelCode] < 0.97
