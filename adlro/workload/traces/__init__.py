"""Job lists read from files: the project's own lists (`paper`), and traces in four formats, also gzipped.

Each reader returns the jobs in the order of submission, and notes about the conversion. Fields that a trace lacks are
drawn from a scenario's distributions with a seed. Invalid input is an InvalidInput that names file, line and field.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.workload.demand import node_kinds
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario
from adlro.workload.traces.alibaba import ALIBABA_COLUMNS, read_alibaba
from adlro.workload.traces.complete import MULTI_GPU, TEXTS, TraceNotes, is_too_large, require_multi_gpu
from adlro.workload.traces.gavel import GAVEL_COLUMNS, read_gavel
from adlro.workload.traces.paper import PAPER_COLUMNS, PAPER_OPTIONAL_COLUMNS, read_paper_csv, write_paper_csv
from adlro.workload.traces.philly import PHILLY_COLUMNS, read_philly
from adlro.workload.traces.rows import read_text
from adlro.workload.traces.swf import SWF_FIELDS, read_swf

__all__ = [
    "ALIBABA_COLUMNS",
    "GAVEL_COLUMNS",
    "MULTI_GPU",
    "PAPER_COLUMNS",
    "PAPER_OPTIONAL_COLUMNS",
    "PHILLY_COLUMNS",
    "SWF_FIELDS",
    "TRACE_FORMATS",
    "TraceNotes",
    "format_of",
    "read_alibaba",
    "read_gavel",
    "read_paper_csv",
    "read_philly",
    "read_swf",
    "read_trace",
    "write_paper_csv",
]

_READERS = {"swf": read_swf, "philly": read_philly, "alibaba": read_alibaba, "gavel": read_gavel}
TRACE_FORMATS = (*_READERS, "paper")
_COLUMNS = {
    "philly": PHILLY_COLUMNS,
    "alibaba": ALIBABA_COLUMNS,
    "gavel": GAVEL_COLUMNS,
    "paper": PAPER_COLUMNS,
}


def format_of(path: str | Path) -> str | None:
    """The format by a file's name and, for CSV, by its header; None if the name is unknown.

    A CSV file without all columns of any format counts as the format with most of its columns, whose reader names the
    missing ones; without any, as `paper`.

    Raises:
        InvalidInput: a CSV file that cannot be read.
    """
    stem = Path(path).name.lower().removesuffix(".gz")
    if stem.endswith(".swf"):
        return "swf"
    if not stem.endswith(".csv"):
        return None
    header = {name.strip() for name in read_text(path, lenient=True).partition("\n")[0].split(",")}
    shared = {name: len(header.intersection(columns)) for name, columns in _COLUMNS.items()}
    if not any(shared.values()):
        return "paper"
    # A format with all its columns goes first; then the number of columns, then their share of the format's.
    return max(shared, key=lambda name: (shared[name] == len(_COLUMNS[name]), shared[name], -len(_COLUMNS[name])))


def read_trace(
    path: str | Path,
    trace_format: str,
    *,
    seed: int = 0,
    limit: int | None = None,
    scenario: Scenario | None = None,
    multi_gpu: str | None = None,
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a job list in one of `TRACE_FORMATS`.

    Args:
        path: the file.
        trace_format: its format.
        seed: seed of the drawn fields.
        limit: only the first jobs by submission, up to this number.
        scenario: source of the drawn fields; if left out, `gavel` for that format and `paper` for others.
        multi_gpu: what becomes of jobs of several GPUs, one of `MULTI_GPU`: "gang", they keep them, or "one", they get
            one. None: "gang", but "one" for SWF, whose processors are those of CPU machines.
        cluster: where the jobs are to run; jobs of more GPUs than it can give are left out. None: all are taken.

    Raises:
        InvalidInput: no such format, a limit below 1, no such `multi_gpu`, or an invalid line; the message names file,
            line and field.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"the number of jobs must be at least 1, not {limit}", field="jobs")
    if multi_gpu is not None:
        require_multi_gpu(multi_gpu)
    if trace_format == "paper":
        return _own_list(path, limit, multi_gpu or "gang", cluster)
    if trace_format not in _READERS:
        raise InvalidInput(
            f"trace_format: must be one of {', '.join(TRACE_FORMATS)}, not '{trace_format}'", field="trace_format"
        )
    return _READERS[trace_format](
        path,
        seed=seed,
        limit=limit,
        scenario=scenario,
        multi_gpu=multi_gpu or ("one" if trace_format == "swf" else "gang"),
        cluster=cluster,
    )


def _own_list(
    path: str | Path, limit: int | None, multi_gpu: str, cluster: Cluster | None
) -> tuple[list[WorkloadJob], TraceNotes]:
    """A list of the project's own form: nothing is drawn, and times are as they stand there."""
    found = read_paper_csv(path)
    several = sum(job.gpu_count > 1 for job in found[:limit])
    if multi_gpu == "one":
        found = [replace(job, gpu_count=1, max_node_count=0) for job in found]
    kinds = None if cluster is None else node_kinds(cluster)
    fits = [kinds is None or not is_too_large(job, kinds) for job in found]
    jobs = list(itertools.compress(found, fits))
    if not jobs:
        raise InvalidInput(f"{path}: holds no job that can run: {len(found)} {TEXTS['too_large']}", field="path")
    taken = jobs[:limit]
    lines = [job.source_line or 0 for job, fit in zip(found, fits, strict=True) if not fit]
    lines = [line for line in lines if len(taken) == len(jobs) or line < (taken[-1].source_line or 0)]
    counts = {"several_gpus": several} if multi_gpu == "one" else {}
    return taken, TraceNotes(
        path=str(path),
        trace_format="paper",
        lines=len(taken) + len(lines),
        jobs=len(taken),
        jobs_in_file=len(jobs),
        counts={key: count for key, count in {**counts, "too_large": len(lines)}.items() if count},
        first_lines={"too_large": lines[0]} if lines else {},
    )
