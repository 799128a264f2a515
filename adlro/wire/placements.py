"""Placements and their messages: a placement, and its first GPU beside it for older clients."""

from __future__ import annotations

from adlro.errors import InvalidInput
from adlro.placement import NOWHERE, GpuShare, Placement
from adlro.v1 import cluster_service_pb2, job_pb2, orchestrator_service_pb2, placement_pb2, stream_pb2
from adlro.wire.fields import Part

_Placed = (
    job_pb2.Job
    | job_pb2.JobAttempt
    | cluster_service_pb2.ClusterEvent
    | cluster_service_pb2.LaunchJobRequest
    | cluster_service_pb2.RunningJob
    | orchestrator_service_pb2.Candidate
    | orchestrator_service_pb2.Decision
    | orchestrator_service_pb2.RunnerUp
    | orchestrator_service_pb2.ShadowDecision
    | stream_pb2.AttemptRecord
    | stream_pb2.OutcomeStreamEntry
)
"""Messages with a placement, and beside it its first GPU."""


def placement_from_proto(message: _Placed) -> Placement:
    """The placement in a message; without one, all of the message's GPU.

    Raises:
        ValueError: a GPU appears twice, or a share is not above 0 and at most 1.
    """
    gpus = message.placement.gpus
    if gpus:
        return Placement(tuple([GpuShare(each.gpu_id, each.share) for each in gpus]))
    return Placement.on(message.gpu_id) if message.gpu_id else NOWHERE


def launch_placement(request: cluster_service_pb2.LaunchJobRequest) -> Placement:
    """The placement of a launch.

    Raises:
        InvalidInput: the placement is invalid, differs from `gpu_id`, or has another number of GPUs than the job.
    """
    try:
        placement = placement_from_proto(request)
    except ValueError as error:
        raise InvalidInput(f"placement: {error}", field="placement") from None
    if placement.gpu_id != request.gpu_id:
        raise InvalidInput(
            f"placement: its first GPU is {placement.gpu_id!r} and gpu_id is {request.gpu_id!r}; name the same",
            field="placement",
        )
    asked = request.spec.gpu_count or 1
    if len(placement.gpus) != asked:
        raise InvalidInput(
            f"placement: has {len(placement.gpus)} GPUs and spec.gpu_count is {asked}; name as many", field="placement"
        )
    return placement


def placement_to_proto(placement: Placement) -> placement_pb2.Placement | None:
    """The message of a placement; None without one."""
    if not placement.gpus:
        return None
    return placement_pb2.Placement(
        gpus=[placement_pb2.GpuShare(gpu_id=each.gpu_id, share=each.share) for each in placement.gpus]
    )


PLACEMENT = Part(
    write={"gpu_id": lambda placement: placement.gpu_id, "placement": placement_to_proto}, read=placement_from_proto
)
"""For a record with a field `placement`."""

PLACEMENT_ALONE = Part(
    write={"placement": placement_to_proto},
    read=lambda message: (
        Placement(tuple([GpuShare(each.gpu_id, each.share) for each in message.placement.gpus]))
        if message.placement.gpus
        else NOWHERE
    ),
)
"""The same for a message without the first GPU beside the placement."""
