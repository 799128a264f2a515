"""Plain records to protobuf messages and back. The only package that knows both; no I/O.

Most records have the fields of their message, and `fields` translates them by name. The rules in the .proto have
validated incoming messages; these functions only translate.
"""

from adlro.wire.clusters import (
    batch_from_proto,
    batch_to_proto,
    clock_from_proto,
    clock_to_proto,
    cluster_from_proto,
    cluster_to_proto,
    description_from_proto,
    description_to_proto,
)
from adlro.wire.decisions import (
    decision_from_proto,
    decision_to_proto,
    policy_from_proto,
    policy_to_proto,
    status_from_proto,
    status_to_proto,
)
from adlro.wire.formats import FORMAT, check_format
from adlro.wire.jobs import (
    attempt_ref_from_proto,
    attempt_ref_to_proto,
    job_from_proto,
    job_to_proto,
    spec_from_proto,
    spec_to_proto,
)
from adlro.wire.matrices import (
    block_from_proto,
    block_to_proto,
    cluster_state_from_proto,
    cluster_state_to_proto,
    telemetry_from_proto,
    variable_to_proto,
)
from adlro.wire.outcomes import (
    application_size_from_proto,
    application_size_to_proto,
    neighbour_time_from_proto,
    neighbour_time_to_proto,
    stopped_run_from_proto,
    stopped_run_to_proto,
)
from adlro.wire.payloads import (
    chunk_from_proto,
    chunk_to_proto,
    exit_from_proto,
    exit_to_proto,
    payload_from_proto,
    payload_to_proto,
)
from adlro.wire.placements import launch_placement, placement_from_proto, placement_to_proto
from adlro.wire.predictions import (
    SpreadColumns,
    evidence_to_proto,
    prediction_from_proto,
    prediction_to_proto,
    predictions_to_proto,
    recollection_from_proto,
    recollection_to_proto,
)
from adlro.wire.waiting import waiting_from_proto, waiting_to_proto
from adlro.wire.watching import (
    filter_from_proto,
    filter_to_proto,
    job_event_from_proto,
    job_event_to_proto,
    submitted_from_proto,
    submitted_to_proto,
)

__all__ = [
    "FORMAT",
    "SpreadColumns",
    "application_size_from_proto",
    "application_size_to_proto",
    "attempt_ref_from_proto",
    "attempt_ref_to_proto",
    "batch_from_proto",
    "batch_to_proto",
    "block_from_proto",
    "block_to_proto",
    "check_format",
    "chunk_from_proto",
    "chunk_to_proto",
    "clock_from_proto",
    "clock_to_proto",
    "cluster_from_proto",
    "cluster_state_from_proto",
    "cluster_state_to_proto",
    "cluster_to_proto",
    "decision_from_proto",
    "decision_to_proto",
    "description_from_proto",
    "description_to_proto",
    "evidence_to_proto",
    "exit_from_proto",
    "exit_to_proto",
    "filter_from_proto",
    "filter_to_proto",
    "job_event_from_proto",
    "job_event_to_proto",
    "job_from_proto",
    "job_to_proto",
    "launch_placement",
    "neighbour_time_from_proto",
    "neighbour_time_to_proto",
    "payload_from_proto",
    "payload_to_proto",
    "placement_from_proto",
    "placement_to_proto",
    "policy_from_proto",
    "policy_to_proto",
    "prediction_from_proto",
    "prediction_to_proto",
    "predictions_to_proto",
    "recollection_from_proto",
    "recollection_to_proto",
    "spec_from_proto",
    "spec_to_proto",
    "status_from_proto",
    "status_to_proto",
    "stopped_run_from_proto",
    "stopped_run_to_proto",
    "submitted_from_proto",
    "submitted_to_proto",
    "telemetry_from_proto",
    "variable_to_proto",
    "waiting_from_proto",
    "waiting_to_proto",
]
