"""GPU time that users have had. Plain data; no gRPC, no Redis."""

from __future__ import annotations

import math
from typing import NamedTuple


class AttainedService(NamedTuple):
    """The GPU time that a user has had.

    Attributes:
        gpu_s: GPU seconds; with a half-life what counted of them at `at_s`.
        at_s: cluster time of the figure; nan: not known, as in records of earlier versions.
    """

    gpu_s: float
    at_s: float = math.nan
