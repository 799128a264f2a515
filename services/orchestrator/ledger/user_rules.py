"""What holds for the users of a cluster, as the acting orchestrator knows it. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adlro.services.orchestrator.ledger.fair_shares import FairShares
from adlro.services.orchestrator.ledger.quotas import Quotas


@dataclass(frozen=True, slots=True)
class UserRules:
    """Rules about users.

    Attributes:
        quotas: the most GPUs that the jobs of users may hold at once.
        fair_shares: the users' shares and groups, by which fair share measures GPU time.
        half_life_s: after this time GPU time of users counts half; inf: it is never forgotten.
    """

    quotas: Quotas = field(default_factory=Quotas)
    fair_shares: FairShares = field(default_factory=FairShares)
    half_life_s: float = math.inf
