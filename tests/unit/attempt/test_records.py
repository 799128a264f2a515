"""What users ask for is checked before anything of it is written down."""

from __future__ import annotations

import json

import pytest

from adlro.attempt import journal
from adlro.attempt.records import Launch, Limits
from adlro.errors import InvalidInput
from adlro.records.payloads import EndReason, ExitStatus, process_payload

FINE = process_payload(("python", "train.py"), "/work", {"EPOCHS": "3", "_x": ""}, ("HF_TOKEN",))


def test_a_program_that_is_fine():
    FINE.check()
    launch = Launch(FINE, "ada", 60.0, Limits(memory_mib=1024), secrets={"HF_TOKEN": "/secrets/ada/HF_TOKEN"})
    intent = launch.intent("job-1.1")
    assert intent["limits"] == {"memory_mib": 1024}
    assert intent["secrets"] == {"HF_TOKEN": "/secrets/ada/HF_TOKEN"}


@pytest.mark.parametrize(
    ("program", "field", "told"),
    [
        (process_payload(()), "payload.process.argv", "must name a program"),
        (process_payload(("",)), "payload.process.argv", "must name a program"),
        (process_payload(("a\0b",)), "payload.process.argv", "NUL"),
        (process_payload(("echo", "\ud800")), "payload.process.argv", "UTF-8"),
        (process_payload(("echo", "x" * (1 << 20))), "payload.process.argv", "kernel accepts 131071"),
        (process_payload(("echo", *["x" * 100] * 10_000)), "payload.process.argv", "pass long texts in a file"),
        (process_payload(("a",), workdir="here"), "payload.process.workdir", "absolute"),
        (process_payload(("a",), environment={"A=B": "c"}), "payload.environment", "'A=B'"),
        (process_payload(("a",), environment={"": "c"}), "payload.environment", "''"),
        (process_payload(("a",), environment={"1A": "c"}), "payload.environment", "no digit first"),
        (process_payload(("a",), environment={"A": "\0"}), "payload.environment", "NUL"),
        (process_payload(("a",), environment={"ADLRO_JOB_ID": "c"}), "payload.environment", "which the node sets"),
        (
            process_payload(("a",), environment={"CUDA_VISIBLE_DEVICES": "0"}),
            "payload.environment",
            "which the node sets",
        ),
        (process_payload(("a",), environment={"LD_PRELOAD": "/x.so"}), "payload.environment", "which the node sets"),
        (
            process_payload(("a",), secret_names=("ROCR_VISIBLE_DEVICES",)),
            "payload.secret_names",
            "which the node sets",
        ),
        (
            process_payload(("a",), environment={"A": "1"}, secret_names=("A",)),
            "payload.secret_names",
            "environment has too",
        ),
        (process_payload(("a",), stop_grace_s=-1.0), "payload.stop_grace_s", "from 0"),
        (process_payload(("a",), stop_grace_s=float("nan")), "payload.stop_grace_s", "from 0"),
        (process_payload(("a",), log_limit_mib=0), "payload.log_limit_mib", "from 1"),
    ],
)
def test_what_can_t_run_on_any_node_is_refused_with_its_field(program, field, told):
    with pytest.raises(InvalidInput, match=told) as refused:
        program.check()
    assert [each.field for each in refused.value.violations] == [field]


@pytest.mark.parametrize(
    ("launch", "field"),
    [
        (Launch(FINE, limits=Limits(memory_mib=0)), "limits.memory_mib"),
        (Launch(FINE, limits=Limits(memory_mib=1 << 60)), "limits.memory_mib"),
        (Launch(FINE, limits=Limits(cpu_cores=0.001)), "limits.cpu_cores"),
        (Launch(FINE, limits=Limits(cpu_cores=float("nan"))), "limits.cpu_cores"),
        (Launch(FINE, limits=Limits(cpu_cores=float("inf"))), "limits.cpu_cores"),
        (Launch(FINE, limits=Limits(processes=0)), "limits.processes"),
        (Launch(FINE, limits=Limits(devices=("dev/null",))), "limits.devices"),
        (Launch(FINE, limits=Limits(devices=("/dev/null rw",))), "limits.devices"),
        (Launch(FINE, time_limit_s=0.0), "time_limit_s"),
        (Launch(FINE, time_limit_s=float("nan")), "time_limit_s"),
        (Launch(FINE, time_limit_s=float("inf")), "time_limit_s"),
        (Launch(FINE, environment={"A": "\0"}), "environment"),
        (Launch(FINE, environment={"A=B": ""}), "environment"),
        (Launch(FINE, user="ada\n"), "user"),
        (Launch(FINE, secrets={"HF_TOKEN": "/\0"}), "secrets"),
    ],
)
def test_what_a_node_adds_is_checked_too(launch, field):
    with pytest.raises(InvalidInput) as refused:
        launch.intent("a.1")
    assert [each.field for each in refused.value.violations] == [field]


def test_the_longest_payload_can_be_read_again():
    """A character may take six bytes in the journal."""
    program = process_payload(("true", "\x01" * 60_000), environment={"V": "\x01" * 60_000})
    written = json.dumps(Launch(program, environment={"ADLRO_X": "\x01" * 120_000}).intent("a.1"))
    assert len(written) < journal.MOST_INTENT_BYTES


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(InvalidInput) as refused:
        process_payload((), workdir="x", environment={"=": ""}, log_limit_mib=0).check()
    assert len(refused.value.violations) == 4


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 129, "a\n"])
def test_a_name_that_is_no_folder_s_is_refused(name):
    with pytest.raises(InvalidInput):
        Launch(process_payload(("a",))).intent(name)


def test_a_secret_that_the_node_does_not_have_is_told_by_its_name():
    with pytest.raises(InvalidInput, match="no secret 'HF_TOKEN'"):
        Launch(FINE).intent("a.1")


def test_reasons_of_records_and_of_the_journal_are_the_same():
    in_journal = {value for name, value in vars(journal).items() if name in EndReason.__members__}
    assert in_journal == {each.name.lower() for each in EndReason}


def test_success_is_an_exit_code_of_0_by_its_own():
    assert ExitStatus(EndReason.EXITED).succeeded
    assert not ExitStatus(EndReason.EXITED, 1).succeeded
    assert not ExitStatus(EndReason.STOPPED).succeeded
