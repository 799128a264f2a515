"""The algebra beside torchhd's, where that is installed (extra `bench`)."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.hypervectors.algebra import bind, bundle, permute, similarity, unbind
from adlro.services.decompose.hypervectors.codebook import Codebook

torch = pytest.importorskip("torch")
torchhd = pytest.importorskip("torchhd")


def theirs(vectors):
    return torchhd.MAPTensor(torch.from_numpy(np.asarray(vectors, dtype=np.float32)))


def test_operations_are_torchhds():
    first, second, third = Codebook(1024).atoms(["a", "b", "c"])
    assert (torchhd.bind(theirs(first), theirs(second)).numpy() == bind(first, second)).all()
    assert (torchhd.multiset(theirs([first, second, third])).numpy() == bundle(np.stack([first, second, third]))).all()
    assert (torchhd.permute(theirs(first), shifts=3).numpy() == permute(first, 3)).all()
    cosine = torchhd.cosine_similarity(theirs([first, second]), theirs([second, third])).numpy()
    assert cosine == pytest.approx(similarity(np.stack([first, second]), np.stack([second, third])), abs=1e-6)


def test_the_decoded_record_is_that_of_torchhds_cleanup():
    sizes = {"gpu_model": 3, "utilization": 20, "priority": 3}
    code = GpuRecordCode(Codebook(1024), sizes)
    rng = np.random.default_rng(0)
    memory = ClusterMemory(code, [f"gpu-{number}" for number in range(32)])
    memory.update(memory.slots, np.stack([rng.integers(size, size=32) for size in sizes.values()], axis=1))
    numbers = np.stack(np.unravel_index(np.arange(code.combinations), tuple(sizes.values())), axis=1)
    products = theirs(code.encode(numbers))
    for slot, values in zip(memory.slots, memory.decode().values.tolist(), strict=True):
        noisy = theirs(unbind(memory.bundle, code.codebook.atom(f"slot/{slot}")))
        found = torchhd.dot_similarity(noisy, products).argmax()
        assert numbers[int(found)].tolist() == values
