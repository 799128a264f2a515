"""The strongest heuristic known here: shortest job first that may hold a job for a better GPU. Arrays only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from adlro.decide.hold_rule import HoldRule, room_to_look, score_batch
from adlro.decide.looked import looked_at
from adlro.decide.policies.base import Policy
from adlro.errors import InvalidInput
from adlro.numeric.exact import log_array
from adlro.state.observation import Floats, Observation


@dataclasses.dataclass(frozen=True, slots=True)
class HoldGreedySettings:
    """The weights of a pair's cost.

    Attributes:
        alpha: weight of the slowdown against the job's fastest GPU.
        theta: a pair may be refused if its duration exceeds this many times the job's earliest expected completion.
        kappa: weight of the waiting time in an expected completion.
        backlog: number of drains of the queue: a pair that takes no longer is not refused.
        affinity: a power. On a GPU that is f times as slow for the job as for another waiting one, the number of drains
            is `backlog` divided by f to this power, and at least one.
        packing: weight of the distance between the requested cores and an equal share of the node's free cores.
        ageing: weight of the time waited.
    """

    alpha: float
    theta: float
    kappa: float
    backlog: float
    affinity: float
    packing: float
    ageing: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value < math.inf:
                raise InvalidInput(f"{field.name} must be a number from 0, not {value}", field=field.name)
        if self.kappa == 0.0:
            raise InvalidInput("kappa must be above 0: a GPU that is lost would else count as idle", field="kappa")

    def rule(self) -> HoldRule:
        """The parameters for compiled code."""
        return HoldRule(**{name: float(getattr(self, name)) for name in HoldRule._fields})


SETTINGS: Mapping[float, HoldGreedySettings] = {
    0.6: HoldGreedySettings(alpha=8.0, theta=1.25, kappa=1.0, backlog=3.0, affinity=4.0, packing=0.5, ageing=0.2),
    0.9: HoldGreedySettings(alpha=8.0, theta=1.25, kappa=1.0, backlog=3.0, affinity=4.0, packing=0.5, ageing=0.2),
    1.1: HoldGreedySettings(alpha=8.0, theta=1.15, kappa=1.75, backlog=2.0, affinity=6.0, packing=0.1, ageing=0.05),
}
"""By load, on `paper` and `paper_roomy` with exact runtimes, as printed by

    python -m benchmarks.tune_hold_greedy --trials 24 --lists 40 --seed 2

Against `FIXED` on the same lists: 0.9996 (95 % 0.9991..1.0002), 0.9955 (0.9896..1.0011), 0.9945 (0.9876..1.0014).
"""

DEFAULT_LOAD = 0.9

FIXED = HoldGreedySettings(alpha=4.0, theta=1.25, kappa=1.0, backlog=3.0, affinity=4.0, packing=0.3, ageing=0.2)
"""One setting for every load. On 40 other lists of each kind, the best that the search found had 0.9990 (95 %
0.9965..1.0016) of its mean completion times: further tuning gains less than the noise. `kappa`, `backlog` and
`affinity` were also chosen for clusters with speeds ten to twenty times apart (docs/decisions, 0010).
"""


class HoldGreedy(Policy):
    """Among the pairs that fit now, the one of least cost; a pair that is much worse than waiting is refused.

    A pair is refused if its duration is too long relative to the job's earliest expected completion anywhere, and too
    long relative to the queue's drain: adlro/decide/hold_rule.py has the formulas. If all are refused, the policy
    holds; if no hold is allowed, none is refused.

    A job of several GPUs is scored as one of one GPU with its duration on the set, and nothing is kept free for it:
    `hold_gang` is the policy for these.

    Source: shortest processing time first (Smith 1956) with the choice between an idle slow and a busy fast machine by
    a threshold, as for the slow-server problem (Lin and Kumar 1984, "Optimal control of a queueing system with two
    heterogeneous servers"). The terms and figures are this project's own; `benchmarks/tune_hold_greedy.py` sets them.

    Args:
        load: arrival rate as a share of the cluster's capacity; the nearest tuned load's settings are used.
        settings: instead of those.
    """

    name = "hold_greedy"
    description = (
        "shortest job first on a GPU that is fast for it, or hold for a better one; settings by load; "
        "score: minus a cost of the logarithms of duration and slowdown, with terms for cores and time waited"
    )
    advice = "For evaluations at a known load; in service hold_greedy_fixed is as good and does not need to know it."

    def __init__(self, load: float = DEFAULT_LOAD, settings: HoldGreedySettings | None = None) -> None:
        if not 0.0 < load < math.inf:
            raise InvalidInput(f"load must be above 0, not {load}", field="load")
        self.settings = settings or SETTINGS[min(SETTINGS, key=lambda tuned: abs(tuned - load))]

    @classmethod
    def for_load(cls, load: float) -> Policy:
        """The policy with the settings of a load."""
        return cls(load)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the cost; -inf for a refused pair."""
        looked, scores = looked_at(observation), np.empty(len(observation.table.job))
        room = room_to_look(observation.gpu_node.shape[1], observation.node_cores_free.shape[1])
        score_batch(self.settings.rule(), room, looked, scores)
        spread = np.flatnonzero(observation.table.spread)
        if len(spread):
            scores[spread] -= self.settings.alpha * self._log_slowdown(observation, spread)
        return scores

    @staticmethod
    def _log_slowdown(observation: Observation, rows: NDArray[np.intp]) -> Floats:
        """Logarithm of the durations on some rows' sets against those on their first GPUs' kinds, packed."""
        table, n = observation.table, observation.table.cluster[rows]
        packed_s = observation.kind_duration_s[n, table.job[rows], observation.gpu_kind[n, table.gpu[rows]]]
        return log_array(table.duration_s[rows] / packed_s)


class HoldGreedyFixed(HoldGreedy):
    """The same with one setting for every load."""

    name = "hold_greedy_fixed"
    description = (
        "as hold_greedy, with one setting for every load; "
        "score: minus a cost of the logarithms of duration and slowdown, with terms for cores and time waited"
    )
    advice = "For jobs of one GPU by a plain rule: mean JCT 50 % below fcfs at load 0.9, without a network."

    def __init__(self) -> None:
        super().__init__(settings=FIXED)

    @classmethod
    def for_load(cls, load: float) -> Policy:
        """The policy itself, for any load."""
        return cls()
