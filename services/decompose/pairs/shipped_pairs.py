"""Gavel's measured pairs, for its own configurations alone: figures of another cluster, each worth one observation.

The regression does not learn from them. Where half of Gavel's families were the shipped ones and the pairs of the other
half were predicted, they did not help: a mean error of 0.23 with them and 0.21 without before any pair was seen, and no
difference after six.
"""

from __future__ import annotations

from adlro.hardware.shared_speeds import KEPT_SHARES
from adlro.services.decompose.pairs.pair_memory import PairKey

SHIPPED_STD = 0.1
"""Assumed standard deviation of a kept share about the shipped one: drivers, hosts and data differ."""
_MODELS = frozenset(model for model, _, _ in KEPT_SHARES)
_NAMES = frozenset(name for _, name, _ in KEPT_SHARES)


def shipped_kept(pair: PairKey) -> float | None:
    """The shipped kept share of a pair; 0: it is none that could run together; None: it is not Gavel's."""
    if pair.gpu_model not in _MODELS or pair.kind.name not in _NAMES or pair.beside.name not in _NAMES:
        return None
    figures = KEPT_SHARES.get((pair.gpu_model, pair.kind.name, pair.beside.name))
    return 0.0 if figures is None else figures[0]
