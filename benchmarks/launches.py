"""What a real program costs on a running suite: from its submission, and from its decision, to its first instruction.

    python -m benchmarks.launches [--folder FOLDER] [--jobs 60] [--log-mib 512]

It starts `adlro up --cluster local` with pretended GPUs in a temporary folder below FOLDER, and measures beside a bare
`subprocess.Popen` of the same program in the same run:

- submission to exec, and "placed" to exec: the moment in which a client that watches sees that the job is placed (the
  orchestrator has recorded its decision, and launches it), one job after the other;
- programs a second, many at once;
- MiB/s of a log that is followed while it is written;
- memory (PSS) of an idle supervisor.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from adlro.client import Client, Job, JobEventKind, JobFilter, JobSpec, JobState, JobType
from adlro.records.jobs import PendingReason
from adlro.records.payloads import LogStream, process_payload
from benchmarks.local_suite import local_suite

GPUS = 16
PRINT_NOW = ("date", "+%s.%N")


def spec(argv: Sequence[str], log_limit_mib: int = 16) -> JobSpec:
    """A job that runs a program."""
    payload = process_payload(argv, log_limit_mib=log_limit_mib)
    return JobSpec(name=argv[0], user="bench", job_type=JobType.UNSPECIFIED, memory_mib=512, payload=payload)


def latencies(client: Client, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the program's own clock: from the submission, and from the placement as a watcher sees it."""
    placed_unix_s: dict[str, float] = {}

    def watch() -> None:
        with contextlib.suppress(Exception):  # it is closed at the end
            for event in client.watch():
                job = event.job
                if job is not None and event.kind is JobEventKind.CHANGE and _is_placed(job):
                    placed_unix_s.setdefault(job.job_id, time.time())

    threading.Thread(target=watch, daemon=True).start()
    time.sleep(1.0)
    from_submission, from_placement = [], []
    for _ in range(count):
        began = time.time()
        job = client.submit(spec(PRINT_NOW))
        (job,) = client.wait([job.job_id], timeout_s=60.0)
        assert job.state is JobState.SUCCEEDED, job.message
        ran = float(b"".join(each.data for each in client.logs(job.job_id, stream=LogStream.STDOUT)))
        from_submission.append(1000.0 * (ran - began))
        if job.job_id in placed_unix_s:
            from_placement.append(1000.0 * (ran - placed_unix_s[job.job_id]))
    return from_submission, from_placement


def _is_placed(job: Job) -> bool:
    return job.pending_reason is PendingReason.LAUNCHING or job.state is JobState.RUNNING


def bare_ms(count: int) -> list[float]:
    """Milliseconds from `subprocess.Popen` to the program's own clock."""
    found = []
    for _ in range(count):
        began = time.time()
        ran = float(subprocess.run(PRINT_NOW, capture_output=True, check=True).stdout)
        found.append(1000.0 * (ran - began))
    return found


def rate(client: Client, count: int) -> float:
    """Programs a second, from the first start to the last end, by the cluster's clock."""
    submitted = client.submit_many([spec(("true",))] * count)
    jobs = client.wait(submitted.accepted_ids, timeout_s=300.0)
    assert all(job.state is JobState.SUCCEEDED for job in jobs)
    first_s = min(job.start_s for job in jobs if job.start_s is not None)
    return count / (max(job.end_s for job in jobs if job.end_s is not None) - first_s)


def followed_mib_per_s(client: Client, mib: int) -> float:
    """MiB a second of a log that is read while its program writes it."""
    block = f"import os,sys\nb=b'x'*65535+b'\\n'\nfor _ in range({mib}*16): os.write(1,b)"
    job = client.submit(spec((sys.executable, "-I", "-S", "-c", block), log_limit_mib=2 * mib))
    began, size = 0.0, 0
    for chunk in client.logs(job.job_id, stream=LogStream.STDOUT, follow=True):
        began = began or time.monotonic()
        size += len(chunk.data)
    assert size == mib << 20, size
    return mib / (time.monotonic() - began)


def supervisors_mib(client: Client, count: int) -> list[float]:
    """MiB (PSS) of each of so many supervisors whose programs sleep."""
    jobs = [client.submit(spec(("sleep", "600"))) for _ in range(count)]
    ids = [job.job_id for job in jobs]
    while any(job.state is not JobState.RUNNING for job in client.list(JobFilter(job_ids=tuple(ids)))):
        time.sleep(0.1)
    time.sleep(1.0)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"adlro/attempt/__main__.py" in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                found.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
    for job_id in ids:
        client.cancel(job_id)
    client.wait(ids, timeout_s=60.0)
    return found


def told(name: str, found: Sequence[float]) -> None:
    """Prints median and 95th percentile."""
    ordered = sorted(found)
    print(f"{name}: p50 {statistics.median(ordered):.0f} ms, p95 {ordered[int(0.95 * (len(ordered) - 1))]:.0f} ms")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--log-mib", type=int, default=512)
    given = parser.parse_args()
    # One core for each GPU, whatever the machine has: the launches are measured, not the programs.
    settings = {"ADLRO_LOCAL_CPU_CORES": str(GPUS), "ADLRO_LOCAL_MEMORY_MIB": str(1024 * GPUS)}
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as made,
        local_suite(Path(made), f"v100_sxm2:{GPUS}", settings) as client,
    ):
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        client.wait([client.submit(spec(("true",))).job_id], timeout_s=60.0)  # what the first one loads
        from_submission, from_placement = latencies(client, given.jobs)
        told("bare subprocess.Popen to exec", bare_ms(given.jobs))
        told("placed to exec", from_placement)
        told("submission to exec", from_submission)
        print(f"{rate(client, 8 * given.jobs):.1f} programs/s, {GPUS} at once")
        print(f"a log is followed at {followed_mib_per_s(client, given.log_mib):.0f} MiB/s")
        print(f"{max(supervisors_mib(client, 8)):.1f} MiB of PSS, the largest of 8 idle supervisors")


if __name__ == "__main__":
    main()
