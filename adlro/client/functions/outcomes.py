"""What came out of a function's job: its result, its exception, or why there is neither. Reads files; no gRPC."""

from __future__ import annotations

import pickle
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.client.functions import runner
from adlro.client.functions.shipping import PROGRAM, ShippedCall
from adlro.errors import AdlroError
from adlro.records.jobs import Job, JobState
from adlro.records.payloads import EndReason
from adlro.text import visible

LOG_TAIL_BYTES = 4096
_LOG_LINES = 15
# What is seen of a file that another machine has written may be a few seconds old (NFS).
LATEST_S = 5.0


class JobFailed(AdlroError):
    """A job that runs a Python function ended without a result or an exception of the function.

    `metadata` has `job_id` and `state`. No service raises it.
    """

    default_reason = "JOB_FAILED"


class RemoteTraceback(Exception):  # named as what concurrent.futures has
    """The traceback of an exception in a job, as text: the `__cause__` of that exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}\n"""'


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out.

    Attributes:
        value: of the function, where there is no error.
        error: the function's exception, CancelledError, or JobFailed.
    """

    value: Any = None
    error: BaseException | None = None


def outcome_of(job: Job, call: ShippedCall) -> Outcome | None:
    """What came out of a job that has ended; None: its result is not there (yet), and its log is to be asked.

    Removes the call's files once there is a value, or the job was cancelled.
    """
    if job.state is JobState.CANCELLED:
        _tidy(call)
        return Outcome(error=CancelledError(f"{job.job_id} was cancelled"))
    try:
        found = _read(call.result_path, job)
    except FileNotFoundError:
        return None
    except Exception as error:  # of a pickle, anything
        text = str(error) if isinstance(error, runner.RefusedError) else f"{type(error).__name__}: {error}"
        failed = _failed(job, f"its result can't be read: {text}")
        failed.__cause__ = error
        return Outcome(error=failed)
    if found is not None and found.error is None:
        _tidy(call)
    return found


def awaits_result(job: Job) -> bool:
    """Whether a job's result may still come to be seen: its program ended well."""
    return job.state is JobState.SUCCEEDED and bool(job.attempts) and job.attempts[-1].exit is not None


def without_result(job: Job, call: ShippedCall, log_tail: str) -> Outcome:
    """The outcome of a job that has ended and left no result.

    Args:
        job: as it ended.
        call: what it ran.
        log_tail: the end of its stderr; empty: there is none.
    """
    exit_ = job.attempts[-1].exit if job.attempts else None
    if job.state is JobState.SUCCEEDED:
        if exit_ is None:
            why = "its cluster ran no program: a simulated cluster does not (adlro up --cluster local does)"
        elif not call.folder.exists():
            why = f"its files are gone: the result was read before, or {call.folder} is not on this machine"
        else:
            why = f"the result is not in {call.folder}: name a folder that client and nodes share by folder="
        return Outcome(error=_failed(job, why))
    why = exit_.text if exit_ is not None else job.message
    if exit_ is not None and exit_.reason is EndReason.TIME_LIMIT and job.spec.time_limit_s is not None:
        why = f"its time limit of {job.spec.time_limit_s:g} s was reached"
    if exit_ is not None and exit_.reason is EndReason.NOT_STARTED:
        why += "; python= names the node's interpreter, workdir= a folder that it has"
    if f"{PROGRAM}'" in log_tail and "can't open file" in log_tail:
        why += f"; the node, or the job's Unix user, can't read {call.folder}: name another folder by folder="
    lines = [visible(each) for each in log_tail.splitlines()[-_LOG_LINES:]]
    told = "".join(f"\n  {each}" for each in lines)
    return Outcome(error=_failed(job, why + (f". The end of its stderr:{told}" if told else "")))


def _read(path: Path, job: Job) -> Outcome | None:
    """None: what is there is of an earlier attempt than the last, which has left nothing."""
    file, head = runner.open_own(str(path))
    with file:
        if head["attempt"] != job.attempt_count and job.attempts and head["kind"] != "value":
            return None
        if head["kind"] == "value":
            if head["python"] != runner.python_minor():
                raise runner.RefusedError(
                    f"Python {head['python']} has pickled it, and this is {runner.python_minor()}"
                )
            return Outcome(pickle.load(file))
        if head["kind"] == "error":
            error: BaseException
            if head["pickled"]:
                error = pickle.load(file)
            else:
                error = _failed(job, f"the function raised {head['type']}: {head['text']}")
            error.__cause__ = RemoteTraceback(head["traceback"])
            return Outcome(error=error)
        return Outcome(error=_failed(job, head["text"]))


def _failed(job: Job, why: str) -> AdlroError:
    failed = JobFailed(f"{job.job_id} ended ({job.state}) without a result: {why}")
    failed.metadata = {"job_id": job.job_id, "state": str(job.state)}
    return failed


def _tidy(call: ShippedCall) -> None:
    if not call.keep:
        call.remove()
