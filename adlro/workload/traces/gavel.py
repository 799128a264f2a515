"""Gavel's traces as CSV: job_type (a job configuration), total_steps, arrival_s, scale_factor (GPUs).

One line per job, in the order of arrival (stanford-futuredata/gavel, scheduler/traces/msr, MIT). Configurations and
their
measured steps/s: `data/gavel_throughputs.csv`.
"""

from __future__ import annotations

from pathlib import Path

from adlro.errors import InvalidInput
from adlro.hardware.gang_speeds import gavel_steps_per_s
from adlro.hardware.speeds import GAVEL_STEPS_PER_S
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario, load_scenario
from adlro.workload.traces.complete import Found, TraceJob, TraceNotes, complete, require_multi_gpu
from adlro.workload.traces.rows import LARGEST, LATEST_S, LONGEST_S, InOrder, Row, csv_rows

GAVEL_COLUMNS = ("job_type", "total_steps", "arrival_s", "scale_factor")

_DRAWN = ("user", "CPU cores", "memory", "priority")
_REMARK = "a job's work is its steps by the steps/s of its configuration, alone on V100s"


def read_gavel(
    path: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    scenario: Scenario | None = None,
    multi_gpu: str = "gang",
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a Gavel CSV file (also gzipped, `.gz`).

    The configuration becomes the application, of job type machine_learning; total_steps / its measured steps/s on a
    V100, or on as many as the job has, the work; a job of several GPUs keeps them, or becomes one of one GPU. Jobs
    request no GPU memory: every configuration was measured on all three GPU models. Missing fields (user, cores,
    memory, priority) are drawn by the scenario's rules.

    Args:
        path: the file.
        seed: seed of the drawn fields.
        limit: only the first jobs, up to this number.
        scenario: source of the drawn fields; `gavel` if left out.
        multi_gpu: one of `MULTI_GPU`.
        cluster: where the jobs are to run; jobs of more GPUs than it can give are left out. None: all are taken.

    Raises:
        InvalidInput: names file, line and field; or `multi_gpu` is no such word.
    """
    require_multi_gpu(multi_gpu)
    found = Found()
    in_order = InOrder("arrival_s")
    for row in csv_rows(path, GAVEL_COLUMNS):
        found.lines += 1
        submit_s = row.number("arrival_s", least=0, most=LATEST_S)
        in_order.check(row, submit_s)
        gpus = row.whole("scale_factor", least=1, most=LARGEST)
        kept = gpus if multi_gpu == "gang" else 1
        flags = (("gangs" if kept > 1 else "several_gpus"),) if gpus > 1 else ()
        configuration = _configuration(row)
        steps_per_s, measured = gavel_steps_per_s(configuration, kept)
        if not measured:
            flags = (*flags, "steps_assumed")
        found.jobs.append(
            TraceJob(
                line=row.line,
                submit_s=submit_s,
                work_s=row.number("total_steps", above=0, most=LONGEST_S * steps_per_s) / steps_per_s,
                application=configuration,
                job_type=JobType.MACHINE_LEARNING,
                gpu_memory_mib=0,
                flags=flags,
                gpu_count=kept,
            )
        )
    if not found.lines:
        raise InvalidInput(f"{path}: line 2: job_type: there is no job below the header", field="job_type")
    return complete(
        found,
        path=path,
        trace_format="gavel",
        drawn=_DRAWN,
        scenario=scenario or load_scenario("gavel"),
        seed=seed,
        limit=limit,
        cluster=cluster,
        remarks=(_REMARK,),
    )


def _configuration(row: Row) -> str:
    name = row.text("job_type")
    if name not in GAVEL_STEPS_PER_S:
        row.refuse("job_type", f"must be one of Gavel's configurations ({'; '.join(GAVEL_STEPS_PER_S)}), not '{name}'")
    return name
