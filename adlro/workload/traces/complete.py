"""From a trace's jobs to a complete job list, with notes about the conversion. numpy only.

Jobs of several GPUs keep them (`MULTI_GPU`): "gang", or become jobs of one GPU with the same duration: "one".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.workload.demand import NodeKind, holding_models, node_kinds
from adlro.workload.job_lists import WorkloadJob, draw_application, draw_demand, draw_user
from adlro.workload.scenario import Scenario
from adlro.workload.traces.rows import LARGEST

TEXTS = {
    "without_run_time": "have no run time and were left out",
    "cancelled": "were cancelled before they ran to their end and were left out",
    "parts": "are parts of a checkpointed job that has a line of its own and were left out",
    "never_ran": "never ran and were left out",
    "without_gpu": "ask for no GPU and were left out",
    "out_of_order": "are earlier than the line before; jobs are taken in the order of submission",
    "several_processors": "ran on several processors; each became a job of one GPU",
    "several_gpus": "ran on several GPUs; each became a job of one GPU",
    "several_gpus_shared": "ran on several GPUs; each became a job of one GPU with its share of cores and memory",
    "gangs": "have several GPUs and keep them; the duration is the work on as many GPUs of the reference model, packed",
    "gangs_of_processors": "ran on several processors; each became a job of as many GPUs",
    "steps_assumed": "were not measured on as many GPUs; their steps/s are assumed to grow in proportion from the "
    "nearest smaller number",
    "too_large": "ask for more GPUs of one model than the cluster can give them, and were left out; `--multi-gpu one` "
    "runs each on one GPU",
    "share_of_a_node": "have several GPUs, and with each at most a GPU's share of a node's cores and memory, not all "
    "that was drawn",
    "part_of_a_gpu": "shared a GPU with others; each became a job of a whole one",
    "gpu_models_asked_for": "asked for GPU models that are not this cluster's; they may run on any",
    "failed": "failed in the trace; they run here for the same time and succeed",
    "ended_while_running": "still ran when they were deleted or the trace ended; they run for as long as until then",
    "without_user": "have no user; one was drawn",
    "without_requested_time": "have no requested time; they are submitted without an expected runtime",
}
"""The texts for the keys of `TraceNotes.counts`."""

MULTI_GPU = ("gang", "one")
"""What becomes of a trace's jobs of several GPUs: they keep them, or get one."""


@dataclass(frozen=True, slots=True)
class TraceNotes:
    """Notes about a trace's conversion, for the report.

    Attributes:
        path: the file.
        trace_format: as in `TRACE_FORMATS`.
        lines: number of job lines; with a limit, up to the last job of the list.
        jobs: number of jobs of the list.
        jobs_in_file: number of these and of those beyond a limit.
        counts: by key of `TEXTS`, the number of lines (left out) or jobs (changed); 0 is omitted.
        drawn: fields that the trace lacks for all jobs, drawn for each.
        scenario: the scenario with their distributions.
        seed: seed of the draws.
        remarks: rules that apply to every job.
        first_lines: for `out_of_order` and `too_large`, the first such line.
    """

    path: str
    trace_format: str
    lines: int
    jobs: int
    jobs_in_file: int
    counts: Mapping[str, int] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    scenario: str = ""
    seed: int = 0
    remarks: tuple[str, ...] = ()
    first_lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The notes for people."""
        said = [
            f"{count} of {self.lines} lines"
            + (f" (the first: line {self.first_lines[key]})" if key in self.first_lines else "")
            + f": {TEXTS[key]}"
            for key, count in self.counts.items()
        ]
        if self.jobs < self.jobs_in_file:
            said.append(f"the first {self.jobs} of {self.jobs_in_file} jobs by submission")
        said += self.remarks
        if self.drawn:
            said.append(
                f"{', '.join(self.drawn[:-1])} and {self.drawn[-1]} are not in the trace: drawn for each job from the "
                f"distributions of the scenario {self.scenario} with seed {self.seed}"
            )
        return tuple(said)


@dataclass(slots=True)
class TraceJob:
    """A trace's data of a job; None for a missing field. `flags` are keys of `TEXTS`."""

    line: int
    submit_s: float
    work_s: float
    user: str | None = None
    application: str | None = None
    job_type: JobType | None = None
    cpu_cores: int | None = None
    memory_mib: int | None = None
    gpu_memory_mib: int | None = None
    priority: float | None = None
    expected_runtime_s: float | None = None
    flags: tuple[str, ...] = ()
    gpu_count: int = 1


@dataclass(slots=True)
class Found:
    """A file's content: the number of job lines, the jobs among them, and counts of lines left out, by reason."""

    lines: int = 0
    jobs: list[TraceJob] = field(default_factory=list)
    left_out: list[tuple[int, str]] = field(default_factory=list)


def complete(
    found: Found,
    *,
    path: str | Path,
    trace_format: str,
    drawn: Sequence[str],
    scenario: Scenario,
    seed: int,
    limit: int | None,
    remarks: Sequence[str] = (),
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """The complete job list: in the order of submission, counted from the first, with drawn values for missing fields.

    Args:
        found: the file's content.
        path: the file.
        trace_format: its format.
        drawn: names of the fields that the format lacks, for the notes.
        scenario: source of the drawn fields.
        seed: seed of the draws. Every job draws the same count of random numbers, so a limit does not change the
            remaining jobs.
        limit: only the first jobs by submission, up to this number.
        remarks: remarks for the notes.
        cluster: where the jobs are to run: jobs of several GPUs that it could hold with one, but never with all of
            them, are left out. None: all are taken.

    Raises:
        InvalidInput: the file has no usable job.
    """
    rng = np.random.default_rng(seed)
    share = _share_of_a_node(scenario.cluster if cluster is None else cluster)
    kinds = None if cluster is None else node_kinds(cluster)
    ordered = sorted(found.jobs, key=lambda job: job.submit_s)
    taken: list[TraceJob] = []
    too_large: list[TraceJob] = []
    jobs: list[WorkloadJob] = []
    for job in ordered:
        if len(jobs) == limit:
            break
        filled, capped = _filled(job, taken[0].submit_s if taken else job.submit_s, scenario, rng, share)
        if kinds is not None and is_too_large(filled, kinds):
            too_large.append(job)
            continue
        if capped:
            job.flags = (*job.flags, "share_of_a_node")
        taken.append(job)
        jobs.append(filled)
    read = len(taken) + len(too_large)
    last_line = max(job.line for job in (*taken, *too_large)) if read < len(ordered) else LARGEST
    left_out = [key for line, key in found.left_out if line <= last_line] + ["too_large"] * len(too_large)
    if not jobs:
        reasons = Counter([*(key for _, key in found.left_out), *["too_large"] * len(too_large)])
        why = "; ".join(f"{count} {TEXTS[key]}" for key, count in reasons.items())
        raise InvalidInput(
            f"{path}: holds no job that can run: {found.lines} job lines" + (f", of which {why}" if why else ""),
            field="path",
        )
    said = Counter([*left_out, *(flag for job in taken for flag in job.flags)])
    lines_of = {
        "out_of_order": [job.line for job in taken if "out_of_order" in job.flags],
        "too_large": [job.line for job in too_large],
    }
    notes = TraceNotes(
        path=str(path),
        trace_format=trace_format,
        lines=len(taken) + len(left_out),
        jobs=len(jobs),
        jobs_in_file=len(ordered) - len(too_large),
        counts={key: said[key] for key in TEXTS if said[key]},
        drawn=tuple(drawn),
        scenario=scenario.name,
        seed=seed,
        remarks=tuple(remarks),
        first_lines={key: min(lines) for key, lines in lines_of.items() if lines},
    )
    return jobs, notes


def require_multi_gpu(multi_gpu: str) -> None:
    """Raises InvalidInput for what is not one of `MULTI_GPU`."""
    if multi_gpu not in MULTI_GPU:
        raise InvalidInput(f"multi_gpu: must be {' or '.join(MULTI_GPU)}, not '{multi_gpu}'", field="multi_gpu")


def is_too_large(job: WorkloadJob, kinds: Mapping[NodeKind, int]) -> bool:
    """Whether a cluster could hold the job with one GPU, but never with all of them."""
    if job.gpu_count == 1 or holding_models(kinds, job):
        return False
    return bool(holding_models(kinds, replace(job, gpu_count=1)))


def _share_of_a_node(cluster: Cluster) -> tuple[int, int]:
    """Cores and MiB of memory for each GPU that every node has, from 1."""
    nodes = [node for node in cluster.nodes if node.gpus]
    return (
        max(1, min((node.cpu_cores // len(node.gpus) for node in nodes), default=LARGEST)),
        max(1, min((node.memory_mib // len(node.gpus) for node in nodes), default=LARGEST)),
    )


def _filled(
    job: TraceJob, first_s: float, scenario: Scenario, rng: np.random.Generator, share: tuple[int, int]
) -> tuple[WorkloadJob, bool]:
    """The job with drawn values for what is missing, and whether these were cut to a GPU's share of a node.

    What is drawn is that of a job of one GPU; with eight times that, jobs would be too large for reasons that aren't in
    the trace.
    """
    job_type, application = draw_application(scenario, rng)
    if job.job_type is not None:
        job_type = job.job_type
    known = application
    if job.application is not None and job.application in scenario.job_types:
        known = job.application
    user = draw_user(scenario, known, rng)
    demand = draw_demand(scenario, job_type, rng)
    drawn_cores, drawn_mib = demand.cpu_cores, demand.memory_mib
    if job.gpu_count > 1:
        drawn_cores, drawn_mib = min(drawn_cores, share[0]), min(drawn_mib, share[1])
    capped = (job.cpu_cores is None and drawn_cores < demand.cpu_cores) or (
        job.memory_mib is None and drawn_mib < demand.memory_mib
    )
    filled = WorkloadJob(
        submit_s=job.submit_s - first_s,
        user=user if job.user is None else job.user,
        application=application if job.application is None else job.application,
        job_type=job_type,
        work_s=job.work_s,
        gpu_memory_mib=demand.gpu_memory_mib if job.gpu_memory_mib is None else job.gpu_memory_mib,
        cpu_cores=drawn_cores if job.cpu_cores is None else job.cpu_cores,
        memory_mib=drawn_mib if job.memory_mib is None else job.memory_mib,
        priority=demand.priority if job.priority is None else job.priority,
        expected_runtime_s=job.expected_runtime_s,
        source_line=job.line,
        gpu_count=job.gpu_count,
    )
    return filled, capped
