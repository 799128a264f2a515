"""No string that a client can send may hold a character that a terminal obeys or nobody sees: in every contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

import adlro.v1
from adlro.errors import InvalidInput
from adlro.kit.validation import check
from adlro.text import is_hidden
from adlro.v1 import job_pb2, job_service_pb2, orchestrator_service_pb2, payload_pb2

SEEN = "Schrödinger & 日本語 😀 e\u0301 \xa0\u3000 \u2601\ufe0f \u845b\U000e0100"
HIDDEN = ["\x00", "\x1b[31m", "\t", "\x7f", "\x85", "\x9b", "\u200b", "\u200e", "\u202e", "\u2028", "\u2066", "\ufeff"]
HIDDEN += ["\u061c", "\u00ad", "\ue000", "\U000e0041", *"\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"]
HIDDEN += ["\u2065", "\ufff0", "\ufff8", "\U000e0000", "\U000e00ff", "\U000e01f0", "\U000e0fff"]
PROGRAM_TEXTS = ("argv[0]", "environment")
"""Arguments and values of variables are a program's own: a shell's text has line ends. NUL alone is refused."""


def requests() -> list[Descriptor]:
    """The messages that clients send, of every method of every contract."""
    found: dict[str, Descriptor] = {}
    for path in sorted(Path(adlro.v1.__file__).parent.glob("*_service_pb2.py")):
        module = __import__(f"adlro.v1.{path.stem}", fromlist=["DESCRIPTOR"])
        for service in module.DESCRIPTOR.services_by_name.values():
            found |= {method.input_type.full_name: method.input_type for method in service.methods}
    return list(found.values())


def with_text(descriptor: Descriptor, text: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Message]]:
    """The message with a text in one string field, for each of them; the field's name in the rules' words."""

    def message() -> Message:
        return message_factory.GetMessageClass(descriptor)()

    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None and inner.full_name in above:
            continue
        if inner is not None and inner.GetOptions().map_entry:
            assert inner.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING
            for key, value in ((text, "v"), ("k", text)):
                made = message()
                getattr(made, field.name)[key] = value
                yield field.name, made
        elif inner is not None:
            for name, part in with_text(inner, text, (*above, descriptor.full_name)):
                made = message()
                if field.is_repeated:
                    getattr(made, field.name).append(part)
                else:
                    getattr(made, field.name).CopyFrom(part)
                yield f"{field.name}{'[0]' if field.is_repeated else ''}.{name}", made
        elif field.type == FieldDescriptor.TYPE_STRING:
            made = message()
            if field.is_repeated:
                getattr(made, field.name).append(text)
            else:
                setattr(made, field.name, text)
            yield f"{field.name}{'[0]' if field.is_repeated else ''}", made


def told(message: Message) -> dict[str, str]:
    try:
        check(message)
    except InvalidInput as error:
        return {each.field.partition('["')[0]: each.description for each in error.violations}
    return {}


@pytest.mark.parametrize("descriptor", requests(), ids=lambda each: each.name)
def test_every_string_of_every_request_is_bounded_to_what_is_seen(descriptor: Descriptor) -> None:
    unbounded = []
    for name, message in with_text(descriptor, "a\u202eb"):
        text = told(message).get(name, "")
        if "remove U+202E RIGHT-TO-LEFT OVERRIDE" not in text and not name.endswith(PROGRAM_TEXTS):
            unbounded.append(f"{name}: {text}")
    assert unbounded == []


def test_a_programs_texts_have_any_character_but_nul() -> None:
    def submit(text: str) -> job_service_pb2.SubmitJobRequest:
        payload = payload_pb2.Payload(process=payload_pb2.Process(argv=[text]), environment={"TEXT": text})
        spec = job_pb2.JobSpec(name="a", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION, payload=payload)
        return job_service_pb2.SubmitJobRequest(job=spec)

    check(submit("line\nline\t\x1b[31m\u202e"))
    assert told(submit("a\0b")).keys() == {"job.payload.process.argv[0]", "job.payload.environment"}
    for name in ("", "A=B", "1A", "A\u202e"):
        payload = payload_pb2.Payload(process=payload_pb2.Process(argv=["a"]), environment={name: "v"})
        spec = job_pb2.JobSpec(name="a", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION, payload=payload)
        assert told(job_service_pb2.SubmitJobRequest(job=spec)).keys() == {"job.payload.environment"}


@pytest.mark.parametrize("descriptor", requests(), ids=lambda each: each.name)
def test_no_error_shows_a_pattern(descriptor: Descriptor) -> None:
    for text in ("a b\xfc", "a\u202eb"):
        for name, message in with_text(descriptor, text):
            assert "regex" not in told(message).get(name, "")


def test_there_are_such_strings() -> None:
    assert sum(len(list(with_text(each, "a"))) for each in requests()) >= 40


@pytest.mark.parametrize("text", HIDDEN, ids=ascii)
def test_a_hidden_character_is_refused_with_its_name_and_is_not_repeated(text: str) -> None:
    assert is_hidden(text[0])
    spec = job_pb2.JobSpec(
        name=f"a{text}",
        user="ann",
        job_type=job_pb2.JOB_TYPE_SIMULATION,
        application=text,
        labels={f"k{text}": f"v{text}"},
    )
    with pytest.raises(InvalidInput) as caught:
        check(job_service_pb2.SubmitJobRequest(job=spec, request_id="r-1"))
    fields = [each.field.partition("[")[0] for each in caught.value.violations]
    assert sorted(fields) == ["job.application", "job.labels", "job.labels", "job.name"]
    assert all(f"remove U+{ord(text[0]):04X}" in each.description for each in caught.value.violations)
    whole = str(caught.value) + "".join(each.field + each.description for each in caught.value.violations)
    assert not [each for each in whole if is_hidden(each) and each != "\n"]


def test_what_is_seen_is_taken_in_any_language() -> None:
    spec = job_pb2.JobSpec(
        name=SEEN, user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION, application=SEEN, labels={SEEN: SEEN}
    )
    check(job_service_pb2.SubmitJobRequest(job=spec, request_id="r-1"))
    check(orchestrator_service_pb2.DrainNodeRequest(node_id="volta-0", reason=SEEN))
