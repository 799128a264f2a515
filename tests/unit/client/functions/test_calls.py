"""A call's way as files, with its job's program run here: results, exceptions, and what must not be read."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.client.functions import runner
from adlro.client.functions.outcomes import JobFailed, Outcome, awaits_result, outcome_of, without_result
from adlro.client.functions.shipping import (
    ShippedCall,
    check_options,
    default_folder,
    joined,
    name_of,
    ship,
    shipped_call_of,
    spec_of,
)
from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound
from adlro.placement import NOWHERE
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState
from adlro.records.payloads import EndReason, ExitStatus


class TwoArgumentsError(Exception):
    """Can be pickled, and not read: its arguments are not those of its constructor."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def run(call: ShippedCall, **variables: str) -> subprocess.CompletedProcess[str]:
    """The job's program, as a node runs it: in another folder, with a small environment."""
    return subprocess.run(
        [sys.executable, str(call.folder / "run.py")],
        env={"PATH": os.environ["PATH"], "ADLRO_ATTEMPT": "1", "ADLRO_JOB_ID": "job-1", **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def ended(call: ShippedCall, state: JobState, exit_: ExitStatus | None, attempts: int = 1, **fields: Any) -> Job:
    spec = spec_of(call, name_of, {"user": "ada"}, None)
    made = tuple(JobAttempt(number, NOWHERE, "", exit=exit_) for number in range(1, attempts + 1))
    return Job("job-1", spec, state, attempts=made, **fields)


def outcome(call: ShippedCall, program: subprocess.CompletedProcess[str]) -> Outcome:
    state = JobState.FAILED if program.returncode else JobState.SUCCEEDED
    found = outcome_of(ended(call, state, ExitStatus(EndReason.EXITED, program.returncode)), call)
    assert found is not None, program.stderr
    return found


def call_and_run(folder: Path, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    call = ship(function, args, kwargs, folder=folder)
    return outcome(call, run(call))


def test_a_result_comes_back_and_the_files_go(tmp_path: Path) -> None:
    factor = 3
    call = ship(lambda x, add=0: np.arange(x) * factor + add, (4,), {"add": 1}, folder=tmp_path)
    assert sorted(each.name for each in call.folder.iterdir()) == ["call.pkl", "run.py"]
    found = outcome(call, run(call))
    assert found.error is None
    assert found.value.tolist() == [1, 4, 7, 10]
    assert list(tmp_path.iterdir()) == []


def test_files_stay_where_they_are_to_stay(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path, keep=True)
    assert outcome(call, run(call)).value == 3
    assert outcome(call, run(call)).value == 3


def test_an_exception_comes_back_with_its_traceback(tmp_path: Path) -> None:
    def inner() -> None:
        raise ValueError("a wrong rate")

    found = call_and_run(tmp_path, inner)
    assert type(found.error) is ValueError
    assert found.error.args == ("a wrong rate",)
    told = "".join(traceback.format_exception(found.error))
    assert "in inner" in told
    assert "run.py" not in told  # the job's own program says nothing to its user
    assert "direct cause" in told
    (left,) = tmp_path.iterdir()
    assert (left / "result.pkl").exists()  # a failed call's files stay


def test_an_exception_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    def fails() -> None:
        raise TwoArgumentsError("here", "that")

    found = call_and_run(tmp_path, fails)
    assert isinstance(found.error, JobFailed)
    assert "TwoArgumentsError: here: that" in found.error.message
    assert "in fails" in "".join(traceback.format_exception(found.error))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda: sys.exit(3), "sys.exit(3)"),
        (threading.Lock, "the function's result can't be pickled"),
        (lambda: (each for each in (1,)), "the function's result can't be pickled"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, function: Callable[[], Any], told: str) -> None:
    found = call_and_run(tmp_path, function)
    assert isinstance(found.error, JobFailed)
    assert told in found.error.message


def test_no_half_result_is_read_and_a_killed_writer_leaves_none(tmp_path: Path) -> None:
    class Kills:
        def __reduce__(self) -> Any:
            os.kill(os.getpid(), 9)  # while the result is written
            return (int, ())

    made = Kills
    call = ship(lambda: [b"x" * 1_000_000, made()], (), {}, folder=tmp_path)
    program = run(call)
    assert program.returncode == -9
    assert not call.result_path.exists()
    job = ended(call, JobState.FAILED, ExitStatus(EndReason.SIGNALLED, signal=9))
    assert outcome_of(job, call) is None
    assert not awaits_result(job)
    error = without_result(job, call, "one\ntwo\x1b[2J\n").error
    assert isinstance(error, JobFailed)
    assert "killed by SIGKILL" in error.message
    assert error.message.endswith("\n  one\n  two\\x1b[2J")
    assert error.metadata == {"job_id": "job-1", "state": "failed"}


def test_an_error_of_an_earlier_attempt_is_not_the_last_ones(tmp_path: Path) -> None:
    call = ship(lambda: 1 / 0, (), {}, folder=tmp_path)
    run(call)
    lost = ended(call, JobState.FAILED, ExitStatus(EndReason.SIGNALLED, signal=9), attempts=2)
    assert outcome_of(lost, call) is None
    run(call, ADLRO_ATTEMPT="2")
    found = outcome_of(lost, call)
    assert found is not None
    assert isinstance(found.error, ZeroDivisionError)


def test_of_several_programs_the_first_one_answers(tmp_path: Path) -> None:
    call = ship(lambda: os.environ.get("RANK", "alone"), (), {}, folder=tmp_path, keep=True)
    for rank in ("1", "0", "2"):
        assert run(call, RANK=rank).returncode == 0
    assert outcome(call, run(call, RANK="1")).value == "0"


def test_another_python_is_refused_before_the_function_is_read(tmp_path: Path) -> None:
    call = ship(len, ("a",), {}, folder=tmp_path)
    head, _, pickled = (call.folder / "call.pkl").read_bytes().partition(b"\n")
    other = json.dumps({**json.loads(head), "python": "3.1"}).encode()
    (call.folder / "call.pkl").write_bytes(other + b"\n" + b"no pickle" + pickled)
    found = outcome(call, run(call))
    assert isinstance(found.error, JobFailed)
    assert f"pickled by Python 3.1, and {sys.executable} is" in found.error.message
    assert "python=" in found.error.message


def test_a_module_that_the_node_lacks_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    sys.path.insert(0, str(folder))
    try:
        import only_here  # type: ignore[import-not-found]

        call = ship(only_here.double, (4,), {}, folder=tmp_path / "calls", keep=True)
    finally:
        sys.path.remove(str(folder))
    assert outcome(call, run(call)).value == 8  # by the path of its caller
    (folder / "only_here.py").unlink()
    call.result_path.unlink()
    found = outcome(call, run(call))
    assert isinstance(found.error, JobFailed)
    assert "has no module 'only_here'" in found.error.message


def test_a_result_that_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path)
    program = run(call)
    call.result_path.chmod(0o666)
    found = outcome(call, program)
    assert isinstance(found.error, JobFailed)
    assert "can be written by others: it is not read" in found.error.message
    elsewhere = tmp_path / "elsewhere"
    call.result_path.rename(elsewhere)
    call.result_path.symlink_to(elsewhere)
    assert isinstance(outcome(call, program).error, JobFailed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_result_or_call_of_another_user_is_not_read(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path)
    program = run(call)
    os.chown(call.result_path, 65534, 65534)
    assert "belongs to user 65534" in str(outcome(call, program).error)
    os.chown(call.folder / "call.pkl", 65534, 65534)
    call.result_path.unlink()
    again = run(call)
    assert again.returncode == 1
    assert "belongs to user 65534" in again.stderr
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(Conflict, match="name a folder of your own"):
        ship(len, ("abc",), {}, folder=tmp_path)


def test_a_folder_in_which_others_can_put_another_program_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Conflict, match="name a folder of your own"):
        ship(len, ("abc",), {}, folder=tmp_path)
    tmp_path.chmod(0o1777)  # as /tmp: what is mine there, nobody else renames
    ship(len, ("abc",), {}, folder=tmp_path)


def test_files_are_for_their_user_alone(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path / "new" / "calls")
    assert oct((tmp_path / "new" / "calls").stat().st_mode & 0o777) == "0o700"
    assert oct(call.folder.stat().st_mode & 0o777) == "0o700"
    assert oct((call.folder / "call.pkl").stat().st_mode & 0o777) == "0o600"
    run(call)
    assert oct(call.result_path.stat().st_mode & 0o777) == "0o600"


def test_what_can_not_be_shipped_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="open files, locks and connections inside the function"):
        ship(len, (threading.Lock(),), {}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="give the function itself"):
        ship(3, (), {}, folder=tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"^folder: .* can't be used"):
        ship(len, (), {}, folder=tmp_path / "file")


def test_the_job_is_named_and_known_by_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ship(name_of, (), {}, folder=tmp_path)
    spec = spec_of(call, name_of, {"gpus": 2, "memory": "1GiB", "user": "ada"}, None)
    assert (spec.name, spec.gpu_count, spec.memory_mib) == ("name_of", 2, 1024)
    assert spec.application == "python:adlro.client.functions.shipping.name_of"
    assert shipped_call_of(Job("job-1", spec)) == call
    given = spec_of(call, name_of, JobSpec("mine", "ada", "ml", gpus=2), "/usr/bin/python3")
    assert (given.name, given.gpu_count, given.payload and given.payload.argv[0]) == ("mine", 2, "/usr/bin/python3")
    assert name_of(functools.partial(name_of)) == name_of(name_of)
    with pytest.raises(NotFound, match="runs no Python function"):
        shipped_call_of(Job("job-1", JobSpec()))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "adlro-functions"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gpu": 2}, "do you mean gpus"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is no duration"),
        ({"image": "busybox"}, "a function has no command and no image"),
        (JobSpec(payload=spec_of(ShippedCall(Path("/")), len, {}, None).payload), "a spec without a payload"),
    ],
)
def test_a_wrong_option_is_told_at_once(options: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        check_options(options)
    with pytest.raises(InvalidInput, match="a spec has all of a job"):
        joined(JobSpec(), {"gpus": 2})


ENDS: dict[str, tuple[JobState, ExitStatus | None, dict[str, Any], str]] = {
    "simulated": (JobState.SUCCEEDED, None, {}, "a simulated cluster does not"),
    "elsewhere": (JobState.SUCCEEDED, ExitStatus(EndReason.EXITED), {}, "name a folder that client and nodes share"),
    "late": (JobState.FAILED, ExitStatus(EndReason.TIME_LIMIT), {}, "time limit"),
    "no interpreter": (
        JobState.FAILED,
        ExitStatus(EndReason.NOT_STARTED, detail="there is no program '/x/python'"),
        {},
        "there is no program '/x/python'; python= names the node's interpreter",
    ),
    "never started": (JobState.FAILED, None, {"message": "no node has so many cores"}, "no node has so many cores"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_job_without_a_result_says_why(tmp_path: Path, case: str) -> None:
    state, exit_, fields, told = ENDS[case]
    call = ship(len, ("abc",), {}, folder=tmp_path)
    error = without_result(ended(call, state, exit_, **fields), call, "").error
    assert isinstance(error, AdlroError)
    assert error.message.startswith(f"job-1 ended ({state}) without a result: ")
    assert told in error.message


def test_a_folder_that_the_node_does_not_see_is_named(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path)
    (call.folder / "run.py").unlink()
    program = run(call)
    error = without_result(ended(call, JobState.FAILED, ExitStatus(EndReason.EXITED, 2)), call, program.stderr).error
    assert f"can't read {call.folder}: name another folder by folder=" in str(error)


def test_a_cancelled_job_is_a_cancelled_call(tmp_path: Path) -> None:
    call = ship(len, ("abc",), {}, folder=tmp_path)
    found = outcome_of(ended(call, JobState.CANCELLED, ExitStatus(EndReason.STOPPED)), call)
    assert found is not None
    assert isinstance(found.error, CancelledError)
    assert list(tmp_path.iterdir()) == []


def test_the_program_of_a_job_needs_the_standard_library_and_cloudpickle_alone() -> None:
    source = Path(runner.__file__).read_text()
    assert "adlro" not in [line.split()[1].partition(".")[0] for line in source.splitlines() if "import " in line[:12]]
