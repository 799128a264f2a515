"""What users ask for is checked before anything of it is written down."""

from __future__ import annotations

import pytest

from adlro.attempt import journal
from adlro.attempt.records import EndReason, ExitStatus, Launch, Limits, Program
from adlro.errors import InvalidInput

FINE = Program(("python", "train.py"), "/work", {"EPOCHS": "3", "_x": ""}, ("HF_TOKEN",))


def test_a_program_that_is_fine():
    FINE.check()
    launch = Launch(FINE, "ada", 60.0, Limits(memory_mib=1024), secrets={"HF_TOKEN": "/secrets/ada/HF_TOKEN"})
    intent = launch.intent("job-1.1")
    assert intent["limits"] == {"memory_mib": 1024}
    assert intent["secrets"] == {"HF_TOKEN": "/secrets/ada/HF_TOKEN"}


@pytest.mark.parametrize(
    ("program", "field", "told"),
    [
        (Program(()), "program.argv", "must name a program"),
        (Program(("",)), "program.argv", "must name a program"),
        (Program(("a\0b",)), "program.argv", "NUL"),
        (Program(("echo", "\ud800")), "program.argv", "UTF-8"),
        (Program(("echo", "x" * (1 << 20))), "program.argv", "kernel takes 131071"),
        (Program(("echo", *["x" * 100] * 10_000)), "program.argv", "hand long texts over in a file"),
        (Program(("a",), workdir="here"), "program.workdir", "absolute"),
        (Program(("a",), environment={"A=B": "c"}), "program.environment", "'A=B'"),
        (Program(("a",), environment={"": "c"}), "program.environment", "''"),
        (Program(("a",), environment={"1A": "c"}), "program.environment", "no digit first"),
        (Program(("a",), environment={"A": "\0"}), "program.environment", "NUL"),
        (Program(("a",), environment={"ADLRO_JOB_ID": "c"}), "program.environment", "which the node sets"),
        (Program(("a",), environment={"CUDA_VISIBLE_DEVICES": "0"}), "program.environment", "which the node sets"),
        (Program(("a",), environment={"LD_PRELOAD": "/x.so"}), "program.environment", "which the node sets"),
        (Program(("a",), secret_names=("ROCR_VISIBLE_DEVICES",)), "program.secret_names", "which the node sets"),
        (Program(("a",), environment={"A": "1"}, secret_names=("A",)), "program.secret_names", "environment has too"),
        (Program(("a",), stop_grace_s=-1.0), "program.stop_grace_s", "from 0"),
        (Program(("a",), stop_grace_s=float("nan")), "program.stop_grace_s", "from 0"),
        (Program(("a",), log_limit_mib=0), "program.log_limit_mib", "from 1"),
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


def test_what_would_be_too_long_to_be_read_again_is_refused():
    texts = ["\x01" * 120_000 for _ in range(4)]
    program = Program(("true", *texts), environment={f"V{n}": text for n, text in enumerate(texts)})
    with pytest.raises(InvalidInput, match="bytes to write down"):
        Launch(program).intent("a.1")


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(InvalidInput) as refused:
        Program((), workdir="x", environment={"=": ""}, log_limit_mib=0).check()
    assert len(refused.value.violations) == 4


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 129, "a\n"])
def test_a_name_that_is_no_folder_s_is_refused(name):
    with pytest.raises(InvalidInput):
        Launch(Program(("a",))).intent(name)


def test_a_secret_that_the_node_does_not_have_is_told_by_its_name():
    with pytest.raises(InvalidInput, match="no secret 'HF_TOKEN'"):
        Launch(FINE).intent("a.1")


def test_reasons_of_records_and_of_the_journal_are_the_same():
    in_journal = {value for name, value in vars(journal).items() if name in EndReason.__members__}
    assert in_journal == {each.value for each in EndReason}


def test_success_is_an_exit_code_of_0_by_its_own():
    assert ExitStatus(EndReason.EXITED).succeeded
    assert not ExitStatus(EndReason.EXITED, 1).succeeded
    assert not ExitStatus(EndReason.STOPPED).succeeded
