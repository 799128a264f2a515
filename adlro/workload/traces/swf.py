"""Traces in Standard Workload Format (SWF).

18 whitespace-separated numbers per line, -1 for unknown ones, comments after `;` (D. G. Feitelson, Parallel Workloads
Archive, https://www.cs.huji.ac.il/labs/parallel/workload/swf.html). The format is "completely defined, with no scope
for user extensability": a line of 17 or 19 numbers has lost or gained one at an unknown place, so it is refused, as is
a job without submit time. Lines should be sorted by submit time; if not, the reader sorts them, and the notes say so.
"""

from __future__ import annotations

import io
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario, load_scenario
from adlro.workload.traces.complete import Found, TraceJob, TraceNotes, complete, require_multi_gpu
from adlro.workload.traces.rows import LARGEST, LATEST_S, LONGEST_S, Row, read_text

SWF_FIELDS = (
    "job_number",
    "submit_time",
    "wait_time",
    "run_time",
    "allocated_processors",
    "average_cpu_time",
    "used_memory",
    "requested_processors",
    "requested_time",
    "requested_memory",
    "status",
    "user_id",
    "group_id",
    "executable",
    "queue",
    "partition",
    "preceding_job",
    "think_time",
)
SWF_CANCELLED = 5
SWF_FAILED = 0
# A checkpointed job has a line for the whole and one for each part; the parts would count twice.
SWF_PARTS = (2, 3, 4)

_NUMBERS = {field: i for i, field in enumerate(SWF_FIELDS)}
_DRAWN = ("job type", "application", "CPU cores", "memory", "GPU memory", "priority")


def read_swf(
    path: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    scenario: Scenario | None = None,
    multi_gpu: str = "one",
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a trace in Standard Workload Format (also gzipped, `.gz`).

    A job of several processors becomes one GPU job; with `multi_gpu` "gang" it gets as many GPUs. Run time becomes work
    on the reference GPU, requested time the expected runtime there, user id n the user `user-<n>`; submit times count
    from the first job of the list. Jobs without run time, cancelled jobs and parts of checkpointed jobs are left out.
    Missing fields (job type, application, cores, memory, GPU memory, priority, a missing user) are drawn for each job
    by the scenario's rules; a trace's processors and memory are those of a CPU machine and say nothing about a GPU
    job's.

    Args:
        path: the file.
        seed: seed of the drawn fields.
        limit: only the first jobs by submission, up to this number.
        scenario: source of the drawn fields; `paper` if left out.
        multi_gpu: one of `MULTI_GPU`.
        cluster: where the jobs are to run; jobs of more GPUs than it can give are left out. None: all are taken.

    Returns:
        The jobs in the order of submission, and notes about the conversion.

    Raises:
        InvalidInput: names file, line and field; or `multi_gpu` is no such word.
    """
    require_multi_gpu(multi_gpu)
    found = Found()
    last_s = 0.0
    # Comments of the archive's logs are not always UTF-8; fields are numbers, so replaced bytes lose no data.
    for line_number, line in enumerate(io.StringIO(read_text(path, lenient=True)), start=1):
        values = line.partition(";")[0].split()
        if not values:
            continue
        found.lines += 1
        if len(values) != len(SWF_FIELDS):
            field = SWF_FIELDS[min(len(values), len(SWF_FIELDS) - 1)]
            raise InvalidInput(
                f"{path}: line {line_number}: {field}: {len(values)} values where the format has {len(SWF_FIELDS)} "
                "(-1 stands for what is not known)",
                field=field,
            )
        row = Row(path, line_number, _NUMBERS, values)
        run_s = row.number("run_time", most=LONGEST_S)
        status = row.number("status")
        if status in SWF_PARTS:
            found.left_out.append((line_number, "parts"))
        elif status == SWF_CANCELLED:
            found.left_out.append((line_number, "cancelled"))
        elif run_s <= 0:
            found.left_out.append((line_number, "without_run_time"))
        else:
            job = _job(row, run_s, multi_gpu, failed=status == SWF_FAILED)
            if job.submit_s < last_s:
                job.flags = (*job.flags, "out_of_order")
            last_s = job.submit_s
            found.jobs.append(job)
    if not found.lines:
        raise InvalidInput(f"{path}: line 1: {SWF_FIELDS[0]}: the file has no job lines", field=SWF_FIELDS[0])
    return complete(
        found,
        path=path,
        trace_format="swf",
        drawn=_DRAWN,
        scenario=scenario or load_scenario("paper"),
        seed=seed,
        limit=limit,
        cluster=cluster,
    )


def _job(row: Row, run_s: float, multi_gpu: str, *, failed: bool) -> TraceJob:
    processors = max(row.number("allocated_processors"), row.number("requested_processors"))
    gangs = multi_gpu == "gang"
    if gangs and processors > LARGEST:
        row.refuse("allocated_processors", f"must be at most {LARGEST}, for a job of as many GPUs")
    requested_s = row.number("requested_time")
    # Only an estimate: "no limit", or another unit, is no reason to refuse a trace.
    estimated = 0 < requested_s <= LONGEST_S
    user_id = row.whole("user_id", least=-1)
    noted = (
        (processors > 1, "gangs_of_processors" if gangs else "several_processors"),
        (failed, "failed"),
        (user_id < 0, "without_user"),
        (not estimated, "without_requested_time"),
    )
    return TraceJob(
        line=row.line,
        submit_s=row.number("submit_time", least=0, most=LATEST_S),
        work_s=run_s,
        user=f"user-{user_id}" if user_id >= 0 else None,
        expected_runtime_s=requested_s if estimated else None,
        flags=tuple(key for holds, key in noted if holds),
        gpu_count=max(1, int(processors)) if gangs else 1,
    )
