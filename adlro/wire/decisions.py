"""Decisions, the orchestrator's status and its policies, and their messages."""

from __future__ import annotations

from adlro.records.decisions import Candidate, Decision, RunnerUp, ShadowDecision
from adlro.records.jobs import PendingReason
from adlro.records.status import OfferedPolicy, OrchestratorStatus
from adlro.v1 import orchestrator_service_pb2
from adlro.wire import jobs as _jobs  # noqa: F401 - reservations, which decisions contain, are translated there
from adlro.wire.fields import Part, Translation
from adlro.wire.placements import PLACEMENT

for record, message in (
    (Candidate, orchestrator_service_pb2.Candidate),
    (RunnerUp, orchestrator_service_pb2.RunnerUp),
    (ShadowDecision, orchestrator_service_pb2.ShadowDecision),
):
    Translation(record, message, parts={"placement": PLACEMENT})
_DECISION = Translation(Decision, orchestrator_service_pb2.Decision, parts={"placement": PLACEMENT})
decision_to_proto, decision_from_proto = _DECISION.to_proto, _DECISION.from_proto

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
