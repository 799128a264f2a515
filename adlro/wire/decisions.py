"""Decisions, the orchestrator's status and its policies, and their messages."""

from __future__ import annotations

from adlro.records.decisions import (
    BaseChoice,
    Candidate,
    Decision,
    DecisionFilter,
    DecisionPair,
    RunnerUp,
    ShadowDecision,
)
from adlro.records.fair_share import FairShare
from adlro.records.jobs import PendingReason
from adlro.records.quotas import Quota
from adlro.records.status import OfferedPolicy, OrchestratorStatus
from adlro.v1 import orchestrator_service_pb2, stream_pb2
from adlro.wire import jobs as _jobs  # noqa: F401 - reservations, which decisions contain, are translated there
from adlro.wire.fields import Part, Translation
from adlro.wire.formats import FORMAT, check_format
from adlro.wire.placements import PLACEMENT, PLACEMENT_ALONE

for record, message in (
    (Candidate, orchestrator_service_pb2.Candidate),
    (RunnerUp, orchestrator_service_pb2.RunnerUp),
    (ShadowDecision, orchestrator_service_pb2.ShadowDecision),
):
    Translation(record, message, parts={"placement": PLACEMENT})
Translation(DecisionPair, orchestrator_service_pb2.DecisionPair, parts={"placement": PLACEMENT_ALONE})
Translation(BaseChoice, orchestrator_service_pb2.BaseChoice, parts={"placement": PLACEMENT_ALONE})
_DECISION = Translation(Decision, orchestrator_service_pb2.Decision, parts={"placement": PLACEMENT})
decision_to_proto, decision_from_proto = _DECISION.to_proto, _DECISION.from_proto

_FILTER = Translation(DecisionFilter, orchestrator_service_pb2.DecisionFilter)
decision_filter_to_proto, decision_filter_from_proto = _FILTER.to_proto, _FILTER.from_proto


def decision_entry_to_bytes(decision: Decision) -> bytes:
    """A stored decision."""
    return stream_pb2.DecisionStreamEntry(decision=decision_to_proto(decision), format=FORMAT).SerializeToString()


def decision_entry_from_bytes(body: bytes, wanted: DecisionFilter | None = None) -> Decision | None:
    """The decision of a stored entry.

    Args:
        body: the entry.
        wanted: None is returned, which is quicker, for a decision outside its times; None: for no decision.

    Raises:
        DecodeError, ValueError: it can't be read, or is of a format that this release does not know.
    """
    entry = stream_pb2.DecisionStreamEntry.FromString(body)
    check_format(entry)
    time_s = entry.decision.time_s
    if wanted is not None and (
        (wanted.from_s is not None and time_s < wanted.from_s) or (wanted.to_s is not None and time_s >= wanted.to_s)
    ):
        return None
    return decision_from_proto(entry.decision)


_REASONS = {int(each) for each in PendingReason}
_STATUS = Translation(
    OrchestratorStatus,
    orchestrator_service_pb2.GetStatusResponse,
    parts={
        "waiting_by_reason": Part(
            {
                "waiting_by_reason": lambda counts: [
                    orchestrator_service_pb2.PendingReasonCount(reason=int(reason), count=count)  # type: ignore[arg-type]
                    for reason, count in counts.items()
                ]
            },
            # A server of a later release may know other reasons.
            lambda message: {
                PendingReason(each.reason): each.count for each in message.waiting_by_reason if each.reason in _REASONS
            },
        )
    },
)
status_to_proto, status_from_proto = _STATUS.to_proto, _STATUS.from_proto

_POLICY = Translation(OfferedPolicy, orchestrator_service_pb2.Policy)
policy_to_proto, policy_from_proto = _POLICY.to_proto, _POLICY.from_proto

_QUOTA = Translation(Quota, orchestrator_service_pb2.Quota)
quota_to_proto, quota_from_proto = _QUOTA.to_proto, _QUOTA.from_proto

_FAIR_SHARE = Translation(FairShare, orchestrator_service_pb2.FairShare)
fair_share_to_proto, fair_share_from_proto = _FAIR_SHARE.to_proto, _FAIR_SHARE.from_proto
