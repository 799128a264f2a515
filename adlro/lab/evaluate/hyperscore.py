"""HyperScore: one figure for JCT, throughput and useful utilization against FCFS. numpy only.

    HyperScore = 100 [1 + sigmoid(beta ln V + gamma)^kappa]

V is the weighted geometric mean of the improvement ratios over FCFS; V = 1 equals FCFS and gives 109.96. Source: the
seed paper, section 7, with its beta, gamma and kappa; this module chooses the ratios in V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adlro.errors import InvalidInput
from adlro.numeric.exact import exp_array, log, log_array
from adlro.state.observation import Floats

BETA = 5.0
GAMMA = -log(2.0)
KAPPA = 2.1


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of the improvement ratios in V; only their proportions matter.

    Raises:
        InvalidInput: a weight is not a number from 0, or all are 0.
    """

    jct: float = 1.0
    throughput: float = 1.0
    useful_utilization: float = 1.0

    def __post_init__(self) -> None:
        if not all(0 <= weight < math.inf for weight in self.all) or not max(self.all) > 0:
            raise InvalidInput(
                f"weights: must be numbers from 0 and not all 0, not {','.join(f'{w:g}' for w in self.all)}",
                field="weights",
            )

    @property
    def all(self) -> tuple[float, float, float]:
        """In the order JCT, throughput, useful utilization."""
        return (self.jct, self.throughput, self.useful_utilization)


EQUAL = Weights()


def value(jct: Floats, throughput: Floats, useful_utilization: Floats, weights: Weights = EQUAL) -> Floats:
    """V, from a policy's improvement ratios over FCFS (JCT: FCFS's divided by the policy's)."""
    total = math.fsum(weights.all)
    logs = [
        weight * log_array(ratio)
        for weight, ratio in zip(weights.all, (jct, throughput, useful_utilization), strict=True)
    ]
    return exp_array(np.sum(logs, axis=0) / total)


def hyperscore(v: Floats) -> Floats:
    """HyperScore of V > 0; between 100 and 200."""
    share = 1.0 / (1.0 + exp_array(-(BETA * log_array(v) + GAMMA)))
    return 100.0 * (1.0 + exp_array(KAPPA * log_array(share)))
