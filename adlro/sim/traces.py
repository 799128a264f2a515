"""Job lists read from files: the lists of the scenario `paper` (CSV), and traces in Standard Workload Format.

SWF: 18 whitespace-separated numbers a line, -1 for what is not known, comments after `;`
(D. G. Feitelson, Parallel Workloads Archive, https://www.cs.huji.ac.il/labs/parallel/workload/swf.html).
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np

from adlro.errors import InvalidInput
from adlro.jobs import JobType
from adlro.sim.scenario import Scenario, load_scenario
from adlro.sim.workload import WorkloadJob, draw_application, draw_demand, draw_user

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
# A job that was checkpointed has a line for the whole and one for each part; the parts would count twice.
SWF_PARTS = (2, 3, 4)
LONGEST_S = 31_536_000.0
"""One year: the most that job.proto takes as work or expected runtime."""


@dataclass(frozen=True, slots=True)
class TraceNotes:
    """What was made of a trace, for the report: counts of lines and jobs, and the rule for what it lacks."""

    path: str
    lines: int
    jobs: int
    skipped_without_run_time: int
    skipped_cancelled: int
    skipped_parts: int
    several_processors: int
    failed_in_trace: int
    without_user: int
    without_requested_time: int
    seed: int

    @property
    def sentences(self) -> tuple[str, ...]:
        """The notes for people; counts that are 0 are left out."""
        counted = (
            (self.several_processors, "ran on several processors; each became a job of one GPU"),
            (self.skipped_without_run_time, "have no run time and were left out"),
            (self.skipped_cancelled, "were cancelled before they ran to their end and were left out"),
            (self.skipped_parts, "are parts of a checkpointed job that has a line of its own and were left out"),
            (self.failed_in_trace, "failed in the trace; they run here for the same time and succeed"),
            (self.without_user, "have no user; one was drawn"),
            (self.without_requested_time, "have no requested time; they are submitted without an expected runtime"),
        )
        rule = (
            "job type, application, CPU cores, memory, GPU memory and priority are not in the trace: drawn for each "
            f"job from the scenario's distributions with seed {self.seed}"
        )
        return (*(f"{count} of {self.lines} lines: {text}" for count, text in counted if count), rule)


def read_paper_csv(path: str | Path) -> list[WorkloadJob]:
    """Reads a job list of the scenario `paper`: a header line with `PAPER_COLUMNS`, one job a line.

    Raises:
        InvalidInput: naming file, line and field.
    """
    jobs: list[WorkloadJob] = []
    with _complaints(path), _open(path) as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header) != PAPER_COLUMNS:
            raise InvalidInput(f"{path}: line 1: header must be {','.join(PAPER_COLUMNS)}, not {','.join(header)}")
        for values in reader:
            where = f"{path}: line {reader.line_num}"
            if not any(value.strip() for value in values):
                continue
            if len(values) != len(PAPER_COLUMNS):
                raise InvalidInput(f"{where}: {len(values)} values where {len(PAPER_COLUMNS)} columns are expected")
            row = _Row(where, dict(zip(PAPER_COLUMNS, values, strict=True)))
            jobs.append(
                WorkloadJob(
                    submit_s=row.number("submit_s", least=0),
                    user=row.text("user"),
                    application=row.text("application"),
                    job_type=row.job_type("job_type"),
                    work_s=row.number("work_s", above=0, most=LONGEST_S),
                    gpu_memory_mib=row.whole("gpu_memory_mib", least=0),
                    cpu_cores=row.whole("cpu_cores", least=1),
                    memory_mib=row.whole("memory_mib", least=1),
                    priority=row.number("priority", least=0, most=1),
                )
            )
            if len(jobs) > 1 and jobs[-1].submit_s < jobs[-2].submit_s:
                raise InvalidInput(f"{where}: submit_s: lines must be in the order of submission", field="submit_s")
    return jobs


def read_swf(
    path: str | Path, *, seed: int = 0, limit: int | None = None, scenario: Scenario | None = None
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a trace in Standard Workload Format (also gzipped, `.gz`).

    A job of several processors becomes one GPU job. Run time becomes work on the reference GPU, requested time the
    expected runtime there, user id n the user `user-<n>`, submit times count from the first job that is kept. Jobs
    without run time, cancelled jobs and parts of checkpointed jobs are skipped. What a trace lacks (job type,
    application, cores, memory, GPU memory, priority, a missing user) is drawn for each job in turn by the scenario's
    rules; a trace's processors and memory are those of a CPU machine and say nothing about a GPU job's.

    Args:
        path: the file.
        seed: of what is drawn.
        limit: stop after so many jobs.
        scenario: where missing fields come from; `paper` where left out.

    Returns:
        The jobs in the order of submission, and what was done to the trace.

    Raises:
        InvalidInput: naming file, line and field.
    """
    scenario = scenario or load_scenario("paper")
    rng = np.random.default_rng(seed)
    counts = dict.fromkeys(("lines", "run_time", "cancelled", "parts", "several", "failed", "user", "requested"), 0)
    jobs: list[WorkloadJob] = []
    with _complaints(path), _open(path) as file:
        for line_number, line in enumerate(file, start=1):
            values = line.partition(";")[0].split()
            if not values:
                continue
            if limit is not None and len(jobs) >= limit:
                break
            counts["lines"] += 1
            where = f"{path}: line {line_number}"
            if len(values) != len(SWF_FIELDS):
                field = SWF_FIELDS[len(values)] if len(values) < len(SWF_FIELDS) else SWF_FIELDS[-1]
                raise InvalidInput(
                    f"{where}: {field}: {len(values)} values where the format has {len(SWF_FIELDS)}", field=field
                )
            row = _Row(where, dict(zip(SWF_FIELDS, values, strict=True)))
            run_s = row.number("run_time", most=LONGEST_S)
            status = row.number("status")
            if status in SWF_PARTS:
                counts["parts"] += 1
            elif status == SWF_CANCELLED:
                counts["cancelled"] += 1
            elif run_s <= 0:
                counts["run_time"] += 1
            else:
                processors = max(row.number("allocated_processors"), row.number("requested_processors"))
                requested_s = row.number("requested_time")
                if requested_s > LONGEST_S:  # an estimate only: "no limit" is no reason to refuse a trace
                    requested_s = -1.0
                user_id = row.whole("user_id", least=-1)
                job_type, application = draw_application(scenario, rng)
                drawn_user = draw_user(scenario, application, rng)
                demand = draw_demand(scenario, job_type, rng)
                counts["several"] += processors > 1
                counts["failed"] += status == SWF_FAILED
                counts["user"] += user_id < 0
                counts["requested"] += requested_s <= 0
                jobs.append(
                    WorkloadJob(
                        submit_s=row.number("submit_time", least=0),
                        user=f"user-{user_id}" if user_id >= 0 else drawn_user,
                        application=application,
                        job_type=job_type,
                        work_s=run_s,
                        gpu_memory_mib=demand.gpu_memory_mib,
                        cpu_cores=demand.cpu_cores,
                        memory_mib=demand.memory_mib,
                        priority=demand.priority,
                        expected_runtime_s=requested_s if requested_s > 0 else None,
                    )
                )
    notes = TraceNotes(
        path=str(path),
        lines=counts["lines"],
        jobs=len(jobs),
        skipped_without_run_time=counts["run_time"],
        skipped_cancelled=counts["cancelled"],
        skipped_parts=counts["parts"],
        several_processors=counts["several"],
        failed_in_trace=counts["failed"],
        without_user=counts["user"],
        without_requested_time=counts["requested"],
        seed=seed,
    )
    return _from_first_submission(jobs), notes


def _from_first_submission(jobs: list[WorkloadJob]) -> list[WorkloadJob]:
    """The jobs by submit time (equal ones as in the file), counted from the first."""
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    return [replace(job, submit_s=job.submit_s - ordered[0].submit_s) for job in ordered]


def _open(path: str | Path) -> TextIO:
    if not Path(path).is_file():
        raise InvalidInput(f"{path}: no such file")
    # utf-8-sig: some exports begin with a byte order mark.
    if str(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return Path(path).open(encoding="utf-8-sig", errors="replace", newline="")


@contextmanager
def _complaints(path: str | Path) -> Iterator[None]:
    """What the file system, gzip and csv say of a broken file, as the caller's error."""
    try:
        yield
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error


class _Row:
    """The fields of one line; every complaint names file, line and field."""

    def __init__(self, where: str, values: dict[str, str]) -> None:
        self._where = where
        self._values = values

    def _refuse(self, field: str, wanted: str) -> NoReturn:
        raise InvalidInput(f"{self._where}: {field}: must be {wanted}, not '{self._values[field]}'", field=field)

    def text(self, field: str) -> str:
        """Anything but nothing."""
        if not self._values[field]:
            self._refuse(field, "given")
        return self._values[field]

    def number(
        self, field: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float:
        """A finite number within the limits."""
        bounds = (
            (least > -math.inf, f"from {least:g}"),
            (above > -math.inf, f"above {above:g}"),
            (most < math.inf, f"at most {most:g}"),
        )
        wanted = " ".join(["a number", *(text for given, text in bounds if given)])
        try:
            value = float(self._values[field])
        except ValueError:
            self._refuse(field, wanted)
        if not (math.isfinite(value) and least <= value <= most and (value > above)):
            self._refuse(field, wanted)
        return value

    def whole(self, field: str, *, least: int, most: int = 2**31 - 1) -> int:
        """A whole number; `4.0` is one too."""
        wanted = f"a whole number from {least} to {most}"
        try:
            value = float(self._values[field])
        except ValueError:
            self._refuse(field, wanted)
        if not (value.is_integer() and least <= value <= most):
            self._refuse(field, wanted)
        return int(value)

    def job_type(self, field: str) -> JobType:
        """One of the three kinds, by its label."""
        found = {job_type.label: job_type for job_type in JobType}.get(self._values[field])
        if found is None:
            self._refuse(field, "one of " + ", ".join(job_type.label for job_type in JobType))
        return found
