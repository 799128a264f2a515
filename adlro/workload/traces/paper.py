"""Job lists of the project's own form: CSV with every field of a job, in the order of submission; read and written."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.records.jobs import Preemptible
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.traces.rows import LATEST_S, LONGEST_S, InOrder, Row, csv_rows

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
PAPER_OPTIONAL_COLUMNS = (
    "expected_runtime_s",
    "gpu_count",
    "max_node_count",
    "gpu_models",
    "restart_s",
    "lost_s",
    "grace_s",
    "shareable",
    "exclusive",
    "node_ids",
    "excluded_node_ids",
)
"""What a file may have beside `PAPER_COLUMNS`; an empty field is as a missing column."""

_MOST_GPUS, _MOST_GRACE_S = 1024, 3600.0
_BETWEEN_NAMES = ";"
_YES, _NO = "true", "false"


def read_paper_csv(path: str | Path) -> list[WorkloadJob]:
    """Reads a job list: a header line with `PAPER_COLUMNS` and perhaps `PAPER_OPTIONAL_COLUMNS`, one job per line.

    A job with `restart_s` can be stopped for others; `gpu_models`, and ids of nodes, are separated by semicolons. Also
    gzipped, `.gz`.

    Raises:
        InvalidInput: names file, line and field.
    """
    jobs: list[WorkloadJob] = []
    in_order = InOrder("submit_s")
    for row in csv_rows(path, PAPER_COLUMNS, PAPER_OPTIONAL_COLUMNS):
        submit_s = row.number("submit_s", least=0, most=LATEST_S)
        in_order.check(row, submit_s)
        gpu_count = row.whole("gpu_count", least=1, most=_MOST_GPUS) if row.given("gpu_count") else 1
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
                expected_runtime_s=row.number("expected_runtime_s", above=0, most=LONGEST_S)
                if row.given("expected_runtime_s")
                else None,
                source_line=row.line,
                gpu_count=gpu_count,
                max_node_count=row.whole("max_node_count", least=0, most=_MOST_GPUS)
                if row.given("max_node_count")
                else 0,
                gpu_models=_names(row, "gpu_models"),
                preemptible=_stops(row),
                shareable=_shareable(row, gpu_count),
                exclusive=_exclusive(row),
                node_ids=_names(row, "node_ids"),
                excluded_node_ids=_names(row, "excluded_node_ids"),
            )
        )
    if not jobs:
        raise InvalidInput(f"{path}: line 2: submit_s: there is no job below the header", field="submit_s")
    return jobs


def write_paper_csv(path: str | Path, jobs: Sequence[WorkloadJob]) -> None:
    """Writes a job list, so that `read_paper_csv` reads equal jobs. Optional columns are there where a job uses them.

    Raises:
        InvalidInput: the file can't be written.
    """
    used = [name for name, text in _TEXTS.items() if any(text(job) != _DEFAULTS.get(name, "") for job in jobs)]
    columns = [*PAPER_COLUMNS, *used]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for job in jobs:
        writer.writerow([_TEXTS[name](job) if name in _TEXTS else _plain(job, name) for name in columns])
    try:
        Path(path).write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}", field="path") from error


def _plain(job: WorkloadJob, column: str) -> str:
    return job.job_type.label if column == "job_type" else str(getattr(job, column))


def _of_stops(column: str) -> Callable[[WorkloadJob], str]:
    return lambda job: "" if job.preemptible is None else _or_nothing(getattr(job.preemptible, column))


def _or_nothing(value: float | None) -> str:
    return "" if value is None else str(value)


# Optional columns as text, in the order of `PAPER_OPTIONAL_COLUMNS`; the default is empty, or that below.
_TEXTS: Mapping[str, Callable[[WorkloadJob], str]] = {
    "expected_runtime_s": lambda job: _or_nothing(job.expected_runtime_s),
    "gpu_count": lambda job: str(job.gpu_count),
    "max_node_count": lambda job: str(job.max_node_count),
    "gpu_models": lambda job: _BETWEEN_NAMES.join(job.gpu_models),
    "restart_s": _of_stops("restart_s"),
    "lost_s": _of_stops("lost_s"),
    "grace_s": _of_stops("grace_s"),
    "shareable": lambda job: _YES if job.shareable else _NO,
    "exclusive": lambda job: _YES if job.exclusive else _NO,
    "node_ids": lambda job: _BETWEEN_NAMES.join(job.node_ids),
    "excluded_node_ids": lambda job: _BETWEEN_NAMES.join(job.excluded_node_ids),
}
_DEFAULTS = {"gpu_count": "1", "max_node_count": "0", "shareable": _NO, "exclusive": _NO}


def _names(row: Row, column: str) -> tuple[str, ...]:
    if not row.given(column):
        return ()
    names = tuple(each.strip() for each in row.text(column).split(_BETWEEN_NAMES))
    if not all(names) or len(set(names)) < len(names):
        row.refuse(column, f"must be different names with '{_BETWEEN_NAMES}' between them")
    return names


def _stops(row: Row) -> Preemptible | None:
    if not row.given("restart_s"):
        for name in ("lost_s", "grace_s"):
            if row.given(name):
                row.refuse(name, "a job with it needs restart_s too, which may be 0")
        return None
    return Preemptible(
        row.number("restart_s", least=0, most=LONGEST_S),
        row.number("lost_s", least=0, most=LONGEST_S) if row.given("lost_s") else 0.0,
        row.number("grace_s", least=0, most=_MOST_GRACE_S) if row.given("grace_s") else None,
    )


def _is_true(row: Row, column: str) -> bool:
    if not row.given(column):
        return False
    if row.text(column) not in (_YES, _NO):
        row.refuse(column, f"must be {_YES} or {_NO}, not '{row.text(column)}'")
    return row.text(column) == _YES


def _shareable(row: Row, gpu_count: int) -> bool:
    shareable = _is_true(row, "shareable")
    if shareable and gpu_count > 1:
        row.refuse("shareable", f"only a job of one GPU can share it (gpu_count is {gpu_count})")
    return shareable


def _exclusive(row: Row) -> bool:
    exclusive = _is_true(row, "exclusive")
    if exclusive and _is_true(row, "shareable"):
        row.refuse("exclusive", "an exclusive job shares no GPU: shareable must be false")
    return exclusive
