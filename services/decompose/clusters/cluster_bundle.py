"""The described cluster as one hypervector, synchronous with its GPU matrix. Knows plain records and arrays only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrixSnapshot
from adlro.services.decompose.hypervectors.codebook import Codebook, default_codebook
from adlro.services.decompose.variables.variables import Variables
from adlro.services.decompose.variables.vocabulary import UNKNOWN

NOT_KNOWN = "not known"


class ClusterBundle:
    """A cluster memory of GPU model, utilization level and memory level; each GPU is updated when these change.

    Args:
        codebook: source of the atoms.
    """

    def __init__(self, codebook: Codebook | None = None) -> None:
        self._codebook = codebook or default_codebook()
        self._gpus: tuple[tuple[str, str, str], ...] = ()
        self._models: list[str] = []
        self._memory: ClusterMemory | None = None

    @property
    def codebook_version(self) -> str:
        """A text that identifies the atoms."""
        return self._codebook.version

    def variables(self, variables: Variables) -> dict[str, list[str]]:
        """The variables of a record and their values, in order."""
        return {
            "gpu_model": [*self._models, NOT_KNOWN],
            "utilization_level": [*variables.utilization_level.values(), NOT_KNOWN],
            "memory_level": [*variables.memory_level.values(), NOT_KNOWN],
        }

    def fold(self, snapshot: GpuMatrixSnapshot) -> NDArray[np.int32]:
        """Updates the bundle to a snapshot. Returns it: d."""
        if self._memory is None or snapshot.gpus != self._gpus:
            self._gpus = snapshot.gpus
            self._models = sorted({model for _, _, model in snapshot.gpus})
            sizes = {name: len(values) for name, values in self.variables(_FIXED).items()}
            self._memory = ClusterMemory(
                GpuRecordCode(self._codebook, sizes), [gpu_id for gpu_id, _, _ in snapshot.gpus]
            )
        models = [self._models.index(model) for _, _, model in snapshot.gpus]
        values = np.stack([np.array(models, dtype=np.intp), snapshot.levels[0], snapshot.levels[1]], axis=1)  # G x 3
        sizes_of = np.array(list(self._memory.record.sizes.values()))
        self._memory.update(self._memory.slots, np.where(values == UNKNOWN, sizes_of - 1, values))
        return self._memory.bundle


_FIXED = Variables()
"""For the levels, which are the same in every process."""
