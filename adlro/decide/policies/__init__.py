"""The policies, one a file: each maps a batch of observations to actions. Arrays only; no gRPC, no Redis, no clock."""

from __future__ import annotations

from adlro.decide.policies.base import Policy
from adlro.decide.policies.conservative_backfill import ConservativeBackfill
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.drain_gang import DrainGang
from adlro.decide.policies.easy_backfill import EasyBackfill
from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.fcfs_fastest import FcfsFastest
from adlro.decide.policies.heft import Heft
from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.hold_greedy import HoldGreedy, HoldGreedyFixed
from adlro.decide.policies.hungarian import Hungarian
from adlro.decide.policies.las import Las
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.max_min import MaxMin
from adlro.decide.policies.mct import Mct
from adlro.decide.policies.min_min import MinMin
from adlro.decide.policies.random import Random
from adlro.decide.policies.share_pairs import SharePairs
from adlro.decide.policies.shortest_area import ShortestArea
from adlro.decide.policies.sjf import Sjf
from adlro.decide.policies.srtf import Srtf
from adlro.decide.policies.static import Static
from adlro.decide.policies.sufferage import Sufferage
from adlro.decide.policies.wspt import Wspt

_ALL: tuple[type[Policy], ...] = (
    Fcfs,
    FcfsFastest,
    Static,
    Sjf,
    ShortestArea,
    EasyBackfill,
    ConservativeBackfill,
    Mct,
    MinMin,
    MaxMin,
    Sufferage,
    Heft,
    Wspt,
    Hungarian,
    Las,
    Random,
    HoldGreedy,
    HoldGreedyFixed,
    HoldGang,
    DrainGang,
    Srtf,
    LasPreemptive,
    SharePairs,
    Dqn,
)

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}

DEFAULT_POLICY = Dqn.name

__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy"]
