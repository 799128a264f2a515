"""Why jobs wait, and its messages."""

from __future__ import annotations

from adlro.records.jobs import PendingReason
from adlro.records.waiting import WaitingExplanation
from adlro.v1 import orchestrator_service_pb2
from adlro.wire.fields import Part, Translation

_REASON = Part({"reason": int}, lambda message: PendingReason(message.reason))
_EXPLANATION = Translation(WaitingExplanation, orchestrator_service_pb2.WaitingExplanation, parts={"reason": _REASON})
waiting_to_proto, waiting_from_proto = _EXPLANATION.to_proto, _EXPLANATION.from_proto
