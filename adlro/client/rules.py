"""The contract's bounds of a job's fields, checked before anything is sent. Knows protobuf; no I/O.

The rules stand in the contracts (buf.validate) and nowhere else. Services check all of them; here numbers, lengths and
counts are looked at, which needs no further package, so that a slip is told at once and without a suite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from adlro.errors import FieldViolation, InvalidInput
from adlro.records.jobs import ExpectedRuntime, JobSpec, Preemptible, SimulatedWork
from adlro.records.payloads import Payload
from adlro.v1 import job_pb2
from adlro.vendor.buf.validate import validate_pb2
from adlro.wire import spec_to_proto

_SHOWN_CHARACTERS = 60


def checked_spec(spec: JobSpec) -> job_pb2.JobSpec:
    """The message of a spec.

    Raises:
        InvalidInput: values that are no numbers or texts, or beyond the contract's bounds; has all such fields.
    """
    try:
        message = spec_to_proto(spec)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(_wrong_kind(spec) or f"job: {error}", field="job") from None
    violations = list(_broken(message, "job"))
    if violations:
        raise InvalidInput("; ".join(f"{each.field}: {each.description}" for each in violations), violations=violations)
    return message


def _wrong_kind(spec: JobSpec) -> str:
    """Which value a message can't have; empty: not known."""
    for name, part in _PARTS.items():
        value = getattr(spec, name)
        if value is not None and not isinstance(value, part):
            return f"job.{name}: must be of {part.__name__}, not {_shown(value)}"
    labels: object = spec.labels
    if not isinstance(labels, Mapping) or any(not isinstance(text, str) for pair in labels.items() for text in pair):
        return f"job.labels: must be a mapping of texts to texts, not {_shown(labels)}"
    for name, field in job_pb2.JobSpec.DESCRIPTOR.fields_by_name.items():
        if field.message_type is not None or field.is_repeated:
            continue
        value = getattr(spec, name)
        try:
            if value is not None:
                job_pb2.JobSpec(**{name: value})
        except (TypeError, ValueError):
            kind = "a text" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else "a whole number"
            if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
                kind = "a number"
            plain, _, unit = name.rpartition("_")
            other = f"; a text with a unit is {plain}={value!r}" if isinstance(value, str) and unit in _UNITS else ""
            return f"job.{name}: must be {kind}, not {_shown(value)}{other}"
    return ""


_UNITS = ("s", "mib")
_PARTS = {
    "expected_runtime": ExpectedRuntime,
    "simulated_work": SimulatedWork,
    "payload": Payload,
    "preemptible": Preemptible,
}


def _broken(message: Message, path: str) -> Iterator[FieldViolation]:
    for field in message.DESCRIPTOR.fields:
        here = f"{path}.{field.name}"
        value = getattr(message, field.name)
        if field.is_repeated:
            rules = field.GetOptions().Extensions[validate_pb2.field]
            most = rules.map.max_pairs if rules.HasField("map") else rules.repeated.max_items
            if most and len(value) > most:
                yield FieldViolation(here, f"must have at most {most} entries, not {len(value)}")
        elif field.message_type is not None:
            if message.HasField(field.name):
                yield from _broken(value, here)
        elif not field.has_presence or message.HasField(field.name):
            yield from _broken_value(field, value, here)


def _broken_value(field: Any, value: Any, path: str) -> Iterator[FieldViolation]:
    rules = field.GetOptions().Extensions[validate_pb2.field]
    kind = rules.WhichOneof("type")
    if kind in ("double", "int32", "int64"):
        bounds = getattr(rules, kind)
        if not math.isfinite(value):
            yield FieldViolation(path, f"must be a finite number, not {value}")
        elif wrong := _beyond(bounds, value):
            yield FieldViolation(path, f"must be {wrong}, not {value:g}")
    elif kind == "string":
        least, most = rules.string.min_len, rules.string.max_len
        if len(value) < least:
            yield FieldViolation(path, "must not be empty")
        elif most and len(value) > most:
            yield FieldViolation(path, f"must have at most {most} characters, not {len(value)}")


def _beyond(bounds: Any, value: float) -> str:
    """What the value must be, in words; empty: it is."""
    least, above = (bounds.WhichOneof("greater_than"), bounds.WhichOneof("less_than"))
    low, high = (getattr(bounds, name) if name else None for name in (least, above))
    if low is not None and (value <= low if least == "gt" else value < low):
        return f"more than {low:g}" if least == "gt" else f"at least {low:g}"
    if high is not None and (value >= high if above == "lt" else value > high):
        return f"less than {high:g}" if above == "lt" else f"at most {high:g}"
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
