"""Rules for a job's specification beyond those of single fields, and what is filled in. Plain; knows no gRPC.

Ingest applies them to submitted jobs, decompose to the jobs that it is asked about.
"""

from __future__ import annotations

from dataclasses import replace

from adlro.errors import FieldViolation, InvalidInput
from adlro.records.applications import application_of
from adlro.records.jobs import KINDS_OF_WORK, JobSpec, JobType
from adlro.records.payloads import Container, Payload, Process

_NAME_CHARACTERS = 64
_NODES_NAMED = 5
_JOB_TYPE_NAMES = ", ".join(f"JOB_TYPE_{each.name}" for each in KINDS_OF_WORK)


def violations(spec: JobSpec, path: str = "job") -> list[FieldViolation]:
    """The fields of a specification that no cluster can run, with the reasons.

    Args:
        spec: the specification.
        path: of the specification, for messages.
    """
    found = [] if spec.payload is None else spec.payload.violations(f"{path}.payload")
    # A program may leave its type out: its application says what it is.
    if spec.payload is None and spec.job_type is JobType.UNSPECIFIED:
        text = f"must be one of {_JOB_TYPE_NAMES} (got JOB_TYPE_UNSPECIFIED)"
        found.append(FieldViolation(f"{path}.job_type", text))
    if spec.shareable and spec.gpu_count > 1:
        text = f"only a job of one GPU can share it (gpu_count is {spec.gpu_count}); ask for one GPU, or leave it out"
        found.append(FieldViolation(f"{path}.shareable", text))
    if spec.shareable and spec.exclusive:
        text = "an exclusive job shares no GPU: leave out exclusive or shareable"
        found.append(FieldViolation(f"{path}.exclusive", text))
    if spec.node_ids and not spec.accepted_nodes(spec.node_ids):
        text = f"all of the nodes that it may run on ({', '.join(spec.node_ids[:_NODES_NAMED])}) are excluded ones too"
        found.append(FieldViolation(f"{path}.excluded_node_ids", text))
    return found


def completed(spec: JobSpec, path: str = "job") -> JobSpec:
    """The specification with its application: that of its payload, unless it states another.

    Args:
        spec: the specification.
        path: of the specification, for messages.

    Raises:
        InvalidInput: with all fields that are wrong.
    """
    if found := violations(spec, path):
        text = "; ".join(f"{each.field}: {each.description}" for each in found)
        raise InvalidInput(text, violations=found, reason="FIELD_RULE_VIOLATED")
    if spec.payload is None or spec.application:
        return spec
    return replace(spec, application=application_of(spec.payload))


def without_texts(payload: Payload) -> Payload:
    """A payload of the same kind without its arguments, directories, mounts, environment and secrets' names.

    Predictions depend on none of these, and they may be private. Of a program's name only the beginning is left:
    thousands of jobs are asked about in one message.
    """
    if payload.container is not None:
        return Payload(container=Container(payload.container.image))
    return Payload(process=Process(tuple(name[:_NAME_CHARACTERS] for name in payload.argv[:1])))


def for_predictions(spec: JobSpec) -> JobSpec:
    """The specification with what predictions depend on: not the nodes, of which there may be a thousand names."""
    if spec.chooses_nodes:
        spec = replace(spec, node_ids=(), excluded_node_ids=())
    return spec if spec.payload is None else replace(spec, payload=without_texts(spec.payload))
