"""The cluster in one hypervector: recovery, updates in place, the resonator."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.services.decompose.clusters.cluster_bundle import ClusterBundle
from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrixSnapshot
from adlro.services.decompose.hypervectors.algebra import bind
from adlro.services.decompose.hypervectors.codebook import Codebook
from adlro.services.decompose.hypervectors.resonator import resonate
from adlro.services.decompose.variables.variables import Variables
from adlro.services.decompose.variables.vocabulary import UNKNOWN

SIZES = {"gpu_model": 4, "utilization": 20, "priority": 3}


def random_values(rng: np.random.Generator, count: int, sizes=SIZES):
    return np.stack([rng.integers(size, size=count) for size in sizes.values()], axis=1)


def test_every_gpu_is_read_from_the_bundle_alone():
    rng = np.random.default_rng(0)
    memory = ClusterMemory(GpuRecordCode(Codebook(2048), SIZES), [f"gpu-{number}" for number in range(16)])
    values = random_values(rng, 16)
    memory.update(memory.slots, values)
    sent = memory.bundle.copy()
    decoded = memory.decode(bundle=sent)
    assert (decoded.values == values).all()
    assert decoded.similarity == pytest.approx(1.0, abs=0.4)
    assert memory.decode(["gpu-3"]).values.tolist() == values[3:4].tolist()


def test_an_update_in_place_is_as_if_it_had_always_been_so():
    rng = np.random.default_rng(1)
    code = GpuRecordCode(Codebook(1024), SIZES)
    slots = [f"gpu-{number}" for number in range(200)]
    changed, fresh = ClusterMemory(code, slots), ClusterMemory(code, slots)
    first, second = random_values(rng, 200), random_values(rng, 200)
    changed.update(slots, first)
    for number in range(0, 200, 2):
        changed.update([slots[number]], second[number : number + 1])
    fresh.update(slots, np.where(np.arange(200)[:, None] % 2 == 0, second, first))
    assert (changed.bundle == fresh.bundle).all()


def test_an_empty_slot_is_like_nothing():
    memory = ClusterMemory(GpuRecordCode(Codebook(2048), SIZES), ["a", "b"])
    memory.update(["a"], np.array([[1, 2, 0]]))
    assert memory.decode().similarity[0] == pytest.approx(1.0)
    assert memory.decode().similarity[1] < 0.2


def test_flipped_signs_are_survived():
    rng = np.random.default_rng(2)
    memory = ClusterMemory(GpuRecordCode(Codebook(4096), SIZES), [f"gpu-{number}" for number in range(16)])
    values = random_values(rng, 16)
    memory.update(memory.slots, values)
    noisy = memory.bundle * np.where(rng.random(4096) < 0.2, -1, 1)
    assert (memory.decode(bundle=noisy).values == values).all()


def test_bad_values_and_slots_are_refused():
    memory = ClusterMemory(GpuRecordCode(Codebook(64), SIZES), ["a"])
    with pytest.raises(IndexError, match="utilization: numbers of values are 0 to 19"):
        memory.update(["a"], np.array([[0, 20, 0]]))
    with pytest.raises(KeyError):
        memory.update(["b"], np.array([[0, 0, 0]]))
    with pytest.raises(ValueError, match="different names"):
        ClusterMemory(GpuRecordCode(Codebook(64), SIZES), ["a", "a"])
    with pytest.raises(ValueError, match="at least one value"):
        GpuRecordCode(Codebook(64), {"x": 0})


def test_the_blocks_of_a_large_product_codebook_are_one():
    sizes = {"a": 30, "b": 31, "c": 9}  # 8,370 combinations of 4 KiB as floats: more than is kept
    rng = np.random.default_rng(3)
    code = GpuRecordCode(Codebook(4096), sizes)
    values = random_values(rng, 5, sizes)
    assert (code.decode(code.encode(values)).values == values).all()


def test_beyond_the_limit_a_resonator_decodes():
    sizes = {"gpu_model": 8, "utilization": 21, "memory": 66, "temperature": 27}
    code = GpuRecordCode(Codebook(4096), sizes)
    assert not code.exhaustive
    rng = np.random.default_rng(4)
    memory = ClusterMemory(code, ["a", "b"])
    values = random_values(rng, 2, sizes)
    memory.update(memory.slots, values)
    decoded = memory.decode()
    assert (decoded.values == values).all()
    assert (decoded.similarity > 0.8).all()


def test_a_resonator_reads_estimates_whose_signs_cancel():
    # Two factors both negative make the same product: only |similarity| finds them.
    book = Codebook(2048)
    factors = [book.atoms([f"{kind}{number}" for number in range(12)]) for kind in "abc"]
    hits = negative = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        wanted = tuple(int(rng.integers(12)) for _ in factors)
        # Superpositions turned round: the network starts nearer to the negatives of two factors.
        turned = [-factors[0], -factors[1], factors[2]]
        product = bind(*(factor[number] for factor, number in zip(factors, wanted, strict=True)))
        found = resonate(product, turned)
        hits += found.values == wanted
        negative += found.similarity > 0.99
    assert hits == negative == 25


def test_what_is_no_product_is_not_believed():
    rng = np.random.default_rng(5)
    book = Codebook(1024)
    factors = [book.atoms([f"{kind}{number}" for number in range(8)]) for kind in "abc"]
    found = resonate(rng.choice([-1, 1], 1024), factors, restarts=3)
    assert found.similarity < 0.3


def test_a_clusters_bundle_follows_its_matrix():
    def snapshot(levels, gpus) -> GpuMatrixSnapshot:
        return GpuMatrixSnapshot("default", 1, gpus, {}, np.zeros(len(gpus)), np.array(levels, dtype=np.int32), None)

    gpus = (("n/0", "n", "v100_sxm2"), ("n/1", "n", "radeon_vii"))
    bundle = ClusterBundle()
    first = bundle.fold(snapshot([[3, UNKNOWN], [10, 0], [5, 5]], gpus)).copy()
    names = bundle.variables(Variables())
    assert [len(values) for values in names.values()] == [3, 21, 66]
    code = GpuRecordCode(Codebook(), {name: len(values) for name, values in names.items()})
    reader = ClusterMemory(code, ["n/0", "n/1"])  # as one who received it would read it
    values = reader.decode(bundle=first).values.tolist()
    assert [[names[name][value] for name, value in zip(names, row, strict=True)] for row in values] == [
        ["v100_sxm2", "0.15..0.20", "20480..22528 MiB"],
        ["radeon_vii", "not known", "0..2048 MiB"],
    ]
    bundle.fold(snapshot([[4, UNKNOWN], [10, 0], [5, 5]], gpus))
    again = bundle.fold(snapshot([[3, UNKNOWN], [10, 0], [5, 5]], gpus))
    assert (again == first).all()
