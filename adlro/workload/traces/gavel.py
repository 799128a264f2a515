"""Gavel's traces as CSV: job_type (a job configuration), total_steps, arrival_s, scale_factor (GPUs).

One line per job, in the order of arrival (stanford-futuredata/gavel, scheduler/traces/msr, MIT). Configurations and
their
measured steps/s: `data/gavel_throughputs.csv`.
"""

from __future__ import annotations

from pathlib import Path

from adlro.errors import InvalidInput
from adlro.hardware.speeds import GAVEL_REFERENCE_GPU_MODEL, GAVEL_STEPS_PER_S
from adlro.records.jobs import JobType
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario, load_scenario
from adlro.workload.traces.complete import Found, TraceJob, TraceNotes, complete
from adlro.workload.traces.rows import LARGEST, LATEST_S, LONGEST_S, InOrder, Row, csv_rows

GAVEL_COLUMNS = ("job_type", "total_steps", "arrival_s", "scale_factor")

_DRAWN = ("user", "CPU cores", "memory", "priority")
_REMARK = "a job's work is its steps by the steps/s of its configuration, alone on one V100"


def read_gavel(
    path: str | Path, *, seed: int = 0, limit: int | None = None, scenario: Scenario | None = None
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a Gavel CSV file (also gzipped, `.gz`).

    The configuration becomes the application, of job type machine_learning; total_steps / its measured steps/s on a
    V100 the work; a job of several GPUs becomes one of one GPU. Jobs request no GPU memory: every configuration was
    measured on all three GPU models. Missing fields (user, cores, memory, priority) are drawn by the scenario's rules.

    Args:
        path: the file.
        seed: seed of the drawn fields.
        limit: only the first jobs, up to this number.
        scenario: source of the drawn fields; `gavel` if left out.

    Raises:
        InvalidInput: names file, line and field.
    """
    found = Found()
    in_order = InOrder("arrival_s")
    for row in csv_rows(path, GAVEL_COLUMNS):
        found.lines += 1
        submit_s = row.number("arrival_s", least=0, most=LATEST_S)
        in_order.check(row, submit_s)
        flags = ("several_gpus",) if row.whole("scale_factor", least=1, most=LARGEST) > 1 else ()
        configuration = _configuration(row)
        steps_per_s = GAVEL_STEPS_PER_S[configuration][GAVEL_REFERENCE_GPU_MODEL]
        found.jobs.append(
            TraceJob(
                line=row.line,
                submit_s=submit_s,
                work_s=row.number("total_steps", above=0, most=LONGEST_S * steps_per_s) / steps_per_s,
                application=configuration,
                job_type=JobType.MACHINE_LEARNING,
                gpu_memory_mib=0,
                flags=flags,
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
        remarks=(_REMARK,),
    )


def _configuration(row: Row) -> str:
    name = row.text("job_type")
    if name not in GAVEL_STEPS_PER_S:
        row.refuse("job_type", f"must be one of Gavel's configurations ({'; '.join(GAVEL_STEPS_PER_S)}), not '{name}'")
    return name
