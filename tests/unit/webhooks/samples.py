"""Jobs that have ended, for tests of what is told about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from adlro.placement import Placement
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, PendingReason
from adlro.records.payloads import EndReason, ExitStatus, Payload, Process
from adlro.webhooks.events import CHOSEN

SECRET_WORD = "hunter2"


def ended_job(number: int = 17, **changes: Any) -> Job:
    """A simulated job that has ended."""
    where = Placement.on("volta-0/0")
    job = Job(
        job_id=f"job-{number}",
        spec=JobSpec(name="resnet", user="ada", job_type="ml", labels={"run": "7"}),
        state=JobState.SUCCEEDED,
        pending_reason=PendingReason.NONE,
        message="",
        created_unix_s=1_700_000_000.0,
        submit_s=10.0,
        start_s=20.0,
        end_s=50.0,
        placement=where,
        gpu_model="v100_sxm2",
        attempts=(JobAttempt(1, where, "v100_sxm2", 20.0, 50.0, "succeeded"),),
        revision=3 * number,
    )
    return replace(job, **changes)


def ended_program(reason: EndReason, *, code: int = 0, signal: int = 0, state: JobState = JobState.FAILED) -> Job:
    """A program that has ended; its secret word is wherever a user could have put it."""
    job = ended_job()
    payload = Payload(Process(("python", "train.py", SECRET_WORD)), environment={"KEY": SECRET_WORD})
    status = ExitStatus(reason, code, signal, f"there is no program '{SECRET_WORD}' in PATH, which is {SECRET_WORD}")
    attempt = replace(job.attempts[0], exit=status, outcome=f"failed: {status.text}")
    return replace(
        job,
        spec=replace(job.spec, payload=payload),
        state=state,
        message=status.text,
        attempts=(attempt,),
    )


def webhooks_file(folder: Path, url: str = "http://127.0.0.1:1/", **more: str) -> Path:
    """A file with one webhook, `ops`, that is told of everything; `more` is further TOML by key."""
    path = folder / "webhooks.toml"
    events = json.dumps([str(each) for each in CHOSEN])
    lines = {"name": '"ops"', "url": f'"{url}"', "events": events, "unsigned": "true", **more}
    path.write_text("[[webhook]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value))
    return path
