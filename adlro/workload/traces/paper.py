"""Job lists of the scenario `paper`: CSV with every field of a job, in the order of submission."""

from __future__ import annotations

from pathlib import Path

from adlro.errors import InvalidInput
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.traces.rows import LATEST_S, LONGEST_S, InOrder, csv_rows

PAPER_COLUMNS = (
    "submit_s",
    "user",
    "application",
    "job_type",
    "work_s",
    "gpu_memory_mib",
    "cpu_cores",
    "memory_mib",
    "priority",
)


def read_paper_csv(path: str | Path) -> list[WorkloadJob]:
    """Reads a job list: a header line with `PAPER_COLUMNS`, one job per line (also gzipped, `.gz`).

    Raises:
        InvalidInput: names file, line and field.
    """
    jobs: list[WorkloadJob] = []
    in_order = InOrder("submit_s")
    for row in csv_rows(path, PAPER_COLUMNS):
        submit_s = row.number("submit_s", least=0, most=LATEST_S)
        in_order.check(row, submit_s)
        jobs.append(
            WorkloadJob(
                submit_s=submit_s,
                user=row.user("user"),
                application=row.application("application"),
                job_type=row.job_type("job_type"),
                work_s=row.number("work_s", above=0, most=LONGEST_S),
                gpu_memory_mib=row.whole("gpu_memory_mib", least=0),
                cpu_cores=row.whole("cpu_cores", least=1),
                memory_mib=row.whole("memory_mib", least=1),
                priority=row.number("priority", least=0, most=1),
                source_line=row.line,
            )
        )
    if not jobs:
        raise InvalidInput(f"{path}: line 2: submit_s: there is no job below the header", field="submit_s")
    return jobs
